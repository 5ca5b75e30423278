"""What a mode does to a command line: its rules as types, and the rewrite that follows them.

A mode drops all of the baseline's flags that match `drop`, sets its own and adds those that its rule table asks for.
A value that the operator set is never changed: that is a conflict (exit 3).
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ddtree_ops.core.errors import PreconditionFailed, UsageProblem
from ddtree_ops.core.features import Loss

BASELINE = "baseline"
Flag = tuple[str, "str | list[str] | None"]
_IS_FLAG = re.compile(r"--?[A-Za-z].*", re.DOTALL)


@dataclass(frozen=True)
class Span:
    """A flag with its values at argv[start:end]."""

    name: str
    values: tuple[str, ...]
    start: int
    end: int

    @property
    def value(self) -> str | None:
        """Its values as one text, None for a bare flag."""
        return " ".join(self.values) if self.values else None


def scan(argv: Sequence[str], start: int = 0) -> list[Span]:
    """Return the flags of argv[start:]; `--x=y` is one, what follows a flag and is no flag is its value.

    A negative number is a value, an empty word too. Values in front of any flag have the name ``.
    """
    out: list[Span] = []
    at = start
    while at < len(argv):
        began, name, values = at, "", list[str]()
        if _IS_FLAG.match(argv[at]):
            name, equals, rest = argv[at].partition("=")
            values = [rest] if equals else []
            at += 1
            if equals:
                out.append(Span(name, (rest,), began, at))
                continue
        while at < len(argv) and not _IS_FLAG.match(argv[at]):
            values.append(argv[at])
            at += 1
        out.append(Span(name, tuple(values), began, at))
    return out


def read_flags(argv: Sequence[str]) -> list[Flag]:
    """Return (flag, value) pairs: None for a bare flag, a list for several values."""
    pairs: list[Flag] = []
    for span in scan(argv):
        many = list(span.values)
        pairs.append((span.name, None if not many else many[0] if len(many) == 1 else many))
    return pairs


@dataclass(frozen=True)
class Rule:
    """A flag that a mode adds, forbids or drops for a kind of model, and why. value None: a bare flag, or any value.

    allow: values that are no conflict, or that need not go."""

    flag: str
    value: str | None
    reason: str
    when: str = "always"
    unless: tuple[str, ...] = ()
    allow: tuple[str, ...] = ()


@dataclass(frozen=True)
class Refusal:
    """Why a mode does not run for a kind of model."""

    reason: str
    when: str = "always"


@dataclass(frozen=True)
class Mode:
    """One mode. requires: host keys. set: flag → value. drop: an operator's flags that go, each with its reason.
    state: what the engine must report. proven_by: the mode in which the same sources must have been confirmed."""

    name: str
    patched: bool = False
    requires: tuple[str, ...] = ()
    set: tuple[tuple[str, str | None], ...] = ()
    add: tuple[Rule, ...] = ()
    drop: tuple[Rule, ...] = ()
    forbid: tuple[Rule, ...] = ()
    state: Mapping[str, Any] = field(default_factory=dict)
    loses: tuple[Loss, ...] = ()
    refuse: Refusal | None = None
    proven_by: str | None = None

    def refused(self, hybrid: bool) -> str | None:
        """Why the mode does not run for this kind of model; None where it does."""
        return self.refuse.reason if self.refuse and _applies(self.refuse, hybrid) else None


@dataclass(frozen=True)
class Rehearsal:
    """What a rehearsal changes of a release's command line. small: flag → target or draft, whose checkpoint gets few
    layers; refuse: flags that cannot be rehearsed; drop: flags that go; set: flag → value, or {port} or {fraction},
    which the host fills in."""

    small: Mapping[str, str]
    refuse: tuple[Rule, ...] = ()
    drop: tuple[str, ...] = ()
    set: tuple[tuple[str, str | None], ...] = ()


@dataclass(frozen=True)
class Modes:
    """A series' modes.yaml. drop: globs of the flags that every mode drops together; keep: those of them that stay,
    because they tell of the draft and not of the algorithm. rehearse: None where the series has no rehearsal."""

    drop: tuple[str, ...]
    modes: Mapping[str, Mode]
    keep: tuple[str, ...] = ()
    rehearse: Rehearsal | None = None

    def proves(self, name: str) -> bool:
        """Whether another mode needs this one's proof."""
        return any(mode.proven_by == name for mode in self.modes.values())

    def drops(self, flag: str) -> bool:
        """Whether every mode drops this flag."""
        return flag not in self.keep and any(fnmatch.fnmatchcase(flag, pattern) for pattern in self.drop)

    def accepts(self) -> dict[str, tuple[str, ...]]:
        """The flags that some mode sets or adds, each with the values that it gives them (`{host keys}` left out)."""
        found: dict[str, tuple[str, ...]] = {}
        for mode in self.modes.values():
            for flag, value in (*mode.set, *((rule.flag, rule.value) for rule in mode.add)):
                plain = (value,) if value and not value.startswith("{") else ()
                found[flag] = tuple(dict.fromkeys((*found.get(flag, ()), *plain)))
        return found

    def get(self, name: str) -> Mode:
        """Return a mode by name. Raises UsageProblem for an unknown one."""
        if name not in self.modes:
            raise UsageProblem(
                f"unknown mode {name}: this series has {BASELINE}, {', '.join(self.modes)}",
                next="ddtree-ops render --help",
            )
        return self.modes[name]

    def patched(self, name: str) -> bool:
        """Whether the mode runs the patched engine; the baseline never does. Raises UsageProblem."""
        return name != BASELINE and self.get(name).patched

    def requires(self, name: str) -> tuple[str, ...]:
        """Return the host keys that the mode needs. Raises UsageProblem."""
        return () if name == BASELINE else self.get(name).requires


@dataclass(frozen=True)
class Rewritten:
    """The new argv and each difference. dropped: the words of each dropped flag. replaced: those of them that the
    mode itself drops, and added: (flag with value, reason)."""

    argv: list[str]
    dropped: list[list[str]] = field(default_factory=list)
    set: list[tuple[str, str | None]] = field(default_factory=list)
    added: list[tuple[str, str]] = field(default_factory=list)
    replaced: list[tuple[str, str]] = field(default_factory=list)
    loses: list[Loss] = field(default_factory=list)
    state: dict[str, Any] = field(default_factory=dict)


def rewrite(
    argv: Sequence[str],
    flags_at: int,
    modes: Modes,
    mode: Mode,
    values: Mapping[str, str | int | None],
    hybrid: bool,
    host: str | None = None,
) -> Rewritten:
    """Rewrite the server's argv (its own flags begin at `flags_at`) for `mode`.

    values: what `{draft}` and its kin stand for. Raises UsageProblem where a required host key is not set and
    PreconditionFailed where the mode refuses, or where it conflicts with a value that the operator set.
    """
    if why := mode.refused(hybrid):
        raise PreconditionFailed(f"mode {mode.name} is not available: {why}", host=host)
    for key in mode.requires:
        if values.get(key) in (None, ""):
            raise UsageProblem(
                f"mode {mode.name} needs the host key {key}", host=host, next=f"set {key}: in hosts.yaml"
            )
    kept: list[str] = list(argv[:flags_at])
    dropped: list[list[str]] = []
    replaced: list[tuple[str, str]] = []
    for span in scan(argv, flags_at):
        words = list(argv[span.start : span.end])
        if modes.drops(span.name):
            dropped.append(words)
        elif rule := _dropping(span, mode, hybrid):
            dropped.append(words)
            replaced.append((" ".join(words), rule.reason))
        else:
            kept += words
    present = {span.name: span for span in scan(kept, flags_at)}
    for rule in mode.forbid:
        _forbid(rule, present, mode, hybrid, host)
    put: list[tuple[str, str | None]] = []
    for flag, value in mode.set:
        filled = _fill(value, values, mode)
        if not _already(flag, filled, present, mode, f"mode {mode.name} sets it", host):
            put.append((flag, filled))
    added: list[tuple[str, str]] = []
    for rule in mode.add:
        if not _applies(rule, hybrid) or any(_has(u, present) for u in rule.unless):
            continue
        filled = _fill(rule.value, values, mode)
        if not _already(rule.flag, filled, present, mode, rule.reason, host):
            put.append((rule.flag, filled))
            added.append((rule.flag if filled is None else f"{rule.flag} {filled}", rule.reason))
    for flag, value in put:
        kept += [flag] if value is None else [flag, value]
    state = {k: _fill_any(v, values, mode) for k, v in mode.state.items()}
    set_ = put[: len(put) - len(added)]
    return Rewritten(kept, dropped, set_, added, replaced, list(mode.loses), state)


def _dropping(span: Span, mode: Mode, hybrid: bool) -> Rule | None:
    """The rule by which the mode drops this flag of the operator's."""
    for rule in mode.drop:
        if rule.flag == span.name and _applies(rule, hybrid) and (span.value or "") not in rule.allow:
            return rule
    return None


def _applies(rule: Rule | Refusal, hybrid: bool) -> bool:
    return rule.when == "always" or (rule.when == "hybrid") == hybrid


def _has(condition: str, present: Mapping[str, Span]) -> bool:
    """Whether `--flag` or `--flag=value` holds for the operator's flags."""
    flag, equals, value = condition.partition("=")
    return flag in present and (not equals or present[flag].value == value)


def _forbid(rule: Rule, present: Mapping[str, Span], mode: Mode, hybrid: bool, host: str | None) -> None:
    span = present.get(rule.flag)
    if span is None or not _applies(rule, hybrid) or any(_has(u, present) for u in rule.unless):
        return
    if (rule.value is not None and span.value != rule.value) or (span.value or "") in rule.allow:
        return
    shown = rule.flag if span.value is None else f"{rule.flag} {span.value}"
    raise PreconditionFailed(
        f"mode {mode.name} cannot run with the operator's {shown}: {rule.reason}", host=host,
        meaning="an operator's value is never changed", next=f"remove {rule.flag} from the unit, then adopt again",
    )  # fmt: skip


def _already(
    flag: str, value: str | None, present: Mapping[str, Span], mode: Mode, why: str, host: str | None
) -> bool:
    """Whether the operator has just this. Raises PreconditionFailed where they have another value."""
    span = present.get(flag)
    if span is None:
        return False
    if span.value == value:
        return True
    raise PreconditionFailed(
        f"mode {mode.name} needs {flag}{'' if value is None else ' ' + value}, the operator's unit has "
        f"{flag}{'' if span.value is None else ' ' + span.value}: {why}",
        host=host,
        meaning="an operator's value is never changed",
        next=f"change or remove {flag} in the unit, then adopt again",
    )


def _fill(text: str | None, values: Mapping[str, str | int | None], mode: Mode) -> str | None:
    if text is None:
        return None

    def one(match: re.Match[str]) -> str:
        value = values.get(match[1])
        if value is None:
            raise UsageProblem(f"mode {mode.name} uses {{{match[1]}}}, which no host key gives")
        return str(value)

    return re.sub(r"\{([a-z_]+)\}", one, text)


def _fill_any(value: Any, values: Mapping[str, str | int | None], mode: Mode) -> Any:
    if not isinstance(value, str):
        return value
    filled = _fill(value, values, mode)
    # A number written as "{budget}" is compared with the number that the engine reports.
    whole = re.fullmatch(r"\{([a-z_]+)\}", value)
    return values[whole[1]] if whole else filled
