"""A host that answers junk: the preflight never falls over, and what it cannot judge is not known, never fine."""

from __future__ import annotations

import copy
import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "catalogue"))
import healthy

from ddtree_ops.core.doctor import examine, refusal
from ddtree_ops.core.finding import Level

pytestmark = pytest.mark.tier("preflight")
JUNK: list[Any] = [
    None, True, 0, -1, 10**30, float("nan"), "", "x", "N/A", "1" * 5000, [], [None], [{}], {}, {"x": 1},
]  # fmt: skip


def _places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if at:
        yield at
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, below in pairs:
        yield from _places(below, (*at, key))


def _with(probe: dict[str, Any], place: tuple[Any, ...], value: Any) -> dict[str, Any]:
    changed: Any = copy.deepcopy(probe)
    inner = changed
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    return changed


def _sample() -> list[tuple[dict[str, Any], tuple[Any, ...], Any]]:
    drawn = random.Random(5)
    probes = (healthy.HEALTHY_H200, healthy.HEALTHY_CPU)
    places = [(probe, place) for probe in probes for place in _places(probe)]
    return [(probe, place, drawn.choice(JUNK)) for probe, place in drawn.sample(places, len(places) // 3)]


def test_one_junk_fact_anywhere_costs_no_preflight() -> None:
    for probe, place, value in _sample():
        found = examine(_with(probe, place, value), healthy.WANTED)
        json.dumps([finding.to_json() for finding in found])
        refusal(found, "ct129")


@pytest.mark.parametrize(
    ("place", "value", "rule", "level"),
    [
        (("storage", "opt", "bytes"), None, "disk", Level.WARN),
        (("storage", "opt", "read_only"), None, "disk", Level.WARN),
        (("abi", "torch", "cuda"), True, "cuda-build", Level.WARN),
        (("session", "python"), None, "systemd", Level.WARN),
        (("service", "masked"), None, "unit", Level.WARN),
        (("model", "target", "missing_shards"), "none", "model", Level.WARN),
        (("launch", "device"), -1, "interpreter", Level.BLOCK),
        (("gpus", "tool"), 7, "gpu-visible", Level.BLOCK),
    ],
)
def test_a_fact_of_another_kind_is_unknown(
    place: tuple[str, ...], value: Any, rule: str, level: Level
) -> None:
    found = examine(_with(healthy.HEALTHY_H200, place, value), healthy.WANTED)
    said = [one for one in found if one.rule == rule and one.level is not Level.OK]
    assert said, [one.rule for one in found if one.level is not Level.OK]
    assert said[0].level is level
    assert "the probe's answer does not fit" in said[0].evidence


def test_a_rule_that_trips_costs_itself_alone() -> None:
    """Of the right kind and no sense: a version of torch that is none."""
    found = examine(_with(healthy.HEALTHY_H200, ("abi", "torch", "cuda"), ""), healthy.WANTED)
    said = [one for one in found if "does not fit" in one.evidence]
    assert said
    assert {one.level for one in said} <= {Level.WARN, Level.BLOCK}
    assert any(one.level is Level.OK for one in found)
