"""What the probe says of the unit's files: their lines, the shape of their commands, what systemd has in force."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ddtree_ops.core.checks.rule import Section
from ddtree_ops.core.wanted import Wanted


@dataclass(frozen=True)
class Setting:
    """A line of the unit's files. value: None where it may hold a secret."""

    file: str
    line: int
    section: str
    key: str
    value: str | None


@dataclass(frozen=True)
class Specifier:
    """A %-letter in a value. joined: stuck to letters or part of a date format, so meant as text."""

    letter: str
    known: bool
    joined: bool


@dataclass(frozen=True)
class Command:
    """The shape of an Exec…= line. unset: variables that leave a hole; optional_unset: whole words that vanish; json:
    flags whose JSON loses its quotes; glued: variables that a word begins with and goes on after; shell: words that
    only a shell would act on."""

    file: str
    line: int
    key: str
    program: str
    prefixes: str
    unset: tuple[str, ...]
    optional_unset: tuple[str, ...]
    specifiers: tuple[Specifier, ...]
    json: tuple[str, ...]
    open_quote: bool
    glued: tuple[str, ...] = ()
    shell: tuple[str, ...] = ()


@dataclass(frozen=True)
class EnvironmentLine:
    """variable: what its path is built from, which systemd does not expand."""

    file: str
    line: int
    name: str
    specifiers: tuple[Specifier, ...]
    variable: str = ""


@dataclass(frozen=True)
class EnvironmentFile:
    """exists, readable: None where its path is a pattern or systemd ignores it. ignored: (line, why)."""

    file: str
    line: int
    path: str
    optional: bool
    absolute: bool
    exists: bool | None
    readable: bool | None
    ignored: tuple[tuple[int, str], ...]


@dataclass(frozen=True)
class NeededPath:
    """A path that systemd needs for `key` before it runs anything."""

    file: str
    line: int
    key: str
    path: str
    exists: bool | None


@dataclass(frozen=True)
class Condition:
    """A condition or assertion on a path. met: as things are now."""

    file: str
    line: int
    key: str
    path: str
    met: bool


@dataclass(frozen=True)
class Required:
    """A unit that this one needs (tie: Requires, Requisite, BindsTo). load, active: None where not told."""

    name: str
    tie: str
    load: str | None
    active: str | None


@dataclass(frozen=True)
class Program:
    """label: its SELinux type, None where SELinux does not enforce."""

    path: str
    exists: bool | None
    executable: bool | None
    interpreter: str | None
    interpreter_exists: bool | None
    runs: bool | None = None
    label: str | None = None


@dataclass(frozen=True)
class Directory:
    """WorkingDirectory= in force (path) and as the files write it."""

    path: str
    optional: bool
    exists: bool | None
    written: str | None


@dataclass(frozen=True)
class UnitFiles:
    """properties: what `systemctl show` says. verify: lines of systemd-analyze, None where it is not installed. stale:
    variables whose value in force is not the written one. dropped: (file, line) with words that are no variable."""

    properties: Mapping[str, str]
    unread: tuple[str, ...]
    settings: tuple[Setting, ...]
    commands: tuple[Command, ...]
    environment: tuple[EnvironmentLine, ...]
    dropped: tuple[tuple[str, int], ...]
    stale: tuple[str, ...]
    environment_files: tuple[EnvironmentFile, ...]
    directory: Directory
    programs: tuple[Program, ...]
    notifies: bool
    verify: tuple[str, ...] | None
    journald: Mapping[str, str | None] = field(default_factory=dict)
    paths: tuple[NeededPath, ...] = ()
    conditions: tuple[Condition, ...] = ()
    units: tuple[Required, ...] = ()

    def written(self, key: str) -> Setting | None:
        """The last line of [Service] that sets `key`."""
        found = [s for s in self.settings if s.key == key and s.section == "Service"]
        return found[-1] if found else None


def _all(kind: Any, raw: Any, **more: Any) -> tuple[Any, ...]:
    names = kind.__dataclass_fields__
    made = []
    for item in raw:
        values = {k: tuple(v) if isinstance(v, list) else v for k, v in item.items() if k in names}
        if "specifiers" in names:
            values["specifiers"] = _all(Specifier, item["specifiers"])
        if "ignored" in names:
            values["ignored"] = tuple((entry["line"], entry["why"]) for entry in item["ignored"])
        made.append(kind(**values))
    return tuple(made)


def read(raw: Mapping[str, Any]) -> UnitFiles:
    """The section's raw object, typed."""
    return UnitFiles(
        properties=dict(raw["properties"]),
        unread=tuple(raw["unread"]),
        settings=_all(Setting, raw["settings"]),
        commands=_all(Command, raw["commands"]),
        environment=_all(EnvironmentLine, raw["environment"]),
        dropped=tuple((item["file"], item["line"]) for item in raw["dropped"]),
        stale=tuple(raw["stale"]),
        environment_files=_all(EnvironmentFile, raw["environment_files"]),
        directory=_all(Directory, [raw["working_directory"]])[0],
        programs=_all(Program, raw["programs"]),
        notifies=bool(raw["notifies"]),
        verify=None if raw["verify"]["status"] is None else tuple(raw["verify"]["lines"]),
        journald=dict(raw.get("journald") or {}),
        paths=_all(NeededPath, raw.get("paths") or []),
        conditions=_all(Condition, raw.get("conditions") or []),
        units=_all(Required, raw.get("units") or []),
    )


SECTION = Section("unit_lint", UnitFiles, read)


def at(item: Setting | Command | EnvironmentLine | EnvironmentFile | NeededPath | Condition) -> str:
    """`sglang.service:12`."""
    return f"{item.file.rpartition('/')[2]}:{item.line}"


def edit(wanted: Wanted) -> str:
    """The command with which a person changes the unit, and has it read."""
    return (
        f"ssh {wanted.host} systemctl edit --full {wanted.service}, which also reloads; then ddtree-ops adopt"
    )
