"""The public failure reports: each gives its verdict and names its cause, its healthy twin stays OK."""

from __future__ import annotations

import re
from pathlib import Path

import entries
import pytest
from entries import (
    Entry,
    HealthyLog,
    Problems,
    Variation,
    findings,
    healthy_logs,
    judge_facts,
    judge_log,
    load,
    log_alarm,
    reports,
    variations,
)

from ddtree_ops import core
from ddtree_ops.core.diagnose import diagnose
from ddtree_ops.core.doctor import blocked, known
from ddtree_ops.core.finding import Level
from ddtree_ops.core.signatures import load as load_signatures

pytestmark = pytest.mark.tier("preflight")
ENTRIES = load()
FACTS = [entry for entry in ENTRIES if entry.facts is not None]
LOGS = [entry for entry in ENTRIES if entry.log is not None]
VARIATIONS = list(variations())
SIGNATURES = load_signatures((Path(core.__file__).parent / "signatures.json").read_text())


@pytest.mark.parametrize("entry", FACTS, ids=lambda entry: f"{entry.family}-{entry.id}")
def test_a_report_is_found_before_the_stop(entry: Entry) -> None:
    assert judge_facts(entry) == []


@pytest.mark.parametrize("entry", LOGS, ids=lambda entry: f"{entry.family}-{entry.id}")
def test_a_report_is_found_in_its_log(entry: Entry) -> None:
    assert judge_log(entry) == []


@pytest.mark.parametrize("entry", LOGS, ids=lambda entry: f"{entry.family}-{entry.id}")
def test_it_does_not_matter_how_its_log_was_pasted(entry: Entry) -> None:
    lines = str(entry.log).split("\n")
    said = diagnose(lines, SIGNATURES)
    dressed = [f"\x1b[2m    {line}\x1b[0m\r" for line in lines]
    for pasted in (dressed, [f"> {line}" for line in lines]):
        again = diagnose(pasted, SIGNATURES)
        assert (again.verdict, again.reason) == (said.verdict, said.reason), again


@pytest.mark.parametrize("on", ["h200", "cpu"])
def test_a_healthy_host_is_ok_throughout(on: str) -> None:
    assert [finding for finding in findings({}, on) if finding.level is not Level.OK] == []


@pytest.mark.parametrize("variation", VARIATIONS, ids=lambda variation: variation.varies[:40])
def test_no_rule_blocks_a_healthy_host_that_is_different(variation: Variation) -> None:
    assert blocked(findings(variation.facts, variation.on, variation.wanted)) == []


@pytest.mark.parametrize("log", healthy_logs(), ids=lambda log: log.file.rpartition("/")[2])
def test_diagnose_fails_no_healthy_start(log: HealthyLog) -> None:
    assert log_alarm(log) is None


def test_all_173_open_reports_are_listed() -> None:
    assert len(reports()) == 173
    assert {kind for _, kind in reports().values()} == {"block", "warn", "-"}


def test_a_rule_cites_no_report_that_is_not_listed() -> None:
    cited = {report for about in known().values() for report in about.reports}
    assert cited - set(reports()) == set()


GOOD = """
- id: F076
  paraphrase: the unit's user may not open the device nodes
  covered: facts
  facts: {user: {exists: false}}
  rule: user
  level: BLOCK
  names: [root]
  twin: {user: {exists: true}}
"""


def _load(directory: Path, text: str, monkeypatch: pytest.MonkeyPatch, log: str | None = None) -> list[Entry]:
    monkeypatch.setattr(entries, "reports", lambda: {"F076": ("LXC", "block")})
    (directory / "LXC.yaml").write_text(text)
    if log:
        (directory / "LXC.log.yaml").write_text(log)
    return load(directory)


def test_a_good_entry_loads_and_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (entry,) = _load(tmp_path, GOOD, monkeypatch)
    assert judge_facts(entry) == []


WRONG = [
    (GOOD.replace("  rule: user\n", ""), "LXC.yaml: F076: rule is missing"),
    (GOOD.replace("F076", "F999"), "F999: no report of family LXC"),
    (GOOD + GOOD, "F076 is given twice"),
    (GOOD.replace("BLOCK", "STOP"), "F076: level: "),
    (GOOD.replace("  twin:", "  twins:"), "F076: twins: Extra inputs are not permitted"),
    (GOOD.replace("covered: facts", "covered: both"), "F076: log is missing"),
    ("[]", "LXC.yaml: F076 is missing"),
    (
        "- id: F076\n  paraphrase: happens to the client alone\n  covered: no\n".replace("no", "'no'"),
        "without why_not",
    ),
    (
        "- id: F076\n  paraphrase: caught by another test there\n  covered: test\n  when: before\n"
        "  shown_by: tests/unit/test_catalogue.py::test_absent\n",
        "test_absent does not exist",
    ),
    ("- id: [", "LXC.yaml: "),
]


@pytest.mark.parametrize(("text", "said"), WRONG, ids=[said for _, said in WRONG])
def test_a_wrong_entry_is_named_with_its_file(
    text: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(Problems, match=re.escape(said)):
        _load(tmp_path, text, monkeypatch)


def test_a_log_half_joins_its_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = "- id: F076\n  log: a\n  verdict: FAIL\n  reason: x\n  hint_names: [y]\n  log_twin: b\n"
    (entry,) = _load(tmp_path, GOOD, monkeypatch, log)
    assert (entry.covered, entry.rule, entry.reason) == ("both", "user", "x")
    with pytest.raises(Problems, match="rule is given in both files"):
        _load(tmp_path, GOOD, monkeypatch, log + "  rule: user\n")


MISSES = [
    (GOOD.replace("names: [root]", "names: [gpu]"), "'gpu' is not named"),
    (GOOD.replace("level: BLOCK", "level: WARN"), "no WARN of user"),
    (GOOD.replace("twin: {user: {exists: true}}", "twin: {user: {exists: false}}"), "the twin is not OK"),
    (GOOD.replace("facts: {user: {exists: false}}", "facts: {}"), "no BLOCK of user"),
]


@pytest.mark.parametrize(("text", "said"), MISSES, ids=[said for _, said in MISSES])
def test_an_entry_that_the_rules_miss_fails(
    text: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (entry,) = _load(tmp_path, text, monkeypatch)
    assert any(said in wrong for wrong in judge_facts(entry))
