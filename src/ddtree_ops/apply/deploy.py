"""Carries a prepared deploy out: push, begin, follow, confirm."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from ddtree_ops.apply import agentzip, schedule, who
from ddtree_ops.apply.agent import AgentClient, AgentSilent
from ddtree_ops.apply.follow import Connect, Following, OnEvent, judge
from ddtree_ops.apply.rehearse import rehearse
from ddtree_ops.config.model import HostConfig
from ddtree_ops.core.errors import HostLocked, Unreachable
from ddtree_ops.core.plan import check_unmoved

if TYPE_CHECKING:
    from ddtree_ops.apply.prepare import Prepared

_CHUNK = 1 << 16
#: Copying, compiling and the import smoke answer nothing meanwhile.
_PUSH_SILENCE_S = 300.0


@dataclass(frozen=True)
class Order:
    """How a plan is to be carried out. `why`: for the host's history; `adopted`: the differences that the operator
    took over; `at`: begin then, not now, after `again` has prepared the same deploy once more; `rehearse`: run the
    release beside the live server first."""

    why: str
    adopted: Sequence[str] = ()
    at: datetime | None = None
    again: Callable[[AgentClient], Prepared] | None = None
    rehearse: bool = False


def deploy(
    prepared: Prepared, client: AgentClient, connect: Connect, on_event: OnEvent, order: Order
) -> dict[str, Any]:
    """Run the plan on its host; return the transaction's outcome (confirmed).

    Raises PreconditionFailed or HostLocked with nothing touched, RolledBack, RollbackFailed, OutcomeUnknown or
    Detached after that.
    """
    refuse_held(prepared)
    operator, txn = who.operator(), who.new_txn()
    on_event({"ev": "note", "text": f"pushing release {prepared.plan.release}"})
    pushed = client.call("push", push_request(prepared, txn, operator), _chunks(prepared), _PUSH_SILENCE_S)
    seconds = pushed.get("smoke", {}).get("seconds")
    on_event({"ev": "note", "text": f"sealed; import smoke and argument parse passed ({seconds} s)"})
    rehearsed = (
        rehearse(prepared, client, txn, operator, limits(prepared.host)["limits"], on_event)
        if order.rehearse
        else None
    )
    if order.at is None or order.again is None:
        return _roll(prepared, txn, operator, client, connect, on_event, order, rehearsed)
    schedule.wait(order.at, prepared.plan.host, on_event)
    with connect() as fresh:  # the first line may be long gone
        now = order.again(fresh)
        check_unmoved(prepared.plan.to_json(), now.plan, "what was prepared before the wait")
        return _roll(now, who.new_txn(), operator, fresh, connect, on_event, order, rehearsed)


def _roll(
    prepared: Prepared,
    txn: str,
    operator: str,
    client: AgentClient,
    connect: Connect,
    on_event: OnEvent,
    order: Order,
    rehearsed: str | None,
) -> dict[str, Any]:
    nonce = who.new_nonce()
    following = Following(connect, prepared.plan.host, txn, nonce, on_event, operator)
    try:
        client.call("begin", begin_request(prepared, txn, nonce, operator, order, rehearsed))
    except (Unreachable, AgentSilent):
        following.begun = False  # the request may have arrived although its reply did not
    except KeyboardInterrupt:
        following.begun = False
        following.interrupt()
    outcome = following.to_the_end()
    judge(prepared.plan.host, outcome, "confirmed")
    return outcome


def refuse_held(prepared: Prepared) -> None:
    """Raise HostLocked for a host on hold, before anything is sent (the agent asks again under its lock)."""
    if prepared.held is not None:
        raise HostLocked(
            f"{prepared.host.service} is on hold {prepared.held}",
            host=prepared.plan.host,
            meaning="nothing was touched; a rollback is not held",
            next=f"ddtree-ops unhold --host {prepared.plan.host}",
        )


def push_request(prepared: Prepared, txn: str, operator: str) -> dict[str, Any]:
    """What the agent needs to build and prove the release."""
    return {
        "txn": txn,
        "who": operator,
        "agent": agentzip.digest(),
        "manifest": prepared.release.manifest,
        "secrets": {name: secret.reveal() for name, secret in prepared.secrets.items()},
        "smoke": {
            "argv": list(prepared.plan.argv_after),
            "modules": prepared.modules,
            "environment": prepared.environment,
        },
    }


def begin_request(
    prepared: Prepared, txn: str, nonce: str, operator: str, order: Order, rehearsed: str | None = None
) -> dict[str, Any]:
    """What the runner needs; the host keeps it as the transaction's intent."""
    return {
        "kind": "deploy",
        "txn": txn,
        "nonce": nonce,
        "who": operator,
        "why": order.why,
        "adopted": [*order.adopted],
        "waived": [*prepared.plan.waived],
        **({"rehearsed": rehearsed} if rehearsed else {}),
        "agent": agentzip.digest(),
        "release": prepared.plan.release,
        "mode": prepared.plan.mode,
        "from": prepared.plan.preconditions.confirmed,
        "unit_files": dict(prepared.plan.preconditions.unit_files),
        "proven_by": prepared.proven_by,
        "gate": prepared.gate,
        **prepared.endpoint.to_json(),
        "expect": {"state": prepared.expect_state},
        **limits(prepared.host),
    }


def limits(host: HostConfig) -> dict[str, Any]:
    """hosts.yaml's timeouts (seconds) and drain commands as the runner and its watch take them."""
    timeouts = host.timeouts
    return {
        "drain": host.drain.model_dump() if host.drain else None,
        "timeouts": {"stop": timeouts.stop, "confirm": timeouts.confirm, "cap": timeouts.cap},
        "limits": {
            "imports": timeouts.import_,
            "weights": timeouts.weights,
            "graphs": timeouts.graphs,
            "serve": timeouts.serve,
            "cap": timeouts.cap,
        },
    }


def _chunks(prepared: Prepared) -> Iterator[bytes]:
    payload = prepared.release.payload()
    for start in range(0, len(payload), _CHUNK):
        yield payload[start : start + _CHUNK]
