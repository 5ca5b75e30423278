"""Rules over GPUs, driver, nodes and the kernel's log: each fault by name, near misses pass, unknown is never OK."""

from __future__ import annotations

import copy
from typing import Any

import healthy_gpu
import pytest
from gpu_faults import FAULTS, NEAR, ONE, Facts, card, holders, stranger
from healthy import HEALTHY_CPU, HEALTHY_H200, WANTED, overlaid
from healthy_gpu import NO_NVIDIA

from ddtree_ops.core.doctor import AREA_RULES, examine
from ddtree_ops.core.doctor import SECTIONS as SECTIONS_OF
from ddtree_ops.core.facts_live import parse
from ddtree_ops.core.finding import Finding, Level

pytestmark = pytest.mark.tier("preflight")
SECTIONS = tuple(healthy_gpu.SECTIONS)
MINE = {rule.id for rule in AREA_RULES if rule.section.name in SECTIONS}


def found(facts: Facts, rule: str | None = None, base: Facts = HEALTHY_H200) -> list[Finding]:
    return [
        one
        for one in examine(overlaid(base, facts), WANTED)
        if one.rule == rule or (rule is None and one.rule in MINE)
    ]


@pytest.mark.parametrize(
    "rule, level, facts, words", FAULTS, ids=[f"{i}-{f[0]}" for i, f in enumerate(FAULTS)]
)
def test_a_fault_is_told_with_its_cause(rule: str, level: str, facts: Facts, words: list[str]) -> None:
    seen = [one for one in found(facts, rule) if one.level == level]
    assert seen, found(facts, rule)
    text = " ".join(f"{one.evidence} {one.remedy}" for one in seen)
    assert [word for word in words if word not in text] == [], text


@pytest.mark.parametrize("rule, facts", NEAR, ids=[f"{i}-{near[0]}" for i, near in enumerate(NEAR)])
def test_a_near_miss_is_let_pass(rule: str, facts: Facts) -> None:
    seen = found(facts, rule)
    assert seen and {one.level for one in seen} == {Level.OK}, seen


def test_every_rule_has_a_fault_here_or_in_the_catalogue() -> None:
    assert {rule for rule, *_ in FAULTS} >= MINE


def test_the_healthy_host_is_ok_throughout() -> None:
    seen = found({})
    assert {one.level for one in seen} == {Level.OK}
    assert {one.rule for one in seen} == MINE - {"cpu-fallback", "device-nested"}


@pytest.mark.parametrize("section", SECTIONS)
@pytest.mark.parametrize("raw", [{"error": "no answer in 60 s"}, {}, None])
def test_a_section_that_is_not_known_is_never_ok(section: str, raw: Any) -> None:
    document = copy.deepcopy(HEALTHY_H200)
    document[section] = raw
    gpu = {rule.section.name: rule.section.gpu for rule in AREA_RULES}[section]
    for device, level in (
        ("cuda", Level.BLOCK if gpu else Level.WARN),
        (None, Level.BLOCK if gpu else Level.WARN),
    ):
        document["launch"]["device"] = device
        rules = {rule.id for rule in AREA_RULES if rule.section.name == section}
        seen = [one for one in examine(document, WANTED) if one.rule in rules]
        assert {one.level for one in seen} == {level}, (device, seen)
        assert {one.rule for one in seen} == rules


#: (what is seen on a host whose server has no --device, whether the engine would take a GPU there).
SEEN: list[tuple[str, Facts, bool | None]] = [
    ("nothing", {}, None),
    ("the driver's version", {"gpu": {"driver": "580.1"}}, True),
    ("a list by nvidia-smi", {"gpu": {"count": 1}}, True),
    ("a card that answers", {"gpus": {"cards": {ONE: {"name": "NVIDIA H200"}}}}, True),
    ("the driver's module", {"driver": {"module": "580.1"}}, True),
    ("a node", {"devices": {"nodes": {"/dev/nvidia0": {"char": True}}}}, True),
    (
        "nodes without a GPU",
        {"devices": {"nodes": {"/dev/nvidiactl": {"char": True}, "/dev/nvidia0": None}}},
        None,
    ),
    ("a card on the bus", {"gpus": {"pci": [{"bus": ONE, "driver": "nvidia", "dead": False}]}}, True),
    (
        "a virtual machine's card",
        {"gpus": {"pci": [{"bus": ONE, "driver": "vfio-pci", "dead": False}]}},
        None,
    ),
    ("a driver whose tool hangs", {"gpu": {"error": "no answer in 45 s", "driver": "580.1"}}, True),
    ("junk", {"gpus": {"pci": "x", "cards": []}, "driver": [], "devices": {"nodes": [1]}, "gpu": None}, None),
]


@pytest.mark.parametrize("seen, cuda", [case[1:] for case in SEEN], ids=[case[0] for case in SEEN])
def test_without_a_device_the_engine_takes_the_gpu_that_it_sees(seen: Facts, cuda: bool | None) -> None:
    document = overlaid(overlaid(HEALTHY_H200, NO_NVIDIA), {"launch": {"device": None}, **seen})
    assert parse(document, SECTIONS_OF).cuda is cuda
    for device, told in (("cpu", False), ("cuda:1", True), ("xpu", False)):
        assert parse(overlaid(document, {"launch": {"device": device}}), SECTIONS_OF).cuda is told


def test_nothing_of_a_gpu_is_asked_of_a_server_on_cpus() -> None:
    seen = found({}, base=HEALTHY_CPU)
    assert {one.rule for one in seen} == {"kernel-log", "oom-kills", "disk-errors"}
    broken = {
        "kernel_log": {"readable": False, "why": "closed"},
        **holders(stranger(engine=True, cgroup="/")),
    }
    assert found(broken, base=HEALTHY_CPU) == []


def test_one_rule_names_what_was_left_behind_and_each_process_once() -> None:
    orphan = stranger(engine=True, name="sglang::schedul", ppid=1, cgroup="/user.slice/session-3.scope")
    child = dict(orphan, pid=901, name="sglang::detok", ppid=900)
    seen = {
        "pid": 900, "ppid": 1, "parent": "systemd", "state": "S", "name": "sglang::scheduler_TP0", "unit": None,
        "cgroup": "/user.slice/session-3.scope", "ours": False, "container": False, "gpu": True, "rss": 1 << 30,
    }  # fmt: skip
    both = {"processes": {"processes": [seen]}, **holders(orphan, child)}
    assert [one.level for one in found(both, "leftovers")] == [Level.BLOCK]
    assert [one.level for one in found(holders(orphan), "leftovers")] == [
        Level.BLOCK
    ]  # seen by its GPU alone
    unknown = found({"gpu_processes": {"error": "no answer in 50 s"}}, "leftovers")
    assert [one.level for one in unknown] == [Level.WARN]
    assert "no answer in 50 s" in unknown[0].evidence
    assert [one.level for one in found(holders(orphan), "leftovers", HEALTHY_CPU)] == [Level.OK]


def test_a_fault_of_a_gpu_that_the_server_does_not_take_is_a_warning() -> None:
    pending = card(**{"remapped_rows.pending": "Yes"})
    taken = {"gpus": {**pending["gpus"], "need": 1}}
    assert [one.level for one in found(pending, "gpu-rows")] == [Level.BLOCK]
    assert [one.level for one in found(taken, "gpu-rows")] == [Level.WARN]
    picked = {"gpus": {**pending["gpus"], "need": 1, "visible": "1"}}
    assert [one.level for one in found(picked, "gpu-rows")] == [Level.BLOCK]


def test_every_block_has_a_remedy_and_no_finding_a_placeholder() -> None:
    for _, _, facts, _ in FAULTS:
        for one in found(facts):
            assert one.level is Level.OK or one.remedy, one
            assert "{" not in f"{one.evidence}{one.remedy}", one
