"""The directories that compilers and downloads write to, tried as the service's user inside its sandbox."""

import errno
import json
import mmap
import os
import re
import stat
import tempfile
import time
from typing import Any, Dict, List, Optional, Set, Tuple

#: How much of a cache is looked at: a warm one has tens of thousands of files.
MOST, SECONDS = 6000, 1.5
REMOTE = (
    "nfs",
    "nfs4",
    "cifs",
    "smb3",
    "fuse.sshfs",
    "ceph",
    "lustre",
    "gpfs",
    "beegfs",
    "9p",
    "fuse.glusterfs",
)
#: Not a compiler's: only that they can be written to is looked at.
WHOLE = ("home", "tmp", "huggingface")
BINARY = re.compile(r"\.(so|cubin|o|json|hsaco|ptx|llir|lock)$")


def collect(argument: Any) -> Dict[str, Any]:
    """{home, uid, places: {name: facts}, boot}; facts: {path, from, exists, ...} of _place().

    argument: {flashinfer: its version}, which names the part of its cache that is looked into: that of other versions
    does not make a start warm.
    """
    boot = _boot()
    version = (argument or {}).get("flashinfer")
    found = {
        name: _place(path, source, None if name in WHOLE else boot)
        for name, (path, source) in places(dict(os.environ)).items()
    }
    if version and found["flashinfer"]["exists"]:
        own = os.path.join(found["flashinfer"]["path"], str(version))
        found["flashinfer"]["compiled"] = _content(own, boot)["compiled"]
    return {
        "home": os.environ.get("HOME"),
        "uid": os.geteuid(),
        "boot": boot,
        "places": found,
    }


def places(env: Dict[str, str]) -> Dict[str, Tuple[str, str]]:
    """{name: (path, the variable that decides it)} as each program works it out."""
    home = env.get("HOME") or os.path.expanduser("~")
    cache = env.get("XDG_CACHE_HOME") or os.path.join(home, ".cache")

    def given(variable: str, default: str) -> Tuple[str, str]:
        return (env[variable], variable) if env.get(variable) else (default, "HOME")

    temporary = next((env[name] for name in ("TMPDIR", "TEMP", "TMP") if env.get(name)), "/tmp")
    user = _user()
    triton = os.path.join(env.get("TRITON_HOME") or home, ".triton", "cache")
    flashinfer = os.path.join(env.get("FLASHINFER_WORKSPACE_BASE") or home, ".cache", "flashinfer")
    return {
        "home": (home, "HOME"),
        "tmp": (temporary, "TMPDIR" if env.get("TMPDIR") else "the default"),
        "triton": given("TRITON_CACHE_DIR", triton),
        "inductor": (env["TORCHINDUCTOR_CACHE_DIR"], "TORCHINDUCTOR_CACHE_DIR")
        if env.get("TORCHINDUCTOR_CACHE_DIR")
        else (os.path.join(temporary, f"torchinductor_{user}"), "TMPDIR"),
        "flashinfer": (
            flashinfer,
            "FLASHINFER_WORKSPACE_BASE" if env.get("FLASHINFER_WORKSPACE_BASE") else "HOME",
        ),
        "tvm-ffi": given("TVM_FFI_CACHE_DIR", os.path.join(home, ".cache", "tvm-ffi")),
        "deep-gemm": given("SGLANG_DG_CACHE_DIR", os.path.join(home, ".cache", "deep_gemm")),
        "torch-extensions": given("TORCH_EXTENSIONS_DIR", os.path.join(cache, "torch_extensions")),
        "huggingface": given("HF_HOME", os.path.join(cache, "huggingface")),
    }


def _user() -> str:
    try:
        import getpass

        return getpass.getuser()
    except (KeyError, OSError, ImportError):
        return str(os.geteuid())


def _place(path: str, source: str, boot: Optional[float]) -> Dict[str, Any]:
    """One directory: what it is, whether it can be written and executed from, and what lies in it.

    Where it does not exist, `base` is the nearest directory that does, in which it would be made: that is tried.
    """
    facts: Dict[str, Any] = {"path": path, "from": source, "exists": os.path.isdir(path)}
    if os.path.lexists(path) and not facts["exists"]:
        facts["file"] = not os.path.islink(path)  # a file in its place, or a link to nothing
        facts["dangling"] = os.path.islink(path)
    base = path
    while not os.path.isdir(base) and base not in ("/", ""):
        base = os.path.dirname(base) or "/"
    facts["base"] = base
    facts["real"] = os.path.realpath(path)
    try:
        found = os.stat(base)
        facts.update(owner=found.st_uid, mode=stat.S_IMODE(found.st_mode))
        room = os.statvfs(base)
        facts.update(bytes=room.f_bavail * room.f_frsize, inodes=room.f_favail if room.f_files else None)
    except OSError as error:
        facts["error"] = f"{base}: {error.strerror}"
    mounted = _mount(os.path.realpath(base))
    facts.update(fs=mounted[0], options=mounted[1], remote=mounted[0] in REMOTE if mounted[0] else None)
    facts.update(_tried(base))
    if boot is not None:
        facts.update(_content(path, boot) if facts["exists"] else {"files": 0, "compiled": 0})
    return facts


def _tried(base: str) -> Dict[str, Any]:
    """{write, exec, why}: a file made there, mapped for execution, and removed. exec is null where it is unknown."""
    name = None
    try:
        # A file without a name leaves no trace, not even the directory's time.
        handle = os.open(base, os.O_TMPFILE | os.O_RDWR, 0o600)
    except OSError as first:
        if first.errno not in (errno.EOPNOTSUPP, errno.EISDIR, errno.ENOENT, errno.EINVAL):
            return {"write": False, "exec": None, "why": f"{first.strerror}"}
        try:
            handle, name = tempfile.mkstemp(prefix=".ddtree-", dir=base)
        except OSError as error:
            return {"write": False, "exec": None, "why": f"{error.strerror}"}
    answer: Dict[str, Any] = {"write": True, "exec": None, "why": None}
    try:
        os.write(handle, b"\0" * mmap.PAGESIZE)
        try:
            mmap.mmap(
                handle, mmap.PAGESIZE, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_EXEC
            ).close()
            answer["exec"] = True
        except PermissionError as error:
            answer.update(exec=False, why=f"{error.strerror}")
    except OSError as error:
        answer.update(write=False, why=f"{error.strerror}")
    finally:
        os.close(handle)
        if name:
            os.unlink(name)
    return answer


def _content(path: str, boot: float) -> Dict[str, Any]:
    """{files, compiled, broken: [path], locks: [path], foreign: [path], more}.

    compiled: .so and .cubin files (warm or cold). broken: empty or unparsable. locks: older than the boot, of something
    that was not compiled to its end. foreign: directories that we may not write to. more: not all was looked at.
    """
    files = compiled = 0
    broken: List[str] = []
    old: List[str] = []
    foreign: List[str] = []
    done: Set[str] = set()
    deadline = time.monotonic() + SECONDS
    more = False
    for folder, folders, names in os.walk(path):
        if files > MOST or time.monotonic() > deadline:
            more = True
            break
        folders.sort()
        if not os.access(folder, os.W_OK | os.X_OK):
            foreign.append(folder)
        for name in names:
            files += 1
            match = BINARY.search(name)
            whole = os.path.join(folder, name)
            kind = match.group(1) if match else ""
            try:
                about = os.lstat(whole)
            except OSError:
                continue
            if kind == "lock" or name == "lock":
                if about.st_mtime < boot:
                    old.append(whole)
            elif kind and (about.st_size == 0 or (kind == "json" and _bad_json(whole, about.st_size))):
                broken.append(whole)
            elif kind in ("so", "cubin", "hsaco"):
                compiled += 1
                done.update((os.path.splitext(name)[0], folder, os.path.basename(folder)))
    # A lock that was let go stays as a file beside what it guarded: only one without is of a build that was cut off.
    locks = [
        one for one in old if not {os.path.splitext(os.path.basename(one))[0], os.path.dirname(one)} & done
    ]
    return {
        "files": files, "compiled": compiled, "broken": broken[:5], "broken_count": len(broken), "locks": locks[:5],
        "locks_count": len(locks), "foreign": foreign[:5], "more": more,
    }  # fmt: skip


def _bad_json(path: str, size: int) -> bool:
    if size > 1 << 20:
        return False
    try:
        with open(path, "rb") as file:
            json.loads(file.read())
    except ValueError:
        return True
    except OSError:
        return False
    return False


def _mount(path: str) -> Tuple[Optional[str], Optional[str]]:
    """(file system, options) of the mount that holds a path."""
    try:
        with open("/proc/self/mounts", encoding="utf-8", errors="replace") as file:
            lines = [line.split() for line in file]
    except OSError:
        return None, None
    best: Tuple[int, Optional[str], Optional[str]] = (-1, None, None)
    for words in lines:
        if len(words) < 4:
            continue
        point = re.sub(r"\\(\d{3})", lambda m: chr(int(m.group(1), 8)), words[1])
        inside = path == point or path.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= best[0]:
            best = (len(point), words[2], words[3])
    return best[1], best[2]


def _boot() -> float:
    try:
        with open("/proc/uptime", encoding="ascii") as file:
            return time.time() - float(file.read().split()[0])
    except (OSError, ValueError):
        return 0.0
