"""Events of a rollout as values, parsed from the agent's lines (docs/protocol.md 5)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Union


@dataclass(frozen=True)
class StateChanged:
    """The transaction entered `state` at `t` (unix seconds)."""

    ev: ClassVar[str] = "state"
    state: str
    t: float | None = None


@dataclass(frozen=True)
class PhasePassed:
    """The start passed `phase` after `seconds`."""

    ev: ClassVar[str] = "phase"
    phase: str
    seconds: float | None = None


@dataclass(frozen=True)
class Progress:
    """The start moves within `phase`."""

    ev: ClassVar[str] = "progress"
    phase: str
    text: str = ""


@dataclass(frozen=True)
class LogLine:
    """A line of note from the service."""

    ev: ClassVar[str] = "log"
    line: str


@dataclass(frozen=True)
class Note:
    """Something that the operator should read, in words."""

    ev: ClassVar[str] = "note"
    text: str


@dataclass(frozen=True)
class VerdictGiven:
    """How the watch judged; `lag_s` is the time from the process's death to the verdict."""

    ev: ClassVar[str] = "verdict"
    verdict: str
    phase: str | None = None
    reason: str | None = None
    line: str | None = None
    context: tuple[str, ...] = ()
    hint: str | None = None
    lag_s: float | None = None


@dataclass(frozen=True)
class Result:
    """The last event of an operation; `data` is the whole object."""

    ev: ClassVar[str] = "result"
    ok: bool
    data: Mapping[str, Any]


@dataclass(frozen=True)
class Other:
    """An event that this version does not know, or that is malformed: shown in JSON, never an error."""

    ev: ClassVar[str] = "other"
    data: Mapping[str, Any]


Event = Union[StateChanged, PhasePassed, Progress, LogLine, Note, VerdictGiven, Result, Other]
_KINDS: dict[str, Any] = {c.ev: c for c in (StateChanged, PhasePassed, Progress, LogLine, Note, VerdictGiven)}


def parse_event(raw: Mapping[str, Any]) -> Event:
    """Return the event that the agent's object means. A newer agent may send more keys: they are left out."""
    if raw.get("ev") == "result":
        return Result(ok=raw.get("ok") is True, data=dict(raw))
    kind = _KINDS.get(str(raw.get("ev")))
    if kind is None:
        return Other(dict(raw))
    names = {f.name for f in fields(kind)}
    given = {k: tuple(v) if isinstance(v, list) else v for k, v in raw.items() if k in names}
    try:
        event: Event = kind(**given)
    except TypeError:
        return Other(dict(raw))
    return event


def event_json(event: Event) -> dict[str, Any]:
    """Return the event as the agent would send it, ready for `json.dumps`."""
    if isinstance(event, (Result, Other)):
        return dict(event.data)
    values = {f.name: getattr(event, f.name) for f in fields(event)}
    shown = {k: list(v) if isinstance(v, tuple) else v for k, v in values.items()}
    return {"ev": event.ev, **{k: v for k, v in shown.items() if v is not None and v != []}}
