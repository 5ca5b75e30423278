"""docs/checks.md and docs/coverage.md: as the rules and the catalogue are now."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

import checks_doc  # noqa: E402

import catalogue  # noqa: E402
from ddtree_ops.core.doctor import known  # noqa: E402

pytestmark = pytest.mark.tier("preflight")


def test_checks_md_is_what_the_rules_say() -> None:
    text = checks_doc.document()
    assert (ROOT / "docs/checks.md").read_text() == text, "run: make docs"
    assert [rule for rule in known() if f"- **`{rule}`**" not in text] == []


def test_a_stale_file_fails_make_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stale = tmp_path / "checks.md"
    stale.write_text(checks_doc.document() + "- by hand\n")
    monkeypatch.setattr(checks_doc, "OUT", stale)
    monkeypatch.setattr(sys, "argv", ["checks_doc.py", "--check"])
    assert checks_doc.main() == 1
    assert "make docs" in capsys.readouterr().out
    stale.write_text(checks_doc.document())
    assert checks_doc.main() == 0


@pytest.fixture(scope="module")
def outcome() -> catalogue.Outcome:
    return catalogue.measure()


def test_coverage_md_is_what_the_catalogue_says(outcome: catalogue.Outcome) -> None:
    assert (ROOT / "docs/coverage.md").read_text() == catalogue.document(outcome), "run: make docs"


def test_the_figures_count_a_warning_only_where_the_report_asks_for_no_more() -> None:
    entry = None
    seen = (
        catalogue.Seen("F022", entry, before="BLOCK"),  # block is possible
        catalogue.Seen("F023", entry, before="WARN"),  # a block was possible: a warning stops no deploy
        catalogue.Seen("F064", entry, before="WARN"),  # a warning is what it asks for
        catalogue.Seen("F058", entry, after="stall"),  # no probe can show it
    )
    outcome = catalogue.Outcome(seen, 2, 0, ())
    assert outcome.share == 2 / 3
    assert catalogue.summary(outcome)[0] == (
        "Caught at zero downtime: 2 of the 3 reports that a probe can show (67%)."
    )
    assert [row[1:] for row in catalogue.by_family(outcome) if row[0] in ("DRV", "all")] == [
        ["2", "2", "1", "1", "0", "0"],
        ["4", "3", "1", "2", "1", "0"],
    ]


@pytest.mark.parametrize(
    ("share_of", "alarms", "wrong", "code"),
    [(8, (), (), 0), (7, (), (), 1), (10, ("x: BLOCK y",), (), 1), (10, (), ("no BLOCK of y",), 1)],
)
def test_the_command_fails_below_80_percent_and_on_any_false_alarm_or_miss(
    share_of: int, alarms: tuple[str, ...], wrong: tuple[str, ...], code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [name for name, (_, possible) in catalogue.reports().items() if possible == "block"][:10]
    seen = tuple(
        catalogue.Seen(name, None, "BLOCK" if i < share_of else None) for i, name in enumerate(names)
    )
    seen = (dataclasses.replace(seen[0], wrong=wrong), *seen[1:])
    monkeypatch.setattr(catalogue, "measure", lambda: catalogue.Outcome(seen, 2, 0, alarms))
    monkeypatch.setattr(sys, "argv", ["catalogue.py"])
    assert catalogue.main() == code
