"""What systemd itself needs before it runs the service: paths of its sandbox, met conditions, other units."""

import os
import re
from typing import Any, Callable, Dict, List, Tuple

from . import systemd, unitfile

#: Missing ones end the start with 226/NAMESPACE, unless a minus stands before them (systemd.exec(5)).
_MOUNTED = (
    "ReadWritePaths", "ReadOnlyPaths", "InaccessiblePaths", "ExecPaths", "NoExecPaths", "BindPaths",
    "BindReadOnlyPaths", "RootDirectory",
)  # fmt: skip
_OUTPUTS = ("StandardOutput", "StandardError")
#: systemd makes these before it sets up the sandbox.
_MADE = {
    "RuntimeDirectory": "/run", "StateDirectory": "/var/lib", "CacheDirectory": "/var/cache",
    "LogsDirectory": "/var/log", "ConfigurationDirectory": "/etc",
}  # fmt: skip


_CONDITION = re.compile(r"(?:Condition|Assert)(PathExists|PathIsDirectory|PathIsMountPoint|FileNotEmpty)$")
_TESTS: Dict[str, Callable[[str], bool]] = {
    "PathExists": os.path.exists, "PathIsDirectory": os.path.isdir, "PathIsMountPoint": os.path.ismount,
    "FileNotEmpty": lambda path: os.path.isfile(path) and os.path.getsize(path) > 0,
}  # fmt: skip
#: Ties of a service that let its start fail with the other unit.
_TIES = ("Requires", "Requisite", "BindsTo")
_STATES = ("Id", "LoadState", "ActiveState")


def collect(name: str, lines: "List[unitfile.Line]") -> Dict[str, Any]:
    """{paths, conditions, units}. conditions: [{file, line, key, path, met}] of those on paths."""
    return {"paths": paths(lines), "conditions": conditions(lines), "units": units(name)}


def conditions(lines: "List[unitfile.Line]") -> List[Dict[str, Any]]:
    """Conditions and assertions on paths. Triggering ones (|), of which one suffices, are left out."""
    found: List[Dict[str, Any]] = []
    for line in lines:
        kind = _CONDITION.match(line.key)
        if not kind or line.section != "Unit":
            continue
        if not line.value:
            found = [item for item in found if not str(item["key"]).startswith(line.key[:6])]
            continue
        path = line.value.lstrip("!")
        if path.startswith("/") and "%" not in path:
            met = _TESTS[kind.group(1)](path) != line.value.startswith("!")
            found.append(
                {"file": line.path, "line": line.number, "key": line.key, "path": line.value, "met": met}
            )
    return found


def units(name: str) -> List[Dict[str, Any]]:
    """[{name, tie, load, active}] of the units that this one requires, its slice and the system's targets left out."""
    shown = systemd.show(name, list(_TIES))
    tied = {
        other: tie
        for tie in _TIES
        for other in shown.get(tie, "").split()
        if not other.endswith((".slice", ".target")) and other != "-.mount"
    }
    if not tied:
        return []
    argv = ["systemctl", "show", "--no-pager", *sorted(tied)] + ["--property=" + key for key in _STATES]
    status, out, _ = systemd.run(argv, 10)
    seen = [systemd.properties(block, list(_STATES)) for block in out.split("\n\n")] if status == 0 else []
    states = {block.get("Id", ""): block for block in seen}
    return [
        {
            "name": other,
            "tie": tied[other],
            "load": states.get(other, {}).get("LoadState"),
            "active": states.get(other, {}).get("ActiveState"),
        }
        for other in sorted(tied)
    ]


def paths(lines: "List[unitfile.Line]") -> List[Dict[str, Any]]:
    """[{file, line, key, path, exists}] of what the files in force name and may not be missing. A path with a
    specifier, and all of them under another root, are left out: what they mean is not worked out here."""
    held: List[Tuple[unitfile.Line, str]] = []
    made: List[str] = []
    for line in lines:
        if line.section != "Service":
            continue
        if line.key in _MADE:
            made += [f"{_MADE[line.key]}/{word.partition(':')[0]}" for word in line.value.split()]
        if not line.value:
            held = [item for item in held if item[0].key != line.key]
            continue
        if line.key in _OUTPUTS:
            held = [item for item in held if item[0].key != line.key]
        held += [(line, path) for path in _paths(line)]
    if any(line.key in ("RootDirectory", "RootImage") and line.value for line, _ in held):
        held = [item for item in held if item[0].key == "RootDirectory"]
    return [
        {
            "file": line.path,
            "line": line.number,
            "key": line.key,
            "path": path,
            "exists": os.path.exists(path),
        }
        for line, path in held
        if not any((path + "/").startswith(place + "/") for place in made)
    ]


def _paths(line: "unitfile.Line") -> List[str]:
    """The absolute paths of one line that must exist."""
    if line.key in _OUTPUTS:
        found = re.match(r"(?:file|append|truncate):(/[^%]*)$", line.value)
        return [os.path.dirname(found.group(1)) or "/"] if found else []
    if line.key == "LoadCredential":
        words = [line.value.partition(":")[2]]
    elif line.key in _MOUNTED:
        words = [word for word, _ in unitfile.words(line.value)[0]]
    else:
        return []
    bound = line.key.startswith("Bind")
    paths = [word.partition(":")[0] if bound else word for word in words if not word.startswith("-")]
    return [path for path in (path.lstrip("+") for path in paths) if path.startswith("/") and "%" not in path]
