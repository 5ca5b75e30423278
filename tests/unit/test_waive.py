"""Waivers: what may pass, with a reason that is seen in plans and kept by the host; what may not, and why."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from healthy import HEALTHY_H200, WANTED, overlaid

from ddtree_agent import outcome
from ddtree_ops.apply.deploy import Order, begin_request
from ddtree_ops.cli.history import describe as told
from ddtree_ops.cli.plan import describe as shown
from ddtree_ops.config import ConfigProblem, HostConfig, load_inventory
from ddtree_ops.core.checks.about import CORE
from ddtree_ops.core.doctor import AREA_RULES, blocked, examine, known, waived
from ddtree_ops.core.finding import Finding, Level
from ddtree_ops.core.plan import Plan, Preconditions

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.tier("preflight")
OTHER_CUDA = {"abi": {"kernels": [{"file": "/v/sgl_kernel/a.so", "needed": ["libcudart.so.13"]}]}}
NO_ROOT = {"session": {"uid": 1000}}


def judge(facts: dict[str, Any], waive: dict[str, str]) -> list[Finding]:
    return examine(overlaid(HEALTHY_H200, facts), dataclasses.replace(WANTED, waive=waive))


def test_a_waived_block_is_a_warning_with_its_reason_and_evidence() -> None:
    (before,) = [f for f in blocked(judge(OTHER_CUDA, {})) if f.rule == "cuda-kernel"]
    findings = judge(OTHER_CUDA, {"cuda-kernel": "rebuilt here"})
    (after,) = [finding for finding in findings if finding.rule == "cuda-kernel"]
    assert after == dataclasses.replace(before, level=Level.WARN, waived="rebuilt here")
    assert waived(findings) == [f"cuda-kernel: rebuilt here ({before.evidence})"]


def test_a_waiver_covers_its_own_rule_alone_and_nothing_that_cannot_be_waived() -> None:
    assert "cuda-kernel" in {f.rule for f in blocked(judge(OTHER_CUDA, {"model": "x"}))}
    assert "root" in {f.rule for f in blocked(judge(NO_ROOT, {"root": "hosts.yaml refuses this already"}))}
    assert waived(judge({}, {"cuda-kernel": "not needed"})) == []


def faults(path: Path, waive: str) -> str:
    (path / "hosts.yaml").write_text(f"version: 1\nhosts:\n  a:\n    waive: {waive}\n")
    with pytest.raises(ConfigProblem) as caught:
        load_inventory(path / "hosts.yaml")
    return caught.value.what.removeprefix(f"{path}/hosts.yaml:")


@pytest.mark.parametrize(
    ("waive", "said"),
    [
        (
            "{cuda-kernl: x}",
            "4:13: hosts.a.waive.cuda-kernl: no rule of the preflight has this name; did you mean ",
        ),
        ('{cuda-kernel: "  "}', "4:26: hosts.a.waive.cuda-kernel: a waiver needs a reason"),
        ("{cuda-kernel: }", "4:13: hosts.a.waive.cuda-kernel: should be a valid string"),
        ('{cuda-kernel: "a\\tb"}', "4:26: hosts.a.waive.cuda-kernel: the reason of a waiver is one line"),
        ("{root: x}", f"4:13: hosts.a.waive.root: cannot be waived: {CORE['root'].why}"),
        ("[cuda-kernel]", "4:12: hosts.a.waive: should be a valid dictionary"),
    ],
)
def test_a_wrong_waiver_is_refused_in_its_place(waive: str, said: str, tmp_path: Path) -> None:
    assert faults(tmp_path, waive).startswith(said)


def test_a_waiver_is_a_hosts_own(tmp_path: Path) -> None:
    file = tmp_path / "hosts.yaml"
    file.write_text("version: 1\nhosts: {a: {waive: {port: moved soon}}, b: {}}\n")
    hosts: dict[str, HostConfig] = load_inventory(file).hosts
    assert (hosts["a"].waive, hosts["b"].waive) == ({"port": "moved soon"}, {})
    file.write_text("version: 1\ndefaults: {waive: {port: everywhere}}\nhosts: {a: {}}\n")
    with pytest.raises(ConfigProblem, match=r"2:12: defaults\.waive: unknown key"):
        load_inventory(file)


def test_plan_and_history_tell_it() -> None:
    plan = Plan(
        host="h", service="s", mode="shadow", release="aa", source_digest="bb", steps=[], argv_before=[],
        argv_after=[], dropin="", preconditions=Preconditions("cc", "t"), waived=["port: moved soon (held by x)"],
    )  # fmt: skip
    assert "waived: port: moved soon (held by x)" in shown(plan)
    assert plan.to_json()["waived"] == ["port: moved soon (held by x)"]
    entry = {
        "at": 0, "kind": "deploy", "mode": "shadow", "release": "aa", "who": "lena@laptop", "outcome": "confirmed",
        "serving": "aa", "waived": ["port: moved soon (held by x)"],
    }  # fmt: skip
    assert "waived: port: moved soon (held by x)" in told(entry)
    prepared: Any = SimpleNamespace(
        plan=plan, endpoint=SimpleNamespace(to_json=dict), host=HostConfig(name="h"), expect_state={}, proven_by=None,
        gate=False,
    )  # fmt: skip
    assert begin_request(prepared, "t", "n", "lena", Order("x"))["waived"] == plan.waived
    assert "waived" in outcome._ASKED  # what the host keeps of that request


def test_every_rule_that_is_named_anywhere_can_be_explained_and_no_other() -> None:
    core = ROOT / "src/ddtree_ops/core"
    files = [*core.glob("doctor*.py"), core / "abi.py", core / "features.py"]
    text = "\n".join(path.read_text() for path in files)
    named = set(re.findall(r'\b(?:ok|warn|block)\(\s*"([a-z0-9-]+)"', text))
    assert len(named) > 15
    assert named <= set(known())
    assert [rule for rule in CORE if f'"{rule}"' not in text] == []
    assert {rule.id for rule in AREA_RULES} <= set(known())
    assert all(len(about.why) > 20 for about in known().values())


def test_what_a_healthy_host_is_told_can_be_explained() -> None:
    assert {finding.rule for finding in judge({}, {})} <= set(known())
