"""`diagnose`: what a pasted log means, with no host."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO

import typer

import ddtree_ops.core
from ddtree_ops.cli._options import JsonOpt

if TYPE_CHECKING:
    from ddtree_ops.core.diagnose import Diagnosis

_CHUNK, _LONGEST = 1 << 16, 1 << 18


def diagnose(
    file: Annotated[str, typer.Argument(metavar="FILE|-", help="The log; - reads standard input.")],
    json: JsonOpt = False,
) -> None:
    """Say what a log means: journalctl, docker, dmesg, pip, ssh or a plain file; no host is needed.

    The verdict is FAIL (it cannot work so), WAIT (nothing is wrong yet), WARN (look at this) or OK; it is in the
    output, not in the exit code: 0 where the log was read, 2 where it could not be. With --json: schema_version,
    verdict, reason ("ID KIND" of the signature, as "S02 abi-torch", or null), line (the first fatal line, secrets
    blanked, or null), hint, context (the lines around it), phase, lines (how many were read).
    """
    from ddtree_ops.cli._sinks import document, say
    from ddtree_ops.core.diagnose import diagnose as read
    from ddtree_ops.core.errors import UsageProblem
    from ddtree_ops.core.signatures import load

    signatures = load((Path(ddtree_ops.core.__file__).parent / "signatures.json").read_text(encoding="utf-8"))
    if file == "-":
        if sys.stdin is None:
            raise UsageProblem(
                "standard input is closed", next="ddtree-ops diagnose FILE, or pipe a log into it"
            )
        found = read(lines_of(sys.stdin.buffer), signatures)
    else:
        with open(file, "rb") as log:
            found = read(lines_of(log), signatures)
    if json:
        document(found.to_json())
    else:
        say(sentence(found))


def lines_of(log: BinaryIO) -> Iterator[str]:
    """The lines of a log of any size; what is no UTF-8 is shown as \\xNN."""
    rest = b""
    while chunk := log.read(_CHUNK):
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            yield line.decode("utf-8", "backslashreplace")
        if len(rest) > _LONGEST:
            yield rest.decode("utf-8", "backslashreplace")
            rest = b""
    if rest:
        yield rest.decode("utf-8", "backslashreplace")


def sentence(found: Diagnosis) -> str:
    """The diagnosis as a person reads it: the verdict, the line with its neighbours, what to do."""
    text = found.verdict + (f": {found.reason}" if found.reason else "")
    text += f" (in phase {found.phase})" if found.phase and found.verdict != "OK" else ""
    if found.line:
        text += f"\n  line: {found.line}"
    text += f"\n  hint: {found.hint}"
    around = [line for line in found.context if line != found.line]
    if around:
        text += "\n  around it:" + "".join(f"\n    {line}" for line in found.context)
    return text
