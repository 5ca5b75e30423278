"""`history`: what was changed on a host, by whom, and how it ended."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer

from ddtree_ops.cli._options import ConfigOpt, HostOpt, JsonOpt
from ddtree_ops.core.text import one_line


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
    from ddtree_ops.config.secrets import redact

    inventory, chosen = one_host(config, host)
    with connector(inventory, chosen)() as client:
        entries = client.call("history", {"limit": limit})["history"]
    if json:
        document({"host": chosen.name, "history": entries})
        return
    for entry in entries:
        typer.echo(redact(describe(entry)))
    if not entries:
        typer.echo(f"{chosen.name}: nothing was changed here yet")


def what(entry: dict[str, Any]) -> str:
    """The change in words: `deploy shadow 4ab3…`, `rollback to baseline`, `env sync of runtime 77aa… from ct129`."""
    if entry["kind"] == "env-sync":
        return f"env sync of runtime {entry.get('runtime')} from {entry.get('from')}"
    if entry["kind"] == "undo":
        return f"rollback to {entry['release']}"
    return f"{entry['kind']} {entry['mode']} {entry['release']}"


def describe(entry: dict[str, Any]) -> str:
    """One entry as a line, and its failure as a second one."""
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(entry["at"]))
    who = entry["who"] + (f" from {entry['origin']}" if entry.get("origin") else "")
    line = f"{when} UTC  {what(entry)} by {who}: {entry['outcome']}"
    if entry["kind"] == "env-sync":
        return f"{line}\n    {', '.join(entry.get('packages') or ())}"
    line += f", {entry['serving'] or 'nothing'} serves" + (
        f", downtime {entry['downtime_s']} s" if entry.get("downtime_s") else ""
    )
    if entry.get("why") and not str(entry["why"]).startswith(("deploy ", "rollback", "apply ")):
        line += f"\n    why: {one_line(str(entry['why']))}"
    line += "".join(f"\n    adopted: {text}" for text in entry.get("adopted") or ())
    line += "".join(f"\n    waived: {text}" for text in entry.get("waived") or ())
    failure = entry.get("failure") or {}
    if failure:
        line += f"\n    {failure.get('phase')} ({failure.get('reason')}): {failure.get('line') or failure.get('hint')}"
    return line
