"""`plan`: what a deploy would change, with diffs; -o saves it for `apply`."""

from __future__ import annotations

import json as jsonlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ddtree_ops.cli._options import ConfigOpt, HostOpt, JsonOpt, QuietOpt
from ddtree_ops.cli.deploy import ModeOpt

if TYPE_CHECKING:
    from ddtree_ops.core.plan import Plan


def plan(
    host: HostOpt = None,
    mode: ModeOpt = "shadow",
    config: ConfigOpt = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Save the plan for `apply`.")
    ] = None,
    exit_code: Annotated[bool, typer.Option("--exit-code", help="Exit 5 where changes are pending.")] = False,
    json: JsonOpt = False,
    quiet: QuietOpt = False,
) -> None:
    """Read the host, decide, print: nothing on it is touched."""
    from ddtree_ops.apply.prepare import prepare
    from ddtree_ops.cli._common import one_host
    from ddtree_ops.cli._run import connector
    from ddtree_ops.cli._sinks import document, say
    from ddtree_ops.core.doctor import DRIFT
    from ddtree_ops.core.errors import PendingChanges

    inventory, chosen = one_host(config, host)
    with connector(inventory, chosen)() as client:
        decided = prepare(
            inventory, chosen, mode, client, lambda event: say(f"{chosen.name}  {event['text']}"), DRIFT
        ).plan
    if output is not None:
        output.write_text(jsonlib.dumps(decided.to_json(), indent=1, sort_keys=True) + "\n")
    if json:
        document(decided.to_json())
    if not quiet:
        say(describe(decided))
    if exit_code and not decided.done:
        raise PendingChanges(
            f"changes are pending: release {decided.release}",
            host=chosen.name,
            next=f"ddtree-ops deploy --host {chosen.name} --mode {mode}",
        )


def describe(plan: Plan) -> str:
    """A plan as a person reads it."""
    from ddtree_ops.units.diff import unified

    if plan.done:
        return f"{plan.host}: nothing to do: release {plan.release} is confirmed and running"
    before, after = "\n".join(plan.argv_before) + "\n", "\n".join(plan.argv_after) + "\n"
    parts = [
        f"{plan.host}: {plan.service} → {plan.mode}, release {plan.release} (now {plan.running})",
        *(f"  drift: {text}" for text in plan.drift),
        *(["  a deploy is refused until --adopt takes that over, or it is put back"] if plan.drift else ()),
        *(f"  waived: {text}" for text in plan.waived),
        unified(before, after, f"command line now, {plan.running}", f"command line in {plan.mode}"),
        *(f"  change: {text}" for text in plan.changes),
        *(f"  clients lose: {text}" for text in plan.loses),
        *(f"  note: {text}" for text in plan.notes),
        f"  downtime: {plan.downtime.text}",
        f"  traffic: {plan.gate}",
        *(
            f"  {step.state:<10} {'(down) ' if step.down else ''}{step.does}; undo: {step.undo}"
            for step in plan.steps
        ),
    ]
    return "\n".join(part for part in parts if part)
