"""Follows what a service writes, from a place marked before its start: the journal, a file, or nothing."""

import json
import os
import subprocess
import time
from typing import Any, Dict, List, Optional

from .systemd import run

_CHUNK = 1 << 16
_MOST = (
    1 << 22
)  # bytes taken from a log in one look, so that a flood cannot hold up the next look at the unit


def mark(log: str) -> Dict[str, Any]:
    """Where the log ends now: {"cursor"} or {"since"} for "journal", {"inode", "offset"} for "file:PATH", {} for
    "none". Take it after the old process is gone and before the new one starts."""
    if log == "journal":
        status, out, _ = run(["journalctl", "--no-pager", "-q", "-n", "1", "-o", "json"], 10)
        try:
            return (
                {"cursor": json.loads(out.splitlines()[-1])["__CURSOR"]}
                if status == 0
                else {"since": time.time()}
            )
        except (ValueError, KeyError, IndexError):
            return {"since": time.time()}  # an empty journal has no cursor yet
    if log.startswith("file:"):
        try:
            found = os.stat(log[5:])
        except OSError:
            return {"inode": 0, "offset": 0}
        return {"inode": found.st_ino, "offset": found.st_size}
    return {}


class Lines:
    """Bytes in, whole lines out. A carriage return ends a line too: progress bars use nothing else."""

    def __init__(self) -> None:
        self._rest = b""
        self._quiet = 0

    def take(self, data: bytes) -> List[str]:
        """The lines that `data` completes; an unfinished one comes after two looks without more of it."""
        self._quiet = 0 if data else self._quiet + 1
        parts = (self._rest + data).replace(b"\r", b"\n").split(b"\n")
        self._rest = parts.pop()
        if self._rest and self._quiet >= 2:
            parts.append(self._rest)
            self._rest = b""
        return [part.decode("utf-8", "replace") for part in parts if part.strip()]


class NoLog:
    """The unit writes nothing that can be read."""

    def read(self) -> List[str]:
        """Nothing, ever."""
        return []

    def close(self) -> None:
        """Nothing to close."""


class FileLog:
    """A file from an inode and offset on, through rotation (the old file is read to its end) and truncation."""

    def __init__(self, path: str, inode: int = 0, offset: int = 0) -> None:
        self._path = path
        self._lines = Lines()
        self._fd = -1
        self._open(offset, inode)

    def read(self) -> List[str]:
        """The lines written since the last call."""
        data = self._drain()
        if self._replaced():
            self.close()
            self._open(0, 0)
            data += self._drain()
        return self._lines.take(data)

    def close(self) -> None:
        """Let go of the file."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _open(self, offset: int, inode: int) -> None:
        try:
            self._fd = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return  # the service makes it when it starts
        # Another file of that name began after the mark: all of it is new.
        if inode and os.fstat(self._fd).st_ino == inode:
            os.lseek(self._fd, offset, os.SEEK_SET)

    def _replaced(self) -> bool:
        try:
            now = os.stat(self._path)
        except OSError:
            return False
        return self._fd < 0 or now.st_ino != os.fstat(self._fd).st_ino

    def _drain(self) -> bytes:
        if self._fd < 0:
            return b""
        if os.fstat(self._fd).st_size < os.lseek(self._fd, 0, os.SEEK_CUR):
            os.lseek(self._fd, 0, os.SEEK_SET)
        return _read(self._fd)


class JournalLog:
    """One long-lived `journalctl -f` of the unit (journalctl(1)); started anew from the last cursor if it dies."""

    def __init__(self, service: str, since: Dict[str, Any], skip_invocation: str = "") -> None:
        self._service, self._since, self._skip = service, dict(since), skip_invocation
        self._rest = b""
        self._child = self._follow()

    def read(self) -> List[str]:
        """The lines logged since the last call, those of the skipped invocation left out."""
        stdout = self._child.stdout
        data = self._rest + (_read(stdout.fileno()) if stdout is not None else b"")
        *whole, self._rest = data.split(b"\n")
        found: List[str] = []
        for raw in whole:
            found += self._entry(raw)
        if self._child.poll() is not None and not data:
            self.close()
            self._child = self._follow()
        return found

    def close(self) -> None:
        """End the follower."""
        if self._child.poll() is None:
            self._child.kill()
        self._child.wait()
        if self._child.stdout is not None:
            self._child.stdout.close()

    def _follow(self) -> "subprocess.Popen[bytes]":
        unit = self._service if "." in self._service else self._service + ".service"
        where = (
            f"--after-cursor={self._since['cursor']}"
            if "cursor" in self._since
            else f"--since=@{int(self._since.get('since', time.time()))}"
        )
        # Without -a fields over 4096 bytes come as null (journalctl(1)): the engine's argument line is longer.
        argv = ["journalctl", "--no-pager", "-q", "-f", "--no-tail", "-a", "-o", "json", where]
        # What `-u` matches and more: "Failed to locate executable" comes from a child that systemd has not yet moved
        # into the unit. Only root's word counts, as anyone may log a line with UNIT= in it.
        argv += [
            f"_SYSTEMD_UNIT={unit}",
            "+",
            f"UNIT={unit}",
            "_UID=0",
            "+",
            f"OBJECT_SYSTEMD_UNIT={unit}",
            "_UID=0",
        ]
        child = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, close_fds=True
        )
        if child.stdout is not None:
            os.set_blocking(child.stdout.fileno(), False)
        return child

    def _entry(self, raw: bytes) -> List[str]:
        try:
            entry = json.loads(raw.decode("utf-8", "replace"))
        except ValueError:
            return []
        self._since = {"cursor": entry.get("__CURSOR", self._since.get("cursor"))}
        run_id = entry.get("INVOCATION_ID") or entry.get("_SYSTEMD_INVOCATION_ID")
        if self._skip and run_id == self._skip:
            return []
        message = entry.get("MESSAGE")
        if isinstance(
            message, list
        ):  # journald's form for text with control characters, as progress bars have
            message = bytes(part for part in message if isinstance(part, int)).decode("utf-8", "replace")
        return [part for part in str(message or "").replace("\r", "\n").split("\n") if part.strip()]


def follow(service: str, log: str, since: Optional[Dict[str, Any]] = None, skip_invocation: str = "") -> Any:
    """A follower with `read() -> list[str]` and `close()` for "journal", "file:PATH" or "none"."""
    place = mark(log) if since is None else since
    if log == "journal":
        return JournalLog(service, place, skip_invocation)
    if log.startswith("file:"):
        return FileLog(log[5:], int(place.get("inode", 0)), int(place.get("offset", 0)))
    return NoLog()


def _read(fd: int) -> bytes:
    parts: List[bytes] = []
    size = 0
    while size < _MOST:
        try:
            part = os.read(fd, _CHUNK)
        except BlockingIOError:
            break
        if not part:
            break
        parts.append(part)
        size += len(part)
    return b"".join(parts)
