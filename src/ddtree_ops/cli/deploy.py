"""`deploy`: put a host into a mode, and back again by itself where it fails."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from ddtree_ops.cli._options import ConfigOpt, EventsOpt, HostOpt, JsonOpt, QuietOpt, VerboseOpt

if TYPE_CHECKING:
    from datetime import datetime

    from ddtree_ops.apply.agent import AgentClient
    from ddtree_ops.apply.follow import OnEvent
    from ddtree_ops.config import HostConfig, Inventory

ModeOpt = Annotated[
    str, typer.Option("--mode", metavar="MODE", help="shadow, or another mode of the series.")
]


WhyOpt = Annotated[
    Optional[str],
    typer.Option("--why", metavar="TEXT", help="For the host's history.", show_default=False),
]
AtOpt = Annotated[
    Optional[str],
    typer.Option(
        "--at",
        metavar="TIME",
        help="Prepare and push now, begin then: 03:00, or an ISO time.",
        show_default=False,
    ),
]
AdoptOpt = Annotated[
    bool,
    typer.Option("--adopt", help="The host was changed by hand: take it over as it is, into facts/ too."),
]


RehearseOpt = Annotated[
    bool,
    typer.Option(
        "--rehearse",
        help="First run the release beside the live server: few layers, dummy weights, a small share of the GPU. "
        "A kernel that crashes can take a GPU, and so the live server, with it.",
    ),
]


def deploy(
    host: HostOpt = None,
    mode: ModeOpt = "shadow",
    config: ConfigOpt = None,
    adopt: AdoptOpt = False,
    at: AtOpt = None,
    rehearse: RehearseOpt = False,
    why: WhyOpt = None,
    json: JsonOpt = False,
    events: EventsOpt = False,
    verbose: VerboseOpt = 0,
    quiet: QuietOpt = False,
) -> None:
    """Preflight, snapshot, patch, push, arm, switch, watch, gate, confirm; rolled back on any failure."""
    from ddtree_ops.cli._common import check_output, one_host
    from ddtree_ops.config.secrets import redact
    from ddtree_ops.core.text import one_line

    check_output(json, events)
    moment = _moment(at)
    inventory, chosen = one_host(config, host)
    run_deploy(
        inventory,
        chosen,
        mode,
        adopt=adopt,
        at=moment,
        rehearse=rehearse,
        why=redact(one_line(why or "")) or f"deploy --mode {mode}{' --adopt' if adopt else ''}",
        json=json,
        events=events,
        verbose=verbose,
        quiet=quiet,
    )


def run_deploy(
    inventory: Inventory,
    host: HostConfig,
    mode: str,
    *,
    why: str,
    json: bool,
    events: bool,
    verbose: int,
    quiet: bool,
    adopt: bool = False,
    at: datetime | None = None,
    rehearse: bool = False,
    planned: Any = None,
) -> None:
    """Deploy `mode`; with `planned` (a saved plan's document) only where nothing moved since."""
    from ddtree_ops.apply.deploy import Order
    from ddtree_ops.apply.deploy import deploy as execute
    from ddtree_ops.apply.prepare import Prepared, prepare
    from ddtree_ops.cli._run import connector
    from ddtree_ops.cli._sinks import document, open_sink, say
    from ddtree_ops.core import downtime
    from ddtree_ops.core.events import parse_event
    from ddtree_ops.core.plan import check_unmoved

    connect = connector(inventory, host)
    with open_sink(events, quiet, verbose) as sink, connect() as client:

        def on_event(event: dict[str, Any]) -> None:
            sink(host.name, parse_event(event))

        def again(line: AgentClient) -> Prepared:
            # Only what differs on the host may be taken over: the facts were read anew, and the plan is made from them.
            return prepare(inventory, host, mode, line, on_event, ("drift",) if adopt else ())

        adopted = _take_over(inventory, host, client, on_event, json) if adopt else []
        prepared = again(client)
        if planned is not None:
            check_unmoved(planned, prepared.plan)
        losses = () if prepared.plan.done else (f"clients lose: {loss}" for loss in prepared.plan.loses)
        for note in () if quiet else (*prepared.plan.changes, *losses, *prepared.plan.notes):
            say(f"{host.name}  {note}")
        if not prepared.plan.done:
            downtime.check(prepared.plan.downtime, host.max_downtime, host.name)
        adopted += [said for said in prepared.plan.drift if said not in adopted]
        outcome = (
            {"outcome": "unchanged", "serving": prepared.plan.release, "release": prepared.plan.release}
            if prepared.plan.done
            else execute(prepared, client, connect, on_event, Order(why, adopted, at, again, rehearse))
        )
    _report(host.name, outcome, json=json, quiet=quiet, document=document, say=say)


def _moment(at: str | None) -> datetime | None:
    from datetime import datetime

    from ddtree_ops.apply.schedule import parse

    return None if at is None else parse(at, datetime.now().astimezone())


def _take_over(
    inventory: Inventory, host: HostConfig, client: AgentClient, on_event: OnEvent, json: bool
) -> list[str]:
    """Read the host anew into its facts; return what was different there, a sentence each."""
    from ddtree_ops.cli.adopt import take

    found: list[str] = client.call("status", {})["status"]["drift"]
    for said in found:
        on_event({"ev": "note", "text": f"taken over: {said}"})
    _, changed = take(inventory, host, True, json)
    if changed:
        found.append(f"{inventory.facts_path(host.name).name} was recorded anew")
    return found


def confirmed(name: str, outcome: dict[str, Any]) -> str:
    """A deploy that did what was asked, in words."""
    phases = ", ".join(f"{phase} {seconds:.1f}" for phase, seconds in (outcome.get("phases") or {}).items())
    stop = outcome.get("stop") or {}
    undrain = outcome.get("undrain")
    drained = f"\n  WARN the server is still drained, run drain.undo by hand: {undrain}" if undrain else ""
    return (
        f"{name}: {outcome['mode']} is confirmed, release {outcome['serving']}\n"
        f"  stop {stop.get('seconds')} s (KillMode={stop.get('kill_mode')}, Result={stop.get('result')}), "
        f"downtime {outcome.get('downtime_s')} s; seconds by phase: {phases}\n"
        f"  undo: ddtree-ops rollback --host {name}{drained}"
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
