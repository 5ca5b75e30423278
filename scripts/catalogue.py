"""How many of the public failure reports are found, before the stop and after it, and how often a healthy host is not.

usage: make check-catalogue, or scripts/catalogue.py --write (docs/coverage.md). Exit 1 where fewer than 80 % of the
reports that a probe can show are caught at zero downtime, on any false alarm, and on an entry that the rules miss.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "catalogue"))

from entries import (  # noqa: E402
    Entry,
    families,
    findings,
    healthy_logs,
    judge_facts,
    judge_log,
    load,
    log_alarm,
    reports,
    variations,
)

from ddtree_ops.core.doctor import blocked  # noqa: E402
from ddtree_ops.core.finding import Level  # noqa: E402

OUT = ROOT / "docs" / "coverage.md"
WANTED = 0.8


@dataclass(frozen=True)
class Seen:
    """A report as it was tried. before: BLOCK or WARN where the preflight names it, after: the reason of its log."""

    id: str
    entry: Entry | None
    before: str | None = None
    after: str | None = None
    wrong: tuple[str, ...] = ()

    @property
    def family(self) -> str:
        return reports()[self.id][0]

    @property
    def possible(self) -> str:
        return reports()[self.id][1]

    @property
    def caught(self) -> bool:
        """Named before anything stops, and stopped, unless the collection itself asks for no more than a warning."""
        return self.before == "BLOCK" or (self.before is not None and self.possible == "warn")


@dataclass(frozen=True)
class Outcome:
    """healthy: how many healthy fact sets and logs were tried; alarms: what was said against one."""

    seen: tuple[Seen, ...]
    healthy_facts: int
    healthy_logs: int
    alarms: tuple[str, ...]

    @property
    def share(self) -> float:
        """Of the reports that a probe can show: those that are caught at zero downtime."""
        probed = [one for one in self.seen if one.possible != "-"]
        return sum(one.caught for one in probed) / len(probed)


def measure() -> Outcome:
    """Try every entry, its twin and every healthy host and log."""
    entries = {entry.id: entry for entry in load()}
    seen = tuple(_try(key, entries.get(key)) for key in reports())
    alarms = [f"{one.id}: {text}" for one in seen for text in one.wrong if text.startswith("the twin is")]
    sets = [({}, "h200", {}, "the healthy H200"), ({}, "cpu", {}, "the healthy host without GPUs")]
    sets += [(one.facts, one.on, one.wanted, one.varies) for one in variations()]
    for facts, on, wanted, name in sets:
        alarms += [
            f"{name}: BLOCK {found.rule}: {found.evidence}" for found in blocked(findings(facts, on, wanted))
        ]
    for facts, on, wanted, name in sets[:2]:
        bad = [found for found in findings(facts, on, wanted) if found.level is Level.WARN]
        alarms += [f"{name}: WARN {found.rule}: {found.evidence}" for found in bad]
    logs = healthy_logs()
    alarms += [text for one in logs if (text := log_alarm(one)) is not None]
    twins = [one for one in entries.values() if one.twin is not None]
    log_twins = [one for one in entries.values() if one.log_twin is not None]
    return Outcome(seen, len(sets) + len(twins), len(logs) + len(log_twins), tuple(alarms))


def _try(key: str, entry: Entry | None) -> Seen:
    if entry is None:
        return Seen(key, None)
    facts, log = judge_facts(entry), judge_log(entry)
    before = entry.level if entry.facts is not None and not facts else None
    after = entry.reason if entry.log is not None and not log else None
    if entry.covered == "test":
        before, after = ("BLOCK", after) if entry.when == "before" else (before, "a test")
    return Seen(key, entry, before, after, (*facts, *log))


def summary(outcome: Outcome) -> list[str]:
    """The figures that the issue asks for, a line each."""
    seen = outcome.seen
    probed = [one for one in seen if one.possible != "-"]
    named = sum(one.before is not None for one in seen)
    either = sum(one.before is not None or one.after is not None for one in seen)
    return [
        f"Caught at zero downtime: {sum(one.caught for one in probed)} of the {len(probed)} reports that a probe can "
        f"show ({outcome.share:.0%}).",
        f"Named before the stop: {named} of {len(seen)}, {sum(one.before == 'BLOCK' for one in seen)} of them by a "
        "BLOCK.",
        f"Named by its log after the stop: {sum(one.after is not None for one in seen)} of {len(seen)}.",
        f"Named before or after: {either} of {len(seen)} ({either / len(seen):.0%}).",
        f"False alarms: {len(outcome.alarms)} on {outcome.healthy_facts} healthy fact sets and "
        f"{outcome.healthy_logs} healthy logs.",
    ]


def by_family(outcome: Outcome) -> list[list[str]]:
    """A row a family, with a header and the totals."""
    rows = [
        [
            "family",
            "reports",
            "a probe can show",
            "before: BLOCK",
            "before: WARN",
            "after: log",
            "not covered",
        ]
    ]
    for name in [*families(), "all"]:
        seen = [one for one in outcome.seen if name in (one.family, "all")]
        count = (
            len(seen),
            sum(one.possible != "-" for one in seen),
            sum(one.before == "BLOCK" for one in seen),
            sum(one.before == "WARN" for one in seen),
            sum(one.after is not None for one in seen),
            sum(one.before is None and one.after is None for one in seen),
        )
        rows.append([name, *map(str, count)])
    return rows


def document(outcome: Outcome) -> str:
    """docs/coverage.md."""
    parts = [
        "<!-- Generated by scripts/catalogue.py --write; do not edit. -->",
        "# Public failure reports: what is caught, and when",
        "Each of 173 public reports on installing, patching, starting and serving is an entry in `tests/catalogue/`: "
        "in our own words, with a small input that must give its verdict and name its cause, and a healthy near miss "
        "that must stay OK. *Before* is the preflight, with the old server still serving; *after* is the log of the "
        "start, within seconds. A report counts as caught at zero downtime where the preflight stops the deploy, or "
        "warns where the report asks for no more.",
        "\n".join(f"- {line}" for line in summary(outcome)),
        "## By family",
        _table(by_family(outcome)),
        "## Not covered, and why",
        _table([["report", "what happened", "why not"], *_not_covered(outcome.seen)]),
        "## Each report",
        _table([["report", "family", "what happened", "before the stop", "after"], *_each(outcome.seen)]),
    ]
    return "\n\n".join(parts) + "\n"


def _not_covered(seen: Sequence[Seen]) -> list[list[str]]:
    return [
        [one.id, one.entry.paraphrase if one.entry else "", _why(one)]
        for one in seen
        if one.before is None and one.after is None
    ]


def _why(one: Seen) -> str:
    if one.entry is None:
        return "no entry yet"
    return "; ".join(one.wrong) or one.entry.why_not or "no input yet"


def _each(seen: Sequence[Seen]) -> Iterable[list[str]]:
    for one in seen:
        if one.entry is not None and (one.before or one.after):
            rule = one.entry.rule or (one.entry.shown_by or "").rpartition("::")[2]
            before = f"{one.before} {rule}" if one.before else ""
            yield [one.id, one.family, one.entry.paraphrase, before, one.after or ""]


def _table(rows: Sequence[Sequence[str]]) -> str:
    lines = [
        "| " + " | ".join(" ".join(cell.split()).replace("|", "\\|") for cell in row) + " |" for row in rows
    ]
    lines.insert(1, "|" + "---|" * len(rows[0]))
    return "\n".join(lines)


def _columns(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="write docs/coverage.md")
    args = parser.parse_args()
    outcome = measure()
    if args.write:
        OUT.write_text(document(outcome), encoding="utf-8")
        print(OUT)
        return 0
    print(_columns(by_family(outcome)))
    print("\nNot covered:")
    print("\n".join(f"  {key}  {what}: {why}" for key, what, why in _not_covered(outcome.seen)) or "  none")
    wrong = [f"{one.id}: {text}" for one in outcome.seen for text in one.wrong]
    for title, lines in (("Missed:", wrong), ("False alarms:", outcome.alarms)):
        if lines:
            print("\n".join(["", title, *(f"  {line}" for line in lines)]))
    print("\n" + "\n".join(summary(outcome)))
    if outcome.share < WANTED:
        print(f"Less than {WANTED:.0%} at zero downtime.")
    return 1 if outcome.alarms or wrong or outcome.share < WANTED else 0


if __name__ == "__main__":
    raise SystemExit(main())
