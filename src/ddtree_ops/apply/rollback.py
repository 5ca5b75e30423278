"""Undoes the last confirmed change on a host; needs nothing but the host."""

from __future__ import annotations

from typing import Any

from ddtree_ops.apply import agentzip, who
from ddtree_ops.apply.agent import AgentClient
from ddtree_ops.apply.deploy import limits
from ddtree_ops.apply.follow import Connect, Following, OnEvent
from ddtree_ops.config.model import HostConfig
from ddtree_ops.core.errors import RollbackFailed


def rollback(
    host: HostConfig,
    client: AgentClient,
    connect: Connect,
    on_event: OnEvent,
    *,
    to: str | None,
    port: int,
    log: str,
) -> dict[str, Any]:
    """Go to the release confirmed before the last one, or to `to`. Returns the outcome, or {"nothing": sentence}.

    Raises RollbackFailed where the target does not answer (the host keeps trying it).
    """
    operator = who.operator()
    request = {
        "who": operator,
        "why": "rollback" + (f" --to {to}" if to else ""),
        "agent": agentzip.digest(),
        "to": to,
        "port": port,
        "log": log,
        **limits(host.timeouts),
    }
    answer = client.call("rollback", request)
    if "nothing" in answer:
        return {"nothing": answer["nothing"]}
    # The rollback needs no confirm, and an interrupt does not stop it: it is what brings the old service back.
    following = Following(connect, host.name, answer["txn"], "", on_event, operator)
    outcome = following.to_the_end()
    if outcome["outcome"] == "rollback-failed":
        problem = outcome.get("problem") or {}
        raise RollbackFailed(
            "the rollback's target does not answer",
            host=host.name,
            evidence=problem.get("line"),
            meaning=problem.get("hint"),
            serving="nothing; the host keeps trying",
            next=f"ddtree-ops logs --host {host.name}",
        )
    return outcome
