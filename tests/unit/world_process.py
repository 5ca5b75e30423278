"""Runs the agent's real code as processes that stop before every effect: a test decides who goes on and who dies.

Each module of the agent gets its own `os`, `open`, `time`, `fcntl`, … whose effects pause the calling process. A
killed process makes no further effect: what its `finally` blocks try dies as well, as SIGKILL would have it.
"""

from __future__ import annotations

import builtins
import errno
import fcntl as real_fcntl
import importlib
import os as real_os
import pkgutil
import shutil as real_shutil
import subprocess as real_subprocess
import tempfile as real_tempfile
import threading
import time as real_time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import ddtree_agent
from ddtree_agent.wire import AgentError

if TYPE_CHECKING:
    from world import World

_here = threading.local()
MODULES = [
    importlib.import_module(f"ddtree_agent.{module.name}")
    for module in pkgutil.iter_modules(ddtree_agent.__path__)
    if module.name not in ("__main__", "core", "smoke_inner")
]


class Killed(BaseException):
    """SIGKILL: no handler of the agent may catch it."""


def _shut() -> Any:
    lock = threading.Lock()
    lock.acquire()
    return lock


class Process:
    """One process of the agent. It runs only while the world waits for it: one at a time, from pause to pause."""

    def __init__(self, world: World, name: str, call: Callable[[], Any], env: dict[str, str]) -> None:
        self.world, self.name, self.env = world, name, env
        self.result: Any = None
        self.error: BaseException | None = None
        self.done = self.dead = self.killed = self.frozen = self.blocked = False
        self.wake: float | None = None
        self.at, self.count, self._free = "start", 0, 0
        self.beats: Callable[[], None] | None = None
        self._call, self._go, self._back = call, _shut(), _shut()
        self._thread: threading.Thread | None = None

    def __repr__(self) -> str:
        return f"{self.name} after {self.count} effects, at {self.at}"

    @property
    def runnable(self) -> bool:
        return not (self.done or self.frozen) and (self.wake is None or self.wake <= self.world.now)

    def resume(self, effects: int = 1) -> None:
        """Let it make so many effects and come to the one after them; fewer where it has to wait."""
        self._free = effects - 1
        if self._thread is None:
            if self.dead:
                self.killed = True
                self._end()
                return
            self._thread = threading.Thread(target=self._main, daemon=True)
            self._thread.start()
        self._go.release()
        self._back.acquire()
        if self.done:
            self._thread.join()
            self._end()

    def kill(self) -> None:
        """SIGKILL, before the effect that it is about to make."""
        if not self.done:
            self.dead, self.frozen = True, False
            self.resume()

    def pause(self, at: str, waits: bool = False) -> None:
        if self.dead:
            raise Killed
        self.at = at
        self.count += 1
        if self._free > 0 and not (waits or self.blocked):
            self._free -= 1
            return
        self._back.release()
        self._go.acquire()
        if self.dead:
            raise Killed

    def _end(self) -> None:
        self.done = True
        self.world.ended(self)

    def _main(self) -> None:
        _here.proc = self
        self._go.acquire()
        try:
            self.pause("first effect")
            self.result = self._call()
        except Killed:
            self.killed = True
        except BaseException as error:
            self.error = error
        finally:
            self.done = True
            self._back.release()

    @property
    def refused(self) -> str:
        """The kind of the agent's own refusal, "" where there was none."""
        return str(self.error.fields["kind"]) if isinstance(self.error, AgentError) else ""


def caller() -> Process | None:
    """The process whose code is running; None for the test's own."""
    return getattr(_here, "proc", None)


def effect(what: str, path: object = "", grows: bool = False, looks: bool = False) -> None:
    """Stop here; then fail as the disk would. `grows`: takes a new block; `looks`: changes nothing."""
    proc = caller()
    if proc is None:
        return
    where = str(path)
    proc.pause(f"{'look: ' if looks else ''}{what} {real_os.path.basename(where)}")
    proc.world.disk_allows(where, grows, looks)


class _Os:
    path, O_RDWR, O_CREAT = real_os.path, real_os.O_RDWR, real_os.O_CREAT

    def __getattr__(self, name: str) -> Any:
        return getattr(real_os, name)

    @property
    def environ(self) -> Any:
        proc = caller()
        return real_os.environ if proc is None else proc.env

    def open(self, path: str, flags: int, mode: int = 0o777, **more: Any) -> int:
        new = bool(flags & real_os.O_CREAT) and not real_os.path.exists(path)
        writes = bool(flags & (real_os.O_RDWR | real_os.O_WRONLY))
        effect("open", path, grows=new or bool(flags & real_os.O_APPEND), looks=not writes)
        return real_os.open(path, flags, mode, **more)

    def fsync(self, fd: int) -> None:
        effect("fsync", real_os.readlink(f"/proc/self/fd/{fd}"))
        real_os.fsync(fd)

    def sync(self) -> None:
        effect("sync")
        proc = caller()
        if proc is not None:
            proc.world.sync()

    def rename(self, source: str, target: str) -> None:
        effect("rename to", target)
        real_os.rename(source, target)

    replace = rename

    def unlink(self, path: str) -> None:
        effect("unlink", path)
        real_os.unlink(path)
        self._freed(path)

    remove = unlink

    def _freed(self, path: str) -> None:
        proc = caller()
        if proc is not None:
            proc.world.freed(path)

    def rmdir(self, path: str) -> None:
        effect("rmdir", path)
        real_os.rmdir(path)

    def makedirs(self, path: str, mode: int = 0o777, exist_ok: bool = False) -> None:
        if not (exist_ok and real_os.path.isdir(path)):
            effect("mkdir", path, grows=True)
        real_os.makedirs(path, mode, exist_ok)

    def pwrite(self, fd: int, data: bytes, offset: int) -> int:
        effect("write to", real_os.readlink(f"/proc/self/fd/{fd}"), grows=real_os.fstat(fd).st_size == 0)
        return real_os.pwrite(fd, data, offset)

    def utime(self, path: str) -> None:
        proc = caller()
        now = proc.world.now if proc else _Clock.world.now
        real_os.utime(path, (now, now))

    def access(self, path: str, mode: int) -> bool:
        proc = caller()
        return real_os.access(path, mode) and not (
            proc and mode & real_os.W_OK and proc.world.read_only(path)
        )


class _Clock:
    world: World
    CLOCK_BOOTTIME = real_time.CLOCK_BOOTTIME

    def __getattr__(self, name: str) -> Any:
        return getattr(real_time, name)

    def time(self) -> float:
        return self.world.now

    def monotonic(self) -> float:
        return self.world.now

    def clock_gettime(self, which: int) -> float:
        return self.world.now

    def sleep(self, seconds: float) -> None:
        proc = caller()
        assert proc is not None
        proc.wake = self.world.now + max(seconds, 0.5)
        proc.pause("sleep", waits=True)
        proc.wake = None


class _Fcntl:
    def __getattr__(self, name: str) -> Any:
        return getattr(real_fcntl, name)

    def flock(self, fd: int, how: int) -> None:
        proc = caller()
        if proc is None or how & (real_fcntl.LOCK_NB | real_fcntl.LOCK_UN):
            effect("flock")
            real_fcntl.flock(fd, how)
            return
        while True:
            proc.pause("flock")
            try:
                real_fcntl.flock(fd, how | real_fcntl.LOCK_NB)
                proc.blocked = False
                return
            except BlockingIOError:
                proc.blocked = True


class _Tempfile:
    def __getattr__(self, name: str) -> Any:
        return getattr(real_tempfile, name)

    def mkstemp(self, **where: str) -> tuple[int, str]:
        effect("write a temporary file in", where["dir"], grows=True)
        return real_tempfile.mkstemp(**where)


class _Shutil:
    def __getattr__(self, name: str) -> Any:
        return getattr(real_shutil, name)

    def which(self, name: str, path: str = "") -> str:
        return f"/usr/sbin/{name}"

    def rmtree(self, path: str, ignore_errors: bool = False) -> None:
        for folder, _, names in real_os.walk(path, topdown=False):
            for name in names:
                effect("unlink", real_os.path.join(folder, name))
                real_os.unlink(real_os.path.join(folder, name))
            effect("rmdir", folder)
            real_os.rmdir(folder)


class _Threading:
    """The heartbeat's thread: the world beats for every process that lives and is not stopped."""

    def __getattr__(self, name: str) -> Any:
        return getattr(threading, name)

    class Thread:
        def __init__(self, target: Any, args: tuple[Any, ...], name: str, daemon: bool) -> None:
            assert name == "beat", f"the model knows no thread {name}"
            self._txn = args[0]

        def start(self) -> None:
            proc = caller()
            assert proc is not None
            proc.beats = self._txn.beat


class _Subprocess:
    DEVNULL, PIPE = real_subprocess.DEVNULL, real_subprocess.PIPE
    TimeoutExpired = real_subprocess.TimeoutExpired

    def run(self, argv: list[str], **how: Any) -> real_subprocess.CompletedProcess[bytes]:
        proc = caller()
        world = proc.world if proc else _Clock.world
        words = [word for word in argv[:3] if not word.startswith("-")]
        effect(" ".join(words), looks=True)
        status, out, err = world.command(argv, how.get("input"))
        return real_subprocess.CompletedProcess(argv, status, out.encode(), err.encode())


def _open(path: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
    writes = not set(mode) <= set("rbt")
    effect("open", path, grows="w" in mode or "a" in mode, looks=not writes)
    return builtins.open(path, mode, *args, **kwargs)


_SEAMS = {
    "os": _Os(),
    "time": _Clock(),
    "fcntl": _Fcntl(),
    "tempfile": _Tempfile(),
    "shutil": _Shutil(),
    "threading": _Threading(),
    "subprocess": _Subprocess(),
}


def enter(world: World) -> Callable[[], None]:
    """Put the seams under the agent; returns the call that takes them away."""
    before = getattr(_Clock, "world", world)
    _Clock.world = world
    undo: list[tuple[Any, str, Any]] = []
    for module in MODULES:
        for name, seam in _SEAMS.items():
            if hasattr(module, name):
                undo.append((module, name, getattr(module, name)))
                setattr(module, name, seam)
        module.open = _open  # type: ignore[attr-defined]

    def leave() -> None:
        _Clock.world = before
        for module, name, value in undo:
            setattr(module, name, value)
        for module in MODULES:
            del module.open  # type: ignore[attr-defined]

    return leave


def no_space(path: str) -> OSError:
    return OSError(errno.ENOSPC, real_os.strerror(errno.ENOSPC), path)


def no_write(path: str) -> OSError:
    return OSError(errno.EROFS, real_os.strerror(errno.EROFS), path)
