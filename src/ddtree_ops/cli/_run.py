"""What the verbs that talk to hosts share: a client per host, and where its log and port are."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ddtree_ops.apply.agent import AgentClient
    from ddtree_ops.apply.follow import Connect
    from ddtree_ops.config import HostConfig, Inventory

DEFAULT_PORT = 30000


def connector(inventory: Inventory, host: HostConfig) -> Connect:
    """A function that opens a fresh connection to the host each time it is called."""

    @contextmanager
    def fresh() -> Iterator[AgentClient]:
        from ddtree_ops.apply.agent import connect

        with connect(inventory, host) as client:
            yield client

    return fresh


def port_and_log(inventory: Inventory, host: HostConfig) -> tuple[int, str]:
    """The engine's port and where it logs, from hosts.yaml and facts; defaults where the host was never adopted."""
    from ddtree_ops.units.facts import load_facts

    path = inventory.facts_path(host.name)
    if not path.exists():
        return host.port or DEFAULT_PORT, "journal"
    facts = load_facts(path)
    return host.port or facts.port or DEFAULT_PORT, facts.capabilities.log
