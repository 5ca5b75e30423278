"""Whether speculation accepts anything, counted over the statistics that an engine logs.

One line says little (few steps, the start of an answer): a whole log says whether it stays so.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from ddtree_ops.core.log_text import clean

#: The signature that says of a mean over a log, and of one line of vLLM's, that next to nothing is accepted.
_OF_LENGTHS, _OF_TOKENS = "S74", "E23"
_BOUND = 1.05
#: SGLang's: lines of 40 decode batches each.
_MIN, _SURE = 3, 6
#: vLLM's: draft tokens in lines without a break of which next to none was accepted: odd (of few: where really none
#: was), and beyond chance.
_TOKENS_NONE, _TOKENS_MIN, _TOKENS_SURE = 30, 200, 500

_BATCH = re.compile(r"Decode batch.*accept len: (?P<length>\d+\.\d+)")
_TOKENS = re.compile(
    r"Mean acceptance length: (?P<length>\d+\.\d+),.*\bAccepted: (?P<accepted>\d+) tokens, Drafted: (?P<drafted>\d+)"
)


@dataclass(frozen=True)
class Flat:
    """Speculation that brings nothing. sure: over enough steps to fail it."""

    signature: str
    line: str
    sure: bool


class Acceptance:
    """Takes the lines of one log."""

    def __init__(self) -> None:
        self._lengths: list[float] = []
        self._last = self._first = ""
        self._accepted = self._drafted = 0

    def take(self, text: str) -> None:
        """Count the line if it tells of acceptance."""
        batch = _BATCH.search(text)
        if batch:
            self._lengths.append(float(batch["length"]))
            self._last = clean(text)
        tokens = _TOKENS.search(text)
        if not tokens or tokens["drafted"] == "0":
            return
        if float(tokens["length"]) > _BOUND:
            self._accepted = self._drafted = 0
            return
        self._first = self._first if self._drafted else clean(text)
        self._accepted += int(tokens["accepted"])
        self._drafted += int(tokens["drafted"])

    def flat(self) -> Flat | None:
        """That nothing is accepted, where the lines so far say so."""
        if self._drafted >= (_TOKENS_MIN if self._accepted else _TOKENS_NONE):
            return Flat(_OF_TOKENS, self._first, self._drafted >= _TOKENS_SURE)
        if len(self._lengths) >= _MIN and max(self._lengths) <= _BOUND:
            return Flat(_OF_LENGTHS, self._last, len(self._lengths) >= _SURE)
        return None
