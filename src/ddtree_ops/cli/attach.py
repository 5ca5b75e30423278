"""`attach`: re-join the open rollout of a host, from any machine."""

from __future__ import annotations

from typing import Any

from ddtree_ops.cli._options import ConfigOpt, EventsOpt, HostOpt, JsonOpt, QuietOpt, VerboseOpt


def attach(
    host: HostOpt = None,
    config: ConfigOpt = None,
    json: JsonOpt = False,
    events: EventsOpt = False,
    verbose: VerboseOpt = 0,
    quiet: QuietOpt = False,
) -> None:
    """Follow the open rollout from its beginning, confirm it when it is gated, exit as its own operator would.

    An interrupt asks the host to roll the deploy back, as deploy's does; a second one detaches. Where no rollout is
    open, it says how the last one ended (exit 0 only where that was confirmed) and what runs now; exit 5 where the
    host is not any more what was confirmed.
    """
    from ddtree_ops.apply.attach import attach as execute
    from ddtree_ops.cli._common import check_output, one_host
    from ddtree_ops.cli._run import connector
    from ddtree_ops.cli._sinks import document, open_sink, say
    from ddtree_ops.core.errors import PendingChanges
    from ddtree_ops.core.events import parse_event

    check_output(json, events)
    inventory, chosen = one_host(config, host)
    connect = connector(inventory, chosen)

    def on_event(event: dict[str, Any]) -> None:
        sink(chosen.name, parse_event(event))

    with open_sink(events, quiet, verbose) as sink, connect() as client:
        ended = execute(chosen, client, connect, on_event)
    if json:
        now = {"status": ended.status} if ended.status else {}
        document({"host": chosen.name, "attached": ended.joined, "result": ended.outcome, **now})
    if not quiet:
        say(_describe(chosen.name, ended))
    drift = (ended.status or {}).get("drift")
    if drift:
        raise PendingChanges(
            f"the last rollout was confirmed, and the host has drifted since: {'; '.join(drift)}",
            host=chosen.name,
            next=f"ddtree-ops status --host {chosen.name}",
        )


def _describe(name: str, ended: Any) -> str:
    from ddtree_ops.cli import deploy, history, status

    if ended.status is not None:
        last = history.describe(ended.outcome)
        return f"{name}: no rollout is open; the last one:\n  {last}\n{status.describe(name, ended.status)}"
    if ended.outcome["kind"] == "undo":
        return f"{name}: back on {ended.outcome['serving']}"
    return deploy.confirmed(name, ended.outcome)
