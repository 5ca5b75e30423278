"""Holds facts against the types that they are declared with: a host may say anything, and a rule must not guess."""

from __future__ import annotations

import functools
import types
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any, Union, get_args, get_origin, get_type_hints


def misfit(value: Any, at: str = "") -> str | None:
    """What within a dataclass (and those in it) is of another type than declared, in words; None where all fits."""
    kind: Any = type(value)
    for name, hint in _hints(kind).items():
        found = _wrong(getattr(value, name), hint, f"{at}{name}")
        if found is not None:
            return found
    return None


@functools.cache
def _hints(kind: Any) -> dict[str, Any]:
    hints = get_type_hints(kind)
    return {field.name: hints[field.name] for field in fields(kind)}


def _wrong(value: Any, hint: Any, at: str) -> str | None:
    if hint is Any or hint is object:
        return None
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        said = [_wrong(value, one, at) for one in inner]
        return None if None in said else said[0]
    if origin is tuple and inner[1:] == (...,):
        if not isinstance(value, tuple):
            return _told(value, at)
        each = [(part, inner[0], f"{at}[{i}]") for i, part in enumerate(value)]
    elif origin in (dict, Mapping):
        if not isinstance(value, Mapping):
            return _told(value, at)
        each = [(part, inner[1], f"{at}.{key}") for key, part in value.items()]
    elif is_dataclass(hint):
        return misfit(value, f"{at}.") if type(value) is hint else _told(value, at)
    else:
        return None if _is(value, hint if isinstance(hint, type) else origin) else _told(value, at)
    return next((found for part in each if (found := _wrong(*part)) is not None), None)


def _is(value: Any, kind: Any) -> bool:
    """A yes or no is no number, a number is none; whole numbers do for others."""
    if kind in (int, float) and isinstance(value, bool):
        return False
    if kind is float and isinstance(value, int):
        return True
    return not isinstance(kind, type) or isinstance(value, kind)


def _told(value: Any, at: str) -> str:
    return f"{at} is {'null' if value is None else f'a {type(value).__name__}'}"
