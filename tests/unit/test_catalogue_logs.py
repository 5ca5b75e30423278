"""Every report of the catalogue that a log shows: its verdict, a hint that names its cause, and a near miss."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from ddtree_ops.core.diagnose import Diagnosis, diagnose
from ddtree_ops.core.signatures import load

pytestmark = pytest.mark.tier("preflight")

ROOT = Path(__file__).resolve().parents[2]
SIGNATURES = load((ROOT / "src/ddtree_ops/core/signatures.json").read_text())
ENTRIES: list[dict[str, Any]] = [
    entry
    for path in sorted((ROOT / "tests/catalogue").glob("*.log.yaml"))
    for entry in YAML(typ="safe").load(path.read_text())
]


def read(text: str) -> Diagnosis:
    return diagnose(text.split("\n"), SIGNATURES)


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry["id"])
def test_a_report_gives_its_verdict_and_its_near_miss_none(entry: dict[str, Any]) -> None:
    said = read(entry["log"])
    assert (said.verdict, said.reason.partition(" ")[2]) == (entry["verdict"], entry["reason"]), said
    missing = [word for word in entry["hint_names"] if word.lower() not in said.hint.lower()]
    assert not missing, (missing, said.hint)
    assert said.line, said
    near = read(entry["log_twin"])
    assert near.verdict in ("OK", "WAIT"), near


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry["id"])
def test_it_does_not_matter_how_the_log_was_pasted(entry: dict[str, Any]) -> None:
    said = read(entry["log"])
    dressed = "".join(f"\x1b[2m    {line}\x1b[0m\r\n" for line in entry["log"].split("\n"))
    quoted = "".join(f"> {line}\n" for line in entry["log"].split("\n"))
    for text in (dressed, quoted):
        again = read(text)
        assert (again.verdict, again.reason) == (said.verdict, said.reason), again


def test_no_report_is_told_twice() -> None:
    assert len({entry["id"] for entry in ENTRIES}) == len(ENTRIES)
