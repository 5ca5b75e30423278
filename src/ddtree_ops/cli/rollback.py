"""`rollback`: undo the last confirmed change on a host."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from ddtree_ops.cli._options import ConfigOpt, EventsOpt, HostOpt, JsonOpt, QuietOpt, VerboseOpt


def rollback(
    host: HostOpt = None,
    to: Annotated[
        str | None, typer.Option("--to", metavar="RELEASE", help="A release on the host, or baseline.")
    ] = None,
    config: ConfigOpt = None,
    json: JsonOpt = False,
    events: EventsOpt = False,
    verbose: VerboseOpt = 0,
    quiet: QuietOpt = False,
) -> None:
    """Go to the release confirmed before the last change; a repeat says that there is nothing to do."""
    from ddtree_ops.apply.rollback import rollback as execute
    from ddtree_ops.cli._common import check_output, one_host
    from ddtree_ops.cli._run import connector, endpoint_of
    from ddtree_ops.cli._sinks import document, open_sink, say
    from ddtree_ops.core.events import parse_event

    check_output(json, events)
    inventory, chosen = one_host(config, host)
    where = endpoint_of(inventory, chosen)
    connect = connector(inventory, chosen)

    def on_event(event: dict[str, Any]) -> None:
        sink(chosen.name, parse_event(event))

    with open_sink(events, quiet, verbose) as sink, connect() as client:
        outcome = execute(chosen, client, connect, on_event, to=to, where=where)
    if json:
        document({"host": chosen.name, "result": outcome})
    if not quiet:
        nothing = outcome.get("nothing")
        say(
            f"{chosen.name}: {nothing}"
            if nothing
            else f"{chosen.name}: back on {outcome['serving'] or 'what ran before'}"
            + (f", downtime {outcome['downtime_s']} s" if outcome.get("downtime_s") else "")
        )
