"""docs/RELIABILITY.md: generated from its inputs, and as it was generated."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

import reliability  # noqa: E402

pytestmark = pytest.mark.tier("transaction")
MATRIX = [
    {"point": "P6", "fault": "reboot", "expected": "RB", "outcome": "RB", "exit_code": 10, "ok": True,
     "recovery_s": 3.24, "lag_s": None},
    {"point": "P6", "fault": "SIGKILL", "expected": "RB", "outcome": "NEW", "exit_code": None, "ok": False,
     "recovery_s": None, "lag_s": 0.5, "why": ["I1: two run"]},
]  # fmt: skip
ABOUT = {
    "seed": "7", "hosts": 6, "cycle_s": 4.5, "timeouts": {"confirm": 10}, "machine": "2 cores", "date": "2026-11-29",
    "commit": "abc1234", "runs": 2, "asked": 2, "errors": [],
}  # fmt: skip
MUTATIONS = [
    {"name": "the timer", "file": "guard.py", "caught_by": ["test_a"], "stayed_green": ["test_b"]},
    {"name": "the lock", "file": "layout.py", "caught_by": [], "stayed_green": []},
]


def a_run(number: int, **changed: Any) -> dict[str, Any]:
    line = {
        "run": number, "seed": f"7/{number}", "host": "c1", "action": "deploy", "fault": "host-crash", "t": 1.5,
        "more": [], "outcome": "old", "exit_code": 10, "violations": [], "recovery_s": 2.0, "lag_s": 0.3,
    }  # fmt: skip
    return line | changed


def text(runs: Path, **inputs: Any) -> str:
    for name, value in inputs.items():
        suffix = "jsonl" if name == "lines" else "json"
        body = "\n".join(map(json.dumps, value)) if name == "lines" else json.dumps(value)
        (runs / f"{'campaign' if name == 'lines' else name}.{suffix}").write_text(body)
    return reliability.document(runs)


def test_what_was_found_stands_in_the_document(tmp_path: Path) -> None:
    lines = [a_run(number) for number in range(1, 301)]
    found = text(tmp_path, matrix=MATRIX, campaign=ABOUT, lines=lines, mutations=MUTATIONS)
    assert "0 of 300 runs violated an invariant: at 95 % confidence the rate is at most 3/300 = 1 %" in found
    assert "| host-crash | 300 | 0 | 300 | 10 | 2.0, 2.0, 2.0 | 0 |" in found
    assert "| P6 | RB 10, 3.2 | **NEW – ✗** |" in found
    assert "1 of 2 cells as expected" in found
    assert "- **P6, SIGKILL**: expected RB, was NEW (–). I1: two run" in found
    assert "| the timer | guard.py | `test_a` | `test_b` |" in found
    assert "| the lock | layout.py | **none ✗** |  |" in found
    assert reliability.genuine(found)


def test_a_violation_is_no_bound(tmp_path: Path) -> None:
    lines = [a_run(1), a_run(2, violations=["I1: nothing serves"])]
    found = text(tmp_path, campaign=ABOUT, lines=lines)
    assert "1 of 2 runs violated an invariant" in found
    assert "3/2" not in found
    assert "- run 2 (seed `7/2`, host-crash at 1.5 s): I1: nothing serves" in found


def test_a_campaign_that_lost_a_host_on_the_way_says_so(tmp_path: Path) -> None:
    found = text(tmp_path, campaign={**ABOUT, "asked": 30, "errors": ["c3: no login"]}, lines=[a_run(1)])
    assert "1 of 30 runs were done" in found
    assert "- c3: no login" in found


def test_the_lines_of_a_campaign_that_was_ended_count_for_nothing(tmp_path: Path) -> None:
    found = text(tmp_path, lines=[a_run(1)])
    assert "(campaign)" not in found


def test_a_missing_input_is_said_to_be_missing(tmp_path: Path) -> None:
    found = reliability.document(tmp_path)
    assert found.count("Not run yet") == 3
    assert "matrix.json missing" in found


def test_an_edit_by_hand_is_seen(tmp_path: Path) -> None:
    found = text(tmp_path, matrix=MATRIX)
    assert reliability.genuine(found)
    assert not reliability.genuine(found.replace("P6", "P7"))
    assert not reliability.genuine("# Reliability\n")


@pytest.mark.parametrize(("values", "wanted"), [([1.0], 1.0), (list(range(1, 101)), 95), ([1, 9], 9)])
def test_p95(values: list[float], wanted: float) -> None:
    assert reliability.p95(values) == wanted


def test_the_committed_document_is_as_it_was_generated() -> None:
    assert reliability.genuine((ROOT / "docs" / "RELIABILITY.md").read_text())
