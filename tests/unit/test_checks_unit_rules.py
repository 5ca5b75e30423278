"""Rules on unit, sandbox, limits, network, processes, last run and transport beyond the catalogue: each can fail, and
its near miss is fine."""

# ruff: noqa: E501  # a case a line

from __future__ import annotations

from typing import Any

import pytest
from entries import findings
from healthy_unit import FRAGMENT, command, process, settings

from ddtree_ops.core.checks import (
    last_run,
    limits,
    network,
    processes,
    sandbox,
    transport,
    unit_lint,
    unit_needs,
    unit_policy,
)
from ddtree_ops.core.checks.network import passes
from ddtree_ops.core.checks.unit_policy import seconds
from ddtree_ops.core.doctor import AREA_RULES
from ddtree_ops.core.finding import Finding, Level

pytestmark = pytest.mark.tier("preflight")
Facts = dict[str, Any]
OWN = (transport, unit_lint, unit_needs, unit_policy, sandbox, limits, network, processes, last_run)


def of(rule: str, facts: Facts, on: str = "h200") -> list[Finding]:
    return [finding for finding in findings(facts, on) if finding.rule == rule]


def unit(**changed: Any) -> Facts:
    return {"unit_lint": changed}


def shown(**properties: str) -> Facts:
    """Properties in force; the files say nothing, so that only these count."""
    return unit(properties=properties, settings=[])


def verified(line: str) -> Facts:
    return unit(verify={"status": 0, "lines": [line]})


def ran(*commands: Facts, **programs: Any) -> Facts:
    return unit(commands=list(commands), **programs)


def needs(key: str, path: str, exists: bool | None) -> Facts:
    return unit(paths=[{"file": FRAGMENT, "line": 9, "key": key, "path": path, "exists": exists}])


def condition(key: str, path: str, met: bool) -> Facts:
    return unit(conditions=[{"file": FRAGMENT, "line": 3, "key": key, "path": path, "met": met}])


def tied(tie: str, load: str | None, active: str | None) -> Facts:
    return unit(units=[{"name": "mnt-m.mount", "tie": tie, "load": load, "active": active}])


def there(path: str, **changed: Any) -> Facts:
    found = {
        "path": path,
        "exists": True,
        "executable": True,
        "interpreter": None,
        "interpreter_exists": None,
    }
    return {**found, **changed}


def inside(**rlimits: Any) -> Facts:
    return {"sandbox": {"rlimits": rlimits}}


def listens(port: int, flag: str = "--port", **network: Any) -> Facts:
    return {"network": {"ports": [{"flag": flag, "port": port, "owners": [], "unknown": 0}], **network}}


def group(**changed: Any) -> Facts:
    return {"limits": {"cgroup": changed}}


def alive(*found: Facts) -> Facts:
    return {"processes": {"processes": list(found)}}


MAIN = process(77, "sglang.launch_server", ppid=1, parent="systemd")
CHILD = process(91, "sglang::scheduler_TP0")
ALONE = {"unit": None, "ours": False, "cgroup": "/user.slice/user-0.slice/session-4.scope"}
#: (rule, level, words of it, facts, facts of the near miss)
CASES: list[tuple[str, str, tuple[str, ...], Facts, Facts]] = [
    ("unit-lines", "BLOCK", ("StartLimitIntervalSec= belongs in [Unit]",),
     verified(f"{FRAGMENT}:6: Unknown key name 'StartLimitIntervalSec' in section 'Service', ignoring."), unit(settings=settings(("Service", "StartLimitInterval", "5")))),
    ("unit-lines", "BLOCK", ("was KillMode= meant",), verified(f"{FRAGMENT}:8: Unknown key 'Killmode' in section [Service], ignoring."), verified("Configuration file x is marked executable.")),
    ("unit-lines", "BLOCK", ("was LimitNOFILE= meant",), verified("x.service:3: Unknown lvalue 'LimitNOFILES' in section 'Service', ignoring"), verified("x.service: Failed to add dependency on nope.service, ignored: not found")),
    ("unit-lines", "BLOCK", ("TimeoutStartSec",), verified("x.service:9: Failed to parse TimeoutStartSec= parameter, ignoring: 5parsecs"), unit()),
    ("unit-lines", "BLOCK", ("Environment",), verified("x.service:4: Invalid environment assignment, ignoring: …"), unit()),
    ("unit-lines", "BLOCK", ("refuses the unit",), verified("x.service:9: Neither a valid executable name nor an absolute path: $PWD/x"), unit()),
    ("unit-lines", "BLOCK", ("backslash with a blank",), verified("/etc/x.service:5: Missing '=', ignoring line."), unit()),
    ("unit-lines", "BLOCK", ("refuses the unit",), verified("x.service: Unit configuration has fatal error, unit will not be started."), unit()),
    ("unit-lines", "BLOCK", ("no setting",), verified("/etc/x.service:5: Unknown key '…' in section [Service], ignoring."), unit()),
    ("unit-lines", "WARN", ("unknown escape",), verified("x.service:4: Ignoring unknown escape sequences: …"), unit()),
    ("unit-lines", "WARN", ("ignores a line",), verified("x.service:9: Unknown key 'Foo' in section [Service], ignoring."), unit()),
    ("unit-lines", "WARN", ("systemd-analyze",), unit(verify={"status": None, "lines": []}), unit()),
    ("unit-lines", "WARN", ("could not be read",), unit(unread=["/etc/x.conf"]), unit()),
    ("unit-command", "BLOCK", ("203/EXEC", "/v/gone"), ran(command(program="/v/gone"), programs=[there("/v/gone", exists=False, executable=False)]),
     ran(command(program="/v/gone", prefixes="-"), programs=[there("/v/gone", exists=False, executable=False)])),
    ("unit-command", "BLOCK", ("chmod +x",), ran(command(program="/v/run"), programs=[there("/v/run", executable=False)]), ran(command(program="/v/run"), programs=[there("/v/run")])),
    ("unit-command", "BLOCK", ("/bin/bash\\r",), ran(command(program="/v/run"), programs=[there("/v/run", interpreter="/bin/bash\\r", interpreter_exists=False)]),
     ran(command(program="/v/run"), programs=[there("/v/run", interpreter="/bin/bash", interpreter_exists=True)])),
    ("unit-command", "BLOCK", ("no ~",), ran(command(program="~/venv/bin/python")), ran(command())),
    ("unit-command", "WARN", ("virtual environment",), ran(command(program="python3")), ran(command(program="bash"))),
    ("unit-command", "WARN", ("does not exist",), ran(command(key="ExecStop", program="/v/stop"), programs=[there("/v/stop", exists=False)]), ran(command(key="ExecStop", program="/v/stop"))),
    ("unit-expansion", "BLOCK", ("%2", "refuses"), unit(environment=[{"file": FRAGMENT, "line": 4, "name": "U", "specifiers": [{"letter": "2", "known": False, "joined": True}]}]), unit()),
    ("unit-expansion", "WARN", ("PATH uses $VENV", "no variable"), unit(environment=[{"file": FRAGMENT, "line": 4, "name": "PATH", "specifiers": [], "variable": "$VENV"}]), unit()),
    ("unit-expansion", "WARN", ("${X}",), ran(command(key="ExecStop", unset=["X"])), ran(command(key="ExecStop"))),
    ("unit-expansion", "WARN", ("the word vanishes",), ran(command(optional_unset=["OPTS"]), environment_files=[]), ran(command(optional_unset=["OPTS"]))),
    ("unit-expansion", "BLOCK", ("$ROOT", "${ROOT}", "vanishes"), ran(command(glued=["ROOT"])), ran(command(optional_unset=[]))),
    ("unit-paths", "BLOCK", ("/srv/cache", "226/NAMESPACE", "=-/srv/cache"), needs("ReadWritePaths", "/srv/cache", False), needs("ReadWritePaths", "/srv/cache", True)),
    ("unit-paths", "BLOCK", ("/etc/keys/hub", "243/CREDENTIALS"), needs("LoadCredential", "/etc/keys/hub", False), needs("LoadCredential", "/etc/keys/hub", None)),
    ("unit-command", "BLOCK", ("names an interpreter", "203/EXEC"), ran(command(program="/v/start"), programs=[there("/v/start", runs=False)]), ran(command(program="/v/start"), programs=[there("/v/start", runs=None)])),
    ("unit-conditions", "BLOCK", ("ConditionPathExists=/m/t", "skips"), condition("ConditionPathExists", "/m/t", False), condition("ConditionPathExists", "/m/t", True)),
    ("unit-conditions", "BLOCK", ("AssertPathExists=!/off", "refuses"), condition("AssertPathExists", "!/off", False), unit(conditions=[])),
    ("unit-requires", "BLOCK", ("mnt-m.mount", "not-found"), tied("Requires", "not-found", "inactive"), tied("Requires", "loaded", "inactive")),
    ("unit-requires", "BLOCK", ("nothing starts it",), tied("Requisite", "loaded", "inactive"), tied("Requisite", "loaded", "active")),
    ("unit-requires", "WARN", ("failed",), tied("BindsTo", "loaded", "failed"), tied("BindsTo", None, None)),
    ("unit-paths", "BLOCK", ("/var/log/llm", "209/STDOUT"), needs("StandardOutput", "/var/log/llm", False), unit(paths=[])),
    ("unit-quoting", "BLOCK", ("--json-model-override-args", "single quotes"), ran(command(json=["--json-model-override-args"])), ran(command())),
    ("unit-quoting", "BLOCK", ("never closed",), ran(command(open_quote=True)), ran(command())),
    ("unit-quoting", "BLOCK", ("quote the whole assignment",), unit(dropped=[{"file": FRAGMENT, "line": 7, "words": 1}]), unit()),
    ("unit-directory", "BLOCK", ("$HOME",), unit(working_directory={"written": "$HOME/x", "exists": None}), unit(working_directory={"written": "%h/x", "path": "/root/x"})),
    ("unit-env-file", "BLOCK", ("does not exist",), unit(environment_files=[{"file": FRAGMENT, "line": 8, "path": "/e", "optional": False, "absolute": True, "exists": False, "readable": None, "ignored": []}]), unit(environment_files=[])),
    ("unit-env-file", "BLOCK", ("cannot be read",), unit(environment_files=[{"file": FRAGMENT, "line": 8, "path": "/e", "optional": False, "absolute": True, "exists": True, "readable": False, "ignored": []}]), unit(environment_files=[])),
    ("unit-readback", "BLOCK", ("KillMode=process", "KillMode=mixed", "daemon-reload"), unit(settings=settings(("Service", "KillMode", "process"))), unit(settings=settings(("Service", "KillMode", "Mixed")))),
    ("unit-readback", "BLOCK", ("PrivateTmp",), unit(settings=settings(("Service", "PrivateTmp", "true"))), unit(settings=settings(("Service", "PrivateTmp", "false")))),
    ("unit-readback", "BLOCK", ("API_URL",), unit(stale=["API_URL"]), unit(settings=settings(("Service", "TasksMax", "15%")))),
    ("unit-type", "BLOCK", ("oneshot",), shown(Type="oneshot"), shown(Type="idle")),
    ("unit-type", "BLOCK", ("never daemonizes",), {"service": {"active_state": "failed"}, **shown(Type="forking")}, {"service": {"active_state": "failed"}, **shown(Type="simple")}),
    ("unit-type", "WARN", ("guesses the main process",), shown(Type="forking", TimeoutStartUSec="infinity"), shown(Type="exec")),
    ("unit-type", "WARN", ("RemainAfterExit",), shown(RemainAfterExit="yes"), shown(RemainAfterExit="no")),
    ("unit-type", "WARN", ("unknown",), shown(Type=""), shown(Type="exec")),
    ("unit-time-limits", "WARN", ("ExecStartPre",), ran(command(), command(key="ExecStartPre")), unit(commands=[command(), command(key="ExecStartPre")], properties={"TimeoutStartUSec": "1h"})),
    ("unit-time-limits", "BLOCK", ("WATCHDOG=1",), shown(WatchdogUSec="30s"), {"unit_lint": {"settings": [], "notifies": True, "properties": {"WatchdogUSec": "30s"}}}),
    ("unit-time-limits", "WARN", ("RuntimeMaxSec",), shown(RuntimeMaxUSec="1d"), shown(RuntimeMaxUSec="infinity")),
    ("unit-stop", "BLOCK", ("KillMode=process", "mixed"), shown(KillMode="process"), shown(KillMode="control-group")),
    ("unit-stop", "BLOCK", ("KillMode=none",), shown(KillMode="none"), shown(KillMode="mixed")),
    ("unit-stop", "BLOCK", ("SendSIGKILL",), shown(SendSIGKILL="no"), shown(SendSIGKILL="yes")),
    ("unit-stop", "WARN", ("cut off",), shown(TimeoutStopUSec="2s"), shown(TimeoutStopUSec="20s")),
    ("unit-restart", "WARN", ("Restart=no",), shown(Restart="no"), shown(Restart="always")),
    ("unit-sandbox", "BLOCK", ("PrivateDevices",), shown(PrivateDevices="yes"), shown(PrivateDevices="no")),
    ("unit-sandbox", "BLOCK", ("DevicePolicy=closed",), shown(DevicePolicy="closed"), shown(DevicePolicy="closed", DeviceAllow="char-nvidia rw")),
    ("unit-sandbox", "BLOCK", ("PrivateNetwork",), shown(PrivateNetwork="yes"), shown(PrivateNetwork="no")),
    ("unit-sandbox", "BLOCK", ("AF_INET",), shown(RestrictAddressFamilies="AF_UNIX"), shown(RestrictAddressFamilies="~AF_PACKET")),
    ("unit-sandbox", "WARN", ("AF_NETLINK",), shown(RestrictAddressFamilies="AF_UNIX AF_INET AF_INET6"), shown(RestrictAddressFamilies="AF_UNIX AF_INET AF_NETLINK")),
    ("unit-sandbox", "BLOCK", ("MemoryDenyWriteExecute",), shown(MemoryDenyWriteExecute="yes"), shown(MemoryDenyWriteExecute="no")),
    ("unit-sandbox", "WARN", ("ProcSubset",), shown(ProcSubset="pid"), shown(ProcSubset="all")),
    ("unit-sandbox", "WARN", ("IPAddressDeny",), shown(IPAddressDeny="0.0.0.0/0 ::/0", IPAddressAllow="127.0.0.0/8"), shown(IPAddressDeny="10.0.0.0/8")),
    ("unit-sandbox", "BLOCK", ("IPAddressDeny",), shown(IPAddressDeny="0.0.0.0/0 ::/0"), shown(IPAddressDeny="10.0.0.0/8")),
    ("unit-sandbox", "WARN", ("/tmp/sglang.log",), {"capabilities": {"log": "file:/tmp/sglang.log"}, **shown(PrivateTmp="yes")}, shown(PrivateTmp="yes")),
    ("sandbox-paths", "BLOCK", ("ProtectHome=yes hides it",), {"sandbox": {"read": [{"what": "chat template", "path": "/home/a/t.jinja", "exists": False, "problem": "No such file or directory"}]}, **shown(ProtectHome="yes")}, shown(ProtectHome="yes")),
    ("sandbox-paths", "BLOCK", ("PrivateTmp=yes hides it",), {"sandbox": {"read": [{"what": "TLS key", "path": "/tmp/k.pem", "exists": False, "problem": "No such file or directory"}]}, **shown(PrivateTmp="yes")}, shown(PrivateTmp="yes")),
    ("sandbox-home", "WARN", ("HOME is unset",), {"sandbox": {"home": {"set": False}}}, {"sandbox": {"home": {"path": "/home/llm"}}}),
    ("sandbox-home", "WARN", ("no home directory",), {"sandbox": {"home": {"path": "/nonexistent", "exists": False}}}, {}),
    ("sandbox-umask", "WARN", ("0077",), {"sandbox": {"umask": 0o077}}, {"sandbox": {"umask": 0o027}}),
    ("sandbox-tmp", "WARN", ("TORCHINDUCTOR_CACHE_DIR",), {"sandbox": {"tmp_private": True}}, {"sandbox": {"tmp_private": True, "inductor": True}}),
    ("sandbox-tmp", "WARN", ("unknown",), {"sandbox": {"tmp_private": None}}, {}),
    ("limit-nofile", "WARN", ("unknown",), inside(nofile=None), inside(nofile=[1024, None])),
    ("limit-nofile", "WARN", ("2 ranks",), inside(nofile=[1024, 1024]), inside(nofile=[8192, 8192])),
    ("limit-memlock", "WARN", ("unknown",), inside(memlock=None), inside(memlock=[None, None])),
    ("limit-tasks", "WARN", ("LimitNPROC",), {"sandbox": {"uid": 990, "rlimits": {"nproc": [512, 512]}}}, {"sandbox": {"uid": 0, "rlimits": {"nproc": [512, 512]}}}),
    ("limit-tasks", "WARN", ("TasksMax", "can't start new thread"), group(pids_max={"value": 512, "at": "/system.slice/x"}), group(pids_max=None)),
    ("limit-address", "BLOCK", ("LimitAS",), inside(**{"as": [1 << 36, 1 << 36]}), inside(**{"as": [None, None]})),
    ("limit-address", "WARN", ("LimitFSIZE",), inside(fsize=[1 << 30, 1 << 30]), inside(fsize=[None, None])),
    ("host-memory", "WARN", ("1024 MiB",), {"limits": {"memory": {"available": 1 << 30}}}, {"limits": {"memory": {"available": 4 << 30}}}),
    ("host-memory", "WARN", ("unknown",), {"limits": {"memory": {"available": None}}}, {}),
    ("host-memory", "WARN", ("killed 3",), group(oom_kills=3), group(oom_kills=None)),
    ("host-memory", "WARN", ("may be killed",), group(memory_max={"value": 91 << 30, "at": "/"}), group(memory_max={"value": 200 << 30, "at": "/"})),
    ("host-memory", "WARN", ("throttled",), group(memory_high={"value": 91 << 30, "at": "/"}), group(memory_high={"value": 200 << 30, "at": "/"})),
    ("host-memory", "WARN", ("swap",), {"limits": {"memory": {"swap_free": 0}}}, {"limits": {"memory": {"swap_total": 0, "swap_free": 0}}}),
    ("ports", "BLOCK", ("both want",), {"network": {"ports": [{"flag": "--port", "port": 30000, "owners": [], "unknown": 0}, {"flag": "--nccl-port", "port": 30000, "owners": [], "unknown": 0}]}},
     {"network": {"ports": [{"flag": "--port", "port": 30000, "owners": [], "unknown": 0}, {"flag": "--nccl-port", "port": 30001, "owners": [], "unknown": 0}]}}),
    ("ports", "WARN", ("cannot see",), {"network": {"ports": [{"flag": "--nccl-port", "port": 30001, "owners": [], "unknown": 1}]}}, {"network": {"ports": []}}),
    ("port-range", "WARN", ("unknown",), {"network": {"ephemeral": None}}, {}),
    ("port-range", "BLOCK", ("32768", "reserved_ports=7000-7010,32768"), listens(32768, reserved="7000-7010"), listens(32767)),
    ("port-range", "BLOCK", ("60999",), listens(60999), listens(61000)),
    ("port-range", "WARN", ("1024-65535", "reserved_ports=30000"), listens(30000, ephemeral=[1024, 65535]), listens(30000, ephemeral=[1024, 65535], reserved="29000-31000")),
    ("port-range", "WARN", ("50000", "--nccl-port"), listens(50000, "--nccl-port"), listens(20000, "--nccl-port")),
    ("bind", "BLOCK", ("Permission denied", "CAP_NET_BIND_SERVICE"), {"sandbox_network": {"bind": {"error": "Permission denied"}}}, {}),
    ("bind", "BLOCK", ("Cannot assign", "--host"), {"sandbox_network": {"bind": {"error": "Cannot assign requested address"}}}, {}),
    ("proxy", "BLOCK", ("the running server",), {"network": {"running": {"http": True, "names": ["all_proxy"], "no_proxy": []}}}, {"network": {"running": None}}),
    ("hostname", "BLOCK", ("10.9.9.9", "/etc/hosts"), {"sandbox_network": {"addresses": ["10.9.9.9"], "local": False}}, {"sandbox_network": {"addresses": ["127.0.1.1"]}}),
    ("hostname", "WARN", ("does not resolve",), {"sandbox_network": {"addresses": [], "local": None}}, {}),
    ("leftovers", "BLOCK", ("left from an earlier start",), alive(MAIN, process(60, "sglang::scheduler_TP1", ppid=1, parent="systemd")), alive(MAIN, CHILD)),
    ("leftovers", "BLOCK", ("in no service",), alive(MAIN, process(60, "vllm.entrypoints", ppid=900, parent="systemd", **ALONE)), alive(MAIN, process(60, "vllm.entrypoints", ppid=900, parent="bash", **ALONE))),
    ("neighbours", "WARN", ("embed.service",), alive(MAIN, process(60, "sglang.launch_server", ppid=1, parent="systemd", unit="embed.service", ours=False)), alive(MAIN, CHILD)),
    ("neighbours", "WARN", ("by hand", "tmux"), alive(MAIN, process(60, "sglang.launch_server", ppid=9, parent="tmux", **ALONE)), alive(MAIN, process(60, "sglang.launch_server", ppid=9, parent="containerd-shim", **{**ALONE, "container": True}))),
    ("schedulers", "WARN", ("uninterruptible",), alive(MAIN, {**CHILD, "state": "D"}), alive(MAIN, {**CHILD, "state": "R"})),
    ("restarts", "WARN", ("restart loop",), {"last_run": {"sub": "auto-restart", "restarts": 24}}, {"last_run": {"restarts": 2}}),
    ("restarts", "WARN", ("5 times",), {"last_run": {"restarts": 5}}, {}),
    ("restarts", "WARN", ("unknown",), {"last_run": {"restarts": None}}, {}),
    ("last-start", "WARN", ("the last start failed", "undefined symbol", "logs"), {"last_run": {"active": "failed", "fatal": {"line": "ImportError: undefined symbol: x", "reason": "abi", "hint": "torch"}}}, {"last_run": {"log": False}}),
    ("last-start", "WARN", ("names no cause", "exit-code"), {"last_run": {"active": "failed", "result": "exit-code", "status": 1}}, {}),
    ("clock", "WARN", ("ahead of",), {"session": {"time": 90.0}}, {"session": {"time": 2.5}}),
    ("clock", "WARN", ("unknown",), {"session": {"error": "no answer"}}, {}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("rule", "level", "words", "bad", "near"), CASES, ids=[f"{c[0]}-{c[2][0]}"[:50] for c in CASES]
)
def test_a_rule_fails_with_its_cause_and_spares_the_near_miss(
    rule: str, level: str, words: tuple[str, ...], bad: Facts, near: Facts
) -> None:
    found = [finding for finding in of(rule, bad) if finding.level == level]
    assert found, of(rule, bad)
    text = " ".join(f"{finding.evidence} → {finding.remedy}" for finding in found)
    assert all(word in text for word in words), text
    spared = of(rule, near)
    assert spared and {finding.level for finding in spared} == {Level.OK}


def test_every_rule_here_is_registered_and_fails_somewhere() -> None:
    ids = [rule.id for module in OWN for rule in module.RULES]
    assert len(ids) == len(set(ids))
    assert set(ids) <= {rule.id for rule in AREA_RULES}
    catalogued = {"shell-noise", "unit-log-rate", "start-limit"}  # fail in tests/catalogue
    assert set(ids) <= {case[0] for case in CASES} | catalogued


def test_what_blocks_has_a_command() -> None:
    said = [finding for rule, _, _, bad, _ in CASES for finding in of(rule, bad)]
    assert all(finding.remedy for finding in said if finding.level is Level.BLOCK)
    assert not [
        finding for finding in said if "{" in (finding.remedy or "").replace("${", "").replace("'{", "")
    ]


@pytest.mark.parametrize("section", sorted({rule.section.name for module in OWN for rule in module.RULES}))
def test_a_section_that_is_missing_or_broken_is_never_ok(section: str) -> None:
    ids = {rule.id for module in OWN for rule in module.RULES if rule.section.name == section}
    for raw in ({"error": "no answer in 5 s"}, None, []):
        seen = [finding for finding in findings({section: raw}) if finding.rule in ids]
        assert {finding.level for finding in seen} == {Level.WARN}
        assert {finding.rule for finding in seen} == ids


def test_gpu_hardening_does_not_matter_on_cpus() -> None:
    assert [
        f.level for f in of("unit-sandbox", shown(PrivateDevices="yes", DevicePolicy="closed"), "cpu")
    ] == [Level.OK]
    assert [f.level for f in of("limit-address", inside(**{"as": [1 << 36, None]}), "cpu")] == [Level.WARN]


@pytest.mark.parametrize(
    ("text", "value"),
    [("1min 30s", 90.0), ("5s", 5.0), ("0", 0.0), ("infinity", float("inf")), ("2h", 7200.0), ("100ms", 0.1),
     ("1month", 2629800.0), ("1d 2h", 93600.0), ("", None), ("soon", None), (None, None), ("5 parsecs", None)],
)  # fmt: skip
def test_time_spans_as_systemctl_prints_them(text: str | None, value: float | None) -> None:
    assert seconds(text) == value


@pytest.mark.parametrize(
    ("host", "entries", "direct"),
    [
        ("127.0.0.1", ["127.0.0.1"], True), ("127.0.0.1", ["127.0.0.0/8"], True), ("127.0.0.1", ["*"], True),
        ("127.0.0.1", ["localhost"], False), ("10.0.0.5", ["10.0.0.0/24"], True), ("10.0.1.5", ["10.0.0.0/24"], False),
        ("llm.corp.example", [".corp.example"], True), ("llm.corp.example", ["corp.example"], True),
        ("llmcorp.example", ["corp.example"], False), ("127.0.0.1", ["127.0.0.1:30000"], True), ("::1", ["::1"], True),
        ("0.0.0.0", [], False),
    ],
)  # fmt: skip
def test_what_no_proxy_excepts(host: str, entries: list[str], direct: bool) -> None:
    assert passes(host, entries) is direct
