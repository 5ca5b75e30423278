"""Merges a unit file and its drop-ins into what systemd makes of them: commands, environment, settings, notes."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

from ddtree_ops.units import dropins, keys, values
from ddtree_ops.units.command import Command, FatalSetting, parse_commands
from ddtree_ops.units.environ import Variables, read_environment
from ddtree_ops.units.raw import RawFile, RawUnit
from ddtree_ops.units.specifiers import BadSpecifier, Specifiers
from ddtree_ops.units.syntax import Assignment, Ignored, parse

COMMANDS = (
    "ExecCondition",
    "ExecStartPre",
    "ExecStart",
    "ExecStartPost",
    "ExecReload",
    "ExecStop",
    "ExecStopPost",
)
# Settings that others read as plain values: specifiers are resolved.
RESOLVED = frozenset(
    {"User", "Group", "WorkingDirectory", "StandardOutput", "StandardError", "RootDirectory"}
)
# The relaxed rules of user-util.c: what systemd warns of but takes.
_USER = re.compile(r"(?!-[0-9]+$|\.{1,2}$|\s)[^:/\x00-\x1f\x7f]*[^:/\s\x00-\x1f\x7f]")
Setting = str | list[str]


@dataclass
class Meaning:
    """A unit as systemd sees it.

    settings: section → key → value, a list where assignments add up. environment: of Environment= alone.
    environment_files: (path, optional). notes: sentences on what systemd drops. fatal: why it does not start it.
    """

    unit: str
    settings: dict[str, dict[str, Setting]] = field(
        default_factory=lambda: {"Unit": {}, "Service": {}, "Install": {}}
    )
    commands: dict[str, list[Command]] = field(default_factory=dict)
    environment: Variables = field(default_factory=Variables)
    environment_files: list[tuple[str, bool]] = field(default_factory=list)
    ignored: list[Ignored] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    fatal: str | None = None

    def service(self, key: str, default: str = "") -> str:
        """Return a scalar of [Service]."""
        value = self.settings["Service"].get(key, default)
        return value if isinstance(value, str) else " ".join(value)


def merge(raw: RawUnit) -> Meaning:
    """Read fragment and drop-ins of `raw`. Raises UnknownHere for a specifier that the probe did not report."""
    fragment = raw.fragment or RawFile("")
    specifiers = Specifiers(raw.unit, fragment.path, raw.specifiers)
    meaning = Meaning(raw.unit)
    for file in [fragment, *dropins.ordered(raw.unit, list(raw.dropins))]:
        parsed = parse(file.text or "", file.path, raw.systemd)
        meaning.ignored += parsed.ignored
        meaning.notes += [f"{where(i.path, i.line)}: {i.why}" for i in parsed.ignored]
        # systemd reads a drop-in with a fatal line up to that line and goes on; a unit file it refuses.
        if parsed.fatal and file is fragment:
            meaning.fatal = meaning.fatal or parsed.fatal
        elif parsed.fatal:
            meaning.notes.append(f"{parsed.fatal}: systemd ignores the rest of this drop-in")
        for assignment in parsed.assignments:
            try:
                _apply(meaning, assignment, specifiers)
            except FatalSetting as fatal:
                if file is fragment:
                    # Read on: the rest tells a person more, though systemd starts nothing.
                    meaning.fatal = meaning.fatal or f"{assignment.key}= {fatal}"
                    continue
                at = where(assignment.path, assignment.line)
                meaning.notes.append(
                    f"{at}: {assignment.key}= {fatal}: systemd ignores the rest of this drop-in"
                )
                break
    return meaning


def where(path: str, line: int) -> str:
    """Return `file.service:12`."""
    return f"{path.rpartition('/')[2]}:{line}"


def _apply(meaning: Meaning, item: Assignment, specifiers: Specifiers) -> None:
    table = meaning.settings[item.section]
    key, value = item.key, item.value
    if key in COMMANDS:
        _command(meaning, item, specifiers)
    if key == "Environment":
        dropped = len(meaning.environment.invalid)
        read_environment(value, specifiers, meaning.environment)
        for word in meaning.environment.invalid[dropped:]:
            name = re.split(r"[=\s]", word.lstrip("\"'"))[0]
            meaning.notes.append(f"{where(item.path, item.line)}: systemd drops {name!r} from Environment=")
    if key == "EnvironmentFile":
        _environment_file(meaning, item, specifiers)
    if why := values.refusal(key, value):
        meaning.notes.append(f"{where(item.path, item.line)}: {why}")
        return
    if key in RESOLVED and value:
        value = _resolved(meaning, item, specifiers)
        if not value:
            return
    if keys.is_list(key):
        _list(table, key, value)
    elif key == "TimeoutSec":
        table["TimeoutStartSec"] = table["TimeoutStopSec"] = value
    elif value:
        table[key] = value
    else:
        table.pop(key, None)


def _list(table: dict[str, Setting], key: str, value: str) -> None:
    if not value:
        if key not in keys.DEPENDENCIES:
            table.pop(key, None)
        return
    held = table.setdefault(key, [])
    if isinstance(held, list):
        held.append(value)


def _command(meaning: Meaning, item: Assignment, specifiers: Specifiers) -> None:
    if not item.value:
        meaning.commands.pop(item.key, None)
        return
    server = item.key == "ExecStart"
    read = parse_commands(item.value, specifiers if server else replace(specifiers, lenient=True))
    meaning.commands.setdefault(item.key, []).extend(read.commands)
    meaning.notes += [f"{where(item.path, item.line)}: {item.key}= {w}" for w in read.warnings]


def _environment_file(meaning: Meaning, item: Assignment, specifiers: Specifiers) -> None:
    if not item.value:
        meaning.environment_files.clear()
        return
    at = where(item.path, item.line)
    try:
        path = specifiers.expand(item.value)
    except BadSpecifier as bad:
        meaning.notes.append(f"{at}: EnvironmentFile= uses the unknown specifier {bad}, systemd ignores it")
        return
    optional = path.startswith("-")
    path = path.removeprefix("-")
    if not path.startswith("/") or ".." in path.split("/"):
        meaning.notes.append(
            f"{at}: EnvironmentFile={path} is not absolute (quotes are not removed), systemd ignores it"
        )
        return
    meaning.environment_files.append((path, optional))


def _too_big(value: str) -> bool:
    """Whether a numeric id is none: 16 and 32 bit -1 are reserved."""
    return value.isdecimal() and (int(value) >= 2**32 - 1 or int(value) == 2**16 - 1)


def _resolved(meaning: Meaning, item: Assignment, specifiers: Specifiers) -> str:
    """Return the value with specifiers resolved, `` where systemd ignores it. Raises FatalSetting."""
    try:
        value = specifiers.expand(item.value)
    except BadSpecifier as bad:
        raise FatalSetting(f"uses the unknown specifier {bad}") from None
    if item.key in ("User", "Group") and (not _USER.fullmatch(value) or _too_big(value)):
        shown = item.value if value == item.value else f"{item.value}, which is {value!r} here,"
        raise FatalSetting(f"names no valid user or group: {shown} systemd refuses the unit")
    if item.key == "WorkingDirectory":
        path = value.removeprefix("-")
        normal = path.startswith("/") and ".." not in path.split("/")
        if path != "~" and not normal:
            if not value.startswith("-"):
                raise FatalSetting(f"is neither an absolute, plain path nor `~`: {value}")
            meaning.notes.append(
                f"{where(item.path, item.line)}: WorkingDirectory={value} is not absolute, systemd ignores it"
            )
            return ""
    return value
