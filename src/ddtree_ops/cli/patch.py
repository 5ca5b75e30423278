"""`patch`: does a series fit a tree, without a host and without writing to the tree."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ddtree_ops.cli._options import JsonOpt

app = typer.Typer(
    help="Check a patch series.", no_args_is_help=True, rich_markup_mode=None, pretty_exceptions_enable=False
)


@app.callback()
def patch() -> None:
    """Check a patch series."""


@app.command()
def check(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="The series directory.")],
    tree: Annotated[Path, typer.Option(help="The engine's package, such as …/site-packages/sglang.")],
    json: JsonOpt = False,
) -> None:
    """Load a series, compare the tree with its pre-images and apply it to copies; the tree is only read."""
    from ddtree_ops.cli._sinks import document
    from ddtree_ops.core.errors import PreconditionFailed
    from ddtree_ops.engine.patch import apply_series, status
    from ddtree_ops.engine.series import load_series

    series = load_series(directory)
    found = status(series, tree)
    if found.state in ("partly", "foreign"):
        raise PreconditionFailed(
            f"{tree} is not what series {series.name} was made for",
            evidence=str(found),
            meaning=f"the series is for {series.engine} {series.version} as released",
            next=f"reinstall {series.engine}=={series.version}, or name the series of the installed release",
        )
    files = sorted(apply_series(series, tree).files) if found.state == "unpatched" else list(series.touched)
    if json:
        document({"series": series.name, "tree": str(tree), "state": found.state, "files": files})
    else:
        verb = "applies: would change" if found.state == "unpatched" else "is in the tree already:"
        typer.echo(f"{series.name} {verb} {', '.join(files)}")
