"""The runtime that hosts.yaml names for a host: on it, whole, and made for its interpreter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ddtree_ops.core.checks.rule import Rule, Section
from ddtree_ops.core.facts_live import Live
from ddtree_ops.core.finding import Finding, block, ok, warn
from ddtree_ops.core.wanted import Wanted


@dataclass(frozen=True)
class Runtime:
    """named: digest, None where the host's own packages are used alone. problem: why it cannot be used, a sentence.
    soabi: the interpreter ABI that it was made for; dists: `name version` of what is in it."""

    named: str | None
    present: bool
    problem: str | None
    soabi: str | None
    dists: tuple[str, ...]
    interpreter_soabi: str | None


def read(raw: Mapping[str, Any]) -> Runtime:
    """The section's raw object, typed."""
    texts = {key: raw[key] for key in ("named", "problem", "soabi", "interpreter_soabi")}
    return Runtime(**texts, present=bool(raw["present"]), dists=tuple(raw["dists"]))


def usable(found: Runtime, _: Live, wanted: Wanted) -> Sequence[Finding]:
    """A release that names a runtime is only as good as that is."""
    if found.named is None:
        return []
    sync = f"ddtree-ops env sync --from HOST --to {wanted.host}, or take runtime: out of hosts.yaml"
    if not found.present:
        return [block("runtime", found.problem or f"runtime {found.named} is not on this host", sync)]
    if found.interpreter_soabi is None:
        said = f"runtime {found.named}: whether the interpreter's ABI is {found.soabi} is unknown"
        return [warn("runtime", said, f"ddtree-ops doctor --host {wanted.host}")]
    if found.interpreter_soabi != found.soabi:
        said = (
            f"runtime {found.named} is made for {found.soabi}, the interpreter is {found.interpreter_soabi}"
        )
        return [block("runtime", said, sync)]
    return [ok("runtime", f"runtime {found.named} is whole: {', '.join(found.dists)}")]


SECTION: Section[Runtime] = Section("runtime", Runtime, read)
RULES: tuple[Rule[Any], ...] = (
    Rule(
        "runtime",
        SECTION,
        usable,
        why="a release whose runtime is missing or edited starts on other builds than those that were proved",
        waivable=False,
    ),
)
