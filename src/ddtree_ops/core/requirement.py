"""As much of requirement strings (PEP 508) and version bounds (PEP 440) as deciding what must travel takes."""

from __future__ import annotations

import re
from collections.abc import Iterable

_REQUIREMENT = re.compile(r"\s*([A-Za-z0-9._-]+)\s*(?:\[[^\]]*\])?\s*\(?\s*([^;)]*)\)?\s*(?:;(.*))?")
_BOUND = re.compile(r"\s*(~=|===|==|!=|<=|>=|<|>)\s*([^\s,]+)\s*")


def needed(requires: Iterable[str]) -> list[tuple[str, str]]:
    """[(canonical name, version bounds)] of Requires-Dist lines, without what only an extra asks for."""
    found = []
    for text in requires:
        parsed = _REQUIREMENT.fullmatch(text)
        if parsed and not re.search(r"\bextra\b", parsed.group(3) or ""):
            found.append((re.sub(r"[-_.]+", "-", parsed.group(1)).lower(), parsed.group(2).strip()))
    return found


def satisfies(version: str, bounds: str) -> bool:
    """Whether a version lies within all bounds; False for a bound that is not understood."""
    return all(_within(version, bound) for bound in bounds.split(",") if bound.strip())


def _within(version: str, bound: str) -> bool:
    parsed = _BOUND.fullmatch(bound)
    if parsed is None:
        return False
    sign, wanted = parsed.groups()
    have = _release(version)
    if wanted.endswith(".*"):
        prefix = _release(wanted[:-2])
        return (_padded(have, len(prefix))[: len(prefix)] == prefix) == (sign == "==")
    want = _release(wanted)
    size = max(len(have), len(want))
    one, two = _padded(have, size), _padded(want, size)
    if sign == "~=":
        return one >= two and one[: len(want) - 1] == want[:-1]
    local = "+" in wanted and wanted.partition("+")[2] != version.partition("+")[2]
    return {
        "==": one == two and not local,
        "===": version == wanted,
        "!=": one != two,
        "<=": one <= two,
        ">=": one >= two,
        "<": one < two,
        ">": one > two,
    }[sign]


def _release(version: str) -> tuple[int, ...]:
    """The numbers of a version up to its first letter: 2.11.0rc1+cu130 is 2.11.0."""
    found = re.match(r"v?(?:\d+!)?(\d+(?:\.\d+)*)", version)
    return tuple(int(part) for part in found.group(1).split(".")) if found else ()


def _padded(numbers: tuple[int, ...], size: int) -> tuple[int, ...]:
    return (*numbers, *(0,) * (size - len(numbers)))
