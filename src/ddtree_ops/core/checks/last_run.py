"""Rules on how the service last started: it failed the same way before, it loops, systemd refuses to start it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ddtree_ops.core.checks.judge import rule
from ddtree_ops.core.checks.rule import Rule, Section
from ddtree_ops.core.facts_live import Live
from ddtree_ops.core.finding import Finding, ok, warn
from ddtree_ops.core.wanted import Wanted


@dataclass(frozen=True)
class LastRun:
    """fatal: (line, reason, hint) of the last start that is not the running one. log: whether its lines were there."""

    result: str
    active: str
    sub: str
    restarts: int | None
    status: int | None
    start_limit: bool
    log: bool
    fatal: tuple[str, str, str] | None


def read(raw: Mapping[str, Any]) -> LastRun:
    """The raw section, typed."""
    fatal = raw["fatal"]
    names = ("result", "active", "sub", "restarts", "status", "start_limit", "log")
    return LastRun(
        **{name: raw[name] for name in names},
        fatal=(fatal["line"], fatal["reason"], fatal["hint"]) if fatal else None,
    )


SECTION = Section("last_run", LastRun, read)


def _start_limit(facts: LastRun, live: Live, wanted: Wanted) -> Iterator[Finding]:
    """systemd refuses a start after too many; we reset its counter before ours."""
    if facts.start_limit or facts.result == "start-limit-hit":
        text = "systemd refuses to start it (start-limit-hit): it failed too often; a deploy resets the counter first"
        yield warn(
            "start-limit",
            text,
            f"ssh {wanted.host} systemctl reset-failed {wanted.service}, after reading why it failed",
        )
    else:
        yield ok("start-limit", "systemd counts no start limit")


def _loop(facts: LastRun, live: Live, wanted: Wanted) -> Iterator[Finding]:
    """What crashes on and off now is no service to fall back to."""
    id, logs = "restarts", f"ddtree-ops logs --host {wanted.host}"
    if facts.restarts is None:
        yield warn(id, "unknown: systemd does not say how often it restarted the service", logs)
    elif facts.sub == "auto-restart":
        yield warn(
            id, f"the service is in a restart loop ({facts.restarts} so far, result {facts.result})", logs
        )
    elif facts.restarts >= 3:
        yield warn(id, f"systemd restarted the service {facts.restarts} times by itself", logs)
    else:
        yield ok(id, f"{facts.restarts} automatic restarts")


def _last(facts: LastRun, live: Live, wanted: Wanted) -> Iterator[Finding]:
    """A cause that was there at the last start is there at the next one too, unless the release removes it."""
    id = "last-start"
    logs = f"ddtree-ops logs --host {wanted.host}"
    if facts.fatal is not None:
        line, reason, hint = facts.fatal
        before = "an earlier start failed" if facts.active == "active" else "the last start failed"
        yield warn(id, f"{before} ({reason}): {line}", f"{hint}; {logs}")
    elif facts.active == "failed":
        with_ = f"result {facts.result}, status {facts.status}"
        yield warn(id, f"the last start failed ({with_}), and its log names no cause that we know", logs)
    else:
        yield ok(id, "no earlier failure is known" if facts.log else "no log of an earlier start")


RULES: tuple[Rule[LastRun], ...] = (
    rule(SECTION, "start-limit", _start_limit, "The start is refused though its cause is mended.", "F166"),
    rule(SECTION, "restarts", _loop, "There is no service to go back to.", "F182"),
    rule(
        SECTION,
        "last-start",
        _last,
        "What broke an earlier start here is likely to break the next one too, and then nobody serves.",
    ),
)
