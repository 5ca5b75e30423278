"""Reads the service that runs on a host into facts: exactly, or with notes on what is lost, or not at all."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ddtree_ops.config.secrets import Secret
from ddtree_ops.core.modes import Flag, read_flags
from ddtree_ops.units import secret
from ddtree_ops.units.adopt_exec import Start, take_apart
from ddtree_ops.units.command import Command, Expanded, expand_argv
from ddtree_ops.units.dropins import ordered
from ddtree_ops.units.environ import Variables, read_environment_file
from ddtree_ops.units.facts import DropinFact, EnvironmentFileFact, FileFact, SecretName, UnitFact
from ddtree_ops.units.raw import RawFile, RawUnit, from_wire
from ddtree_ops.units.server import NotAdoptable
from ddtree_ops.units.specifiers import UnknownHere
from ddtree_ops.units.syntax import parse
from ddtree_ops.units.unit import Meaning, merge
from ddtree_ops.units.vault import WHOLE, Vault

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_EVERY_START = frozenset({"INVOCATION_ID", "MAINPID", "JOURNAL_STREAM", "SYSTEMD_EXEC_PID", "NOTIFY_SOCKET"})
_DIRECTORIES = {
    "RUNTIME": "/run",
    "STATE": "/var/lib",
    "CACHE": "/var/cache",
    "LOGS": "/var/log",
    "CONFIGURATION": "/etc",
}
_HELD_ELSEWHERE = frozenset({"Environment", "EnvironmentFile", "ExecStart"})


@dataclass(frozen=True)
class Reading:
    """What systemd makes of the unit, step by step. argv_raw: after quoting and specifiers, before variables.

    flags: (flag, value | values | None) of the server. ignored: lines without effect. Holds values: never printed.
    """

    argv_raw: list[str] | None = field(default=None, repr=False)
    commands_raw: list[list[str]] = field(default_factory=list, repr=False)
    env: dict[str, str] = field(default_factory=dict, repr=False)
    env_invalid: list[str] = field(default_factory=list, repr=False)
    inner_argv: list[str] | None = field(default=None, repr=False)
    flags: list[Flag] | None = field(default=None, repr=False)
    wrapper: str = "none"
    restart: str = "no"
    ignored: list[str] = field(default_factory=list, repr=False)


@dataclass(frozen=True)
class Adopted:
    """unit: for facts. notes: what cannot be kept. secrets: captured values, for the host alone."""

    unit: UnitFact
    notes: list[str]
    reading: Reading
    secrets: dict[str, Secret]

    @property
    def outcome(self) -> str:
        """`adopt`, or `adopt-with-notes` where something is to be said."""
        return "adopt-with-notes" if self.notes else "adopt"


@dataclass(frozen=True)
class Refused:
    """reason: a sentence."""

    reason: str
    reading: Reading
    outcome: str = "refuse"


def adopt(raw: RawUnit | Mapping[str, Any]) -> Adopted | Refused:
    """Adopt a unit as probed. Pure; never raises for what the unit says."""
    unit = raw if isinstance(raw, RawUnit) else from_wire(raw)
    vault = Vault()
    if unit.fragment is None:
        return Adopted(UnitFact(fragment=FileFact()), [], Reading(), {})
    try:
        meaning = merge(unit)
    except UnknownHere as letter:
        return Refused(f"it uses {letter}, whose value the probe did not report", Reading())
    commands = meaning.commands.get("ExecStart", [])
    base = Reading(
        argv_raw=list(commands[0].argv) if len(commands) == 1 else None,
        commands_raw=[list(c.argv) for c in commands],
        env=dict(meaning.environment.values),
        env_invalid=list(meaning.environment.invalid),
        restart=meaning.service("Restart", "no"),
        ignored=[i.text for i in meaning.ignored],
    )
    try:
        _check(unit, meaning, commands)
        return _adopt(unit, meaning, commands[0], base, vault)
    except NotAdoptable as why:
        return Refused(vault.scrub(str(why)), base)


def _check(unit: RawUnit, meaning: Meaning, commands: list[Command]) -> None:
    """Raise NotAdoptable for what no server can be read from."""
    if unit.unit.endswith("@.service"):
        raise NotAdoptable(f"{unit.unit} is a template: name an instance of it")
    if (
        unit.enabled == "masked"
        or unit.show.get("LoadState") == "masked"
        or not (unit.fragment and unit.fragment.text)
    ):
        raise NotAdoptable("the unit is masked or its file is empty: nothing is started")
    if meaning.fatal:
        known = "systemd" in meaning.fatal
        raise NotAdoptable(meaning.fatal if known else f"{meaning.fatal}: systemd refuses the unit")
    if unit.show.get("NeedDaemonReload") == "yes":
        raise NotAdoptable(
            "its files changed since systemd read them: run systemctl daemon-reload, then adopt"
        )
    if not commands:
        raise NotAdoptable("no ExecStart= counts: systemd has nothing to start")
    if len(commands) > 1:
        given = meaning.settings["Service"].get("ExecStart", [])
        if len(given) > 1:
            hint = "a drop-in clears the first with an empty ExecStart="
            raise NotAdoptable(
                f"two start commands, ExecStart= is given {len(given)} times ({hint}); not one server process"
            )
        raise NotAdoptable(
            "two start commands in one ExecStart= (only oneshot allows it); not one server process"
        )
    if commands[0].argv[-1] == "\\":
        raise NotAdoptable(
            "the command line ends in a stray backslash argument; the next line is ignored by systemd"
        )
    if any(secret.OPEN in word for word in commands[0].argv):
        raise NotAdoptable("the command line holds a private-use character that this program uses itself")
    if meaning.service("Type") == "forking":
        raise NotAdoptable("Type=forking: the server is not the process that systemd starts")
    if meaning.service("RootDirectory", "/") != "/" or meaning.service("RootImage"):
        raise NotAdoptable(
            "RootDirectory= or RootImage=: the server sees another root than /opt/ddtree lies in"
        )
    if "$" in commands[0].path:
        raise NotAdoptable(f"the program's name is {commands[0].path}: systemd expands no variable there")


def _adopt(unit: RawUnit, meaning: Meaning, command: Command, base: Reading, vault: Vault) -> Adopted:
    notes = list(meaning.notes)
    if meaning.service("Type") == "oneshot":
        notes.append("Type=oneshot: systemd counts the unit as started only when the server ends")
    if meaning.service("Type") in ("notify", "notify-reload"):
        notes.append(
            "Type=notify, but SGLang sends no readiness message: systemd gives up after TimeoutStartSec="
        )
    files, from_files = _environment_files(unit, meaning, notes)
    env = _environment(unit, meaning, from_files)
    for name, value in env.items():
        if value and secret.secret_name(name, value):
            env[name] = vault.keep(name, value, "unit")
    argv = _expanded(
        command, env, files, meaning.service("PassEnvironment").split(), _unseen(unit, meaning), notes
    )
    argv0 = argv[0] if "@" in command.prefixes else None
    if argv0 is not None:
        argv = [command.path, *argv[1:]]
    start = take_apart(argv, env, unit.scripts, _home(meaning), vault)
    exec_fact = start.fact(command.prefixes, argv0, vault)
    notes += [n for n in start.notes if n not in notes]
    fact = UnitFact(
        fragment=FileFact(path=unit.fragment.path, sha256=unit.fragment.sha256)
        if unit.fragment
        else FileFact(),
        dropins=[_dropin(d, unit.systemd) for d in ordered(unit.unit, list(unit.dropins))],
        environment_files=files,
        enabled=unit.enabled,
        exec=exec_fact,
        environment=_environment_fact(meaning, vault),
        settings=_settings(meaning, "Service", vault),
        unit_section=_settings(meaning, "Unit", vault),
        install_section=_settings(meaning, "Install", vault),
        notes=[vault.scrub(n) for n in notes],
    )
    reading = Reading(
        base.argv_raw, base.commands_raw, base.env, base.env_invalid, _inner(start, vault),
        read_flags(_reveal(start.argv[start.flags :], vault)), start.wrapper, base.restart, base.ignored,
    )  # fmt: skip
    captured = {n: v for n, v in vault.values.items() if vault.source[n] == "captured"}
    _prove_clean(fact, vault)
    return Adopted(fact, fact.notes, reading, captured)


def _dropin(file: RawFile, version: int) -> DropinFact:
    """Return a drop-in's fact, with what it sets that ours sets too."""
    sets: dict[str, None] = {}
    for item in parse(file.text or "", file.path, version).assignments:
        if item.key == "ExecStart" or (item.key in ("Environment", "EnvironmentFile") and not item.value):
            sets[item.key] = None
        elif item.key in ("Environment", "UnsetEnvironment") and "PYTHONPATH" in item.value:
            sets["PYTHONPATH"] = None
    return DropinFact(path=file.path, sha256=file.sha256, sets=list(sets))


def _inner(start: Start, vault: Vault) -> list[str] | None:
    return None if start.wrapper == "none" else _reveal(start.argv, vault)


def _reveal(argv: list[str], vault: Vault) -> list[str]:
    out = []
    for word in argv:
        for name in secret.marked(word):
            word = word.replace(secret.mark(name), vault.values[name].reveal())
        out.append(word)
    return out


def _environment_files(
    unit: RawUnit, meaning: Meaning, notes: list[str]
) -> tuple[list[EnvironmentFileFact], dict[str, str]]:
    """Return the files that count, in order, and what they set together."""
    facts: list[EnvironmentFileFact] = []
    values: dict[str, str] = {}
    for path, optional in meaning.environment_files:
        matches = [f for f in unit.environment_files if fnmatch.fnmatchcase(f.path, path)]
        exact = [f for f in matches if f.path == path and f.sha256 is None and f.text is None]
        for file in matches or [RawFile(path, None, None, optional)]:
            read = read_environment_file(file.text) if file.text is not None else Variables()
            notes += [f"{file.path}: systemd drops {n.split('=')[0][:40]!r}" for n in read.invalid]
            values.update(read.values)
            facts.append(EnvironmentFileFact(
                path=file.path, sha256=file.sha256, optional=optional, names=sorted(read.values)
            ))  # fmt: skip
        if exact and not optional:
            raise NotAdoptable(
                f"EnvironmentFile={path} is missing and not optional: systemd does not start this unit"
            )
        if not matches and not optional:
            notes.append(f"EnvironmentFile={path} was not probed: what it sets is not known")
    return facts, values


def _unseen(unit: RawUnit, meaning: Meaning) -> list[str]:
    """Return the environment files whose content the probe did not send, though it may be there."""
    known = {f.path for f in unit.environment_files if f.text is not None or f.sha256 is None}
    paths = [path for path, _ in meaning.environment_files]
    return [p for p in paths if not any(fnmatch.fnmatchcase(k, p) for k in known)]


def _environment(unit: RawUnit, meaning: Meaning, from_files: dict[str, str]) -> dict[str, str]:
    """Return the variables that systemd expands with (systemd.exec(5))."""
    env = {"PATH": _PATH}
    if meaning.service("User") in ("root", "0"):
        env.update(HOME="/root", USER="root", LOGNAME="root")
    for kind, root in _DIRECTORIES.items():
        names = meaning.service({"LOGS": "Logs"}.get(kind, kind.title()) + "Directory").split()
        if names:
            env[f"{kind}_DIRECTORY"] = ":".join(f"{root}/{n.split(':')[0]}" for n in names)
    if meaning.settings["Service"].get("LoadCredential") or meaning.settings["Service"].get("SetCredential"):
        env["CREDENTIALS_DIRECTORY"] = f"/run/credentials/{unit.unit}"
    env.update(meaning.environment.values)
    env.update(from_files)
    for item in meaning.service("UnsetEnvironment").split():
        name, equals, value = item.partition("=")
        if not equals or env.get(name) == value:
            env.pop(name, None)
    return env


def _home(meaning: Meaning) -> str | None:
    return "/root" if meaning.service("User", "root") in ("root", "0") else None


def _expanded(
    command: Command,
    env: dict[str, str],
    files: list[EnvironmentFileFact],
    passed: list[str],
    unseen: list[str],
    notes: list[str],
) -> list[str]:
    if not command.expands:
        return list(command.argv)
    done: Expanded = expand_argv(command.argv, env)
    for name in dict.fromkeys(done.unset):
        if name in _EVERY_START:
            raise NotAdoptable(f"the command line uses ${name}, which changes at every start")
        if name in ("HOME", "USER", "LOGNAME", "SHELL"):
            raise NotAdoptable(f"the command line uses ${name} of the unit's user: write its value")
        if name in passed:
            raise NotAdoptable(f"the command line uses ${name}, which the manager's own environment sets")
        if unseen and re.fullmatch(r"\w+", name):
            raise NotAdoptable(f"the command line uses ${name}, and {unseen[0]} was not read")
        notes.append(f"${name} is not set: systemd passes nothing in its place")
    from_files = {n for f in files for n in f.names}
    for name in dict.fromkeys(done.used):
        if name in from_files and secret.OPEN not in env[name]:
            notes.append(
                f"${name} comes from an environment file: its value of today is written into the command"
            )
    if not done.argv:
        raise NotAdoptable("the command line is empty once its variables are expanded")
    return done.argv


def _environment_fact(meaning: Meaning, vault: Vault) -> dict[str, str | SecretName]:
    out: dict[str, str | SecretName] = {}
    for name, value in meaning.environment.values.items():
        if value and secret.secret_name(name, value):
            out[name] = SecretName(secret=name)
        else:
            out[name] = vault.scrub(value)
    return out


def _settings(meaning: Meaning, section: str, vault: Vault) -> dict[str, str | list[str]]:
    out: dict[str, str | list[str]] = {}
    for key, value in meaning.settings[section].items():
        if key in _HELD_ELSEWHERE:
            continue
        if key in ("SetCredential", "SetCredentialEncrypted"):
            value = [f"{v.partition(':')[0]}:***" for v in value]
        out[key] = vault.scrub(value) if isinstance(value, str) else [vault.scrub(v) for v in value]
    return out


def _prove_clean(fact: UnitFact, vault: Vault) -> None:
    """Raise NotAdoptable where a credential would be written after all, or what YAML cannot hold."""
    texts = list(_texts(fact.model_dump()))
    if any(re.search("[\ud800-\udfff]", text) for text in texts):
        raise NotAdoptable("the unit holds bytes that are no UTF-8")
    for name, held in vault.values.items():
        value = held.reveal()
        if any(text == value or (len(value) >= WHOLE and value in text) for text in texts):
            raise NotAdoptable(f"the value of {name} stands in a place it cannot be taken out of")


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from _texts(key)
            yield from _texts(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _texts(inner)
