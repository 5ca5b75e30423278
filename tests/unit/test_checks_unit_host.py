"""The host's side of the unit, limits, network, process and last-run sections: real files and processes, no secret."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ddtree_agent import (
    inner_limits,
    inner_network,
    probe_areas,
    probe_engines,
    probe_last_run,
    probe_limits,
    probe_network,
    probe_unit,
    probe_unit_lint,
    probe_unit_needs,
    service,
    systemd,
    unitenv,
    unitfile,
)
from ddtree_agent import sandbox as agent_sandbox
from ddtree_ops.core.checks import last_run, limits, network, processes, sandbox, unit_files

pytestmark = pytest.mark.tier("preflight")
SECRET = "sk-hush-hush-0123456789"
UNIT = f"""[Unit]
Description=engine
StartLimitIntervalSec=5
[Service]
Type=exec
KillMode=mixed
Environment=API_KEY={SECRET} NODE=%H "TWO=a b" stray
Environment=URL=http://x/50%%20 BAD=p%40ss PLAIN=1
EnvironmentFile=ENVFILE
EnvironmentFile="/etc/quoted.env"
EnvironmentFile=-/nowhere/optional.env
WorkingDirectory=/nowhere
ExecStartPre=-/bin/gone $MAYBE
# a comment in a continuation \\
ExecStart=/bin/sh -c 'exec ${{BIN}}/server --api-key {SECRET} $$HOME' \\
  # ends nothing
  --json-model-override-args {{"a": 1}} --ok '{{"a": 1}}'
--api-key={SECRET}
--api-key {SECRET} --x=1
[X-Notes]
Key={SECRET}
"""
DROPIN = """[Service]
ExecStart=
ExecStart=@/v/python -m sglang.launch_server --key {secret} --x ${{BIN}} --date %Y-%m
KillMode=process
"""


def context(show: dict[str, str], args: tuple[str, ...] = (), **request: Any) -> probe_areas.Context:
    launch = unitenv.Launch("/v/python", [], "cwd", list(args))
    return probe_areas.Context({"service": "sglang.service", **request}, show, launch, {}, {})


@pytest.fixture
def unit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The section of a unit with a drop-in that has every fault, as the agent tells it."""
    env = tmp_path / "e.env"
    env.write_text(f"API={SECRET}\nexport X={SECRET}\nulimit -n 9\n; comment\nQ='two\nlines'\n")
    path = tmp_path / "sglang.service"
    path.write_text(UNIT.replace("ENVFILE", str(env)))
    dropin = tmp_path / "10.conf"
    dropin.write_text(DROPIN.format(secret=SECRET))
    shown = {
        "Type": "exec", "KillMode": "mixed", "WorkingDirectory": "/nowhere", "FragmentPath": str(path),
        "DropInPaths": str(dropin), "Environment": f"API_KEY={SECRET} NODE=ct129 URL=http://x/50%20 PLAIN=2",
    }  # fmt: skip
    monkeypatch.setattr(systemd, "show", lambda name, props: {k: shown[k] for k in props if k in shown})
    return probe_unit_lint.collect(context(shown))


def test_no_value_that_may_be_a_secret_leaves_the_host(unit: dict[str, Any]) -> None:
    told = json.dumps(unit)
    assert SECRET not in told and "p%40ss" not in told and "launch_server" not in told
    keys = {item["key"]: item["value"] for item in unit["settings"]}
    assert keys["Environment"] is None and keys["ExecStart"] is None and keys["KillMode"] == "process"


def test_what_a_shell_would_replace_in_an_environment_file_is_told() -> None:
    text = (
        "PORT=30000 # http\nURL=http://x/#a\nQUOTED='a # b'\n"
        'PATH=$VENV/bin:/usr/bin\nPASS=a$b\nMODEL_DIR=/srv/m\nBOTH="a" # b\n'
    )
    told = unitfile.environment_file(text)["ignored"]
    assert [(item["line"], item["why"].split(":")[0][-9:]) for item in told] == [
        (1, "o comment"),
        (4, "ses $VENV"),
        (7, "o comment"),
    ]
    assert "30000" not in str(told)
    assert unitfile.unexpanded("LD_LIBRARY_PATH", "${CUDA_HOME}/lib64") == "${CUDA_HOME}"
    assert unitfile.unexpanded("LD_LIBRARY_PATH", "/usr/lib") == unitfile.unexpanded("PASS", "a$b") == ""


def test_the_files_are_read_as_systemd_reads_them(unit: dict[str, Any]) -> None:
    facts = unit_files.read(unit)
    assert [(c.key, c.program, c.prefixes) for c in facts.commands] == [
        ("ExecStartPre", "/bin/gone", "-"),
        ("ExecStart", "/v/python", "@"),
    ]
    assert facts.commands[0].optional_unset == ("MAYBE",)
    assert facts.commands[1].unset == ("BIN",)
    assert {(s.letter, s.joined) for s in facts.commands[1].specifiers} == {("Y", True), ("m", True)}
    assert {(e.name, s.letter, s.known, s.joined) for e in facts.environment for s in e.specifiers} == {
        ("NODE", "H", True, False),
        ("BAD", "4", False, True),
    }
    assert len(facts.dropped) == 1
    assert facts.stale == ("PLAIN",)
    assert facts.written("KillMode") is not None and facts.written("StartLimitIntervalSec") is None
    first, second, third = facts.environment_files
    assert [why.split(":")[0] for _, why in first.ignored] == ["export is shell", "no NAME=VALUE"]
    assert [line for line, _ in first.ignored] == [2, 3]
    assert (second.absolute, third.exists, third.optional) == (False, False, True)
    assert (facts.directory.exists, facts.directory.written) == (False, "/nowhere")
    assert {p.path: p.exists for p in facts.programs} == {"/bin/gone": False, "/v/python": False}


def test_systemd_analyze_is_read_by_its_words_and_hushed(unit: dict[str, Any]) -> None:
    if unit["verify"]["status"] is None:
        pytest.skip("systemd-analyze is not installed")
    said = "\n".join(unit["verify"]["lines"])
    assert "path is not absolute" in said and "stray" not in said


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (f'u.service:4: Unbalanced quoting, ignoring: "/v/python --key {SECRET}', "ignoring: /v/python"),
        (f"u.service:4: Invalid environment assignment, ignoring: {SECRET}", "ignoring: …"),
        (f"u.service:4: Failed to resolve specifiers in K={SECRET}%2, ignoring: Invalid slot", "specifiers in …"),
        (f"u.service:4: Executable path is not absolute: python3 --key {SECRET}", "not absolute: …"),
        (f"u.service:4: Neither a valid executable name nor an absolute path: $PWD/x {SECRET}", "path: $PWD/x"),
        (f'u.service:4: Ignoring unknown escape sequences: "{SECRET}\\d"', "sequences: …"),
        (f"u.service:4: Failed to parse ExecStart= parameter, ignoring: {SECRET}", "ignoring: …"),
        ("u.service:9: Failed to parse TimeoutStartSec= parameter, ignoring: 5parsecs", "ignoring: 5parsecs"),
        ("u.service:6: Unknown key name 'Killmode' in section 'Service', ignoring.", "'Killmode' in section"),
    ],
)  # fmt: skip
def test_a_line_of_systemd_analyze_keeps_its_words_and_no_value(line: str, told: str) -> None:
    assert told in probe_unit_lint.hushed(line) and SECRET not in probe_unit_lint.hushed(line)


@pytest.mark.parametrize(
    ("value", "holes", "vanish", "letters", "json_of", "open_quote"),
    [
        ("/x --a ${A} $B $C/d $$D ${E}", ["E"], ["B"], [], [], False),
        (":/x ${E} $B", [], [], [], [], False),
        ("/x --j {\"a\": 1} --k '{\"a\": 1}' --l={\"b\":2}", [], [], [], ["--j", "--l"], False),
        ("/x --t {{x}} --n {a} [1,2]", [], [], [], [], False),
        ("/x 'open", [], [], [], [], True),
        ("/x 50%% %n %H%i", [], [], ["H", "i", "n"], [], False),
        ("/x \"two words\" a\\ b", [], [], [], [], False),
    ],
)  # fmt: skip
def test_the_shape_of_a_command(
    value: str, holes: list[str], vanish: list[str], letters: list[str], json_of: list[str], open_quote: bool
) -> None:
    line = unitfile.Line("/u", 1, "Service", "ExecStart", value)
    found = unitfile.command(line, {"A"})
    assert (found["unset"], found["optional_unset"]) == (holes, vanish)
    assert [item["letter"] for item in found["specifiers"]] == letters
    assert (found["json"], found["open_quote"]) == (json_of, open_quote)


def test_a_script_with_a_carriage_return_names_no_interpreter(tmp_path: Path) -> None:
    script = tmp_path / "run"
    script.write_bytes(b"#!/bin/bash\r\nexec true\n")
    script.chmod(0o755)
    found = probe_unit_lint.program(str(script))
    assert (found["interpreter"], found["interpreter_exists"]) == ("/bin/bash\\r", False)
    script.write_bytes(b"#!/bin/sh -e\n")
    assert probe_unit_lint.program(str(script))["interpreter_exists"] is True
    assert probe_unit_lint.program("bash")["exists"] is None


def test_a_file_that_is_neither_program_nor_script_does_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "run"
    monkeypatch.setattr(probe_unit_lint, "_other_formats", lambda: False)
    for text, runs in ((b"exec true\n", False), (b"#!/bin/sh\n", True), (b"\x7fELF\x02", True), (b"", False)):
        script.write_bytes(text)
        assert probe_unit_lint.program(str(script))["runs"] is runs
    monkeypatch.setattr(probe_unit_lint, "_other_formats", lambda: True)
    assert probe_unit_lint.program(str(script))["runs"] is None


def test_the_sandbox_gets_the_unit_s_own_soft_and_hard_limits() -> None:
    show = {
        "LimitNOFILE": "524288", "LimitNOFILESoft": "1024", "LimitMEMLOCK": "infinity", "LimitMEMLOCKSoft": "infinity",
        "LimitNPROC": "100", "MemoryMax": "infinity", "AmbientCapabilities": "cap_net_bind_service",
    }  # fmt: skip
    argv = agent_sandbox.unit_argv("u.service", show, {}, 5)
    limits_of = [
        word.partition("=")[2] for word in argv if word.startswith(("--property=Limit", "--property=Mem"))
    ]
    assert limits_of == ["LimitNOFILE=1024:524288", "LimitMEMLOCK=infinity:infinity", "LimitNPROC=100:100"]
    assert "--property=AmbientCapabilities=cap_net_bind_service" in argv
    assert {"LimitNOFILESoft", "LimitMEMLOCKSoft", "AmbientCapabilities"} <= set(probe_unit.properties())


def test_limits_are_measured_in_the_process_itself(tmp_path: Path) -> None:
    (tmp_path / "ok").write_text("x")
    tmp = os.stat("/tmp")  # as the agent does
    argument = {
        "paths": {"package": str(tmp_path), "gone": str(tmp_path / "no")},
        "tmp": [tmp.st_dev, tmp.st_ino],
    }
    code = (
        f"import json; exec(open({inner_limits.__file__!r}).read()); print(json.dumps(collect({argument!r})))"
    )
    argv = [
        "bash",
        "-c",
        'ulimit -Sn 123; ulimit -l 64; umask 077; unset HOME; exec "$@"',
        "_",
        sys.executable,
        "-c",
        code,
    ]
    done = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=20)
    facts = sandbox.read(json.loads(done.stdout))
    assert facts.rlimits["nofile"][0] == 123 and facts.rlimits["memlock"][0] == 65536
    assert (facts.umask, facts.home_set, facts.tmp_private) == (0o077, False, False)
    assert [(p.what, p.exists, p.problem) for p in facts.read] == [
        ("package", True, None),
        ("gone", False, "No such file or directory"),
    ]


@pytest.mark.skipif(
    os.geteuid() != 0 or not Path("/usr/bin/python3").exists(), reason="needs root, and a Python for all"
)
def test_what_another_user_may_not_read_is_named(tmp_path: Path) -> None:
    for part in (tmp_path, *tmp_path.parents):
        if part.is_relative_to("/tmp") and str(part) != "/tmp":
            part.chmod(0o755)
    secret = tmp_path / "package"
    secret.mkdir(mode=0o700)
    argument = {"paths": {"package": str(secret)}}
    code = f"import json; exec(open(0).read()); print(json.dumps(collect({argument!r})))"
    source = Path(inner_limits.__file__).read_bytes()
    done = subprocess.run(
        ["/usr/bin/python3", "-c", code], input=source, capture_output=True, check=True, timeout=20, user=65534, cwd="/"
    )  # fmt: skip
    (found,) = sandbox.read(json.loads(done.stdout)).read
    assert found.problem is not None and "Permission denied" in found.problem


@pytest.mark.parametrize(
    ("env", "http", "names", "hosts"),
    [
        ({"http_proxy": "http://u:pw@p:3128"}, True, ["http_proxy"], []),
        ({"HTTP_PROXY": "http://p", "no_proxy": "a, b c"}, True, ["http_proxy"], ["a", "b", "c"]),
        ({"HTTP_PROXY": "http://p", "http_proxy": ""}, False, [], []),
        ({"https_proxy": "http://p"}, False, ["https_proxy"], []),
        ({"ALL_PROXY": "socks5://p"}, True, ["all_proxy"], []),
        ({"NO_PROXY": "*"}, False, [], ["*"]),
        ({"no_proxy": "user:pw@host"}, False, [], ["host"]),
    ],
)
def test_proxies_are_told_without_their_addresses(
    env: dict[str, str], http: bool, names: list[str], hosts: list[str]
) -> None:
    assert inner_network.proxies(env) == {"http": http, "names": names, "no_proxy": hosts}
    assert "pw" not in json.dumps(inner_network.proxies(env))


def test_an_address_that_is_not_ours_cannot_be_bound_and_a_taken_port_is_no_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as held:
        taken = inner_network.collect({"host": "127.0.0.1", "port": held.getsockname()[1]})
    assert network.read_inside(taken).bind_error is None
    away = inner_network.collect({"host": "192.0.2.77", "port": 30000})
    assert "assign" in str(network.read_inside(away).bind_error)


def test_the_planned_ports_and_their_holders() -> None:
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = held.getsockname()[1]
        flags = (
            "--port",
            "30000",
            "--nccl-port",
            str(port),
            "--dist-init-addr=10.0.0.1:20000",
            "--enable-dp-attention",
        )
        found = network.read(probe_network.collect(context({"ControlGroup": "/x"}, flags)))
    ports = {(item.flag, item.port) for item in found.ports}
    assert {("--port", 30000), ("--nccl-port", port), ("--dist-init-addr", 20000)} <= ports
    assert ("--enable-dp-attention", 20001) in ports
    (mine,) = [item for item in found.ports if item.flag == "--nccl-port"]
    assert [owner.pid for owner in mine.owners] == [os.getpid()] and not mine.owners[0].ours
    assert found.ephemeral is not None and found.ephemeral[0] < found.ephemeral[1]


def tree(root: Path, files: dict[str, str]) -> str:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return str(root)


def test_the_tightest_limit_on_the_way_up_counts(tmp_path: Path) -> None:
    root = tree(tmp_path, {
        "cgroup.controllers": "memory pids", "memory.max": "max\n", "pids.max": "100\n",
        "system.slice/memory.max": "5000\n", "system.slice/x.service/memory.max": "9000\n",
        "system.slice/x.service/memory.high": "max\n", "system.slice/x.service/memory.current": "77\n",
        "system.slice/x.service/memory.events": "low 0\noom 2\noom_kill 1\n",
    })  # fmt: skip
    memory = probe_limits.meminfo("MemTotal: 8 kB\nMemAvailable: 4 kB\n")
    raw = {
        "memory": memory,
        "cgroup": probe_limits.cgroup("/system.slice/x.service", root),
    }
    facts = limits.read(raw)
    assert facts.memory_max == limits.Limit(5000, "/system.slice") and facts.pids_max == limits.Limit(
        100, "/"
    )
    assert (facts.memory_high, facts.memory_current, facts.oom_kills, facts.version) == (None, 77, 1, 2)
    assert (facts.total, facts.available, facts.swap_total) == (8192, 4096, None)


def test_a_stopped_service_has_the_limit_of_its_setting() -> None:
    facts = limits.read(probe_limits.collect(context({"ControlGroup": "", "MemoryMax": "4096"})))
    assert facts.memory_max is not None and facts.memory_max.value == 4096
    assert limits.read(probe_limits.collect(context({"MemoryMax": "infinity"}))).total


def test_cgroup_v1_says_no_limit_by_a_large_number(tmp_path: Path) -> None:
    root = tree(tmp_path, {
        "memory/memory.limit_in_bytes": "9223372036854771712\n",
        "memory/a/memory.limit_in_bytes": "9223372036854771712\n",
        "memory/a/memory.usage_in_bytes": "5\n",
    })  # fmt: skip
    found = probe_limits.cgroup("/a", root)
    assert (found["version"], found["memory_max"], found["memory_current"], found["oom_kills"]) == (
        1,
        None,
        5,
        None,
    )
    assert probe_limits.cgroup("/a", str(tmp_path / "nothing"))["version"] is None


@pytest.fixture
def engine() -> Iterator[int]:
    """A process that calls itself a scheduler, as the engine's children do."""
    named = subprocess.Popen(["sglang::scheduler_TP0", "60"], executable="/bin/sleep", start_new_session=True)
    until = time.monotonic() + 10
    # the kernel shows a process's new words a moment after the exec that Popen waits for
    while b"sglang" not in Path(f"/proc/{named.pid}/cmdline").read_bytes() and time.monotonic() < until:
        time.sleep(0.01)
    yield named.pid
    os.kill(named.pid, signal.SIGKILL)
    named.wait()


def test_an_engine_process_is_found_by_the_name_that_it_gives_itself(engine: int) -> None:
    raw = probe_engines.collect(context({"ControlGroup": "/system.slice/sglang.service", "MainPID": "1"}))
    found = processes.read(raw)
    (mine,) = [p for p in found.found if p.pid == engine]
    assert (mine.name, mine.ours, mine.gpu, mine.ppid) == ("sglang::scheduler_TP0", False, False, os.getpid())


def test_a_zombie_is_found_by_its_short_name(tmp_path: Path) -> None:
    code = "import os, sys, time\nopen('/proc/self/comm', 'w').write('sglang::schedul')\n"
    child = subprocess.Popen([sys.executable, "-c", code])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    try:
        seen = probe_engines.describe(child.pid, "")
        assert seen is not None and (seen["state"], seen["name"]) == ("Z", "sglang::schedul")
    finally:
        child.wait()


@pytest.mark.parametrize(
    ("text", "unit"),
    [
        ("0::/system.slice/sglang.service\n", "sglang.service"),
        (
            "0::/user.slice/user-1000.slice/user@1000.service/app.slice/llm.service\n",
            "llm.service of user@1000.service",
        ),
        ("0::/user.slice/user-1000.slice/session-3.scope\n", None),
        ("9:memory:/x\n1:name=systemd:/system.slice/a.service\n", "a.service"),
        ("0::/\n", None),
    ],
)
def test_whose_a_process_is(text: str, unit: str | None) -> None:
    assert probe_engines.unit_of(probe_engines.cgroup_path(text)) == unit


def test_names_hold_no_arguments() -> None:
    assert probe_engines.short("/v/python -m sglang.launch_server --api-key") == "sglang.launch_server"
    assert probe_engines.short("sglang::scheduler_TP0") == "sglang::scheduler_TP0"
    assert not probe_engines.ENGINE.search("vim notes-on-sglang.md")


def entry(start: str, message: Any, **more: str) -> str:
    return json.dumps({"_SYSTEMD_INVOCATION_ID": start, "MESSAGE": message, **more})


def test_the_start_before_the_running_one_is_read() -> None:
    journal = "\n".join([
        entry("a", "old"), entry("b", "Traceback (most recent call last):"), entry("b", list(b"ImportError: x\xff")),
        entry("manager", "start-limit-hit", UNIT="s", INVOCATION_ID="b"),
        entry("c", "fine"), "junk", "[]",
    ])  # fmt: skip
    assert probe_last_run.previous(journal, "c") == [
        "Traceback (most recent call last):", "ImportError: x\ufffd", "start-limit-hit",
    ]  # fmt: skip
    assert probe_last_run.previous(journal, "") == ["fine"]
    assert probe_last_run.previous("", "") is None


def test_the_innermost_cause_of_the_last_start_is_told_without_secrets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lines = [
        f"server_args=ServerArgs(api_key='{SECRET}')", "Traceback (most recent call last):",
        "ImportError: /v/common_ops.abi3.so: undefined symbol: _ZNK3c106SymInt6sym_neERKS0_",
        "RuntimeError: Initialization failed. warmup error",
    ]  # fmt: skip
    shown = {
        "Result": "exit-code",
        "ActiveState": "failed",
        "SubState": "failed",
        "NRestarts": "2",
        "ExecMainStatus": "1",
    }
    monkeypatch.setattr(systemd, "show", lambda name, props: shown)
    monkeypatch.setattr(
        probe_last_run, "_journal", lambda name: "\n".join(entry("a", line) for line in lines)
    )
    raw = probe_last_run.collect(context({"StandardOutput": "journal"}))
    facts = last_run.read(raw)
    assert facts.fatal is not None and "undefined symbol" in facts.fatal[0]
    assert (facts.restarts, facts.status, facts.log, facts.start_limit) == (2, 1, True, False)
    assert SECRET not in json.dumps(raw)


def test_a_healthy_log_names_no_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (
        probe_last_run.fatal(
            ["Load weight begin", "GET /health 200", "The server is fired up and ready to roll!"]
        )
        is None
    )


OURS = f"""[Service]
ExecStart=
ExecStart=/v/python -m x
Environment=DDTREE_RELEASE=abc
Environment=PYTHONPATH=/opt/ddtree/releases/abc/overlay
Environment="NOTE=two words 100%%"
Environment=TOKEN={SECRET}
"""


@pytest.mark.parametrize(
    ("changed", "names"),
    [
        ({}, []),
        ({"PYTHONPATH": "/elsewhere"}, ["PYTHONPATH"]),
        ({"PYTHONPATH": None, "TOKEN": "x"}, ["PYTHONPATH", "TOKEN"]),
        ({"NOTE": "other words"}, []),  # shown quoted in ways that differ between releases of systemd
        ({"MORE": "1"}, []),
    ],
)
def test_a_switch_reads_back_the_environment_that_it_planned(
    changed: dict[str, str | None], names: list[str]
) -> None:
    env: dict[str, str | None] = {
        "DDTREE_RELEASE": "abc", "PYTHONPATH": "/opt/ddtree/releases/abc/overlay", "NOTE": "two words 100%",
        "TOKEN": SECRET, **changed,
    }  # fmt: skip
    shown = " ".join(f'"{n}={v}"' if " " in v else f"{n}={v}" for n, v in env.items() if v is not None)
    assert service.overridden(OURS, shown) == names


PATHS = """
[Service]
StateDirectory=llm
ReadWritePaths=/var/lib/llm/cache /srv/gone -/srv/maybe "/srv/two words"
InaccessiblePaths=/never
InaccessiblePaths=
BindReadOnlyPaths=HERE:/models:norbind -/no:/x %h/y
LoadCredential=hub:/etc/keys/gone
LoadCredential=own:passed-on
StandardOutput=append:/old/dir/x.log
StandardOutput=append:HERE/x.log
StandardError=journal
"""


def test_the_paths_that_systemd_needs_are_told_with_whether_they_are_there(tmp_path: Path) -> None:
    text = PATHS.replace("HERE", str(tmp_path))
    found = probe_unit_needs.paths(unitfile.parse("/etc/x.service", text))
    assert [(item["key"], item["path"], item["exists"]) for item in found] == [
        ("ReadWritePaths", "/srv/gone", False),
        ("ReadWritePaths", "/srv/two words", False),
        ("BindReadOnlyPaths", str(tmp_path), True),
        ("LoadCredential", "/etc/keys/gone", False),
        ("StandardOutput", str(tmp_path), True),
    ]


def test_under_another_root_only_the_root_itself_is_looked_for() -> None:
    lines = unitfile.parse("/x", "[Service]\nRootDirectory=/srv/root\nReadWritePaths=/inside\n")
    assert [item["path"] for item in probe_unit_needs.paths(lines)] == ["/srv/root"]


@pytest.mark.parametrize(
    ("words", "glued"),
    [
        ('/bin/sh -c "$ROOT/run --port 1"', ["ROOT"]),
        ("/bin/echo $ROOT/bin", ["ROOT"]),
        ("/bin/echo ${ROOT}/bin $ROOT $$ROOT/bin 'a $ROOT/b'", []),
        (":/bin/echo $ROOT/bin", []),
    ],
)
def test_a_word_that_begins_with_a_variable_and_goes_on_is_told(words: str, glued: list[str]) -> None:
    line = unitfile.Line("/x", 1, "Service", "ExecStart", words)
    assert unitfile.command(line, {"ROOT"})["glued"] == glued


CONDITIONS = """
[Unit]
ConditionPathExists=/nowhere
ConditionPathExists=!/nowhere
ConditionPathExists=|/nowhere
AssertPathIsDirectory=HERE
ConditionFileNotEmpty=HERE/empty
ConditionHost=other
[Service]
ConditionPathExists=/nowhere
"""


def test_conditions_on_paths_are_tried(tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("")
    found = probe_unit_needs.conditions(unitfile.parse("/x", CONDITIONS.replace("HERE", str(tmp_path))))
    assert [(item["key"], item["path"], item["met"]) for item in found] == [
        ("ConditionPathExists", "/nowhere", False),
        ("ConditionPathExists", "!/nowhere", True),
        ("AssertPathIsDirectory", str(tmp_path), True),
        ("ConditionFileNotEmpty", f"{tmp_path}/empty", False),
    ]


def test_required_units_are_told_with_their_state(monkeypatch: pytest.MonkeyPatch) -> None:
    ties = {"Requires": "system.slice m.mount sysinit.target -.mount", "BindsTo": "gone.service"}
    gone = "Id=gone.service\nLoadState=not-found\nActiveState=inactive\n"
    blocks = f"{gone}\nId=m.mount\nLoadState=loaded\nActiveState=active\n"
    monkeypatch.setattr(systemd, "show", lambda name, props: ties)
    monkeypatch.setattr(systemd, "run", lambda argv, timeout: (0, blocks, ""))
    assert probe_unit_needs.units("x.service") == [
        {"name": "gone.service", "tie": "BindsTo", "load": "not-found", "active": "inactive"},
        {"name": "m.mount", "tie": "Requires", "load": "loaded", "active": "active"},
    ]
    monkeypatch.setattr(systemd, "run", lambda argv, timeout: (1, "", "no"))
    assert [item["load"] for item in probe_unit_needs.units("x.service")] == [None, None]


def test_a_start_that_went_well_and_was_stopped_is_no_failed_one() -> None:
    """Every deploy and rollback of ours stops the service: the next preflight must not call that a failure."""
    stop = "[2026-11-30 06:37:59] SIGTERM received. signum=None frame=None. Draining requests and shutting down..."
    ready = "[2026-11-30 06:30:00] The server is fired up and ready to roll!"
    oom = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
    assert probe_last_run.fatal([ready, stop]) is None
    assert probe_last_run.fatal([stop]) is None
    found = probe_last_run.fatal([oom, stop])
    assert found is not None
    assert found.reason == "cuda-oom"
