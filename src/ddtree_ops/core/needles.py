"""The words that a line must hold for a pattern to match at all: a cheap test before two hundred patterns run."""

from __future__ import annotations

import functools
import re
from typing import Any

from ddtree_ops.core.signatures import Signature

_SHORTEST = 3
_REPEATS = ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT")


@functools.cache
def needles(pattern: re.Pattern[str]) -> frozenset[str] | None:
    """Lower-case strings of which every match holds at least one; None where the pattern promises none."""
    try:
        from re import _parser  # type: ignore[attr-defined]  # private: without it every pattern is tried
    except ImportError:
        return None
    return _of(_parser.parse(pattern.pattern, pattern.flags))


def _of(items: Any) -> frozenset[str] | None:
    """The best choice among what a sequence demands: its longest literal, or all first choices of a branch."""
    found: list[frozenset[str]] = []
    word = ""
    for kind, value in [*items, (None, None)]:
        name = str(kind)
        if name == "LITERAL" and value < 128:
            word += chr(value).lower()
            continue
        if len(word) >= _SHORTEST:
            found.append(frozenset({word}))
        word = ""
        inner = _inner(name, value)
        if inner is not None:
            found.append(inner)
    return max(found, key=lambda choice: min(map(len, choice)), default=None)


def _inner(name: str, value: Any) -> frozenset[str] | None:
    if name == "SUBPATTERN":
        return _of(value[-1])
    if name in _REPEATS and value[0] > 0:
        return _of(value[2])
    if name == "BRANCH":
        parts = [_of(part) for part in value[1]]
        return frozenset().union(*(part for part in parts if part)) if all(parts) else None
    return None


class Gate:
    """Signatures that could match a line, in their order."""

    def __init__(self, signatures: list[Signature]) -> None:
        self.all = signatures
        first = next((at for at, known in enumerate(signatures) if known.role != "benign"), len(signatures))
        self._common = signatures[:first]
        self._always: set[int] = set()
        at_words: dict[str, list[int]] = {}
        for at, signature in enumerate(signatures):
            words = needles(signature.pattern)
            if words is None:
                self._always.add(at)
            for word in words or ():
                at_words.setdefault(word, []).append(at)
        self._words = list(at_words.items())

    def candidates(self, line: str) -> list[Signature]:
        """Those whose words the line holds; the others cannot match it."""
        for signature in self._common:  # most lines of a long log: requests and batches
            if signature.pattern.search(line):
                return [signature]
        low = line.lower()
        found = set(self._always)
        for at in [at for word, at in self._words if word in low]:
            found.update(at)
        return [self.all[at] for at in sorted(found)]
