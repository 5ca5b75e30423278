"""Re-joins the open rollout of a host from anywhere: follow it, confirm it, end as its own operator would have."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from ddtree_ops.apply import who
from ddtree_ops.apply.agent import AgentClient
from ddtree_ops.apply.follow import Connect, Following, OnEvent, judge
from ddtree_ops.config.model import HostConfig
from ddtree_ops.core.errors import HostLocked, OpsError, PreconditionFailed

#: The agent waits for a runner that is about to leave (seconds).
_LINGER_SILENCE_S = 30.0


@dataclass(frozen=True)
class Attached:
    """How it ended. `joined`: whether a rollout was open; else `outcome` is the last one's line of the history and
    `status` the host's ground truth now."""

    joined: bool
    outcome: dict[str, Any]
    status: dict[str, Any] | None = None


def attach(host: HostConfig, client: AgentClient, connect: Connect, on_event: OnEvent) -> Attached:
    """Follow the open rollout to its end and confirm it when it is gated; without one, say how the last one ended.

    Raises what `deploy` or `rollback` of that rollout would have raised, the last one's error too; HostLocked where
    somebody is at work without a rollout yet, PreconditionFailed where none ever ran.
    """
    answer = client.call("attach", {}, timeout=_LINGER_SILENCE_S)
    opened = answer["open"]
    if opened is None:
        return _last(host, answer)
    deploying = opened["kind"] == "deploy"
    on_event({"ev": "note", "text": _greeting(opened, deploying)})
    nonce = opened["nonce"] if deploying else ""  # a rollback needs no confirm
    outcome = Following(connect, host.name, opened["txn"], nonce, on_event, who.operator()).to_the_end()
    judge(host.name, outcome, "confirmed")
    return Attached(True, outcome)


def _greeting(opened: dict[str, Any], deploying: bool) -> str:
    began = time.strftime("%H:%M:%S", time.gmtime(opened["began"]))
    head = f"re-joined {_named(opened)}, begun at {began} UTC, now {opened['state']}; what happened so far follows. "
    if deploying:
        return head + "An interrupt asks the host to roll it back, a second one detaches"
    return head + "An interrupt does not end a rollback, a second one detaches"


def _last(host: HostConfig, answer: dict[str, Any]) -> Attached:
    held, entry, now = answer["held_by"], answer["last"], answer["status"]
    serving = f"{now['running']}" if now["active"] == "active" and now["running"] else "nothing"
    if held:
        raise HostLocked(
            f"no rollout is open yet, and another operation holds {host.service}: {held}",
            host=host.name,
            serving=serving,
            next=f"ddtree-ops attach --host {host.name}, in a moment",
        )
    if entry is None:
        raise PreconditionFailed(
            "no rollout is open, and none ever ran here",
            host=host.name,
            meaning="there is nothing to attach to",
            serving=serving,
            next=f"ddtree-ops status --host {host.name}",
        )
    try:
        judge(host.name, entry, "confirmed")
    except OpsError as error:
        ended = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(entry["at"]))
        error.what = f"no rollout is open; the last one, {_named(entry)}, ended {ended} UTC: {error.what}"
        error.serving = serving  # then is not now
        raise
    return Attached(False, entry, now)


def _named(rollout: dict[str, Any]) -> str:
    if rollout["kind"] == "undo":
        return f"the rollback to {rollout['release']} by {rollout['who']}"
    return f"the deploy of {rollout['mode']} {rollout['release']} by {rollout['who']}"
