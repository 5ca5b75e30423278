"""Facts for the unit's lint and read-back: what its files say, what systemd made of them, what is missing."""

import os
import re
import shutil
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Set

from . import caps, probe_unit_needs, systemd, unitenv, unitfile

if TYPE_CHECKING:
    from .probe_areas import Context

#: What systemd has in force; none of these can hold a secret.
PROPERTIES = """
LoadState UnitFileState Type NotifyAccess KillMode KillSignal SendSIGKILL Restart RestartUSec RemainAfterExit
SuccessExitStatus TimeoutStartUSec TimeoutStopUSec RuntimeMaxUSec WatchdogUSec StartLimitIntervalUSec StartLimitBurst
LogRateLimitIntervalUSec LogRateLimitBurst StandardOutput StandardError User Group DynamicUser UMask RootDirectory
WorkingDirectory NoNewPrivileges PrivateTmp PrivateDevices PrivateNetwork PrivateUsers ProtectSystem ProtectHome
ProtectProc ProcSubset MemoryDenyWriteExecute RestrictAddressFamilies IPAddressDeny IPAddressAllow DevicePolicy
DeviceAllow
RestrictRealtime SystemCallFilter TasksMax LimitNOFILE LimitNOFILESoft LimitMEMLOCK LimitNPROC LimitAS MemoryMax
MemoryHigh MemorySwapMax OOMPolicy PIDFile AmbientCapabilities
"""
#: systemd sets these for every process, or at certain times (systemd.exec(5)).
_GIVEN_TEXT = """
HOME USER LOGNAME SHELL PATH LANG MAINPID INVOCATION_ID JOURNAL_STREAM NOTIFY_SOCKET SERVICE_RESULT EXIT_CODE
EXIT_STATUS RUNTIME_DIRECTORY STATE_DIRECTORY CACHE_DIRECTORY LOGS_DIRECTORY CONFIGURATION_DIRECTORY
CREDENTIALS_DIRECTORY TERM SYSTEMD_EXEC_PID MEMORY_PRESSURE_WATCH MEMORY_PRESSURE_WRITE
"""
_GIVEN = set(_GIVEN_TEXT.split())
_VERIFY_LINES = 30
_PLAIN = re.compile(r"([A-Za-z][A-Za-z0-9]{0,40}|%.|=)$")
#: What systemd-analyze says before it quotes a value, and the path or variable that the value begins with.
_QUOTED = re.compile(
    r"((?:[Ii]gnoring(?: unknown escape sequences)?|absolute(?: path)?|characters|quoting|slot|expression|assignment)"
    r"[^:]*: )(?:\"?([/$][\w./${}@-]*))?.*"
)


def collect(context: "Context") -> Dict[str, Any]:
    """{properties, settings, commands, environment, dropped, stale, environment_files, working_directory, programs,
    notifies, verify, journald, paths, conditions, units}. No value of a variable and no argument of a command."""
    name = context.request.get("service") or "sglang.service"
    show = systemd.show(name, [*PROPERTIES.split(), "FragmentPath", "DropInPaths"])
    if not show:
        return {"error": f"systemctl show {name} gave no answer"}
    if show.get("LoadState") == "not-found":
        return {"error": f"{name} does not exist on the host yet"}
    paths = [p for p in [show.get("FragmentPath", ""), *show.get("DropInPaths", "").split()] if p]
    texts = {path: unitfile.read(path) for path in paths}
    lines = [line for path in paths for line in unitfile.parse(path, texts[path] or "")]
    files = environment_files(lines)
    names = set(context.env) | _GIVEN | {n for item in files for n in item["names"]} | _passed(lines)
    commands = [
        unitfile.command(line, names)
        for line in in_force(lines)
        if unitfile.is_command(line.key) and line.value
    ]
    return {
        "properties": {key: show[key] for key in PROPERTIES.split() if key in show},
        "unread": [path for path in paths if texts[path] is None],
        "settings": [line.told() for line in lines],
        "commands": commands,
        **environment(lines, unitenv.shown_environment(context.show.get("Environment", ""))),
        "environment_files": files,
        "working_directory": directory(show.get("WorkingDirectory", ""), lines),
        "programs": [program(path) for path in sorted({str(c["program"]) for c in commands if c["program"]})],
        "notifies": any(
            "systemd-notify" in (text or "") or "sd_notify" in (text or "") for text in texts.values()
        ),
        "verify": verify(name, paths),
        "journald": journald(),
        **probe_unit_needs.collect(name, lines),
    }


def in_force(lines: "List[unitfile.Line]") -> "List[unitfile.Line]":
    """Without the commands that an empty assignment cleared."""
    kept: List[unitfile.Line] = []
    for line in lines:
        if unitfile.is_command(line.key) and not line.value:
            kept = [other for other in kept if other.key != line.key]
        kept.append(line)
    return kept


def _passed(lines: "List[unitfile.Line]") -> Set[str]:
    return {name for line in lines if line.key == "PassEnvironment" for name in line.value.split()}


def environment(lines: "List[unitfile.Line]", effective: Dict[str, str]) -> Dict[str, Any]:
    """{environment: [{file, line, name, specifiers, variable}] (only those with one of both), dropped: [{file, line,
    words}], stale: names whose value in force is not what the files say}."""
    told: List[Dict[str, Any]] = []
    dropped: List[Dict[str, Any]] = []
    written: Dict[str, str] = {}
    gone: Set[str] = set()
    for line in lines:
        if line.key == "UnsetEnvironment":
            gone |= {word.partition("=")[0] for word in line.value.split()}
        if line.key != "Environment" or line.section != "Service":
            continue
        if not line.value:
            written.clear()
            continue
        pairs, lost = unitfile.environment(line)
        if lost:
            dropped.append({"file": line.path, "line": line.number, "words": lost})
        for name, value in pairs:
            found, variable = unitfile.specifiers(value), unitfile.unexpanded(name, value)
            if found or variable:
                item = {"file": line.path, "line": line.number, "name": name, "specifiers": found}
                told.append({**item, "variable": variable})
            written[name] = "" if found else value.replace("%%", "%")
            if found:
                written.pop(name)
    # A multi-line or oddly quoted value may be shown in another form: only plain ones are compared.
    plain = {n: v for n, v in written.items() if re.match(r"[\w./:,@%+=-]*$", v) and n not in gone}
    stale = sorted(n for n, v in plain.items() if effective.get(n) != v)
    return {"environment": told, "dropped": dropped, "stale": stale}


def environment_files(lines: "List[unitfile.Line]") -> List[Dict[str, Any]]:
    """[{file, line, path, optional, absolute, exists, readable, names, ignored}] of the EnvironmentFile= in force."""
    found: List[Dict[str, Any]] = []
    for line in lines:
        if line.key != "EnvironmentFile" or line.section != "Service":
            continue
        if not line.value:
            found.clear()
            continue
        path = line.value[1:] if line.value.startswith("-") else line.value
        item: Dict[str, Any] = {
            "file": line.path,
            "line": line.number,
            "path": path,
            "optional": line.value[0] == "-",
        }
        item.update(absolute=path.startswith("/"), exists=None, readable=None, names=[], ignored=[])
        # A pattern or a specifier stands for files that we do not work out here.
        if item["absolute"] and not re.search(r"[*?\[%]", path):
            item["exists"] = os.path.exists(path)
            text = unitfile.read(path) if item["exists"] else None
            if item["exists"]:
                item["readable"] = text is not None
            item.update(unitfile.environment_file(text or ""))
        found.append(item)
    return found


def directory(shown: str, lines: "List[unitfile.Line]") -> Dict[str, Any]:
    """{path, optional, exists, written}: WorkingDirectory= in force and as the last file writes it."""
    written = [line.value for line in lines if line.key == "WorkingDirectory" and line.value]
    path = shown.lstrip("!-")
    exists = os.path.isdir(path) if path.startswith("/") else None
    optional = shown[:1] in ("!", "-") or bool(written and written[-1].startswith("-"))
    return {"path": path, "optional": optional, "exists": exists, "written": written[-1] if written else None}


def program(path: str) -> Dict[str, Any]:
    """{path, exists, executable, runs, interpreter, interpreter_exists, label}: of its #! line, null where it is no
    script.

    runs: whether the kernel knows what to do with the file: a program, or a script with a first line that says of what.
    label: its type where SELinux enforces, of the link that the path is where that is a home's or none.
    """
    answer: Dict[str, Any] = {"path": path, "exists": None, "executable": None, "interpreter": None}
    answer.update(interpreter_exists=None, runs=None, label=None)
    if not path.startswith("/") or "$" in path or "%" in path:
        return answer
    answer.update(exists=os.path.isfile(path), executable=os.path.isfile(path) and os.access(path, os.X_OK))
    answer["label"] = label(path) if _enforcing() else None
    try:
        with open(path, "rb") as file:
            head = file.readline(512)
    except OSError:
        return answer
    if not _other_formats():
        answer["runs"] = head.startswith((b"#!", b"\x7fELF"))
    words = head[2:].decode("utf-8", "replace").split() if head.startswith(b"#!") else []
    if words:
        # A carriage return at its end is part of the name: such a script never starts.
        name = words[0] + ("\r" if head.rstrip(b"\n").endswith(b"\r") and len(words) == 1 else "")
        answer.update(interpreter=name.replace("\r", "\\r"), interpreter_exists=os.path.exists(name))
    return answer


def label(path: str) -> Optional[str]:
    """The SELinux type of a program: that of its link first, which systemd has to read too."""
    found = [_type(path, False), _type(path, True)]
    return next((one for one in found if one and re.search(r"home|unlabeled", one)), found[1])


def _type(path: str, follow: bool) -> Optional[str]:
    try:
        raw = os.getxattr(path, "security.selinux", follow_symlinks=follow)
    except (OSError, AttributeError):
        return None
    words = raw.decode("utf-8", "replace").rstrip("\0").split(":")
    return words[2] if len(words) > 2 else None


def _enforcing() -> bool:
    try:
        with open("/sys/fs/selinux/enforce", encoding="ascii") as file:
            return file.read(1) == "1"
    except OSError:
        return False


def _other_formats() -> bool:
    """Whether the kernel was taught more kinds of programs (binfmt_misc)."""
    try:
        return bool(set(os.listdir("/proc/sys/fs/binfmt_misc")) - {"register", "status"})
    except OSError:
        return False


def verify(name: str, paths: List[str]) -> Dict[str, Any]:
    """{status, lines} of `systemd-analyze verify`: what it says of our unit's files, without values. null: no tool."""
    if not shutil.which("systemd-analyze") or not paths:
        return {"status": None, "lines": []}
    argv = ["systemd-analyze", "verify", "--man=no"]
    if (caps.systemd_version() or 0) >= 250:
        argv.append("--recursive-errors=no")
    status, out, err = systemd.run([*argv, paths[0]], 8)
    if status in (124, 127):
        return {"status": None, "lines": []}
    ours = [
        line.strip()
        for line in (err + "\n" + out).splitlines()
        if name in line or any(p in line for p in paths)
    ]
    return {"status": status, "lines": [hushed(line) for line in ours[:_VERIFY_LINES]]}


def hushed(line: str) -> str:
    """A line of systemd-analyze without the value that it quotes, which may hold a key. A path that it begins with, and
    the value of a setting that can hold none, stay."""
    # A "key" that is no word is the rest of a command whose continuation was lost.
    line = re.sub(r"'([^']*)'", lambda m: m.group(0) if _PLAIN.match(m.group(1)) else "'…'", line)
    parsed = re.search(r"Failed to parse (\w+)", line)
    if not (parsed and not unitfile.may_hold_secret(parsed.group(1))):
        line = re.sub(r"( specifiers (?:in|on)) .*", r"\1 …", line)
        line = _QUOTED.sub(lambda m: m.group(1) + (m.group(2) or "…"), line)
    return re.sub(r"\b([A-Za-z_][A-Za-z0-9_]*)=[^\s,=][^\s,]*", r"\1=…", line)[:300]


def journald() -> Dict[str, Any]:
    """{interval, burst}: RateLimitIntervalSec= and RateLimitBurst= of journald.conf, null where unset."""
    found: Dict[str, Any] = {"interval": None, "burst": None}
    paths = ["/etc/systemd/journald.conf"]
    for folder in (
        "/usr/lib/systemd/journald.conf.d",
        "/run/systemd/journald.conf.d",
        "/etc/systemd/journald.conf.d",
    ):
        if os.path.isdir(folder):
            paths += [os.path.join(folder, n) for n in sorted(os.listdir(folder)) if n.endswith(".conf")]
    for path in paths:
        for line in unitfile.parse(path, unitfile.read(path) or ""):
            if line.key in ("RateLimitIntervalSec", "RateLimitInterval"):
                found["interval"] = line.value or None
            if line.key == "RateLimitBurst":
                found["burst"] = line.value or None
    return found
