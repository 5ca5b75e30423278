"""`--at`: what time is meant, and the wait for it on the operator's side; an interrupt ends it, nothing touched."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any

from ddtree_ops.core.errors import Detached, PreconditionFailed, UsageProblem

OnEvent = Callable[[dict[str, Any]], None]
_TELL_S = 60.0
#: A machine that slept through its time must not begin in the morning what was meant for the night.
_LATE_S = 300.0


def parse(text: str, now: datetime) -> datetime:
    """The moment that `03:00`, `03:00:30` or an ISO time means; the next such local time where no date is given.

    `now` has a time zone; a time without one is local. Raises UsageProblem for anything else, and for the past.
    """
    clock = re.fullmatch(r"(\d{1,2}):(\d{2})(?::(\d{2}))?", text)
    try:
        if clock:
            hour, minute, second = (int(part or 0) for part in clock.groups())
            today = now.replace(tzinfo=None, hour=hour, minute=minute, second=second, microsecond=0)
            return next(
                moment
                for moment in ((today + timedelta(days=days)).astimezone() for days in (0, 1))
                if moment > now
            )
        meant = datetime.fromisoformat(text).astimezone()
    except (ValueError, OverflowError):
        raise UsageProblem(
            f"--at {text}: no time", next="--at 03:00, or --at 2026-11-30T03:00, or with a zone: …T03:00Z"
        ) from None
    if meant <= now:
        raise UsageProblem(f"--at {text}: {shown(meant)} is over", next="--at with a time to come")
    return meant


def shown(moment: datetime) -> str:
    """The moment in UTC and in local time."""
    utc, local = moment.astimezone(timezone.utc), moment.astimezone()
    return f"{utc:%Y-%m-%d %H:%M:%S} UTC ({local:%H:%M:%S %Z})"


def remaining(seconds: float) -> str:
    """A duration as a person says it: `2 h 05 min`, `40 s`."""
    whole = max(0, round(seconds))
    if whole >= 3600:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    return f"{whole // 60} min {whole % 60:02d} s" if whole >= 60 else f"{whole} s"


def wait(
    moment: datetime,
    host: str,
    on_event: OnEvent,
    *,
    clock: Callable[[], float] = time.time,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Return at the moment, telling what remains meanwhile. Raises Detached at an interrupt, PreconditionFailed where
    this machine slept past it."""
    until, told = moment.timestamp(), float("inf")
    try:
        while (left := until - clock()) > 0:
            if told - left >= _TELL_S:
                told = left
                on_event({"ev": "note", "text": f"begins at {shown(moment)}, in {remaining(left)}"})
            sleep(min(left, 5.0))
    except KeyboardInterrupt:
        raise Detached(
            f"interrupted while waiting for {shown(moment)}",
            host=host,
            meaning="nothing was touched: the rollout had not begun",
            next="type the same command again",
        ) from None
    late = clock() - until
    if late > _LATE_S:
        raise PreconditionFailed(
            f"{shown(moment)} passed {remaining(late)} ago: this machine slept through it",
            host=host,
            meaning="nothing was touched",
            next="type the same command again",
        )
