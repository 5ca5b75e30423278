"""The values that a release's unit refers to by name: held in memory, sent to a 0600 file on the host, kept nowhere."""

from __future__ import annotations

from pathlib import Path

from ddtree_ops.apply.agent import AgentClient
from ddtree_ops.config.model import HostConfig
from ddtree_ops.config.secrets import Secret, SecretRef
from ddtree_ops.core.errors import PreconditionFailed
from ddtree_ops.units.adopt import Adopted, adopt
from ddtree_ops.units.facts import Facts


def for_host(base: Path, host: HostConfig, facts: Facts, client: AgentClient) -> dict[str, Secret]:
    """Values by name: hosts.yaml's references, and the keys that adoption took out of the command line.

    The latter are read again from the operator's own unit on the host, which is never touched, so that no file of
    ours on this side has to hold them. Raises UsageProblem for a reference that cannot be resolved and
    PreconditionFailed where the unit no longer has the key.
    """
    found = {
        name: value.resolve(base) for name, value in host.environment.items() if isinstance(value, SecretRef)
    }
    named = facts.unit.exec.secrets if facts.unit.exec else {}
    captured = [name for name, source in named.items() if source == "captured" and name not in found]
    if not captured:
        return found
    read = adopt(client.call("read-unit", {})["raw"])
    values = read.secrets if isinstance(read, Adopted) else {}
    for name in captured:
        if name not in values:
            raise PreconditionFailed(
                f"the unit on the host no longer holds the key that {name} stands for",
                host=host.name,
                meaning="nothing was touched",
                next=f"ddtree-ops adopt --host {host.name}",
            )
        found[name] = values[name]
    return found
