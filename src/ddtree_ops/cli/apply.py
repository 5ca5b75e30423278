"""`apply`: carry out a saved plan, if nothing moved since."""

from __future__ import annotations

import json as jsonlib
from pathlib import Path
from typing import Annotated

import typer

from ddtree_ops.cli._options import ConfigOpt, EventsOpt, JsonOpt, QuietOpt, VerboseOpt


def apply(
    plan: Annotated[Path, typer.Argument(metavar="PLAN.json", help="What `plan -o` wrote.")],
    config: ConfigOpt = None,
    json: JsonOpt = False,
    events: EventsOpt = False,
    verbose: VerboseOpt = 0,
    quiet: QuietOpt = False,
) -> None:
    """Deploy exactly what the plan says; exit 3 where the host, the configuration or the series moved."""
    from ddtree_ops.cli._common import check_output, one_host
    from ddtree_ops.cli.deploy import run_deploy
    from ddtree_ops.core.errors import UsageProblem
    from ddtree_ops.core.plan import read_plan

    check_output(json, events)
    try:
        planned = read_plan(jsonlib.loads(plan.read_text()), str(plan))
    except OSError as error:
        raise UsageProblem(f"cannot read {plan}: {error.strerror}") from None
    except ValueError as error:
        raise UsageProblem(f"{plan} is not JSON: {error}") from None
    inventory, host = one_host(config, [planned["host"]])
    run_deploy(
        inventory,
        host,
        planned["mode"],
        why=f"apply {plan.name}",
        json=json,
        events=events,
        verbose=verbose,
        quiet=quiet,
        planned=planned,
    )
