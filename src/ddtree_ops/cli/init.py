"""`ddtree-ops init`: a commented hosts.yaml to start from."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ddtree_ops.cli._options import JsonOpt
from ddtree_ops.core.errors import UsageProblem


def init(
    file: Annotated[Path, typer.Argument(help="Where to write it.")] = Path("hosts.yaml"),
    json: JsonOpt = False,
) -> None:
    """Write a commented hosts.yaml. An existing file is never overwritten."""
    from ddtree_ops.cli._sinks import document, say
    from ddtree_ops.config.template import INIT_TEMPLATE

    try:
        with file.open("x", encoding="utf-8") as out:
            out.write(INIT_TEMPLATE)
    except FileExistsError:
        raise UsageProblem(f"{file} is there already and was left as it is", next=f"$EDITOR {file}") from None
    except OSError as error:
        step = f"mkdir -p {file.parent}" if isinstance(error, FileNotFoundError) else f"ls -ld {file.parent}"
        raise UsageProblem(f"{file} cannot be written: {error.strerror}", next=step) from None
    say(f"wrote {file}: name your hosts in it, then: ddtree-ops adopt --host NAME")
    if json:
        document({"ok": True, "path": str(file)})
