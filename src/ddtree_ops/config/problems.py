"""Faults of a configuration file, each with its place, raised all at once."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ddtree_ops.core.errors import UsageProblem
from ddtree_ops.core.text import escaped

Loc = tuple[str | int, ...]


@dataclass(frozen=True, order=True)
class Problem:
    """One fault: line and column count from 1; `path` is dotted, empty for the file as a whole.

    What stands in the file may be repeated in `path` and `message`: control characters in it are shown escaped.
    """

    line: int
    column: int
    path: str
    message: str

    def __post_init__(self) -> None:
        for name in ("path", "message"):
            object.__setattr__(self, name, escaped(getattr(self, name)))


class ConfigProblem(UsageProblem):
    """A file with faults. `problems` has every one; `what` shows each as `file:line:col: path: message`."""

    def __init__(self, file: Path | str, problems: list[Problem], next: str | None = None) -> None:
        self.file = str(file)
        self.problems = sorted(set(problems))
        super().__init__(
            "\n".join(self.lines()), next=next or "ddtree-ops schema, for every key and what it takes"
        )

    def lines(self) -> list[str]:
        """The faults in file order, one a line."""
        return [
            f"{self.file}:{p.line}:{p.column}: {p.path + ': ' if p.path else ''}{p.message}"
            for p in self.problems
        ]

    def to_json(self) -> dict[str, object]:
        """The error tree's shape, with `file` and `problems` beside it."""
        return {**super().to_json(), "file": self.file, "problems": [vars(p) for p in self.problems]}


def dotted(loc: Loc) -> str:
    """Return `hosts.ct129.groups[0]` for a location."""
    text = ""
    for part in loc:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text
