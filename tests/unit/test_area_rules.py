"""A rule of an area, as the preflight runs it: unknown is never OK, a GPU's blocks where cuda is asked for, it can be
waived and explained like the others."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import pytest
from healthy import HEALTHY_CPU, HEALTHY_H200, WANTED, overlaid
from healthy_gpu import NO_NVIDIA

from ddtree_ops.cli._findings import explained
from ddtree_ops.core import doctor
from ddtree_ops.core.checks.rule import Rule, Section
from ddtree_ops.core.facts_live import Live
from ddtree_ops.core.finding import Finding, Level, block, ok
from ddtree_ops.core.wanted import Wanted

pytestmark = pytest.mark.tier("preflight")


@dataclasses.dataclass(frozen=True)
class Fans:
    turning: int


def judge(fans: Fans, _: Live, wanted: Wanted) -> list[Finding]:
    if fans.turning:
        return [ok("made-up-fans", f"{fans.turning} turn")]
    return [block("made-up-fans", "no fan turns", f"ssh {wanted.host} true")]


def read(raw: Mapping[str, Any]) -> Fans:
    return Fans(int(raw["turning"]))


def rule(gpu: bool = True, waivable: bool = True) -> Rule[Fans]:
    section = Section("made-up", Fans, read, gpu=gpu)
    return Rule("made-up-fans", section, judge, "It gets hot.", ("F064",), waivable)


@pytest.fixture
def areas(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    use(monkeypatch, rule())
    return monkeypatch


def use(patch: pytest.MonkeyPatch, one: Rule[Fans]) -> None:
    patch.setattr(doctor, "AREA_RULES", (one,))
    patch.setattr(doctor, "SECTIONS", (one.section,))


def said(probe: dict[str, Any], waive: dict[str, str] | None = None) -> list[Finding]:
    found = doctor.examine(probe, dataclasses.replace(WANTED, waive=waive or {}))
    return [finding for finding in found if finding.rule == "made-up-fans"]


@pytest.mark.parametrize(
    ("on", "device", "raw", "level"),
    [
        ("h200", "cuda", {"turning": 2}, Level.OK),
        ("h200", "cuda", {"turning": 0}, Level.BLOCK),
        ("h200", "cuda", {"error": "no answer in 5 s"}, Level.BLOCK),
        ("h200", "cuda", {"turning": "many"}, Level.BLOCK),
        ("h200", None, None, Level.BLOCK),  # without --device the engine takes the GPUs that it sees
        ("none", None, None, Level.WARN),
        ("none", "cuda", None, Level.BLOCK),
        ("h200", "npu", {"turning": 0}, None),
        ("cpu", "cpu", {"turning": 0}, None),
    ],
)
def test_what_a_rule_about_gpus_says(
    on: str, device: str | None, raw: Any, level: Level | None, areas: pytest.MonkeyPatch
) -> None:
    bases = {"h200": HEALTHY_H200, "cpu": HEALTHY_CPU, "none": overlaid(HEALTHY_H200, NO_NVIDIA)}
    base = bases[on]
    found = said(overlaid(base, {"launch": {"device": device}, "made-up": raw}))
    assert [finding.level for finding in found] == ([] if level is None else [level])


def test_what_is_unknown_and_not_about_gpus_is_a_warning(areas: pytest.MonkeyPatch) -> None:
    use(areas, rule(gpu=False))
    assert [finding.level for finding in said({**HEALTHY_H200})] == [Level.WARN]


def test_it_can_be_waived_and_explained(areas: pytest.MonkeyPatch) -> None:
    stopped = overlaid(HEALTHY_H200, {"made-up": {"turning": 0}})
    (found,) = said(stopped, {"made-up-fans": "a bench"})
    assert (found.level, found.waived) == (Level.WARN, "a bench")
    text = explained("made-up-fans", doctor.known()["made-up-fans"])
    for word in ("(made-up; not asked with --device cpu)", "It gets hot.", "F064", "waive: {made-up-fans: "):
        assert word in text
    use(areas, rule(waivable=False))
    (found,) = said(stopped, {"made-up-fans": "a bench"})
    assert (found.level, found.waived) == (Level.BLOCK, None)
    assert "cannot be waived" in explained("made-up-fans", doctor.known()["made-up-fans"])
