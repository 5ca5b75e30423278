"""Spans, moments and sizes as an operator types them: `2h`, `2026-12-01T08:00Z`, `64M`. No clock is read here."""

from __future__ import annotations

import re
from datetime import datetime

from ddtree_ops.core.errors import UsageProblem

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_BYTES = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def parse_span(text: str, option: str) -> int:
    """`90m`, `2h`, `1h30m` as seconds. Raises UsageProblem naming the option."""
    parts = re.findall(r"(\d{1,9})([smhdw])", text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise UsageProblem(f"{option} {text!r} is no length of time", next=f"{option} 2h, 90m or 3d")
    seconds = sum(int(number) * _SECONDS[unit] for number, unit in parts)
    if seconds == 0:
        raise UsageProblem(f"{option} {text!r} is no time at all", next=f"{option} 2h, 90m or 3d")
    return seconds


def parse_moment(text: str, option: str) -> float:
    """`2026-12-01T08:00Z` as seconds since 1970. Raises UsageProblem; a zone must be said."""
    example = f"{option} 2026-12-01T08:00Z"
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise UsageProblem(f"{option} {text!r} is no date and time", next=example) from None
    if moment.tzinfo is None:
        raise UsageProblem(f"{option} {text!r} names no time zone", next=f"{example}, or with +02:00")
    return moment.timestamp()


def parse_bytes(text: str, option: str) -> int:
    """`64M` as bytes (powers of 1024). Raises UsageProblem naming the option."""
    match = re.fullmatch(r"(\d{1,12})([KMGT]?)", text)
    if not match:
        raise UsageProblem(f"{option} {text!r} is no size", next=f"{option} 64M")
    return int(match.group(1)) * _BYTES[match.group(2)]
