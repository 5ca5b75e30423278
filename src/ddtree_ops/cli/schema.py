"""`ddtree-ops schema`: the JSON Schema of hosts.yaml on stdout."""

from __future__ import annotations

import typer


def schema() -> None:
    """Print the JSON Schema of hosts.yaml, for editors and CI."""
    from ddtree_ops.config.schema import schema_text

    typer.echo(schema_text(), nl=False)
