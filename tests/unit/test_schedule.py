"""`--at`: which moment is meant, and a wait that an interrupt or a sleeping machine ends with nothing touched."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import datetime, timezone
from typing import Any

import pytest

from ddtree_ops.apply.schedule import parse, remaining, shown, wait
from ddtree_ops.core.errors import Detached, PreconditionFailed, UsageProblem

pytestmark = pytest.mark.tier("transaction")


@pytest.fixture(autouse=True)
def in_berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def local(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone()


NOW = "2026-11-29T22:15:00"


@pytest.mark.parametrize(
    ("text", "utc"),
    [
        ("03:00", "2026-11-30T02:00:00"),
        ("23:59", "2026-11-29T22:59:00"),
        ("22:15", "2026-11-30T21:15:00"),
        ("22:15:01", "2026-11-29T21:15:01"),
        ("2026-12-01T03:00", "2026-12-01T02:00:00"),
        ("2026-12-01T03:00Z", "2026-12-01T03:00:00"),
        ("2026-12-01 03:00:00-05:00", "2026-12-01T08:00:00"),
    ],
)
def test_what_a_time_means(text: str, utc: str) -> None:
    assert parse(text, local(NOW)).astimezone(timezone.utc).replace(tzinfo=None).isoformat() == utc


def test_a_night_in_which_the_clock_changes() -> None:
    # 2026-03-29 02:00 became 03:00: 04:00 is 02:00 UTC, not 03:00
    assert parse("04:00", local("2026-03-28T22:00:00")).astimezone(timezone.utc).hour == 2


@pytest.mark.parametrize("text", ["25:00", "3", "noon", "", "2026-13-01", "2026-11-29T22:14", "0001-01-01"])
def test_what_is_no_time_to_come_is_refused(text: str) -> None:
    with pytest.raises(UsageProblem, match="--at"):
        parse(text, local(NOW))


def test_it_is_shown_in_utc_and_local() -> None:
    assert shown(local("2026-11-30T03:00:00")) == "2026-11-30 02:00:00 UTC (03:00:00 CET)"


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0 s"), (59.6, "1 min 00 s"), (61, "1 min 01 s"), (7500, "2 h 05 min")]
)
def test_a_duration(seconds: float, text: str) -> None:
    assert remaining(seconds) == text


class Clock:
    """A clock that only sleeping moves; `jump` is added at the first sleep (a laptop's lid)."""

    def __init__(self, start: float, jump: float = 0) -> None:
        self.now, self.jump = start, jump
        self.slept = 0

    def sleep(self, seconds: float) -> None:
        self.slept += 1
        self.now += seconds + self.jump
        self.jump = 0

    def wait(self, moment: datetime, seen: list[Any]) -> None:
        wait(moment, "ct129", seen.append, clock=lambda: self.now, sleep=self.sleep)


def test_it_returns_at_the_moment_and_tells_what_remains() -> None:
    moment, seen = local("2026-11-30T03:00:00"), list[Any]()
    clock = Clock(moment.timestamp() - 150)
    clock.wait(moment, seen)
    assert clock.now == moment.timestamp()
    assert ["in 2 min 30 s" in seen[0]["text"], "in 1 min 30 s" in seen[1]["text"], len(seen)] == [
        True,
        True,
        3,
    ]


def test_a_machine_that_slept_through_it_begins_nothing() -> None:
    moment = local("2026-11-30T03:00:00")
    with pytest.raises(PreconditionFailed, match="slept"):
        Clock(moment.timestamp() - 60, jump=6 * 3600).wait(moment, [])
    Clock(moment.timestamp() - 60, jump=60).wait(moment, [])


def test_an_interrupt_says_that_nothing_was_touched() -> None:
    def interrupted(_: float) -> None:
        raise KeyboardInterrupt

    moment = local("2026-11-30T03:00:00")
    with pytest.raises(Detached, match="nothing was touched"):
        wait(moment, "ct129", lambda _: None, clock=lambda: moment.timestamp() - 9, sleep=interrupted)
