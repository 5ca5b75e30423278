"""What the verbs that talk to hosts share: a client per host, and where its engine listens and logs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ddtree_ops.apply.agent import AgentClient
    from ddtree_ops.apply.endpoint import Endpoint
    from ddtree_ops.apply.follow import Connect
    from ddtree_ops.config import HostConfig, Inventory


def connector(inventory: Inventory, host: HostConfig) -> Connect:
    """A function that opens a fresh connection to the host each time it is called."""

    @contextmanager
    def fresh() -> Iterator[AgentClient]:
        from ddtree_ops.apply.agent import connect

        with connect(inventory, host) as client:
            yield client

    return fresh


def endpoint_of(inventory: Inventory, host: HostConfig) -> Endpoint:
    """Where the host's engine listens and logs, by its facts where it was adopted."""
    from ddtree_ops.apply.endpoint import endpoint
    from ddtree_ops.units.facts import load_facts

    path = inventory.facts_path(host.name)
    return endpoint(host, load_facts(path) if path.exists() else None)
