"""Reads a series' modes.yaml: every fault named by file and key, before any host is asked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ddtree_ops.core.errors import UsageProblem
from ddtree_ops.core.features import FEATURES, Loss
from ddtree_ops.core.modes import Mode, Modes, Refusal, Rule

_KINDS = ("always", "hybrid", "dense")


def read_modes(data: Mapping[str, Any], file: str = "modes.yaml") -> Modes:
    """Build Modes from a modes.yaml's plain value. Raises UsageProblem naming file and key."""
    if not isinstance(data, Mapping) or not isinstance(data.get("modes"), Mapping):
        raise UsageProblem(f"{file}: modes: must be a mapping of mode names")
    common = tuple(_rule(r, f"{file}: forbid") for r in data.get("forbid") or ())
    drop, keep = (_flags(data, key, file) for key in ("drop", "keep"))
    modes = {name: _mode(name, m, common, file) for name, m in data["modes"].items()}
    for mode in modes.values():
        if mode.proven_by is not None and (mode.proven_by not in modes or mode.proven_by == mode.name):
            raise UsageProblem(
                f"{file}: modes.{mode.name}.proven_by: no other mode is named {mode.proven_by}"
            )
    return Modes(drop, modes, keep)


def _flags(data: Mapping[str, Any], key: str, file: str) -> tuple[str, ...]:
    flags = data.get(key) or ()
    if isinstance(flags, str) or not all(isinstance(flag, str) for flag in flags):
        raise UsageProblem(f"{file}: {key}: must be a list of flags")
    return tuple(flags)


def _mode(name: str, data: Any, common: tuple[Rule, ...], file: str) -> Mode:
    at = f"{file}: modes.{name}"
    known = {
        "patched", "requires", "set", "add", "drop", "forbid", "state", "loses", "refuse", "proven_by",
    }  # fmt: skip
    if not isinstance(data, Mapping):
        raise UsageProblem(f"{at}: must be a mapping")
    if unknown := sorted(set(data) - known):
        raise UsageProblem(f"{at}: unknown key {unknown[0]}")
    flags = data.get("set") or {}
    return Mode(
        name=name,
        patched=bool(data.get("patched", False)),
        requires=tuple(data.get("requires") or ()),
        set=tuple((flag, _value(value)) for flag, value in flags.items() if value is not False),
        add=tuple(_rule(r, f"{at}.add") for r in data.get("add") or ()),
        forbid=common + tuple(_rule(r, f"{at}.forbid") for r in data.get("forbid") or ()),
        state=dict(data.get("state") or {}),
        drop=tuple(_rule(r, f"{at}.drop") for r in data.get("drop") or ()),
        loses=tuple(_loss(loss, f"{at}.loses") for loss in data.get("loses") or ()),
        refuse=_refusal(data.get("refuse"), f"{at}.refuse"),
        proven_by=data.get("proven_by"),
    )


def _loss(data: Any, at: str) -> Loss:
    if not isinstance(data, Mapping) or set(data) != {"feature", "says"}:
        raise UsageProblem(f"{at}: each loss is {{feature: …, says: …}}")
    if data["feature"] not in FEATURES:
        raise UsageProblem(f"{at}: unknown feature {data['feature']}: one of {', '.join(FEATURES)}")
    return Loss(data["feature"], str(data["says"]))


def _refusal(data: Any, at: str) -> Refusal | None:
    if data is None or isinstance(data, str):
        return None if data is None else Refusal(data)
    if not isinstance(data, Mapping) or set(data) != {"when", "reason"}:
        raise UsageProblem(f"{at}: a sentence, or {{when: …, reason: …}}")
    if data["when"] not in _KINDS:
        raise UsageProblem(f"{at}: when must be one of {', '.join(_KINDS)}, not {data['when']}")
    return Refusal(str(data["reason"]), data["when"])


def _value(value: Any) -> str | None:
    return None if value is True or value is None else str(value)


def _rule(data: Any, at: str) -> Rule:
    if not isinstance(data, Mapping) or "flag" not in data or "reason" not in data:
        raise UsageProblem(f"{at}: each rule needs flag and reason")
    when = data.get("when", "always")
    if when not in _KINDS:
        raise UsageProblem(f"{at}: {data['flag']}: when must be one of {', '.join(_KINDS)}, not {when}")
    if unknown := sorted(set(data) - {"flag", "value", "reason", "when", "unless", "allow"}):
        raise UsageProblem(f"{at}: {data['flag']}: unknown key {unknown[0]}")
    return Rule(
        data["flag"], _value(data.get("value")), data["reason"], when,
        tuple(data.get("unless") or ()), tuple(str(a) for a in data.get("allow") or ()),
    )  # fmt: skip
