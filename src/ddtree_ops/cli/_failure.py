"""How a command line that failed says so: a sentence on stderr, a document on stdout, an exit code."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import traceback
from typing import Any

import typer

from ddtree_ops.core.errors import OpsError, UsageProblem

SCHEMA_VERSION = 1
# typer carries its own copy of click in newer releases: the class is found through what both export.
CLICK_ERROR: type[Exception] = typer.BadParameter.__mro__[2]


def message(error: Any) -> str:
    """Return the text of a parser's complaint."""
    return str(error.format_message())


def usage_problem(error: Any) -> UsageProblem:
    """Return a parser's complaint as our error, with did-you-mean and the help to read."""
    text, _, said = message(error).partition(" Did you mean ")
    near = [str(p) for p in getattr(error, "possibilities", None) or ()] or [
        said.rstrip("?").replace("'", "")
    ]
    text = text.split(" (Possible options")[0].rstrip(".")
    ctx = getattr(error, "ctx", None)
    path = ctx.command_path if ctx is not None else "ddtree-ops"
    hint = f"; did you mean {' or '.join(near)}?" if near != [""] else ""
    return UsageProblem(f"{text[:1].lower()}{text[1:]}{hint}", next=f"{path} --help")


def report(error: OpsError, argv: list[str]) -> int:
    """Print `error` for a person, and for a machine where the command line asked; return its exit code.

    A verb that printed its document already (status of three hosts, one down) said it there.
    """
    from ddtree_ops.cli._sinks import Said
    from ddtree_ops.config.secrets import redact, redact_json

    # file:line:col opens its line, so that editors and terminals make it a link
    placed = bool(getattr(error, "problems", None))
    print(redact(str(error) if placed else f"ddtree-ops: {error}"), file=sys.stderr)
    document = {"schema_version": SCHEMA_VERSION, "ok": False, "error": error.to_json()}
    words = argv[: argv.index("--")] if "--" in argv else argv
    if "--events" in words:
        print(json.dumps(redact_json({"ev": "error", **document}), ensure_ascii=False))
    elif "--json" in words and not Said.document:
        print(json.dumps(redact_json(document), ensure_ascii=False, indent=2))
    return error.exit_code


def report_bug(error: Exception, argv: list[str]) -> int:
    """Say in one line that ddtree-ops is at fault; the traceback goes to a file, without secrets."""
    from ddtree_ops.config.secrets import redact

    text = "".join(traceback.format_exception(error))
    with tempfile.NamedTemporaryFile(
        "w", prefix="ddtree-ops-", suffix=".traceback", delete=False, encoding="utf-8"
    ) as file:
        file.write(redact(text))
    first = str(error).splitlines()[0] if str(error) else ""
    what = f"a bug in ddtree-ops: {type(error).__name__}{': ' + first if first else ''}"
    return report(OpsError(what, next=f"report it with the traceback in {file.name}"), argv)


def broken_pipe() -> int:
    """The reader of our stdout left (`| head`): not a failure of ours, and no second error at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0
