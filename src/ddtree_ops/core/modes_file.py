"""Reads a series' modes.yaml: every fault named by file and key, before any host is asked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ddtree_ops.core.errors import UsageProblem
from ddtree_ops.core.features import FEATURES, Loss
from ddtree_ops.core.modes import Mode, Modes, Refusal, Rehearsal, Rule

_KINDS = ("always", "hybrid", "dense")


def read_modes(data: Mapping[str, Any], file: str = "modes.yaml") -> Modes:
    """Build Modes from a modes.yaml's plain value. Raises UsageProblem naming file and key."""
    if not isinstance(data, Mapping) or not isinstance(data.get("modes"), Mapping):
        raise UsageProblem(f"{file}: modes: must be a mapping of mode names")
    common = tuple(_rule(r, f"{file}: forbid") for r in _list(data, "forbid", file))
    drop, keep = (_texts(data, key, file) for key in ("drop", "keep"))
    modes = {name: _mode(name, m, common, file) for name, m in data["modes"].items()}
    for mode in modes.values():
        _check_proof(mode, modes, f"{file}: modes.{mode.name}.proven_by")
    return Modes(
        drop, modes, keep, _rehearsal(data["rehearse"], f"{file}: rehearse") if "rehearse" in data else None
    )


def _check_proof(mode: Mode, modes: Mapping[str, Mode], at: str) -> None:
    seen = {mode.name}
    step: Mode | None = mode
    while step is not None and step.proven_by is not None:
        if step.proven_by not in modes or step.proven_by in seen:
            raise UsageProblem(f"{at}: no other mode is named {step.proven_by}, or it needs this one's proof")
        if not modes[step.proven_by].patched:
            raise UsageProblem(
                f"{at}: {step.proven_by} runs unpatched sources, so it proves nothing of these"
            )
        seen.add(step.proven_by)
        step = modes[step.proven_by]


def _mode(name: str, data: Any, common: tuple[Rule, ...], file: str) -> Mode:
    at = f"{file}: modes.{name}"
    known = {
        "patched", "requires", "set", "add", "drop", "forbid", "state", "loses", "refuse", "proven_by",
    }  # fmt: skip
    if not isinstance(data, Mapping):
        raise UsageProblem(f"{at}: must be a mapping")
    if unknown := sorted(set(data) - known, key=str):
        raise UsageProblem(f"{at}: unknown key {unknown[0]}")
    if not isinstance(data.get("patched", False), bool):
        raise UsageProblem(f"{at}.patched: must be true or false")
    flags = _mapping(data, "set", at)
    return Mode(
        name=name,
        patched=data.get("patched", False),
        requires=_texts(data, "requires", at),
        set=tuple((_text(flag, f"{at}.set"), _value(v)) for flag, v in flags.items() if v is not False),
        add=tuple(_rule(r, f"{at}.add") for r in _list(data, "add", at)),
        forbid=common + tuple(_rule(r, f"{at}.forbid") for r in _list(data, "forbid", at)),
        state=dict(_mapping(data, "state", at)),
        drop=tuple(_rule(r, f"{at}.drop") for r in _list(data, "drop", at)),
        loses=tuple(_loss(loss, f"{at}.loses") for loss in _list(data, "loses", at)),
        refuse=_refusal(data["refuse"], f"{at}.refuse") if "refuse" in data else None,
        proven_by=_text(data["proven_by"], f"{at}.proven_by") if "proven_by" in data else None,
    )


def _rehearsal(data: Any, at: str) -> Rehearsal:
    if not isinstance(data, Mapping) or (
        unknown := sorted(set(data) - {"small", "refuse", "drop", "set"}, key=str)
    ):
        raise UsageProblem(
            f"{at}: " + (f"unknown key {unknown[0]}" if isinstance(data, Mapping) else "must be a mapping")
        )
    small = {_text(k, f"{at}.small"): _text(v, f"{at}.small") for k, v in _mapping(data, "small", at).items()}
    if wrong := sorted(set(small.values()) - {"target", "draft"}):
        raise UsageProblem(f"{at}.small: {wrong[0]} is neither target nor draft")
    if "target" not in small.values():
        raise UsageProblem(f"{at}.small: no flag names the target")
    return Rehearsal(
        small,
        tuple(_rule(r, f"{at}.refuse") for r in _list(data, "refuse", at)),
        _texts(data, "drop", at),
        tuple((_text(flag, f"{at}.set"), _value(v)) for flag, v in _mapping(data, "set", at).items()),
    )


def _loss(data: Any, at: str) -> Loss:
    if not isinstance(data, Mapping) or set(data) != {"feature", "says"}:
        raise UsageProblem(f"{at}: each loss is {{feature: …, says: …}}")
    if _text(data["feature"], at) not in FEATURES:
        raise UsageProblem(f"{at}: unknown feature {data['feature']}: one of {', '.join(FEATURES)}")
    return Loss(data["feature"], str(data["says"]))


def _refusal(data: Any, at: str) -> Refusal:
    if isinstance(data, str):
        return Refusal(_text(data, at))
    if not isinstance(data, Mapping) or set(data) != {"when", "reason"}:
        raise UsageProblem(f"{at}: a sentence, or {{when: …, reason: …}}")
    return Refusal(_text(data["reason"], at), _kind(data["when"], at))


def _rule(data: Any, at: str) -> Rule:
    if not isinstance(data, Mapping) or "flag" not in data or "reason" not in data:
        raise UsageProblem(f"{at}: each rule needs flag and reason")
    flag, reason = _text(data["flag"], at), _text(data["reason"], at)
    if unknown := sorted(set(data) - {"flag", "value", "reason", "when", "unless", "allow"}, key=str):
        raise UsageProblem(f"{at}: {flag}: unknown key {unknown[0]}")
    return Rule(
        flag, _value(data.get("value")), reason, _kind(data.get("when", "always"), f"{at}: {flag}"),
        _texts(data, "unless", at), tuple(str(a) for a in _list(data, "allow", at)),
    )  # fmt: skip


def _kind(value: Any, at: str) -> str:
    if _text(value, at) not in _KINDS:
        raise UsageProblem(f"{at}: when must be one of {', '.join(_KINDS)}, not {value}")
    return str(value)


def _value(value: Any) -> str | None:
    return None if value is True or value is None else str(value)


def _text(value: Any, at: str) -> str:
    if not isinstance(value, str) or not value:
        raise UsageProblem(f"{at}: expected a text, not {value!r}")
    return value


def _list(data: Mapping[str, Any], key: str, at: str) -> list[Any]:
    value = data.get(key)
    if value is not None and not isinstance(value, list):
        raise UsageProblem(f"{at}.{key}: must be a list")
    return value or []


def _texts(data: Mapping[str, Any], key: str, at: str) -> tuple[str, ...]:
    return tuple(_text(item, f"{at}.{key}") for item in _list(data, key, at))


def _mapping(data: Mapping[str, Any], key: str, at: str) -> Mapping[str, Any]:
    value = data.get(key)
    if value is not None and not isinstance(value, Mapping):
        raise UsageProblem(f"{at}.{key}: must be a mapping")
    return value or {}
