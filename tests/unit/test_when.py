"""Spans, moments and sizes as operators type them."""

from __future__ import annotations

import pytest

from ddtree_ops.core.errors import UsageProblem
from ddtree_ops.core.when import parse_bytes, parse_moment, parse_span

pytestmark = pytest.mark.tier("transaction")


@pytest.mark.parametrize(("text", "seconds"), [("90m", 5400), ("2h", 7200), ("1h30m", 5400), ("3d", 259200)])
def test_a_span(text: str, seconds: int) -> None:
    assert parse_span(text, "--for") == seconds


@pytest.mark.parametrize(
    "text", ["", "2", "h", "2 h", "-2h", "2h!", "x2h", "1.5h", "0m", "2H", "9999999999d"]
)
def test_no_span(text: str) -> None:
    with pytest.raises(UsageProblem, match="--for"):
        parse_span(text, "--for")


def test_a_moment_has_a_zone() -> None:
    assert parse_moment("2026-12-01T08:00Z", "--until") == parse_moment("2026-12-01T10:00+02:00", "--until")
    assert parse_moment("2026-12-01T08:00Z", "--until") == 1796112000


@pytest.mark.parametrize("text", ["2026-12-01T08:00", "tomorrow", "2026-13-01T08:00Z", "", "2026-12-01"])
def test_no_moment(text: str) -> None:
    with pytest.raises(UsageProblem, match="--until"):
        parse_moment(text, "--until")


@pytest.mark.parametrize(("text", "size"), [("0", 0), ("10", 10), ("64M", 64 << 20), ("2K", 2048)])
def test_a_size(text: str, size: int) -> None:
    assert parse_bytes(text, "--failed-bytes") == size


@pytest.mark.parametrize("text", ["", "M", "-1", "64MB", "1.5G", "64 M"])
def test_no_size(text: str) -> None:
    with pytest.raises(UsageProblem, match="--failed-bytes"):
        parse_bytes(text, "--failed-bytes")
