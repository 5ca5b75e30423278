"""Rules on the way to the host: a login shell that talks, clocks that differ."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ddtree_ops.core.checks.judge import rule
from ddtree_ops.core.checks.rule import Rule, Section
from ddtree_ops.core.facts_live import Live, Session
from ddtree_ops.core.finding import Finding, ok, warn
from ddtree_ops.core.wanted import Wanted

#: Certificates, tokens and files "from the future" begin to fail at about this (seconds).
_APART_S = 5.0


@dataclass(frozen=True)
class Transport:
    """sent, answered: the operator's clock (unix seconds) around the probe. noise: lines before the agent's first
    frame, of `noise_lines` in all."""

    sent: float
    answered: float
    noise: tuple[str, ...]
    noise_lines: int


def read(raw: Mapping[str, Any]) -> Transport:
    """The section that the controller adds to the probe's document."""
    return Transport(
        sent=float(raw["sent"]),
        answered=float(raw["answered"]),
        noise=tuple(raw["noise"]),
        noise_lines=int(raw["noise_lines"]),
    )


SECTION = Section("transport", Transport, read)


def _noise(facts: Transport, live: Live, wanted: Wanted) -> Iterator[Finding]:
    """Frames survive it; scp, sftp and rsync of other tools do not."""
    if not facts.noise_lines:
        yield ok("shell-noise", "the login shell is quiet")
        return
    text = f"the login shell prints {facts.noise_lines} lines before the answer: {facts.noise[0]!r}"
    fix = "[[ $- == *i* ]] || return, at the top of ~/.bashrc there (we read only framed lines; sftp and rsync fail)"
    yield warn("shell-noise", text, fix)


def _clock(facts: Transport, live: Live, wanted: Wanted) -> Iterator[Finding]:
    """Clocks apart make certificates not yet valid, files from the future, and a history in the wrong order."""
    if not isinstance(live.session, Session):
        yield warn("clock", "unknown: the host did not say its time", f"ssh {wanted.host} date -u")
        return
    apart = max(facts.sent - live.session.time, live.session.time - facts.answered, 0.0)
    if apart > _APART_S:
        side = "behind" if live.session.time < facts.sent else "ahead of"
        text = f"the host's clock is at least {apart:.0f} s {side} ours: certificates and time stamps will not match"
        yield warn("clock", text, f"ssh {wanted.host} timedatectl set-ntp true (and timedatectl here)")
    else:
        yield ok("clock", "the clocks agree")


RULES: tuple[Rule[Transport], ...] = (
    rule(SECTION, "shell-noise", _noise, "Text of an rc file is taken for data.", "F195", "F197"),
    rule(SECTION, "clock", _clock, "Certificates are not yet valid; what was made now looks older.", "F205"),
)  # fmt: skip
