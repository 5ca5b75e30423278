"""Every path of ours on a host, and the few ways in which we write there.

design.md section 3 is the list; nothing outside it is ever written or deleted.
"""

import errno
import fcntl
import json
import os
import shutil
import tempfile
import time
from contextlib import contextmanager
from typing import Any, Callable, Dict, Iterator, List, Optional

from .wire import AgentError

OPT = "/opt/ddtree"
VAR = "/var/lib/ddtree"
ETC = "/etc/ddtree"
RUNTIMES = OPT + "/runtimes"
TRIAL = "60-ddtree-trial.conf"
KEPT = "50-ddtree.conf"
#: Where a release's own digest stands in its drop-in until the host fills it in (the digest covers the text).
PLACEHOLDER = "@RELEASE@"
BASELINE = "baseline"
SECRETS = f"secrets-{PLACEHOLDER}.env"
_TEMP = ".ddtree-"


class Layout:
    """The paths of one service. `root` is / except in tests."""

    def __init__(self, service: str, root: str = "/") -> None:
        if not service or "/" in service or service.startswith("."):
            raise AgentError("usage", f"{service!r} is no service name")
        self.service = service if "." in service else service + ".service"
        self.root = root
        self.releases = self._at(OPT, "releases")
        self.runtimes = self._at(RUNTIMES)
        self.staging = self._at(OPT, "staging")
        self.failed = self._at(OPT, "failed")
        self.agents = self._at(OPT, "agent")
        self.state = self._at(VAR, self.service)
        self.txns = os.path.join(self.state, "txn")
        self.confirmed = os.path.join(self.state, "confirmed")
        self.history = os.path.join(self.state, "history.jsonl")
        self.lock = os.path.join(self.state, "lock")
        self.trial = self._at("/run/systemd/system", self.service + ".d", TRIAL)
        self.kept = self._at("/etc/systemd/system", self.service + ".d", KEPT)

    def _at(self, *parts: str) -> str:
        return os.path.join(self.root, os.path.join(*parts).lstrip("/"))

    def release(self, digest: str) -> str:
        """The directory of a release. Raises AgentError for anything but a plain digest."""
        if not is_digest(digest):
            raise AgentError("usage", f"{digest!r} is no release digest")
        return os.path.join(self.releases, digest)

    def secrets(self, digest: str) -> str:
        """The 0600 file from which a release's unit reads its keys: a push must not change another release's."""
        return self._at(ETC, SECRETS.replace(PLACEHOLDER, digest))

    def runtime(self, digest: str) -> str:
        """The directory of a runtime (packages carried over from another host). Raises AgentError as `release`."""
        if not is_digest(digest):
            raise AgentError("usage", f"{digest!r} is no runtime digest")
        return os.path.join(self.runtimes, digest)

    def staged(self, txn_id: str) -> str:
        """Where a push builds its release. Named by service too: each service sweeps only its own."""
        return os.path.join(self.staging, f"{txn_id}.{self.service}")

    def services(self) -> "List[Layout]":
        """Every service that has ever been ours here, this one included, always in the same order."""
        root, names = self._at(VAR), {self.service}
        if os.path.isdir(root):
            names |= {n for n in os.listdir(root) if n[0] != "." and os.path.isdir(os.path.join(root, n))}
        return [Layout(name, self.root) for name in sorted(names)]

    def txn(self, txn_id: str) -> str:
        """The directory of a transaction."""
        if not is_txn_id(txn_id):
            raise AgentError("usage", f"{txn_id!r} is no transaction id")
        return os.path.join(self.txns, txn_id)


def is_digest(text: str) -> bool:
    """Whether it is one: lower-case hex."""
    return bool(text) and all(c in "0123456789abcdef" for c in text)


def is_txn_id(text: str) -> bool:
    """Whether a transaction may be called so: a path of ours is made of it."""
    return bool(text) and all(c in "0123456789abcdef-" for c in text)


def sync_dir(path: str) -> None:
    """fsync a directory, so that a rename in it survives a power cut (fsync(2))."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_atomic(path: str, data: bytes, mode: int = 0o644, ready: str = "") -> None:
    """Replace a file so that a crash leaves the old or the new text, never a part: temp, fsync, rename, fsync.

    ready: a file that `make_ready` wrote; where it holds these bytes it is renamed, which takes no new block.
    """
    folder = os.path.dirname(path)
    temp = ready if ready and _content(ready) == data else _written(path, data, mode)
    try:
        os.rename(temp, path)
    except BaseException:
        _unlink(temp)
        raise
    sync_dir(folder)


def make_ready(path: str, data: bytes, name: str, mode: int = 0o644) -> str:
    """Write what `path` will hold beside it, durable, under a hidden name that nothing reads; returns its path."""
    target = ready_path(path, name)
    temp = _written(path, data, mode)
    os.rename(temp, target)
    sync_dir(os.path.dirname(path))
    return target


def ready_path(path: str, name: str) -> str:
    """Where `make_ready` puts what `path` will hold."""
    return os.path.join(os.path.dirname(path), f"{_TEMP}{name}")


def sweep_temporary(path: str, name: str = "") -> bool:
    """Remove what a crash left beside `path`, half-written and readied files (of one `name`, or all); False where
    there was none."""
    folder = os.path.dirname(path)
    try:
        found = [entry for entry in os.listdir(folder) if entry.startswith(_TEMP + name)]
    except (FileNotFoundError, NotADirectoryError):
        return False
    for entry in found:
        _unlink(os.path.join(folder, entry))
    return bool(found)


def _written(path: str, data: bytes, mode: int) -> str:
    folder = os.path.dirname(path)
    os.makedirs(folder, mode=0o755, exist_ok=True)
    fd, temp = tempfile.mkstemp(prefix=_TEMP, dir=folder)
    try:
        with os.fdopen(fd, "wb") as file:
            os.fchmod(file.fileno(), mode)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
        _unlink(temp)
        raise
    return temp


def _content(path: str) -> Optional[bytes]:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return None


def rewrite_json(path: str, value: Any) -> None:
    """write_json for a file that must not fail on a full disk: then in place, in the blocks that it has."""
    try:
        write_json(path, value)
    except OSError as error:
        if not is_full(error):
            raise
        with open(path, "r+b") as file:
            file.write(json_bytes(value))
            file.truncate()
            file.flush()
            os.fsync(file.fileno())


def is_full(error: OSError) -> bool:
    """Whether the disk, or the quota on it, has no block or inode left."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def json_bytes(value: Any) -> bytes:
    """A JSON document as our files hold it."""
    return (json.dumps(value, sort_keys=True, indent=1) + "\n").encode()


def write_json(path: str, value: Any, mode: int = 0o644, ready: str = "") -> None:
    """write_atomic of a JSON document."""
    write_atomic(path, json_bytes(value), mode, ready)


def read_json(path: str, default: Any = None) -> Any:
    """A JSON file, or `default` where there is none. Raises AgentError where it is damaged."""
    try:
        with open(path, "rb") as file:
            return json.loads(file.read())
    except FileNotFoundError:
        return default
    except (ValueError, RecursionError) as error:
        raise AgentError("precondition", f"{path} is damaged: {error}") from None
    except (IsADirectoryError, NotADirectoryError) as error:
        raise AgentError("precondition", f"{path} is damaged: {error.strerror}") from None


def remove_file(path: str) -> bool:
    """Remove one of our files and make the removal durable; False where it was not there."""
    if not _unlink(path):
        return False
    try:
        sync_dir(os.path.dirname(path))
    except FileNotFoundError:
        pass  # whoever removed the last file of the folder removed the folder as well
    return True


def remove_tree(path: str, within: str) -> None:
    """Delete a directory of ours. Refuses any path that is not strictly inside `within`, links resolved."""
    real, base = os.path.realpath(path), os.path.realpath(within)
    if os.path.dirname(real) != base:
        raise AgentError("bug", f"refused to delete {path}: it is not in {within}")
    if not os.path.isdir(real):
        return
    for folder, _, _ in os.walk(real):
        os.chmod(folder, 0o755)  # sealed releases are read-only
    shutil.rmtree(real)


def append_history(layout: Layout, entry: Dict[str, Any]) -> None:
    """One line more in the host's history, on disk before we go on."""
    os.makedirs(layout.state, exist_ok=True)
    append_line(layout.history, {"schema_version": 1, "at": time.time(), **entry}, os.fsync)


def append_line(path: str, entry: Dict[str, Any], sync: Optional[Callable[[int], None]] = None) -> None:
    """Append one JSON line, whole or not at all. Raises OSError; what a full disk took of the line is cut off again."""
    data = (json.dumps(entry, sort_keys=True) + "\n").encode()
    fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        before = os.fstat(fd).st_size
        # a line that a power cut tore would swallow this one
        if before > 0 and os.pread(fd, 1, before - 1) != b"\n":
            data = b"\n" + data
        written = 0
        try:
            while written < len(data):
                written += os.write(fd, data[written:])
            if sync:
                sync(fd)
        except OSError:
            if os.fstat(fd).st_size == before + written:  # nobody else wrote behind it
                os.ftruncate(fd, before)
            raise
    finally:
        os.close(fd)


def read_history(layout: Layout) -> List[Dict[str, Any]]:
    """All entries, oldest first; a line that is no entry of ours (torn, edited, junk) is skipped.

    Raises AgentError where the file is there and cannot be read.
    """
    try:
        with open(layout.history, "rb") as file:
            lines = file.read().splitlines()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise AgentError("precondition", f"{layout.history} cannot be read: {error.strerror}") from None
    return [entry for entry in map(_entry, lines) if entry is not None]


def _entry(line: bytes) -> Optional[Dict[str, Any]]:
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(entry, dict):
        return None
    texts = all(isinstance(entry.get(key), str) for key in ("kind", "who", "outcome"))
    # seconds since 1970 that a calendar has; NaN compares false
    dated = _number(entry.get("at")) and 0 <= entry["at"] < 1e11
    measured = entry.get("downtime_s") is None or _number(entry["downtime_s"])
    failed = entry.get("failure") is None or isinstance(entry["failure"], dict)
    return entry if texts and dated and measured and failed else None


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


@contextmanager
def locked(layout: Layout, who: str, wait_s: float = 0.5) -> Iterator[None]:
    """Hold the host's lock for this service: flock(2), so that it can never outlive us. Raises AgentError(locked).

    The short default wait covers a reader that looks who holds it.
    """
    os.makedirs(layout.state, exist_ok=True)
    _close_to_others(layout.state)
    fd = _open_lock(layout)
    try:
        _take(fd, layout, wait_s)
        _leave_note(fd, who)
        yield
    finally:
        os.close(fd)


def _close_to_others(folder: str) -> None:
    """flock(2) asks for no more than an open file: whoever could open the lock could keep it from us."""
    try:
        if os.stat(folder).st_mode & 0o077:
            os.chmod(folder, 0o700)
    except OSError:
        pass  # a read-only disk


def _open_lock(layout: Layout) -> int:
    try:
        return os.open(layout.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except IsADirectoryError:
        raise AgentError(
            "precondition", f"{layout.lock} is a directory", next=f"rmdir {layout.lock}, on the host"
        ) from None
    except OSError as error:
        if error.errno != errno.EROFS or not os.path.exists(layout.lock):
            raise
    # flock(2) asks for no write: a look at a read-only host must not fail for its lock
    return os.open(layout.lock, os.O_RDONLY | os.O_CLOEXEC)


def _leave_note(fd: int, who: str) -> None:
    note = json.dumps({"who": who, "pid": os.getpid(), "since": time.time()}).encode()
    try:
        os.pwrite(fd, note, 0)
        os.ftruncate(fd, len(note))  # behind the write, which then finds its block again on a full disk
    except OSError:
        pass  # the lock holds without a note


def holder(layout: Layout) -> Optional[str]:
    """Who holds the lock now, in words; None where nobody does."""
    try:
        fd = os.open(layout.lock, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)  # two who look do not see each other
        return None
    except BlockingIOError:
        return _owner(fd)
    finally:
        os.close(fd)


def _take(fd: int, layout: Layout, wait_s: float) -> None:
    until = time.monotonic() + wait_s
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() >= until:
                raise AgentError(
                    "locked",
                    f"another operation holds {layout.service}: {_owner(fd)}",
                    meaning="two operators at once: the other one is not disturbed",
                    next="ddtree-ops status, then type the same command again when it has ended",
                ) from None
            time.sleep(0.05)


def _owner(fd: int) -> str:
    try:
        note = json.loads(os.pread(fd, 4096, 0))
        return f"{note['who']} (pid {note['pid']}, since {time.strftime('%H:%M:%S', time.gmtime(note['since']))} UTC)"
    except (ValueError, KeyError):
        return "someone (no note left)"


def _unlink(path: str) -> bool:
    try:
        os.unlink(path)
        return True
    except FileNotFoundError:
        return False
