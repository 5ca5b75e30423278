"""What a preflight rule is: a name that never changes, the facts it reads, a judge without I/O, and why it exists."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ddtree_ops.core.finding import Finding

if TYPE_CHECKING:
    from ddtree_ops.core.facts_live import Live
    from ddtree_ops.core.wanted import Wanted

T = TypeVar("T")


@dataclass(frozen=True)
class Section(Generic[T]):
    """One section of the probe's document. read: its raw object to typed facts; KeyError, TypeError or ValueError from
    it make the section Unknown. gpu: a fact about GPUs: not asked with --device cpu, and not knowing it blocks where
    the argument list says cuda."""

    name: str
    kind: type[T]
    read: Callable[[Mapping[str, Any]], T]
    gpu: bool = False


@dataclass(frozen=True)
class Rule(Generic[T]):
    """judge(facts, live, wanted) -> findings, each with this rule's id; [] where it has nothing to say.

    why: what happens to a deploy without it, for `doctor --explain` and docs/checks.md. reports: ids of the public
    failure reports that it would have caught. waivable: a person may let it pass, with a reason that is recorded.
    """

    id: str
    section: Section[T]
    judge: Callable[[T, Live, Wanted], Sequence[Finding]]
    why: str
    reports: tuple[str, ...] = ()
    waivable: bool = True
