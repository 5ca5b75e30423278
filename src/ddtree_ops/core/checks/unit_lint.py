"""Rules on the unit's files against what systemd made of them: ignored lines, escapes, quotes, missing files."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator

from ddtree_ops.core.checks.judge import rule
from ddtree_ops.core.checks.rule import Rule
from ddtree_ops.core.checks.unit_files import SECTION, Command, EnvironmentLine, UnitFiles, at, edit
from ddtree_ops.core.facts_live import Live, Session
from ddtree_ops.core.finding import Finding, block, ok, warn
from ddtree_ops.core.wanted import Wanted

#: Lines that systemd drops are harmless for most settings; for these the service then runs otherwise than written.
_MATTERS_TEXT = """
Environment EnvironmentFile PassEnvironment UnsetEnvironment ExecStart ExecStartPre ExecStartPost ExecStop
ExecStopPost ExecReload ExecCondition User Group SupplementaryGroups WorkingDirectory RootDirectory Type KillMode
KillSignal Restart RestartSec TimeoutSec TimeoutStartSec TimeoutStopSec RuntimeMaxSec WatchdogSec
StartLimitIntervalSec StartLimitInterval StartLimitBurst LimitNOFILE LimitMEMLOCK LimitNPROC LimitAS LimitSTACK
LimitCORE TasksMax MemoryMax MemoryHigh MemoryLimit ReadWritePaths ReadOnlyPaths InaccessiblePaths ProtectSystem
ProtectHome PrivateTmp PrivateDevices DeviceAllow DevicePolicy CacheDirectory StateDirectory RuntimeDirectory
StandardOutput StandardError LogRateLimitIntervalSec LogRateLimitBurst SuccessExitStatus RestartPreventExitStatus
UMask NotifyAccess PIDFile RemainAfterExit RequiresMountsFor Requires After Wants BindsTo
"""
_MATTERS = tuple(_MATTERS_TEXT.split())
_REFUSED = re.compile(
    r"Executable path is not absolute|Neither a valid executable name|bad-setting|[Uu]nbalanced quoting"
    r"|Failed to resolve (?:unit )?specifiers|Invalid slot|lacks (?:both )?ExecStart|Refusing"
    r"|has (?:more than one|a bad) |has fatal error|bad unit file setting|Invalid section header"
    r"|neither .* nor an absolute path",
)
_DROPPED = re.compile(r"[Uu]nknown (?:key|lvalue|section|escape)|ignoring|Assignment outside of section")
#: The agent blanks a "key" that is no word: it may be an argument with a key in it.
_LOST = re.compile(r"Missing '='|(?:key|lvalue)(?: name)? '…'")
_KEY = re.compile(r"(?:key|lvalue)(?: name)? '([^']+)'|Failed to parse (\w+)|(\w+)= |(?:value for|in) (\w+)=")


#: SELinux types of what lies in a home, or was never labelled.
_HOME = re.compile(r"home|unlabeled")


def _lines(facts: UnitFiles, live: Live, wanted: Wanted) -> Iterator[Finding]:
    """Settings that systemd refuses or ignores: its exit status says nothing of them, its messages do."""
    id = "unit-lines"
    for path in facts.unread:
        yield warn(id, f"{path} could not be read: not linted", f"ssh {wanted.host} ls -l {path}")
    if facts.verify is None:
        yield warn(
            id, "unknown: systemd-analyze is not there", f"ssh {wanted.host} command -v systemd-analyze"
        )
        return
    said = 0
    for line in facts.verify:
        if "EnvironmentFile=" in line:
            continue  # unit-env-file says it with the cause
        short = re.sub(r"^\S*/", "", line)
        named = _KEY.search(line)
        key = next((part for part in named.groups() if part), "") if named else ""
        if _REFUSED.search(line) and "ignoring" not in line:
            said += 1
            yield block(id, f"systemd refuses the unit: {short}", edit(wanted))
        elif _LOST.search(line):
            said += 1
            text = f"systemd ignores a line that is no setting, as after a backslash with a blank behind it: {short}"
            yield block(id, text, edit(wanted))
        elif _DROPPED.search(line):
            said += 1
            yield _ignored(id, key, short, wanted)
    if not said and not facts.unread:
        yield ok(id, "systemd ignores no line of the unit")


def _ignored(id: str, key: str, line: str, wanted: Wanted) -> Finding:
    near = difflib.get_close_matches(key.lower(), [name.lower() for name in _MATTERS], 1, 0.88)
    meant = next((name for name in _MATTERS if near and name.lower() == near[0]), None)
    if "nvironment assignment" in line or "specifiers" in line:
        meant = "Environment"
    if meant is None:
        return warn(id, f"systemd ignores a line of the unit: {line}", edit(wanted))
    if key and key != meant:
        known = f"was {meant}= meant?"
    else:
        known = f"{meant}= belongs in [Unit]" if meant.startswith("StartLimit") else f"{meant}="
    return block(id, f"systemd ignores a line that the unit relies on ({known}): {line}", edit(wanted))


def _command(facts: UnitFiles, live: Live, wanted: Wanted) -> Iterator[Finding]:
    """Programs that are not there, or that systemd cannot find."""
    id = "unit-command"
    programs = {program.path: program for program in facts.programs}
    old = isinstance(live.session, Session) and (live.session.systemd or 999) < 239
    bad = False
    for command in facts.commands:
        path, where = command.program, f"{at(command)}: {command.key}={command.program}"
        vital = command.key in ("ExecStart", "ExecStartPre") and "-" not in command.prefixes
        found: Finding | None = None
        seen = programs.get(path)
        if not path or "$" in path or path.startswith("~"):
            found = block(id, f"{where}: the first word must be a path, no variable and no ~", edit(wanted))
        elif not path.startswith("/"):
            text = f"{where} has no absolute path: systemd looks in its own fixed list, never in a virtual environment"
            remedy = f"write ExecStart=/path/to/venv/bin/python …; {edit(wanted)}"
            found = block(id, text, remedy) if old else warn(id, text, remedy) if "python" in path else None
        elif seen is not None and vital and seen.exists is False:
            found = block(
                id,
                f"{where} does not exist on the host: status=203/EXEC",
                f"ssh {wanted.host} ls -l {path}",
            )
        elif seen is not None and vital and seen.executable is False:
            found = block(
                id, f"{where} is not executable: status=203/EXEC", f"ssh {wanted.host} chmod +x {path}"
            )
        elif seen is not None and vital and seen.runs is False:
            text = f"{where} is no program, and no first line (#!) names an interpreter: status=203/EXEC"
            found = block(id, text, f"ssh {wanted.host} head -1 {path}")
        elif seen is not None and vital and seen.label and _HOME.search(seen.label):
            text = (
                f"{where} has the SELinux type {seen.label}, which systemd may not execute: status=203/EXEC"
            )
            fix = f"semanage fcontext -a -t bin_t '{path}' && restorecon -v {path} on {wanted.host}"
            found = block(id, text, f"{fix}, or a virtual environment under /opt")
        elif seen is not None and vital and seen.interpreter and seen.interpreter_exists is False:
            text = f"{path} names the interpreter {seen.interpreter} in its first line, which does not exist"
            found = block(id, text, f"ssh {wanted.host} head -1 {path}")
        elif seen is not None and seen.exists is False and "-" not in command.prefixes:
            found = warn(id, f"{where} does not exist on the host", f"ssh {wanted.host} ls -l {path}")
        if command.shell and command.key in ("ExecStart", "ExecStartPre"):
            bad = True
            text = f"{at(command)}: {command.key}= holds {' '.join(command.shell)}, which no shell reads there: the "
            text += "program gets it as an argument and ends with a usage error"
            yield block(
                id, text, f"StandardOutput=, or /bin/sh -c 'exec …' around the command; {edit(wanted)}"
            )
        if found:
            bad = True
            yield found
    if not bad:
        yield ok(id, f"{len(facts.commands)} commands, each there")


#: Specifiers that name the unit, its instance, user or directories: `--port 3000%i` is meant so.
_MEANT = set("iIjJnNpPuUgGtSCLETVh")


def _expansion(facts: UnitFiles, live: Live, wanted: Wanted) -> Iterator[Finding]:
    """`$` and `%` that systemd replaces though they were meant as text, or with nothing."""
    id = "unit-expansion"
    bad = False
    maybe = any(item.optional for item in facts.environment_files)
    for command in facts.commands:
        late = command.key in ("ExecStop", "ExecStopPost", "ExecReload")
        for name in command.unset:
            text = f"{at(command)}: {command.key}= uses ${{{name}}}, which nothing sets: it becomes empty"
            remedy = (
                f"write $${{{name}}} where a shell is to expand it, or set it in Environment=; {edit(wanted)}"
            )
            bad = True
            yield warn(id, text, remedy) if late else block(id, text, remedy)
        for name in command.glued:
            text = (
                f"{at(command)}: {command.key}=: a word that begins with ${name} and goes on is for systemd "
            )
            bad = True
            yield block(
                id,
                f"{text}one variable's name, and vanishes",
                f"write ${{{name}}} for ${name}; {edit(wanted)}",
            )
        for name in command.optional_unset if not maybe else ():
            bad = True
            yield warn(
                id,
                f"{at(command)}: {command.key}= uses ${name}, which nothing sets: the word vanishes",
                None,
            )
    for setting in (each for each in facts.environment if each.variable):
        bad = True
        text = f"{at(setting)}: Environment={setting.name} uses {setting.variable}: systemd expands no variable there"
        yield warn(id, text, f"write the whole value; {edit(wanted)}")
    items: list[Command | EnvironmentLine] = [*facts.commands, *facts.environment]
    for item in items:
        key = item.key if isinstance(item, Command) else f"Environment={item.name}"
        for spec in item.specifiers:
            if spec.known and (not spec.joined or spec.letter in _MEANT):
                continue
            bad = True
            what = (
                "replaces it by something of the host"
                if spec.known
                else "knows no such specifier and refuses it"
            )
            yield block(
                id,
                f"{at(item)}: {key} contains %{spec.letter}: systemd {what}",
                f"write %% for %; {edit(wanted)}",
            )
    if not bad:
        yield ok(id, "no variable or specifier changes what is written")


def _quoting(facts: UnitFiles, live: Live, wanted: Wanted) -> Iterator[Finding]:
    """Arguments that systemd splits or strips."""
    id = "unit-quoting"
    bad = False
    for command in facts.commands:
        for flag in command.json:
            bad = True
            text = f"{at(command)}: the JSON of {flag or command.key} is not quoted: systemd strips and splits it"
            yield block(id, text, f"put it in single quotes: {flag} '{{\"…\": …}}'; {edit(wanted)}")
        if command.open_quote:
            bad = True
            yield block(id, f"{at(command)}: a quote in {command.key}= is never closed", edit(wanted))
    for file, line in facts.dropped:
        bad = True
        text = f"{file.rpartition('/')[2]}:{line}: Environment= holds a word without NAME=: systemd drops it"
        yield block(id, text, f'quote the whole assignment: Environment="NAME=two words"; {edit(wanted)}')
    if not bad:
        yield ok(id, "quotes hold")


def _directory(facts: UnitFiles, live: Live, wanted: Wanted) -> Iterator[Finding]:
    """systemd-analyze is silent about a directory that is not there; the start fails with 200/CHDIR."""
    id, found = "unit-directory", facts.directory
    written = (found.written or "").lstrip("-")
    fix = f"ssh {wanted.host} mkdir -p {found.path or written}, or mount it; or {edit(wanted)}"
    if written and written != "~" and not written.startswith(("/", "%")):
        text = f"WorkingDirectory={found.written}: neither absolute nor a bare ~: status=200/CHDIR"
        yield block(id, text, edit(wanted))
    elif found.exists is False and not found.optional:
        text = f"WorkingDirectory={found.path} does not exist on the host (a mount that is missing?): status=200/CHDIR"
        yield block(id, text, fix)
    elif found.exists is False:
        yield ok(id, f"WorkingDirectory={found.path} is optional and not there")
    else:
        yield ok(id, f"the working directory is {found.path or '/'}")


def _env_file(facts: UnitFiles, live: Live, wanted: Wanted) -> Iterator[Finding]:
    """Environment files that systemd ignores, misses, or reads only in part."""
    id = "unit-env-file"
    bad = False
    for item in facts.environment_files:
        look = f"ssh {wanted.host} cat -A {item.path}"
        if not item.absolute:
            bad = True
            quoted = (
                "it is quoted, and quotes are not removed" if item.path[:1] in "\"'" else "it is not absolute"
            )
            yield block(id, f"{at(item)}: EnvironmentFile={item.path} is ignored: {quoted}", edit(wanted))
        elif item.exists is False and not item.optional:
            bad = True
            yield block(
                id,
                f"EnvironmentFile={item.path} does not exist: the unit fails to start",
                f"ssh {wanted.host} ls -l {item.path}",
            )
        elif item.exists and item.readable is False:
            bad = True
            yield block(
                id, f"EnvironmentFile={item.path} cannot be read", f"ssh {wanted.host} ls -l {item.path}"
            )
        for line, why in item.ignored:
            bad = True
            yield warn(
                id, f"{item.path}:{line}: {why}: it is no shell file, only KEY=VALUE lines count", look
            )
    if not bad:
        yield ok(id, f"{len(facts.environment_files)} environment files")


#: Settings that `systemctl show` prints as they are written.
_COMPARED = (
    "Type", "KillMode", "Restart", "User", "Group", "RemainAfterExit", "PrivateTmp", "PrivateDevices",
    "ProtectHome", "ProtectSystem", "NoNewPrivileges", "TasksMax", "LimitNOFILE", "LimitMEMLOCK", "SendSIGKILL",
)  # fmt: skip
_SAME = {"true": "yes", "on": "yes", "1": "yes", "y": "yes", "false": "no", "off": "no", "0": "no", "n": "no"}


def _readback(facts: UnitFiles, live: Live, wanted: Wanted) -> Iterator[Finding]:
    """What the files say last must be what systemd has in force."""
    id = "unit-readback"
    bad = False
    reload_ = f"ssh {wanted.host} systemctl daemon-reload, then systemctl show {wanted.service}"
    for key in _COMPARED:
        line, loaded = facts.written(key), facts.properties.get(key)
        if line is None or not line.value or loaded is None or re.search(r"[%:]|[0-9][KMGT%]", line.value):
            continue
        if _plain(line.value) != _plain(loaded):
            bad = True
            text = f"{at(line)} says {key}={line.value}, systemd has {key}={loaded or '(nothing)'} in force"
            yield block(id, text, reload_)
    for name in facts.stale:
        bad = True
        yield block(id, f"the value of {name} in force is not the one that the unit's files write", reload_)
    if not bad:
        yield ok(id, "in force is what the files say")


def _plain(value: str) -> str:
    return _SAME.get(value.lower(), value.lower())


RULES: tuple[Rule[UnitFiles], ...] = (
    rule(
        SECTION, "unit-lines", _lines,
        "systemd drops what it does not understand and starts the service without it: a limit, a variable or a restart"
        " policy is then not in force.",
        "F168", "F172", "F188",
    ),
    rule(
        SECTION, "unit-command", _command,
        "The start ends with 203/EXEC, or another Python than the engine's runs.", "F171", "F172",
    ),
    rule(
        SECTION, "unit-expansion", _expansion,
        "systemd replaces $NAME and %x before any program sees them.", "F167", "F168", "F170",
    ),
    rule(
        SECTION, "unit-quoting", _quoting,
        "An argument arrives split or without its quotes; the engine refuses it or reads another value.",
    ),
    rule(
        SECTION, "unit-directory", _directory,
        "The start ends with 200/CHDIR, reported against the program.", "F174", "F175",
    ),
    rule(
        SECTION, "unit-env-file", _env_file,
        "A key, path or proxy setting is silently absent in the service.", "F187", "F188",
    ),
    rule(
        SECTION, "unit-readback", _readback,
        "What was reviewed is not what runs: a daemon-reload is missing, or a value was ignored.", "F167", "F176",
    ),
)  # fmt: skip
