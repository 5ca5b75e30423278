"""Reads unit files line by line as systemd does: comments, continuations, sections, assignments (conf-parser.c)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from ddtree_ops.units import keys
from ddtree_ops.units.words import WHITESPACE

_EOL = re.compile(r"(?:\r\n|\n\r|\n|\r)\0?|\0")
_BOM = "\ufeff"
_SECTIONS = ("Unit", "Service", "Install")


@dataclass(frozen=True)
class Assignment:
    """`key=value` as systemd takes it: stripped, continuations joined. `line` is where it began."""

    section: str
    key: str
    value: str
    path: str
    line: int


@dataclass(frozen=True)
class Ignored:
    """A line that does not count, and why. `text` is the line as joined."""

    text: str
    path: str
    line: int
    why: str


@dataclass
class Parsed:
    """One file. `fatal`: systemd refuses the whole unit for this reason."""

    path: str
    assignments: list[Assignment] = field(default_factory=list)
    ignored: list[Ignored] = field(default_factory=list)
    fatal: str | None = None


def logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield (number of the first line, joined line).

    A backslash at the very end joins the next line and becomes one blank; comment lines in between vanish and do
    not end the continuation; an empty line does. A backslash that another backslash escapes does not join. One byte
    order mark is dropped, from the first line that begins with it.
    """
    pieces = _EOL.split(text)
    if pieces and not pieces[-1]:
        pieces.pop()
    held: str | None = None
    marked = False
    began = 0
    for number, piece in enumerate(pieces, 1):
        if piece.lstrip(WHITESPACE)[:1] in ("#", ";") and piece.strip(WHITESPACE):
            continue
        if not marked and piece.startswith(_BOM):
            piece, marked = piece[len(_BOM) :], True
        if held is None:
            began, joined = number, piece
        else:
            joined = held + piece
        trailing = len(joined) - len(joined.rstrip("\\"))
        if trailing % 2:
            held = joined[:-1] + " "
            continue
        held = None
        yield began, joined
    if held is not None:
        yield began, held


def parse(text: str, path: str, version: int = 252) -> Parsed:
    """Parse one unit file or drop-in for systemd `version`. Never raises: faults are in `ignored` and `fatal`."""
    result = Parsed(path)
    section: str | None = None
    private = False
    for line, raw in logical_lines(text):
        joined = raw.strip(WHITESPACE)
        if not joined:
            continue
        if any("\udc80" <= c <= "\udcff" for c in joined):
            result.fatal = f"{path}:{line}: not UTF-8"
            return result
        if joined.startswith("["):
            if not joined.endswith("]"):
                result.fatal = f"{path}:{line}: invalid section header {joined!r}"
                return result
            name = joined[1:-1]
            section = name if name in _SECTIONS else None
            private = section is None
            if private and not name.startswith("X-"):
                result.ignored.append(Ignored(joined, path, line, f"systemd knows no section [{name}]"))
            continue
        _assign(result, section, private, joined, line, version)
    return result


def _assign(result: Parsed, section: str | None, private: bool, joined: str, line: int, version: int) -> None:
    def ignore(why: str) -> None:
        result.ignored.append(Ignored(joined, result.path, line, why))

    if section is None:
        ignore(
            "it stands in a section that systemd does not read" if private else "it stands before any section"
        )
        return
    name, equals, value = joined.partition("=")
    name = name.strip(WHITESPACE)
    if not equals:
        ignore("systemd ignores a line without '='")
    elif not name:
        ignore("systemd ignores a line without a name before '='")
    elif why := keys.verdict(section, name, version):
        ignore(why)
    else:
        result.assignments.append(Assignment(section, name, value.strip(WHITESPACE), result.path, line))
