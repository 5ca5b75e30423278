"""The probe's GPU sections as two real H200 answered (tp 2, 2026-11-30, driver 580.159.04): every rule holds."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from healthy import HEALTHY_H200, WANTED

from ddtree_ops.core.doctor import AREA_RULES, examine
from ddtree_ops.core.finding import Level

pytestmark = pytest.mark.tier("preflight")
SEEN: dict[str, Any] = json.loads(
    (Path(__file__).resolve().parents[1] / "fixtures" / "preflight" / "probe_h200_x2.json").read_text()
)
#: It was probed with no unit there.
NO_UNIT = {"device-sandbox"}


def judged(**changed: Any) -> dict[str, list[Level]]:
    document = {**copy.deepcopy(HEALTHY_H200), **copy.deepcopy(SEEN), **changed}
    ids = {rule.id for rule in AREA_RULES if rule.section.name in SEEN} - NO_UNIT
    found: dict[str, list[Level]] = {}
    for finding in examine(document, WANTED):
        if finding.rule in ids:
            found.setdefault(finding.rule, []).append(finding.level)
    return found


def test_two_healthy_gpus_are_ok_throughout() -> None:
    found = judged()
    assert len(found) > 30
    assert {name: levels for name, levels in found.items() if set(levels) != {Level.OK}} == {}


def test_the_same_answer_with_one_gpu_off_the_bus_is_not() -> None:
    lines = {
        **SEEN["kernel_log"],
        "events": [{"kind": "xid", "xid": 79, "bus": "0000:00:06.0", "text": "Xid 79"}],
    }
    gpus = copy.deepcopy(SEEN["gpus"])
    gpus["cards"].pop("0000:00:06.0")
    assert Level.BLOCK in {
        level for levels in judged(gpus=gpus, kernel_log=lines).values() for level in levels
    }
