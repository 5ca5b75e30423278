"""The files that Python will run: readable by the service's user, reached by it, and not hidden by old bytecode."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ddtree_ops.core.checks.rule import Rule, Section
from ddtree_ops.core.finding import Finding, block, ok, warn

if TYPE_CHECKING:
    from ddtree_ops.core.facts_live import Live
    from ddtree_ops.core.wanted import Wanted


@dataclass(frozen=True)
class Entry:
    path: str
    mode: int | None
    owner: int | None


@dataclass(frozen=True)
class Root:
    """A directory that releases lie in. at: what stands in the way, or the nearest directory that exists."""

    path: str
    ok: bool
    at: str
    mode: int | None


@dataclass(frozen=True)
class Sources:
    """stale: files of the series whose bytecode is of another text, though Python takes it for theirs."""

    uid: int
    seen: int
    unreadable: tuple[Entry, ...]
    unreadable_count: int
    stale: tuple[str, ...]
    roots: tuple[Root, ...]


def read(raw: Mapping[str, Any]) -> Sources:
    """The probe's section `sources`."""
    return Sources(
        uid=raw["uid"],
        seen=raw["seen"],
        unreadable=tuple(Entry(one["path"], one["mode"], one["owner"]) for one in raw["unreadable"]),
        unreadable_count=raw["unreadable_count"],
        stale=tuple(raw["stale"]),
        roots=tuple(Root(one["path"], one["ok"], one["at"], one["mode"]) for one in raw["roots"]),
    )


SECTION = Section("sources", Sources, read)


def readable(facts: Sources, live: Live, wanted: Wanted) -> list[Finding]:
    """Every file of the engine is readable by the service's user."""
    if facts.unreadable:
        one = facts.unreadable[0]
        mode = f" (mode {one.mode:04o}, owner uid {one.owner})" if one.mode is not None else ""
        more = f", and {facts.unreadable_count - 1} more" if facts.unreadable_count > 1 else ""
        said = (
            f"uid {facts.uid} cannot read {one.path}{mode}{more}: copied under umask 077, or by another user"
        )
        top = getattr(live.engine, "package", None) or one.path
        return [block("modes", said, f"chmod -R a+rX {top if one.path.startswith(str(top)) else one.path}")]
    if not facts.seen:
        return [warn("modes", "unknown: the engine's package was not looked at as the service's user", None)]
    return [ok("modes", f"uid {facts.uid} can read the engine's {facts.seen} files")]


def reached(facts: Sources, live: Live, wanted: Wanted) -> list[Finding]:
    """The service's user can pass the directories above a release."""
    for root in facts.roots:
        if not root.ok:
            mode = f" (mode {root.mode:04o})" if root.mode is not None else ""
            said = f"uid {facts.uid} cannot pass {root.at}{mode}, above the releases in {root.path}"
            return [
                block(
                    "release-reach",
                    said,
                    f"chmod a+rx {root.at}; or no InaccessiblePaths= for it in {wanted.service}",
                )
            ]
    return [ok("release-reach", "releases are within the service's reach")]


def bytecode(facts: Sources, live: Live, wanted: Wanted) -> list[Finding]:
    """Python runs what the files say: a file of the same size and second keeps its old bytecode."""
    if facts.stale:
        package = getattr(live.engine, "package", None) or "the engine's package"
        said = (
            f"{package}/{facts.stale[0]} was changed within a second or with its old time, and Python runs bytecode "
            f"of its old text{f', and so of {len(facts.stale) - 1} more' if len(facts.stale) > 1 else ''}"
        )
        remedy = f"find {package} -name __pycache__ -prune -exec rm -r {{}} +"
        return [warn("bytecode", said, remedy)]
    return [ok("bytecode", "no bytecode of an older text hides a file of the series")]


RULES: tuple[Rule[Sources], ...] = (
    Rule(
        "modes", SECTION, readable,
        "Files that only root can read make the service's import fail, while every check as root passes.",
    ),
    Rule(
        "release-reach", SECTION, reached,
        "A release below a directory that the service may not enter is not there for it.",
    ),
    Rule(
        "bytecode", SECTION, bytecode,
        "Bytecode counts as current by time and size alone: after a quick edit or a rollback the old code runs on.",
        ("F209",),
    ),
)  # fmt: skip
