"""Paths that systemd itself needs before it runs the service: of its sandbox, its credentials and its log files."""

import os
import re
from typing import Any, Dict, List, Tuple

from . import unitfile

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


def collect(lines: "List[unitfile.Line]") -> List[Dict[str, Any]]:
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
