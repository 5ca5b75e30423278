"""Undoes the last confirmed change on a host; needs nothing but the host."""

from __future__ import annotations

from typing import Any

from ddtree_ops.apply import agentzip, who
from ddtree_ops.apply.agent import AgentClient, AgentSilent
from ddtree_ops.apply.deploy import limits
from ddtree_ops.apply.endpoint import Endpoint
from ddtree_ops.apply.follow import Connect, Following, OnEvent, judge
from ddtree_ops.config.model import HostConfig
from ddtree_ops.core.errors import Unreachable


def rollback(
    host: HostConfig,
    client: AgentClient,
    connect: Connect,
    on_event: OnEvent,
    *,
    to: str | None,
    where: Endpoint,
) -> dict[str, Any]:
    """Go to the release confirmed before the last one, or to `to`. Returns the outcome, or {"nothing": sentence}.

    A rollout on its way is ended first; without `to` that is the rollback. Raises RollbackFailed where the target
    does not answer (the host keeps trying), RolledBack where the host is not on the target.
    """
    operator = who.operator()
    while True:
        txn = who.new_txn()
        request = {
            "who": operator,
            "why": "rollback" + (f" --to {to}" if to else ""),
            "agent": agentzip.digest(),
            "to": to,
            "txn": txn,
            **where.to_json(),
            **limits(host),
        }
        # No nonce: a rollback needs no confirm.
        following = Following(connect, host.name, txn, "", on_event, operator)
        answer: dict[str, Any] = {}
        try:
            answer = client.call("rollback", request)
        except (Unreachable, AgentSilent):
            following.begun = False  # the request may have arrived although its reply did not
        except KeyboardInterrupt:
            following.begun = False
            following.interrupt()
        if "nothing" in answer:
            return {"nothing": answer["nothing"]}
        following.txn = answer.get("txn", txn)
        outcome = following.to_the_end()
        if not answer.get("ended"):
            judge(host.name, outcome, "confirmed")
            return outcome
        if outcome["outcome"] == "confirmed":
            continue  # it was confirmed before our word reached it: it is the last change now, and is undone
        judge(host.name, outcome, "rolled-back")
        if to is None:
            return outcome
