"""The engine's files as the service's user sees them: readable, and not shadowed by bytecode of an older text."""

import importlib.util
import marshal
import os
import stat
from typing import Any, Dict, List, Optional

NAMED, MOST = 8, 20000


def collect(argument: Any) -> Dict[str, Any]:
    """argument: {package, files: [path relative to it], roots: [{path, there}]}.

    {seen, unreadable: [{path, mode, owner}], unreadable_count, stale: [path], roots: [{path, ok, at, mode}]}.
    roots: the directories that releases lie in; there: whether root sees them. ok: whether we could read below.
    """
    package = argument.get("package")
    seen, bad = _walk(package) if package else (0, [])
    return {
        "uid": os.geteuid(),
        "seen": seen,
        "unreadable": bad[:NAMED],
        "unreadable_count": len(bad),
        "stale": [
            name for name in argument.get("files") or [] if package and _stale(os.path.join(package, name))
        ],
        "roots": [_reach(root["path"], root["there"]) for root in argument.get("roots") or []],
    }


def _walk(package: str) -> "tuple[int, List[Dict[str, Any]]]":
    seen, bad = 0, []
    if not os.access(package, os.R_OK | os.X_OK):
        return 0, [_about(_blocker(package))]
    for folder, folders, names in os.walk(package):
        for name in [*folders, *names]:
            path = os.path.join(folder, name)
            seen += 1
            if name == "__pycache__":
                continue
            needed = os.R_OK | os.X_OK if name in folders else os.R_OK
            if not os.access(path, needed) and os.path.exists(path):
                bad.append(_about(path))
        if seen > MOST:
            break
    return seen, bad


def _about(path: str) -> Dict[str, Any]:
    try:
        found = os.stat(path)
    except OSError:
        return {"path": path, "mode": None, "owner": None}
    return {"path": path, "mode": stat.S_IMODE(found.st_mode), "owner": found.st_uid}


def _blocker(path: str) -> str:
    """The first directory on the way that may not be passed, else the path itself."""
    at = "/"
    for word in path.strip("/").split("/"):
        if not os.access(at, os.X_OK):
            return at
        at = os.path.join(at, word)
    return path


def _reach(path: str, there: bool) -> Dict[str, Any]:
    at = path
    while not os.path.exists(at) and at != "/":
        if there and at == path:
            return dict(_about(_blocker(path)), path=path, ok=False, at=_blocker(path))
        at = os.path.dirname(at)
    passable = os.access(at, os.X_OK | os.R_OK)
    return dict(_about(at), path=path, ok=passable, at=at)


def _stale(path: str) -> bool:
    """Python would run bytecode that is not what the file says now (importlib's rules for a .pyc)."""
    try:
        cached = importlib.util.cache_from_source(path)
        with open(cached, "rb") as file:
            data = file.read()
        about = os.stat(path)
        with open(path, "rb") as file:
            source = file.read()
    except (OSError, NotImplementedError, ValueError):
        return False
    if len(data) < 16 or data[:4] != importlib.util.MAGIC_NUMBER:
        return False
    flags = int.from_bytes(data[4:8], "little")
    if flags & 1:
        if flags & 2:
            return False  # checked by hash at every import
    elif (int.from_bytes(data[8:12], "little"), int.from_bytes(data[12:16], "little")) != (
        int(about.st_mtime) & 0xFFFFFFFF,
        about.st_size & 0xFFFFFFFF,
    ):
        return False  # Python compiles it anew
    fresh = _compiled(source, path)
    try:
        return fresh is not None and marshal.loads(data[16:]) != fresh
    except (ValueError, EOFError, TypeError):
        return True


def _compiled(source: bytes, path: str) -> Optional[Any]:
    try:
        return compile(source, path, "exec", dont_inherit=True)
    except (SyntaxError, ValueError):
        return None
