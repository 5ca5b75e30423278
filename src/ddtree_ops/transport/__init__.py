"""Ways to reach a host, behind one small Protocol."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ddtree_ops.transport.base import Completed, Stream, Transport

if TYPE_CHECKING:
    from ddtree_ops.config import HostConfig, Inventory

__all__ = ["Completed", "Stream", "Transport", "open_transport"]


def open_transport(inventory: Inventory, host: HostConfig) -> Transport:
    """Return the way to `host` that hosts.yaml asks for; it connects at the first command."""
    from ddtree_ops.transport.fabric_ import FabricTransport  # paramiko takes 200 ms: not for --help
    from ddtree_ops.transport.ssh_settings import settings_for

    return FabricTransport(settings_for(inventory, host))
