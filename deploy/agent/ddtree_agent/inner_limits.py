"""Runs in the unit's sandbox as its user: what limits it really has, and which paths it can read."""

import os
import pwd
import resource
from typing import Any, Dict, List, Optional

_LIMITS = ("NOFILE", "MEMLOCK", "NPROC", "STACK", "AS", "CORE", "FSIZE", "DATA")


def collect(argument: Dict[str, Any]) -> Dict[str, Any]:
    """{uid, umask, home, tmp_private, inductor, rlimits, read}. Model and caches have programs of their own.

    argument: {paths: {what: path} to be read, tmp: [device, inode] of the host's /tmp}.
    """
    here = os.stat("/tmp") if os.path.isdir("/tmp") else None
    outer = argument.get("tmp")
    return {
        "uid": os.getuid(),
        "umask": _umask(),
        "home": _home(),
        "tmp_private": None if here is None or not outer else [here.st_dev, here.st_ino] != list(outer),
        "rlimits": {name.lower(): _rlimit(name) for name in _LIMITS},
        "read": [_readable(what, path) for what, path in (argument.get("paths") or {}).items() if path],
        "inductor": bool(os.environ.get("TORCHINDUCTOR_CACHE_DIR")),
    }


def _umask() -> int:
    found = os.umask(0o022)
    os.umask(found)
    return found


def _home() -> Dict[str, Any]:
    """{set, path, exists}: HOME, else what the password database says, as Python and the caches look it up."""
    named = os.environ.get("HOME")
    try:
        path: Optional[str] = named or pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:
        path = None
    return {"set": bool(named), "path": path, "exists": bool(path) and os.path.isdir(str(path))}


def _rlimit(name: str) -> Optional[List[Optional[int]]]:
    """[soft, hard]; null in a place: no limit."""
    number = getattr(resource, "RLIMIT_" + name, None)
    if number is None:
        return None
    return [None if value == resource.RLIM_INFINITY else value for value in resource.getrlimit(number)]


def _readable(what: str, path: str) -> Dict[str, Any]:
    """A path and, in a directory, the first files of it: {what, path, exists, problem}."""
    answer: Dict[str, Any] = {"what": what, "path": path, "exists": None, "problem": None}
    try:
        os.stat(path)
        answer["exists"] = True
        if os.path.isdir(path):
            for name in sorted(os.listdir(path))[:40]:
                inner = os.path.join(path, name)
                if os.path.isfile(inner):
                    with open(inner, "rb") as file:
                        file.read(1)
        elif not os.access(path, os.R_OK):
            answer["problem"] = "Permission denied"
    except FileNotFoundError as error:
        missing = error.filename == path
        answer.update(exists=not missing, problem="No such file or directory" if missing else str(error))
    except OSError as error:
        answer["problem"] = f"{error.filename or path}: {error.strerror}"
    return answer
