"""What every verb starts with: the inventory, the hosts that were meant, a way to reach them, a question."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from ddtree_ops.core.errors import UsageProblem

if TYPE_CHECKING:
    from ddtree_ops.config import HostConfig, Inventory
    from ddtree_ops.transport.base import Transport


def load(config: Path | None) -> Inventory:
    """Find and load hosts.yaml. Raises UsageProblem with all of its faults."""
    from ddtree_ops.config import discover, load_inventory

    return load_inventory(discover(config))


def select(
    config: Path | None, patterns: list[str] | None, everything: bool = False
) -> tuple[Inventory, list[HostConfig]]:
    """Load hosts.yaml and return it with the hosts meant; with `everything`, no pattern means all of them."""
    inventory = load(config)
    if not patterns and everything:
        return inventory, list(inventory.hosts.values())
    return inventory, inventory.select(patterns or [])


def one_host(config: Path | None, patterns: list[str] | None) -> tuple[Inventory, HostConfig]:
    """As `select`, for a verb that takes exactly one host. Raises UsageProblem for several."""
    inventory, hosts = select(config, patterns)
    if len(hosts) > 1:
        names = ", ".join(h.name for h in hosts)
        raise UsageProblem(f"one host at a time here, not {names}", next=f"--host {hosts[0].name}")
    return inventory, hosts[0]


@contextmanager
def connect(inventory: Inventory, host: HostConfig) -> Iterator[Transport]:
    """A connection to `host`, made at its first command and hung up at the end."""
    from ddtree_ops.transport import open_transport

    transport = open_transport(inventory, host)
    try:
        yield transport
    finally:
        transport.close()


def check_output(json: bool, events: bool) -> None:
    """Refuse --json together with --events: one document, or lines. Raises UsageProblem."""
    if json and events:
        raise UsageProblem(
            "--json is one document and --events are lines: choose one", next="drop one of them"
        )


def ask(question: str, yes: bool, machine: bool = False) -> None:
    """Return if the person agrees. Raises UsageProblem where nobody can be asked, or where they say no.

    `machine`: the run's stdout is JSON, so nothing is asked.
    """
    if yes:
        return
    if machine or not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise UsageProblem(
            f"{question} needs an answer, and there is no terminal to ask on", next="add --yes"
        )
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise UsageProblem("not confirmed, nothing was done", next="add --yes")
