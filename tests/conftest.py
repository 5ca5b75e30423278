"""Paths for the tests, and the minutes of each tier at the end of a run."""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "deploy" / "agent"))
sys.path.insert(0, str(ROOT / "tests" / "catalogue"))

_seconds: dict[str, float] = defaultdict(float)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        mark = item.get_closest_marker("tier")
        if mark is None:
            raise pytest.UsageError(f"{item.nodeid} has no tier marker: its minutes would count nowhere")
        item.user_properties.append(("tier", mark.args[0]))  # travels with the reports of other processes


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    _seconds[str(dict(report.user_properties).get("tier", "?"))] += report.duration


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for tier, seconds in sorted(_seconds.items()):
        terminalreporter.write_line(f"tier {tier}: {seconds / 60:.1f} min")
