"""The probe as a whole on a made-up unit with a real package, port and model, judged by the real rules."""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ddtree_agent import caps, package, probe, probe_model, probe_unit, readunit, systemd, unitenv
from ddtree_ops.core.doctor import examine
from ddtree_ops.core.facts_live import Unknown, parse
from ddtree_ops.core.finding import Level
from ddtree_ops.core.wanted import Wanted

pytestmark = pytest.mark.tier("main")
SECRET = "sk-hush-hush"


def shown(path: str, *args: str) -> str:
    return (
        f"{{ path={path} ; argv[]={' '.join((path, *args))} ; ignore_errors=no ; start_time=[n/a] ; pid=0 }}"
    )


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """A host with one unit; yields what `systemctl show` says of it."""
    unit = tmp_path / "sglang.service"
    unit.write_text("[Service]\nStandardOutput=append:/var/log/sglang.log\n")
    env = tmp_path / "sglang.env"
    env.write_text(f'# keys\nPYTHONPATH="{tmp_path / "site"}"\nAPI_KEY={SECRET}\n')
    dropin = tmp_path / "sglang.service.d" / "90-late.conf"
    dropin.parent.mkdir()
    dropin.write_text("[Service]\nExecStart=\nExecStart=/bin/x\n")
    (tmp_path / "sglang.service.d" / "50-ddtree.conf").write_text("[Service]\n")
    (tmp_path / "site" / "sglang").mkdir(parents=True)
    (tmp_path / "site" / "sglang" / "__init__.py").write_text("")
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text(
        json.dumps({"architectures": ["Qwen3ForCausalLM"], "num_hidden_layers": 4})
    )
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = str(server.getsockname()[1])
        show = {
            "LoadState": "loaded", "ActiveState": "active", "SubState": "running", "MainPID": str(os.getpid()),
            "UnitFileState": "enabled", "FragmentPath": str(unit), "NeedDaemonReload": "no",
            "DropInPaths": f"{dropin} {dropin.parent / '50-ddtree.conf'}",
            "EnvironmentFiles": f"{env} (ignore_errors=no)",
            "ExecStart": shown(sys.executable, "-m", "sglang.launch_server", "--model-path", str(model), "--device",
                               "cpu", "--port", port, "--api-key", SECRET),
            "WorkingDirectory": str(tmp_path), "StandardOutput": "append", "ControlGroup": "/none",
        }  # fmt: skip
        monkeypatch.setattr(systemd, "show", lambda name, props: dict(show))
        yield show


def test_the_probe_answers_in_the_shape_that_the_rules_read(host: dict[str, str], tmp_path: Path) -> None:
    facts = json.loads(json.dumps(probe.probe({"service": "sglang.service", "files": ["__init__.py"]})))
    live = parse(facts)
    unknown = {name: part for name, part in vars(live).items() if isinstance(part, Unknown)}
    assert unknown == {}
    assert facts["launch"]["device"] == "cpu"
    assert facts["engine"]["package"] == str(tmp_path / "site" / "sglang")
    assert facts["capabilities"]["log"] == "file:/var/log/sglang.log"
    assert [o["pid"] for o in facts["port"]["owners"]] == [os.getpid()]
    assert facts["model"]["target"]["architectures"] == ["Qwen3ForCausalLM"]
    assert [f["path"] for f in facts["service"]["ours"]] == [
        str(tmp_path / "sglang.service.d" / "50-ddtree.conf")
    ]


def test_the_rules_find_what_is_wrong_with_that_host(host: dict[str, str]) -> None:
    facts = probe.probe({"service": "sglang.service", "files": ["__init__.py"]})
    findings = examine(facts, Wanted("h", "sglang.service", base={"__init__.py": "0" * 64}, series="s"))
    levels = {finding.rule: finding.level for finding in findings}
    assert levels["dropins"] == levels["port"] == levels["sources"] == Level.BLOCK
    assert levels["engine"] == levels["record"] == Level.WARN  # no dist-info owns that package
    assert levels["model"] == levels["unit"] == levels["interpreter"] == Level.OK


def test_no_key_leaves_the_host(host: dict[str, str]) -> None:
    assert SECRET not in json.dumps(probe.probe({"service": "sglang.service"}))


def test_the_base_package_is_found_past_our_own_release(host: dict[str, str], tmp_path: Path) -> None:
    Path(tmp_path / "sglang.env").write_text(
        f"PYTHONPATH=/opt/ddtree/releases/ab/overlay:{tmp_path / 'site'}\n"
    )
    assert probe.probe({"service": "x.service"})["engine"]["package"] == str(tmp_path / "site" / "sglang")
    assert unitenv.without_ours("/opt/ddtree-other:/opt/ddtree/x:/y") == "/opt/ddtree-other:/y"


def test_one_failing_section_leaves_the_others(host: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    def bad(*_: Any) -> dict[str, Any]:
        raise PermissionError(13, "Permission denied", "/proc/net/tcp")

    monkeypatch.setattr(probe_unit, "listeners", bad)
    facts = probe.probe({"service": "sglang.service"})
    assert "Permission denied" in facts["port"]["error"]
    assert "error" not in facts["engine"]


def test_a_section_that_hangs_is_unknown_and_does_not_hold_the_others() -> None:
    gate = threading.Event()
    slow, fast = probe._together([(lambda: {"late": gate.wait(30)}, 0.2), (lambda: {"x": 1}, 5.0)])
    gate.set()
    assert slow == {"error": "no answer in 0.2 s"}
    assert fast["x"] == 1


def test_a_new_dropin_that_systemd_has_not_read_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    etc, run = tmp_path / "etc", tmp_path / "run"
    for path in (
        "etc/a-b.service.d/10.conf",
        "run/a-b.service.d/10.conf",
        "run/a-.service.d/20.conf",
        "etc/service.d/x.txt",
    ):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text("")
    (run / "a-.service.d" / "30.conf").symlink_to("/dev/null")
    monkeypatch.setattr(probe_unit, "PLACES", [str(etc), str(run)])
    loaded = [str(etc / "a-b.service.d/10.conf"), str(etc / "a-b.service.d/gone.conf")]
    assert probe_unit.unread("a-b.service", loaded) == [loaded[1], str(run / "a-.service.d/20.conf")]
    assert probe_unit.dropin_folders("x@1.service") == ["x@1.service.d", "x@.service.d", "service.d"]


def test_only_a_listening_socket_holds_a_port() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        client = socket.create_connection(("127.0.0.1", port))
        accepted, _ = server.accept()
        mine = probe_unit.listeners(port, "")["owners"]
    with client, accepted:
        assert [(owner["pid"], owner["ours"]) for owner in mine] == [(os.getpid(), False)]
        assert probe_unit.listeners(port, "") == {"port": port, "owners": [], "unknown": 0}


def test_a_descriptor_that_closes_meanwhile_hides_no_owner(monkeypatch: pytest.MonkeyPatch) -> None:
    listdir = os.listdir
    monkeypatch.setattr(os, "listdir", lambda p: ["999999"] * str(p).endswith("/fd") + listdir(p))
    with socket.create_server(("127.0.0.1", 0)) as server:
        found = probe_unit.listeners(server.getsockname()[1], "")
    assert ([owner["pid"] for owner in found["owners"]], found["unknown"]) == ([os.getpid()], 0)


def test_a_missing_interpreter_is_named(host: dict[str, str]) -> None:
    facts = probe.probe({"service": "sglang.service", "interpreter": "/no/such/python3"})
    assert facts["launch"]["exists"] is False
    assert (
        facts["engine"]["error"]
        == facts["abi"]["error"]
        == "/no/such/python3 does not exist or is not executable"
    )


def test_no_systemd_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(systemd, "show", lambda name, props: {})
    facts = probe.probe({"service": "sglang.service"})
    assert "no answer" in facts["service"]["error"]
    assert facts["launch"]["error"]


def test_the_unit_is_read_verbatim_without_our_dropins(host: dict[str, str], tmp_path: Path) -> None:
    raw = readunit.raw_unit(host)
    assert raw["fragment"]["text"].startswith("[Service]\n")
    assert [d["path"] for d in raw["dropins"]] == [str(tmp_path / "sglang.service.d" / "90-late.conf")]
    assert raw["environment_files"][0]["secret"] is True
    assert SECRET in raw["environment_files"][0]["text"]
    assert raw["specifiers"]["H"] == socket.gethostname()


def test_a_wrapper_script_is_sent_with_the_unit(host: dict[str, str], tmp_path: Path) -> None:
    script = tmp_path / "start.sh"
    script.write_text(
        "#!/bin/bash\n# python -m sglang.launch_server --old\nexec python3 -m sglang.launch_server \\\n --port 3\n"
    )
    script.chmod(0o755)
    assert readunit.raw_unit(dict(host, ExecStart=shown(str(script))))["scripts"] == {
        str(script): script.read_text()
    }
    launch = unitenv.split_launch([str(script)])
    assert launch is not None
    assert (launch.interpreter, launch.value("--port")) == ("python3", "3")


@pytest.mark.parametrize(
    ("argv", "flags", "path0", "args"),
    [
        (["/v/bin/python3", "-m", "sglang.launch_server", "--x=1"], [], "cwd", ["--x=1"]),
        (["/v/bin/python3.11", "-u", "-X", "utf8", "-m", "s"], ["-u", "-X", "utf8"], "cwd", []),
        (["/v/bin/python3", "-Em", "s", "--y"], ["-E"], "cwd", ["--y"]),
        (["/usr/bin/env", "A=1", "/v/bin/python3", "/srv/run.py", "--y"], [], "/srv", ["--y"]),
        (["/bin/bash", "-c", "cd /x && exec /v/bin/python3 -m sglang.launch_server --y | tee /l"], [], "cwd", ["--y"]),
        (["/bin/bash", "-lc", "/v/bin/python3 -m sglang.launch_server --y"], [], "cwd", ["--y"]),
    ],
)  # fmt: skip
def test_command_lines(argv: list[str], flags: list[str], path0: str, args: list[str]) -> None:
    launch = unitenv.split_launch(argv)
    assert launch is not None
    assert launch.interpreter.startswith("/v/bin/python3")
    assert (launch.flags, launch.path0, launch.args) == (flags, path0, args)


def test_what_is_no_python_server_is_none() -> None:
    assert unitenv.split_launch(["/usr/bin/docker", "run", "lmsysorg/sglang"]) is None
    assert unitenv.split_launch([]) is None


def test_environment_as_systemctl_prints_it() -> None:
    text = """A=1 "B=x y" "C=a\\"b\\$c" PYTHONPATH=/a:/b EMPTY="""
    assert unitenv.shown_environment(text) == {
        "A": "1",
        "B": "x y",
        "C": 'a"b$c',
        "PYTHONPATH": "/a:/b",
        "EMPTY": "",
    }


def test_environment_files() -> None:
    text = "# c\n; d\nA=1\n B = 'x y' \nC=\"q\"\nbroken\nD=a\\\nb\n"
    assert unitenv.read_environment_file(text) == {"A": "1", "B": "x y", "C": "q", "D": "ab"}


@pytest.mark.parametrize(
    ("show", "log"),
    [
        ({"StandardOutput": "journal", "StandardError": "inherit"}, "journal"),
        ({"StandardOutput": "append:/var/log/x.log", "StandardError": "inherit"}, "file:/var/log/x.log"),
        ({"StandardOutput": "null", "StandardError": "null"}, "none"),
        ({"StandardOutput": "journal", "ExecStart": shown("/bin/sh", "-c", "'x | tee -a /y.log'")}, "file:/y.log"),
        ({}, "none"),
    ],
)  # fmt: skip
def test_where_the_log_goes(show: dict[str, str], log: str) -> None:
    assert caps.log_target(show) == log


def test_the_path_of_a_log_file_comes_from_the_unit_files(tmp_path: Path) -> None:
    unit, late = tmp_path / "a@1.service", tmp_path / "90.conf"
    unit.write_text("[Service]\nStandardOutput=append:/var/log/old.log\n")
    late.write_text("[Service]\nStandardOutput=append:/var/log/%p-%i.log\n")
    show = {
        "Id": "a@1.service",
        "StandardOutput": "append",
        "StandardError": "inherit",
        "FragmentPath": str(unit),
    }
    assert caps.log_target(show) == "file:/var/log/old.log"
    assert caps.log_target(dict(show, DropInPaths=str(late))) == "file:/var/log/a-1.log"
    late.write_text("[Service]\nStandardOutput=append:%t/x.log\n")
    assert caps.log_target(dict(show, FragmentPath=str(late))) == "none"


@pytest.mark.parametrize(
    ("config", "hybrid", "block"),
    [
        ({"architectures": ["Qwen3ForCausalLM"]}, False, None),
        ({"layer_types": ["linear_attention", "full_attention"]}, True, None),
        ({"text_config": {"layer_types": ["linear_attention"], "num_hidden_layers": 64}}, True, None),
        ({"full_attention_interval": 4}, True, None),
        ({"dflash_config": {"block_size": 8}, "block_size": 4}, False, 8),
    ],
)
def test_models(config: dict[str, Any], hybrid: bool, block: int | None) -> None:
    found = probe_model.describe(config)
    assert (found["hybrid"], found["block_size"]) == (hybrid, block)


def test_a_checkpoint_without_its_shard_or_config(tmp_path: Path) -> None:
    assert probe_model.summary("/no/model", "/") == {"path": "/no/model", "local": True, "exists": False}
    assert probe_model.summary("Qwen/Qwen3-8B", "/") == {
        "path": "Qwen/Qwen3-8B",
        "local": False,
        "exists": None,
    }
    assert "config.json" in (probe_model.summary(str(tmp_path), "/") or {})["error"]
    (tmp_path / "config.json").write_text("{}")
    index = {"weight_map": {"a": "m-1.safetensors", "b": "m-2.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    (tmp_path / "m-1.safetensors").write_text("")
    assert (probe_model.summary(str(tmp_path), "/") or {})["missing_shards"] == ["m-2.safetensors"]


def test_the_query_is_bounded(tmp_path: Path) -> None:
    slow = tmp_path / "python3"
    slow.write_text("#!/bin/sh\nexec sleep 30\n")
    slow.chmod(0o755)
    with pytest.raises(RuntimeError, match=r"python3 gave no answer in 0\.3 s$"):
        package.query(str(slow), [], {"PATH": os.environ["PATH"]}, "/", timeout=0.3)
