"""Options that mean the same in every verb, with host names for shell completion."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer


def complete_hosts(ctx: typer.Context, incomplete: str) -> list[str]:
    """Host and group names from hosts.yaml. Reads one file, never connects, never fails."""
    try:
        from ddtree_ops.config import discover, load_inventory

        given = ctx.params.get("config")
        inventory = load_inventory(discover(Path(given) if given else None))
    except Exception:  # a shell's completion line has no place for an error
        return []
    return [name for name in (*inventory.hosts, *inventory.groups) if name.startswith(incomplete)]


HostOpt = Annotated[
    Optional[list[str]],
    typer.Option(
        "--host",
        metavar="NAME",
        help="Host, group or glob from hosts.yaml; repeatable.",
        autocompletion=complete_hosts,
        show_default=False,
    ),
]
ConfigOpt = Annotated[
    Optional[Path],
    typer.Option(
        "--config",
        metavar="FILE",
        help="hosts.yaml to use [default: $DDTREE_OPS_CONFIG, ./hosts.yaml, ./ops/hosts.yaml].",
        show_default=False,
    ),
]
JsonOpt = Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")]
EventsOpt = Annotated[bool, typer.Option("--events", help="JSON lines on stdout as things happen.")]
YesOpt = Annotated[
    bool, typer.Option("--yes", "-y", envvar="DDTREE_OPS_YES", help="Do not ask; needed without a terminal.")
]
VerboseOpt = Annotated[int, typer.Option("--verbose", "-v", count=True, help="Show the log too.")]
QuietOpt = Annotated[bool, typer.Option("--quiet", "-q", help="Only errors on stderr.")]
