"""Lets a rule be written as a generator of findings."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from ddtree_ops.core.checks.rule import Rule, Section
from ddtree_ops.core.facts_live import Live
from ddtree_ops.core.finding import Finding
from ddtree_ops.core.wanted import Wanted

T = TypeVar("T")


def rule(
    section: Section[T],
    id: str,
    judge: Callable[[T, Live, Wanted], Iterator[Finding]],
    why: str,
    *reports: str,
    waivable: bool = True,
) -> Rule[T]:
    """A Rule whose `judge` yields its findings."""

    def listed(facts: T, live: Live, wanted: Wanted) -> Sequence[Finding]:
        return list(judge(facts, live, wanted))

    return Rule(id, section, listed, why, reports, waivable)
