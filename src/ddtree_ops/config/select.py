"""Which hosts a person means: names, globs and groups, with did-you-mean before any connection."""

from __future__ import annotations

import difflib
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from ddtree_ops.core.errors import UsageProblem

if TYPE_CHECKING:
    from ddtree_ops.config.model import HostConfig, Inventory


def did_you_mean(word: str, known: list[str]) -> str:
    """Return `; did you mean x?` for the nearest of `known`, or nothing."""
    near = difflib.get_close_matches(word, known, n=2, cutoff=0.6)
    return f"; did you mean {' or '.join(near)}?" if near else ""


def select_hosts(inventory: Inventory, patterns: list[str]) -> list[HostConfig]:
    """Return the hosts that `patterns` mean, each once, in file order.

    A pattern is a host's name, a group's name or a glob over host names. Every pattern must match:
    UsageProblem names all that do not.
    """
    chosen: set[str] = set()
    unknown: list[str] = []
    for pattern in patterns:
        found = _match(inventory, pattern)
        chosen |= found
        if not found:
            unknown.append(pattern)
    if unknown:
        known = [*inventory.hosts, *inventory.groups]
        said = [f"no host or group is named {word}{did_you_mean(word, known)}" for word in unknown]
        raise UsageProblem(
            f"{inventory.path}: " + ", ".join(said),
            next=f"--host {next(iter(inventory.hosts))} (or: {', '.join(known)})",
        )
    if not chosen:
        raise UsageProblem("no host was named", next=f"--host {' or --host '.join(inventory.hosts)}")
    return [host for name, host in inventory.hosts.items() if name in chosen]


def _match(inventory: Inventory, pattern: str) -> set[str]:
    if pattern in inventory.hosts:
        return {pattern}
    if pattern in inventory.groups:
        return set(inventory.groups[pattern])
    if any(c in pattern for c in "*?["):
        return {name for name in inventory.hosts if fnmatchcase(name, pattern)}
    return set()
