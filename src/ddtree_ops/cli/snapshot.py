"""`snapshot`: fetch the engine's sources from a host, verified, into the user's state directory."""

from __future__ import annotations

import typer

from ddtree_ops.cli._options import ConfigOpt, HostOpt, JsonOpt


def snapshot(host: HostOpt = None, config: ConfigOpt = None, json: JsonOpt = False) -> None:
    """Store the package as it is on the host; sources that are here already do not travel again."""
    from ddtree_ops.apply.prepare import probe
    from ddtree_ops.cli._common import one_host
    from ddtree_ops.cli._run import connector
    from ddtree_ops.cli._sinks import document
    from ddtree_ops.core.errors import PreconditionFailed
    from ddtree_ops.engine import snapshot as store

    inventory, chosen = one_host(config, host)
    with connector(inventory, chosen)() as client:
        engine = probe(client, chosen, None)["engine"]
        if engine.get("error"):
            raise PreconditionFailed(
                "no engine package to take a snapshot of",
                host=chosen.name,
                evidence=engine["error"],
                next=f"ddtree-ops doctor --host {chosen.name}",
            )
        path = store.fetch(client, chosen.name, engine["package"], engine["tree"])
    if json:
        document(
            {"host": chosen.name, "tree": engine["tree"], "path": str(path), "version": engine.get("version")}
        )
    else:
        typer.echo(f"{chosen.name}: sglang {engine.get('version')}, tree {engine['tree'][:16]}, in {path}")
