"""A host for the model: its disk, its clock, its processes, its systemd, and how each release behaves."""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import world_process
import world_watch
from world_process import Process, effect
from world_systemd import Systemd
from world_watch import DIES, FAIL, HANG, PASS, TIMEOUTS

from ddtree_agent import (
    decided,
    journal,
    layout,
    outcome,
    rollout,
    status,
    store,
    undo,
)
from ddtree_agent.core.txn import is_open
from ddtree_agent.layout import Layout

SERVICE = "sglang.service"
#: Files that the reserve has room for.
_RESERVE = 40


class World:
    """One host. The agent's code runs only through `spawn` and its scheduler; everything else reads."""

    def __init__(self, root: str = "") -> None:
        base = "/dev/shm" if os.path.isdir("/dev/shm") else None
        self.root = root or tempfile.mkdtemp(prefix="ddtree-world-", dir=base)
        self._ours, self._closed = not root, False
        self.now, self.boots, self.disk, self.reserve = 1_700_000_000.0, 1, "ok", 0
        self.disk_failed = False
        self.bugs: list[str] = []  # what the agent raised and should not
        self.drained = False  # out of the router
        self.unreadable: set[str] = set()
        self.behaviour: dict[str, str] = {}
        self.procs: list[Process] = []
        self.effects = 0
        self.layout = Layout(SERVICE, self.root)
        self.archive = os.path.join(self.layout.agents, "a" * 16, "ddtree-agent.pyz")
        os.makedirs(os.path.dirname(self.archive), exist_ok=True)
        with open(self.archive, "w"):
            pass
        self._leave = world_process.enter(self)
        self._patched = world_watch.enter(self)
        self.systemd = Systemd(self.layout, self._agent, self.run, lambda: self.now)
        self._serial = 0
        self.reached: set[tuple[str, str]] = set()  # transaction, state

    def close(self) -> None:
        """Kill what is left and take the host away. A second call does nothing."""
        if self._closed:
            return
        self._closed = True
        for proc in list(self.procs):
            proc.kill()
        self._leave()
        for target, name, value in self._patched:
            setattr(target, name, value)
        if self._ours:
            shutil.rmtree(self.root, ignore_errors=True)

    # The disk.

    def sync(self) -> None:
        """sync(2), for the host's own filesystem alone."""
        fd = os.open(self.root, os.O_RDONLY)
        try:
            ctypes.CDLL(None).syncfs(fd)
        finally:
            os.close(fd)

    def disk_allows(self, path: str, grows: bool, looks: bool) -> None:
        """Raise what the disk answers to an effect on `path`."""
        if any(path.startswith(bad) for bad in self.unreadable):
            raise OSError(5, os.strerror(5), path)
        if looks:
            return
        if self.read_only(path):
            raise world_process.no_write(path)
        if grows and self.disk == "full" and self._on_disk(path):
            if self.reserve <= 0:
                raise world_process.no_space(path)
            self.reserve -= 1

    def read_only(self, path: str) -> bool:
        return self.disk == "read-only" and self._on_disk(path)

    def _on_disk(self, path: str) -> bool:
        return path.startswith(self.root) and not path.startswith(self.root + "/run")

    def freed(self, path: str) -> None:
        """A file was unlinked. Only the reserve is worth speaking of."""
        if os.path.basename(path) == "reserve":
            self.reserve = _RESERVE

    def set_disk(self, state: str) -> None:
        self.disk, self.reserve = state, 0
        self.disk_failed |= state != "ok"

    # Processes and time.

    def spawn(self, name: str, call: Callable[[], Any], env: dict[str, str] | None = None) -> Process:
        proc = Process(self, name, call, env or {})
        self.procs.append(proc)
        return proc

    def _agent(self, unit: str, command: list[str], env: dict[str, str]) -> Process:
        txn, op = command[command.index("--txn") + 1], command[-1]
        calls: dict[str, Callable[[], None]] = {
            "run": lambda: rollout.run(self.layout, txn, self.archive),
            "guard": lambda: rollout.close(self.layout, txn, self.archive),
            "stopped": lambda: rollout.stopped(self.layout),
        }
        return self.spawn(unit, calls[op], env)

    def ended(self, proc: Process) -> None:
        """Called by a process when its last line has run."""
        self.procs.remove(proc)
        self.effects += proc.count
        broken = isinstance(proc.error, OSError) and (self.disk_failed or self.unreadable)
        if proc.error is not None and not proc.refused and not broken:
            self.bugs.append(f"{proc}: {proc.error!r}")
        self.systemd.ended(proc)

    def run(self, proc: Process, effects: int = 1_000_000) -> None:
        """Let one process make some effects, as far as it comes by itself."""
        until = proc.count + effects
        while proc.runnable and proc.count < until:
            proc.resume(until - proc.count)
            if proc.blocked:
                return

    def run_all(self) -> None:
        """Let every process go on, in turn, until all sleep, wait for a lock or are gone."""
        moved = True
        while moved:
            moved = False
            for proc in list(self.procs):
                before = proc.count
                self.run(proc, 50)
                moved |= proc.done or (proc.count > before and not proc.blocked)

    def tick(self, seconds: float) -> None:
        """Time passes; who is due wakes, who beats beats, timers fire. Nobody runs yet."""
        self.now += seconds
        for proc in self.procs:
            if proc.beats and not proc.frozen:
                proc.beats()
        self.systemd.fire()

    def pass_time(self, seconds: float) -> None:
        """Time passes and everybody does what he does."""
        until = self.now + seconds
        while True:
            self.run_all()
            due = [p.wake for p in self.procs if p.wake is not None and not p.frozen]
            due += [t.due for t in self.systemd.timers.values() if t.due is not None]
            if not due or min(due) > until:
                break
            self.tick(max(min(due) - self.now, 0.0))
        self.tick(max(until - self.now, 0.0))
        self.run_all()

    def crash(self) -> None:
        """The host loses power and boots: /run and everything that ran is gone, what is on disk is there."""
        procs, self.systemd.units, self.systemd.stopping = list(self.procs), {}, True
        for proc in procs:
            proc.kill()
        self.boots += 1
        self.now += 30
        self.systemd.boot()

    def go_down(self, soft: bool, effects: int) -> None:
        """An orderly reboot: who runs sees it for some effects and is ended. A soft one keeps /run and the kernel."""
        self.systemd.go_down()
        for proc in list(self.procs):
            self.run(proc, effects)
        for proc in list(self.procs):
            proc.kill()
        self.now += 30
        self.boots += not soft
        self.systemd.boot(keep_run=soft)

    # What operators do: each a process of its own, as over a line.

    def op(self, name: str, call: Callable[[], Any]) -> Process:
        return self.spawn(name, call)

    def next_id(self) -> str:
        self._serial += 1
        return f"{self._serial:08x}-aa"

    def deploy(self, release: str, who: str = "a@ops") -> Process:
        """Push and begin, as the controller does; the plan was made now."""
        start = decided.confirmed(self.layout)["release"]
        request = {
            "kind": "deploy",
            "txn": self.next_id(),
            "nonce": f"nonce-{self._serial}",
            "who": who,
            "release": release,
            "from": start,
            "mode": "shadow",
            "port": 30000,
            "log": "journal",
            "limits": {},
            "expect": {},
            "timeouts": TIMEOUTS,
            "gate": True,
            "drain": {"command": ["drain"], "undo": ["undrain"], "limit": 5},
        }

        def call() -> str:
            with layout.locked(self.layout, f"push by {who}"):
                rollout.settle(self.layout)
                store.sweep(self.layout)
                effect("rename to", self.layout.release(release), grows=True)
                self.add_release(release)
            return rollout.begin(self.layout, request, self.archive).id

        return self.op(f"deploy {release} by {who}", call)

    def confirm(self, txn: str, right: bool = True) -> Process:
        def call() -> dict[str, Any]:
            rollout.note_reboot(self.layout)
            here = journal.Txn(self.layout, txn)
            return outcome.confirm(here, here.intent["nonce"] if right else "wrong")

        return self.op(f"confirm {txn}" + ("" if right else " with a wrong nonce"), call)

    def abort(self) -> Process:
        def call() -> None:
            rollout.note_reboot(self.layout)
            running = journal.open_txn(self.layout)
            if running is not None:
                running.ask_abort("b@ops")

        return self.op("abort", call)

    def rollback(self, to: str | None = None) -> Process:
        request = {"who": "b@ops", "txn": self.next_id(), "timeouts": TIMEOUTS, **({"to": to} if to else {})}
        return self.op(f"rollback {to or ''}", lambda: undo.rollback(self.layout, request, self.archive))

    def note(self) -> Process:
        def call() -> dict[str, Any]:
            rollout.note_reboot(self.layout)
            return status.status(self.layout)

        return self.op("status", call)

    def add_release(self, digest: str) -> None:
        """A sealed release with two files in it."""
        here = self.layout.release(digest)
        if os.path.isdir(here):
            return
        overlay = os.path.join(here, "overlay/sglang")
        os.makedirs(overlay)
        for name in ("a.py", "b.py"):
            with open(os.path.join(overlay, name), "w") as file:
                file.write(f"{name} {digest}\n")
        sha = {n: hashlib.sha256(f"{n} {digest}\n".encode()).hexdigest() for n in ("a.py", "b.py")}
        dropin = "[Service]\nExecStart=\nExecStart=serve @RELEASE@\nEnvironment=DDTREE_RELEASE=@RELEASE@\n"
        manifest = {
            "release": digest,
            "source_digest": f"s-{digest}",
            "mode": "shadow",
            "engine": {"name": "sglang"},
            "base": {"files": {"a.py": sha["a.py"]}},
            "overlay": {"b.py": {"sha256": sha["b.py"]}},
            "links": [],
            "exec_argv": ["serve", digest],
            "dropin": dropin,
        }
        with open(os.path.join(here, "dropin.conf"), "w") as file:
            file.write(store.dropin_text(manifest))
        with open(os.path.join(here, "manifest.json"), "w") as file:
            json.dump(manifest, file)
        with open(os.path.join(here, store._BYTECODE), "w"):
            pass  # nothing was compiled
        with open(os.path.join(here, store._SEAL), "w") as file:
            file.writelines(f"{store.file_digest(os.path.join(here, name))}\n" for name in store._SEALED)

    # What is true.

    def command(self, argv: list[str], given: bytes | None) -> tuple[int, str, str]:
        if argv[0].endswith("/nft"):
            return self.systemd.nft(argv[1:], (given or b"").decode())
        if argv[-1] in ("drain", "undrain"):
            self.drained = argv[-1] == "drain"
            return 0, "", ""
        return (0, "", "") if "compileall" in argv else self.systemd.run(argv)

    def transactions(self) -> Iterator[journal.Txn]:
        for name in journal.transactions(self.layout):
            yield journal.Txn(self.layout, name)

    def open_txn(self) -> journal.Txn | None:
        return next((txn for txn in self.transactions() if is_open(txn.state)), None)

    def until(self, state: str, limit_s: float = 400.0) -> journal.Txn | None:
        """Run until the open transaction is in `state`."""
        end = self.now + limit_s
        while self.now < end:
            txn = self.open_txn()
            if txn is not None and txn.state == state:
                return txn
            if not self._one():
                self.pass_time(1.0)
        return None

    def _one(self) -> bool:
        moved = False
        for proc in list(self.procs):
            moved |= proc.runnable and not proc.blocked
            self.run(proc, 40)
        return moved


__all__ = ["DIES", "FAIL", "HANG", "PASS", "SERVICE", "World"]
