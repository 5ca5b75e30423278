"""Runs in the unit's sandbox as its user: what limits it really has, and which paths it can read and write there."""

import os
import pwd
import resource
from typing import Any, Dict, List, Optional

_LIMITS = ("NOFILE", "MEMLOCK", "NPROC", "STACK", "AS", "CORE", "FSIZE", "DATA")
#: Where an engine keeps what it compiles and fetches; whichever is set.
_CACHES = (
    "XDG_CACHE_HOME TRITON_CACHE_DIR TORCHINDUCTOR_CACHE_DIR FLASHINFER_WORKSPACE_BASE TVM_FFI_CACHE_DIR HF_HOME "
    "HF_HUB_CACHE CUDA_CACHE_PATH TMPDIR SGLANG_DG_CACHE_DIR"
)


def collect(argument: Dict[str, Any]) -> Dict[str, Any]:
    """{uid, umask, home, tmp_private, rlimits, read, write}.

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
        "write": [_writable(name, path) for name, path in _places()],
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


def _places() -> "List[Any]":
    home = _home()["path"]
    found = [("HOME", home)] if home else []
    found += [(name, os.environ[name]) for name in _CACHES.split() if os.environ.get(name)]
    if not os.environ.get("TMPDIR"):
        found.append(("/tmp", "/tmp"))
    return found


def _writable(name: str, path: str) -> Dict[str, Any]:
    """{name, path, writable, read_only, noexec}: the directory, or the nearest parent that exists."""
    place = os.path.abspath(path)
    while not os.path.isdir(place) and place != "/":
        place = os.path.dirname(place)
    try:
        flags = os.statvfs(place).f_flag
    except OSError:
        flags = 0
    return {
        "name": name,
        "path": path,
        "writable": os.access(place, os.W_OK | os.X_OK),
        "read_only": bool(flags & os.ST_RDONLY),
        "noexec": bool(flags & os.ST_NOEXEC),
    }
