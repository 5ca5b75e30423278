"""The preflight's rules: a healthy host is OK throughout, each fault blocks by name, what is unknown is never OK."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
from healthy import HEALTHY_H200, RECORDED, ROOM, WANTED, A, B, overlaid

from ddtree_ops.core.doctor import AREA_RULES, RULES, blocked, examine, refusal
from ddtree_ops.core.finding import Finding, Level
from ddtree_ops.core.wanted import Wanted

pytestmark = pytest.mark.tier("main")
Probe = dict[str, Any]
#: As if the server's arguments did not say where it runs.
HEALTHY: Probe = overlaid(HEALTHY_H200, {"launch": {"device": None}})
#: Findings of the areas' rules are their own tests' business.
AREAS = {rule.id for rule in AREA_RULES}


def judge(change: Callable[[Probe], Any] | None = None, wanted: Wanted = WANTED) -> list[Finding]:
    probe = copy.deepcopy(HEALTHY)
    if change:
        change(probe)
    return [finding for finding in examine(probe, wanted) if finding.rule not in AREAS]


def only(findings: list[Finding]) -> Finding:
    """The one finding that is not OK."""
    bad = [finding for finding in findings if finding.level is not Level.OK]
    assert len(bad) == 1, bad
    return bad[0]


def test_a_healthy_host_is_ok_throughout() -> None:
    findings = judge()
    assert [finding for finding in findings if finding.level is not Level.OK] == []
    assert {name for name, _, _ in RULES} <= {finding.rule for finding in findings}
    assert refusal(findings, "ct129") is None


def gone(probe: Probe, side: str) -> None:
    """A checkpoint that neither root nor the service sees."""
    probe["model"][side] = {"path": f"/m/{side[0]}", "exists": False}
    probe["checkpoints"][side]["exists"] = False


BLOCKS: list[tuple[str, Callable[[Probe], Any], str]] = [
    ("root", lambda p: p["session"].update(uid=1000), "no root on the host: uid 1000"),
    ("systemd", lambda p: p["session"].update(systemd_is_init=False, pid1="sh"), "PID 1 is sh, not systemd"),
    ("systemd", lambda p: p["session"].update(python="3.8.10"), "3.8.10"),
    ("unit", lambda p: p["service"].update(masked=True), "masked"),
    ("unit", lambda p: p["service"].update(need_daemon_reload=True), "changed on disk"),
    ("unit", lambda p: p["service"].update(unread=["/etc/x.conf"]), "has not read it: /etc/x.conf"),
    ("unit", lambda p: p["service"].update(load_state="bad-setting"), "bad-setting"),
    (
        "transaction",
        lambda p: p["state"].update(
            open={"id": "7f3", "state": "ARMED", "who": "eve@laptop", "mode": "shadow"}
        ),
        "transaction 7f3 by eve@laptop is open (ARMED)",
    ),
    ("transaction", lambda p: p["state"].update(lock="push by eve (pid 9)"), "push by eve"),
    (
        "dropins",
        lambda p: p["service"].update(late_dropins=[{"path": "/etc/90-x.conf", "sets": ["ExecStart"]}]),
        "/etc/90-x.conf sorts after ours and sets ExecStart: it would win",
    ),
    ("user", lambda p: p["user"].update(exists=False, name="llm"), "user llm does not exist"),
    ("interpreter", lambda p: p["launch"].update(exists=False), "/v/bin/python3 does not exist"),
    ("interpreter", lambda p: p.update(launch={"error": "no Python server found"}), "no Python server found"),
    ("engine", lambda p: p["engine"].update(missing=True), "sglang is not installed for /v/bin/python3"),
    ("engine", lambda p: p["engine"].update(ignores_pythonpath=True), "ignores PYTHONPATH"),
    (
        "engine",
        lambda p: p["engine"].update(version=None, elsewhere=["/v/x.dist-info"]),
        "it shadows /v/x.dist-info",
    ),
    (
        "record",
        lambda p: p["engine"]["record"].update(edited=[{"file": "srt/a.py", "expected": A, "found": B}]),
        f"/v/sglang/srt/a.py was edited by hand: expected {A}, found {B}",
    ),
    ("record", lambda p: p["engine"]["record"].update(missing=["srt/a.py"]), "lacks srt/a.py"),
    ("record", lambda p: p["engine"]["record"].update(extra=["srt/b.py"]), "no wheel brought: srt/b.py"),
    (
        "sources",
        lambda p: p["engine"].update(files={"srt/server_args.py": B}),
        f"/v/sglang/srt/server_args.py is not what series sglang-0.5.11 was made for: expected {A}, found {B}",
    ),
    ("sources", lambda p: p["engine"].update(files={"srt/server_args.py": None}), "no such file"),
    ("model", lambda p: gone(p, "target"), "/m/t does not exist on the host"),
    (
        "model",
        lambda p: p["model"]["target"].update(missing_shards=["m-2.safetensors"]),
        "lacks m-2.safetensors",
    ),
    ("draft", lambda p: gone(p, "draft"), "/m/d does not exist"),
    ("disk", lambda p: p["storage"].update(opt={**ROOM, "bytes": 1 << 20}), "1 MiB free, 384 MiB are needed"),
    ("disk", lambda p: p["storage"].update(opt={**ROOM, "inodes": 5}), "5 inodes free"),
    (
        "disk",
        lambda p: p["storage"].update(var={**ROOM, "path": "/var", "read_only": True}),
        "/var is mounted read-only",
    ),
    ("disk", lambda p: p["storage"].update(opt={**ROOM, "noexec": True}), "noexec"),
    ("disk", lambda p: p["storage"].update(one_filesystem=False), "several filesystems"),
    (
        "port",
        lambda p: p["port"].update(owners=[{"pid": 9, "command": "nginx", "cgroup": "/", "ours": False}]),
        "port 30000 is held by pid 9 (nginx), which is not sglang.service's",
    ),
    (
        "facts",
        lambda p: p["service"]["fragment"].update(sha256=B),
        "changed: recorded aaaaaaaaaaaa, now bbbbbbbbbbbb",
    ),
    ("facts", lambda p: p["service"].update(dropins=[]), "10-limits.conf is gone"),
    (
        "facts",
        lambda p: p["service"]["dropins"].append(
            {"path": "/etc/systemd/system/sglang.service.d/20-x.conf", "sha256": A}
        ),
        "20-x.conf is new",
    ),
    ("facts", lambda p: p["service"].update(unit_file_state="disabled"), "was enabled, now it is disabled"),
    ("facts", lambda p: p["engine"].update(tree=B), "recorded tree aaaaaaaaaaaa, now bbbbbbbbbbbb"),
    (
        "facts",
        lambda p: p["capabilities"].update(load_credential=False),
        "load_credential was True, now it is False",
    ),
    (
        "cuda-kernel",
        lambda p: p["abi"]["kernels"][0].update(needed=["libcudart.so.13"]),
        "needs libcudart.so.13",
    ),
    (
        "cuda-kernel",
        lambda p: p["abi"]["dists"][1].update(version="0.4.2+cu130", local="cu130"),
        "+cu130 against",
    ),
    (
        "cuda-build",
        lambda p: p["abi"].update(torch={"version": "2.13.0+cpu", "cuda": None}),
        "is a CPU build",
    ),
    ("cuda-build", lambda p: p["abi"].update(torch=None), "torch is not installed"),
    (
        "duplicates",
        lambda p: p["abi"].update(duplicates={"torch": ["/a", "/b"]}),
        "torch is installed 2 times",
    ),
    (
        "cuda-companions",
        lambda p: p["abi"]["dists"].append(
            {"name": "torchvision", "version": "0.24+cu130", "local": "cu130", "path": "x"}
        ),
        "torchvision 0.24+cu130 against torch's CUDA 12.8",
    ),
    (
        "flashinfer",
        lambda p: p["abi"]["dists"].append(
            {"name": "flashinfer-cubin", "version": "0.6.7", "local": None, "path": "x"}
        ),
        "versions differ",
    ),
]


@pytest.mark.parametrize(
    ("rule", "change", "said"), BLOCKS, ids=[f"{i}-{b[0]}" for i, b in enumerate(BLOCKS)]
)
def test_a_fault_blocks_and_says_what_to_type(rule: str, change: Callable[[Probe], Any], said: str) -> None:
    findings = judge(change)
    found = [finding for finding in blocked(findings) if finding.rule == rule]
    assert len(found) == 1, findings
    assert said in found[0].evidence
    assert found[0].remedy
    error = refusal(findings, "ct129")
    assert error is not None
    assert error.exit_code == (4 if rule == "transaction" else 3)
    assert error.next and error.meaning == "nothing was touched"


@pytest.mark.parametrize("section", sorted({section for _, section, _ in RULES}))
@pytest.mark.parametrize("answer", [{"error": "no answer in 20 s"}, {}, None, {"uid": "?"}], ids=repr)
def test_what_is_unknown_is_never_ok(section: str, answer: Any) -> None:
    findings = judge(lambda p: p.update({section: answer}))
    names = {name for name, read, _ in RULES if read == section}
    for name in names:
        levels = {finding.level for finding in findings if finding.rule == name}
        assert levels and Level.OK not in levels, (name, findings)


def test_another_engine_release_blocks() -> None:
    found = judge(lambda p: p["engine"].update(version="0.5.12"))
    assert "sglang 0.5.12 is installed, series sglang-0.5.11 is made for 0.5.11" in blocked(found)[0].evidence


def test_a_patched_and_a_half_patched_tree_are_told_apart() -> None:
    base, patched = {"a.py": A, "b.py": A}, {"a.py": B, "b.py": B}
    wanted = Wanted("ct129", "sglang.service", "0.5.11", "s", base=base, patched=patched, recorded=RECORDED)
    whole = judge(lambda p: p["engine"].update(files={"a.py": B, "b.py": B}), wanted)
    assert "is patched in place already" in only(whole).evidence
    half = judge(lambda p: p["engine"].update(files={"a.py": B, "b.py": A}), wanted)
    assert f"/v/sglang/a.py is half-patched: expected {A}, found {B}" in only(half).evidence


def test_device_cpu_needs_no_cuda_but_still_no_duplicates() -> None:
    def change(p: Probe) -> None:
        p["launch"]["device"] = "cpu"
        p["abi"].update(torch={"version": "2.13.0+cpu", "cuda": None}, kernels=[], dists=[])

    assert blocked(judge(change)) == []

    def twice(p: Probe) -> None:
        change(p)
        p["abi"]["duplicates"] = {"sglang": ["/a", "/b"]}

    assert only(judge(twice)).rule == "duplicates"


def test_another_minor_cuda_is_a_warning_another_major_a_block() -> None:
    minor = only(judge(lambda p: p["abi"]["dists"][1].update(version="0.4.2+cu126", local="cu126")))
    assert (minor.rule, minor.level) == ("cuda-kernel", Level.WARN)
    assert "ddtree-ops env sync --from HOST --to ct129" in str(minor.remedy)


def test_a_kernel_that_cannot_be_read_is_a_warning() -> None:
    found = only(judge(lambda p: p["abi"].update(kernels=[{"file": "/v/a.so", "error": "damaged ELF file"}])))
    assert (found.rule, found.level) == ("cuda-kernel", Level.WARN)


def test_no_log_and_no_facts_are_warnings() -> None:
    silent = only(judge(lambda p: p["capabilities"].update(log="none"), Wanted("ct129", "sglang.service", recorded={
        **RECORDED, "capabilities": {}})))  # fmt: skip
    assert (silent.rule, silent.level) == ("log", Level.WARN)
    fresh = only(judge(wanted=Wanted("ct129", "sglang.service")))
    assert fresh.remedy == "ddtree-ops adopt --host ct129"


def test_unmeasured_capabilities_are_no_drift_but_said() -> None:
    found = only(judge(lambda p: p["capabilities"].update(load_credential=None, nft=None)))
    assert (found.rule, found.level) == ("facts", Level.WARN)
    assert "load_credential, nft not measured" in found.evidence


def test_an_unseen_engine_is_not_taken_for_the_recorded_one() -> None:
    findings = judge(lambda p: p.update(engine={"error": "no answer in 120 s"}))
    assert [f.level for f in findings if f.rule == "facts"] == [Level.WARN]


def test_a_harmless_late_dropin_is_ok() -> None:
    late = [{"path": "/etc/90-x.conf", "sets": ["LimitNOFILE"]}]
    assert judge(lambda p: p["service"].update(late_dropins=late)) == judge()


def test_damaged_facts_block_with_adopt() -> None:
    found = only(judge(wanted=Wanted("ct129", "sglang.service", recorded={"engine": {}})))
    assert (found.rule, found.level) == ("facts", Level.BLOCK)
    assert found.remedy == "ddtree-ops adopt --host ct129"


def test_the_refusal_counts_the_others() -> None:
    def change(p: Probe) -> None:
        p["session"]["uid"] = 1000
        p["service"]["masked"] = True

    error = refusal(judge(change), "ct129", serving="release 9c1e")
    assert error is not None
    assert "1 more: unit" in error.what
    assert error.serving == "release 9c1e"


def test_a_unit_that_no_boot_starts_is_a_warning() -> None:
    recorded = {**RECORDED, "unit": {**RECORDED["unit"], "enabled": "disabled"}}
    found = only(
        judge(
            lambda p: p["service"].update(unit_file_state="disabled"),
            Wanted("ct129", "sglang.service", recorded=recorded),
        )
    )
    assert (found.rule, found.level) == ("unit", Level.WARN)
    assert "after a reboot nothing starts it" in found.evidence


def test_somebody_at_work_comes_before_what_his_work_looks_like() -> None:
    def change(p: Probe) -> None:
        p["service"]["unread"] = ["/run/systemd/system/sglang.service.d/60-ddtree-trial.conf"]
        p["state"]["open"] = {"id": "7f3", "state": "STOPPED", "who": "eve@laptop", "mode": "shadow"}

    error = refusal(judge(change), "ct129")
    assert error is not None
    assert error.exit_code == 4
    assert "transaction 7f3 by eve@laptop is open (STOPPED); 1 more: unit" in error.what


def test_a_rule_has_a_name_of_its_own() -> None:
    names = [rule.id for rule in AREA_RULES]
    assert sorted(set(names)) == sorted(names)
    assert not {rule.id for rule in AREA_RULES} & {name for name, _, _ in RULES}
