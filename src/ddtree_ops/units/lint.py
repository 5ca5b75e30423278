"""Our own lint for what `systemd-analyze verify` never reports (design 8)."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from ddtree_ops.units.command import expand_argv
from ddtree_ops.units.dropins import OURS, ordered
from ddtree_ops.units.raw import RawUnit
from ddtree_ops.units.specifiers import UnknownHere
from ddtree_ops.units.syntax import parse
from ddtree_ops.units.unit import COMMANDS, Meaning, merge

Exists = Callable[[str], bool | None]
_AT_RUN = re.compile(
    r"(?:HOME|USER|LOGNAME|SHELL|PATH|MAINPID|INVOCATION_ID|JOURNAL_STREAM|NOTIFY_SOCKET|SERVICE_RESULT|EXIT_CODE"
    r"|EXIT_STATUS|(?:RUNTIME|STATE|CACHE|LOGS|CONFIGURATION|CREDENTIALS)_DIRECTORY)"
)


@dataclass(frozen=True)
class Finding:
    """One finding. error: the unit will not start or will not do what it says; warning: look at it."""

    level: Literal["error", "warning"]
    code: str
    message: str


def lint(
    raw: RawUnit,
    exists: Exists = lambda path: None,
    unit_exists: Exists = lambda name: None,
    known: frozenset[str] = frozenset(),
) -> list[Finding]:
    """Lint a unit with its drop-ins.

    exists, unit_exists: whether a path or a unit is there; None means not known, and nothing is said. known: variables
    that environment files set (their texts need not be in `raw`).
    """
    try:
        meaning = merge(raw)
    except UnknownHere as letter:
        return [Finding("warning", "specifier", f"{letter} cannot be worked out here: not linted")]
    found = [Finding("warning", "ignored", note) for note in meaning.notes]
    if meaning.fatal:
        found.append(Finding("error", "fatal", meaning.fatal))
    found += _files(meaning, exists)
    found += _units(meaning, unit_exists)
    found += _variables(meaning, known)
    found += _json(meaning)
    found += _late_dropins(raw)
    return list(dict.fromkeys(found))


def _files(meaning: Meaning, exists: Exists) -> list[Finding]:
    out = []
    directory = meaning.service("WorkingDirectory")
    if directory.startswith("/") and exists(directory) is False:
        out.append(
            Finding(
                "error", "working-directory", f"WorkingDirectory={directory} does not exist: status=200/CHDIR"
            )
        )
    for path, optional in meaning.environment_files:
        if not optional and not re.search(r"[*?\[]", path) and exists(path) is False:
            out.append(
                Finding(
                    "error",
                    "environment-file",
                    f"EnvironmentFile={path} does not exist: the unit fails to start",
                )
            )
    return out


def _units(meaning: Meaning, unit_exists: Exists) -> list[Finding]:
    out = []
    for key in ("OnFailure", "OnSuccess", "Requires", "BindsTo", "Requisite"):
        value = meaning.settings["Unit"].get(key, [])
        for name in " ".join([value] if isinstance(value, str) else value).split():
            if unit_exists(name) is False:
                level: Literal["error", "warning"] = "warning" if key.startswith("On") else "error"
                out.append(Finding(level, "missing-unit", f"{key}={name}: there is no such unit"))
    return out


def _variables(meaning: Meaning, known: frozenset[str]) -> list[Finding]:
    passed = meaning.service("PassEnvironment").split()
    env = {**meaning.environment.values, **dict.fromkeys([*known, *passed], "x")}
    out = []
    for key in COMMANDS:
        for command in meaning.commands.get(key, []):
            unset = expand_argv(command.argv, env).unset if command.expands else []
            for name in dict.fromkeys(unset):
                if not _AT_RUN.fullmatch(name):
                    out.append(
                        Finding(
                            "error",
                            "unset-variable",
                            f"{key}= uses ${name}, which nothing sets: it becomes nothing",
                        )
                    )
    return out


def _json(meaning: Meaning) -> list[Finding]:
    """JSON whose quotes systemd removed: `--x {"a":1}` arrives as `{a:1}`."""
    out = []
    for key in COMMANDS:
        for command in meaning.commands.get(key, []):
            for word in command.argv[1:]:
                value = word.partition("=")[2] if word.startswith("--") else word
                if (
                    re.fullmatch(r"\{.*:.*\}", value, re.DOTALL)
                    and not value.startswith("{{")
                    and not _is_json(value)
                ):
                    out.append(
                        Finding(
                            "error", "unquoted-json", f"{key}=: {value[:60]} is no JSON: quote the argument"
                        )
                    )
    return out


def _is_json(value: str) -> bool:
    try:
        json.loads(value)
    except ValueError:
        return False
    return True


def _late_dropins(raw: RawUnit) -> list[Finding]:
    out = []
    for file in ordered(raw.unit, list(raw.dropins)):
        name = file.path.rpartition("/")[2]
        for item in parse(file.text or "", file.path, raw.systemd).assignments:
            takes = item.key == "ExecStart" or (
                item.key in ("Environment", "UnsetEnvironment")
                and (not item.value or "PYTHONPATH" in item.value)
            )
            if takes and name > OURS[0]:
                what = "PYTHONPATH" if "PYTHONPATH" in item.value else f"{item.key}="
                out.append(
                    Finding(
                        "error",
                        "late-dropin",
                        f"{file.path} sorts after {OURS[0]} and sets {what}: it would win",
                    )
                )
    return out
