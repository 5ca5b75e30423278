"""`deploy`: put a host into a mode, and back again by itself where it fails."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from ddtree_ops.cli._options import ConfigOpt, EventsOpt, HostOpt, JsonOpt, QuietOpt, VerboseOpt

if TYPE_CHECKING:
    from ddtree_ops.config import HostConfig, Inventory

ModeOpt = Annotated[
    str, typer.Option("--mode", metavar="MODE", help="shadow, or another mode of the series.")
]


def deploy(
    host: HostOpt = None,
    mode: ModeOpt = "shadow",
    config: ConfigOpt = None,
    json: JsonOpt = False,
    events: EventsOpt = False,
    verbose: VerboseOpt = 0,
    quiet: QuietOpt = False,
) -> None:
    """Preflight, snapshot, patch, push, arm, switch, watch, gate, confirm; rolled back on any failure."""
    from ddtree_ops.cli._common import check_output, one_host

    check_output(json, events)
    inventory, chosen = one_host(config, host)
    run_deploy(inventory, chosen, mode, json=json, events=events, verbose=verbose, quiet=quiet)


def run_deploy(
    inventory: Inventory,
    host: HostConfig,
    mode: str,
    *,
    json: bool,
    events: bool,
    verbose: int,
    quiet: bool,
    planned: Any = None,
) -> None:
    """Deploy `mode`; with `planned` (a saved plan's document) only where nothing moved since."""
    from ddtree_ops.apply.deploy import deploy as execute
    from ddtree_ops.apply.prepare import prepare
    from ddtree_ops.cli._run import connector
    from ddtree_ops.cli._sinks import document, open_sink, say
    from ddtree_ops.core.events import parse_event
    from ddtree_ops.core.plan import check_unmoved

    connect = connector(inventory, host)
    with open_sink(events, quiet, verbose) as sink, connect() as client:

        def on_event(event: dict[str, Any]) -> None:
            sink(host.name, parse_event(event))

        prepared = prepare(inventory, host, mode, client, on_event)
        if planned is not None:
            check_unmoved(planned, prepared.plan)
        for note in () if quiet else (*prepared.plan.changes, *prepared.plan.notes):
            say(f"{host.name}  {note}")
        outcome = (
            {"outcome": "unchanged", "serving": prepared.plan.release, "release": prepared.plan.release}
            if prepared.plan.done
            else execute(prepared, client, connect, on_event)
        )
    _report(host.name, outcome, json=json, quiet=quiet, document=document, say=say)


def confirmed(name: str, outcome: dict[str, Any]) -> str:
    """A deploy that did what was asked, in words."""
    phases = ", ".join(f"{phase} {seconds:.1f}" for phase, seconds in (outcome.get("phases") or {}).items())
    stop = outcome.get("stop") or {}
    return (
        f"{name}: {outcome['mode']} is confirmed, release {outcome['serving']}\n"
        f"  stop {stop.get('seconds')} s (KillMode={stop.get('kill_mode')}, Result={stop.get('result')}), "
        f"downtime {outcome.get('downtime_s')} s; seconds by phase: {phases}\n"
        f"  undo: ddtree-ops rollback --host {name}"
    )


def _report(name: str, outcome: dict[str, Any], *, json: bool, quiet: bool, document: Any, say: Any) -> None:
    if json:
        document({"host": name, "result": outcome})
    if quiet:
        return
    if outcome["outcome"] == "unchanged":
        say(f"{name}: nothing to do: release {outcome['release']} is confirmed and running")
        return
    say(confirmed(name, outcome))
