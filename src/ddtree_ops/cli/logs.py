"""`logs`: what the service wrote last, from where its unit writes it."""

from __future__ import annotations

from typing import Annotated

import typer

from ddtree_ops.cli._options import ConfigOpt, HostOpt, JsonOpt


def logs(
    host: HostOpt = None,
    config: ConfigOpt = None,
    lines: Annotated[int, typer.Option("--lines", "-n", min=1, max=100000, help="How many lines.")] = 50,
    json: JsonOpt = False,
) -> None:
    """Print the last lines of the service's journal or log file."""
    from ddtree_ops.cli._common import one_host
    from ddtree_ops.cli._run import connector, endpoint_of
    from ddtree_ops.cli._sinks import document
    from ddtree_ops.config.secrets import redact

    inventory, chosen = one_host(config, host)
    log = endpoint_of(inventory, chosen).log
    with connector(inventory, chosen)() as client:
        found = client.call("logs", {"lines": lines, "log": log})["lines"]
    if json:
        document({"host": chosen.name, "lines": found})
    else:
        typer.echo(redact("\n".join(found)))
