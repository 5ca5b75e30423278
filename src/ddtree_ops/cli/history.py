"""`history`: what was changed on a host, by whom, and how it ended."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer

from ddtree_ops.cli._options import ConfigOpt, HostOpt, JsonOpt


def history(
    host: HostOpt = None,
    config: ConfigOpt = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="How many entries.")] = 20,
    json: JsonOpt = False,
) -> None:
    """Print the host's own record, oldest first."""
    from ddtree_ops.cli._common import one_host
    from ddtree_ops.cli._run import connector
    from ddtree_ops.cli._sinks import document

    inventory, chosen = one_host(config, host)
    with connector(inventory, chosen)() as client:
        entries = client.call("history", {"limit": limit})["history"]
    if json:
        document({"host": chosen.name, "history": entries})
        return
    for entry in entries:
        typer.echo(describe(entry))
    if not entries:
        typer.echo(f"{chosen.name}: nothing was changed here yet")


def describe(entry: dict[str, Any]) -> str:
    """One entry as a line, and its failure as a second one."""
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(entry["at"]))
    line = (
        f"{when} UTC  {entry['kind']} {entry['mode']} {entry['release']} by {entry['who']}: {entry['outcome']}, "
        f"{entry['serving']} serves, downtime {entry.get('downtime_s', '?')} s"
    )
    failure = entry.get("failure") or {}
    if failure:
        line += f"\n    {failure.get('phase')} ({failure.get('reason')}): {failure.get('line') or failure.get('hint')}"
    return line
