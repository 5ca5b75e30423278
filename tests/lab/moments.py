"""Stops a lab host at an exact moment of a rollout: fanotify(7) holds the process whose next open(2) shows it.

Nothing of the product takes part: it opens its files as ever, and is not let go on before the host is frozen.
"""

from __future__ import annotations

import ctypes
import json
import os
import queue
import select
import struct
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from ddtree_lab import cgroup
from ddtree_lab.client import LabHost
from rig import UNIT

STATE = f"/var/lib/ddtree/{UNIT}"
TXNS = f"{STATE}/txn"
RELEASES, STAGING = "/opt/ddtree/releases", "/opt/ddtree/staging"
TRIAL_DIR, KEPT_DIR = f"/run/systemd/system/{UNIT}.d", f"/etc/systemd/system/{UNIT}.d"
TRIAL, KEPT = f"{TRIAL_DIR}/60-ddtree-trial.conf", f"{KEPT_DIR}/50-ddtree.conf"
FOLDERS = (STATE, TXNS, RELEASES, TRIAL_DIR, KEPT_DIR)
#: Programs whose every start is looked at: each step of the agent on the unit is one of systemctl, each call a python,
#: the drain commands of the matrix (`matrix.DRAIN`) a touch and an rm.
PROGRAMS = ("/usr/bin/systemctl", "/usr/bin/python3", "/usr/bin/touch", "/usr/bin/rm")

# fanotify(7), linux/fanotify.h
_CLASS_CONTENT, _CLOEXEC, _MARK_ADD = 0x4, 0x1, 0x1
_OPEN_PERM, _OPEN_EXEC_PERM, _CHILDREN, _ONDIR = 0x10000, 0x40000, 0x08000000, 0x40000000
_EVENT, _ANSWER, _ALLOW = struct.Struct("=IBBHQii"), struct.Struct("=iI"), 1
_libc = ctypes.CDLL(None, use_errno=True)


def processes(host: LabHost) -> Iterator[int]:
    """Every process of a host, as this machine numbers them."""
    for top in cgroup.parents():
        for procs in (top / host.lab.state.tag / host.name).rglob("cgroup.procs"):
            yield from map(int, procs.read_text().split())


def command(pid: int) -> list[str]:
    """A process's words; [] where it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode("utf-8", "replace").split("\0")[:-1]
    except OSError:
        return []


def init(host: LabHost) -> int:
    """The host's process 1, as this machine numbers it."""
    found = [pid for pid in set(processes(host)) if len(own := numbers(pid)) > 1 and own[-1] == "1"]
    assert found, f"{host.name} has no process 1"
    return found[0]


def numbers(pid: int) -> list[str]:
    """A process's pid in each namespace from ours inwards (NSpid: of proc(5)); [] where it is gone."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return []
    return next(line for line in status.splitlines() if line.startswith("NSpid:")).split()[1:]


@dataclass
class Sight:
    """A host's files and processes as seen from outside, a frozen one's too. `before`: transactions that it had;
    `program`: name of the program that is about to run, "" where that is not the event; `started`: words of the
    process that becomes it."""

    host: LabHost
    root: Path = field(init=False)
    before: set[str] = field(init=False)
    releases: set[str] = field(init=False)
    program: str = ""
    started: list[str] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.root = Path(f"/proc/{init(self.host)}/root")
        self.before, self.releases = self.names(TXNS), self.names(RELEASES)

    def path(self, inside: str) -> Path:
        return self.root / inside.lstrip("/")

    def names(self, folder: str) -> set[str]:
        try:
            return {name for name in os.listdir(self.path(folder)) if not name.startswith(".")}
        except OSError:
            return set()

    def halves(self, folder: str) -> list[str]:
        """Files that are written and not renamed yet."""
        try:
            return [name for name in os.listdir(self.path(folder)) if name.startswith(".ddtree-")]
        except OSError:
            return []

    def text(self, inside: str) -> str:
        try:
            return self.path(inside).read_text(errors="replace")
        except OSError:
            return ""

    @property
    def txn(self) -> str | None:
        """The transaction that began since."""
        return max(self.names(TXNS) - self.before, default=None)

    @property
    def state(self) -> str | None:
        """The new transaction's state."""
        if self.txn is None:
            return None
        try:
            return str(json.loads(self.text(f"{TXNS}/{self.txn}/state"))["state"])
        except (ValueError, KeyError):
            return None

    @property
    def trial(self) -> bool:
        return self.path(TRIAL).exists()

    @property
    def kept(self) -> bool:
        """Whether the drop-in in /etc names the new transaction's release."""
        intent = self.text(f"{TXNS}/{self.txn}/intent.json")
        return bool(intent) and f"DDTREE_RELEASE={json.loads(intent)['release']}" in self.text(KEPT)

    @property
    def service(self) -> bool:
        """Whether the unit has a process."""
        tops = (top / self.host.lab.state.tag / self.host.name for top in cgroup.parents())
        return any(
            procs.read_text().strip()
            for top in tops
            for folder in top.rglob(UNIT)
            for procs in folder.rglob("cgroup.procs")
        )

    def agents(self, verb: str) -> list[int]:
        """Processes of the agent that carry `verb` out: `run`, `guard`, or the verb of an operator's call."""
        return [
            pid
            for pid in set(processes(self.host))
            if (words := command(pid))
            and words[-1] == verb
            and Path(words[0]).name.startswith("python")
            and any("ddtree" in word for word in words)
        ]

    def count(self, what: str) -> int:
        """How often this was asked for `what`, this time included."""
        self.counts[what] = self.counts.get(what, 0) + 1
        return self.counts[what]


@dataclass(frozen=True)
class Moment:
    """`so` is asked at each open of a file of ours, with `programs` at each start of one, with `poll` all the time."""

    says: str
    so: Callable[[Sight], bool]
    programs: bool = False
    poll: bool = False


class Trap:
    """Freezes the host at the moment: make it, start the operator, `wait`. A context manager."""

    def __init__(self, host: LabHost, moment: Moment) -> None:
        self.host, self.moment = host, moment
        host.check(["mkdir", "-p", *FOLDERS])
        self.sight = Sight(host)
        self.caught = threading.Event()
        self._overs = [threading.Event(), threading.Event()]
        self._marked: set[str] = set()
        self._events: queue.SimpleQueue[tuple[int, int, bool]] = queue.SimpleQueue()
        self._fd = -1
        self._threads = [threading.Thread(target=do, daemon=True) for do in (self._read, self._judge)]

    def __enter__(self) -> Trap:
        if self.moment.poll:
            self._threads = [threading.Thread(target=self._poll, daemon=True)]
            self._overs = self._overs[:1]
        else:
            self._fd = _libc.fanotify_init(_CLASS_CONTENT | _CLOEXEC, os.O_RDONLY | os.O_CLOEXEC)
            assert self._fd >= 0, os.strerror(ctypes.get_errno())
            for folder in FOLDERS:
                self._mark(folder, _OPEN_PERM | _CHILDREN | _ONDIR)
            for program in PROGRAMS if self.moment.programs else ():
                self._mark(self.host.check(["readlink", "-f", program]).strip(), _OPEN_EXEC_PERM)
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        # The reader last: it lets the judge's own opens through.
        for over, thread in zip(reversed(self._overs), reversed(self._threads), strict=True):
            over.set()
            thread.join()
        if self._fd >= 0:
            os.close(self._fd)  # whoever still waits may go on

    def wait(self, limit_s: float = 90) -> None:
        """Return with the host frozen at the moment."""
        assert self.caught.wait(limit_s), f"never came to pass: {self.moment.says} ({self.sight.state})"

    def _mark(self, inside: str, mask: int) -> None:
        if inside in self._marked:
            return
        path = os.fsencode(self.sight.path(inside))
        failed = _libc.fanotify_mark(self._fd, _MARK_ADD, ctypes.c_uint64(mask), -100, path)
        assert not failed, f"{inside}: {os.strerror(ctypes.get_errno())}"
        self._marked.add(inside)

    def _read(self) -> None:
        """Our own look at a file must not wait for ourselves: the rest is for the other thread."""
        poll = select.poll()
        poll.register(self._fd, select.POLLIN)
        while not self._overs[0].is_set():
            if not poll.poll(50):
                continue
            data = os.read(self._fd, 1 << 16)
            while data:
                length, _, _, _, mask, fd, pid = _EVENT.unpack_from(data)
                data = data[length:]
                if pid == os.getpid():
                    self._allow(fd)
                else:
                    self._events.put((fd, pid, bool(mask & _OPEN_EXEC_PERM)))

    def _judge(self) -> None:
        while not self._overs[1].is_set():
            try:
                fd, pid, starts = self._events.get(timeout=0.05)
            except queue.Empty:
                continue
            for name in self.sight.names(TXNS):
                self._mark(f"{TXNS}/{name}", _OPEN_PERM | _CHILDREN | _ONDIR)
            self.sight.program = Path(os.readlink(f"/proc/self/fd/{fd}")).name if starts else ""
            self.sight.started = command(pid) if starts else []
            self._look()
            self._allow(fd)

    def _poll(self) -> None:
        while not self._overs[0].wait(0.001) and not self.caught.is_set():
            self._look()

    def _look(self) -> None:
        if not self.caught.is_set() and self.moment.so(self.sight):
            self.host.fault("freeze")
            self.caught.set()

    def _allow(self, fd: int) -> None:
        os.write(self._fd, _ANSWER.pack(fd, _ALLOW))
        os.close(fd)


def _state(name: str) -> Moment:
    return Moment(f"state {name} is on disk", lambda s: s.state == name)


def _call(verb: str) -> Moment:
    def so(s: Sight) -> bool:
        return bool(s.started) and s.started[-1].split()[-1:] == [verb]

    return Moment(f"the operator's call of {verb} begins on the host", so, programs=True)


def _sent(percent: int) -> Moment:
    def so(s: Sight) -> bool:
        bulk = s.path(STAGING).glob("*/overlay/sglang/srt/bulk")
        return any(len(os.listdir(folder)) >= percent * BULK_FILES // 100 for folder in bulk)

    return Moment(f"{percent} % of the bundle are on the host", so, poll=True)


def _back(step: str, so: Callable[[Sight], bool]) -> Moment:
    return Moment(step, lambda s: s.state == "ROLLING_BACK" and so(s), programs=True)


def _systemctl(s: Sight) -> bool:
    return s.program == "systemctl" and not s.trial


def _stopped(s: Sight) -> bool:
    if s.trial or s.service:
        return False
    return s.count("stopped") > 0


def _started(s: Sight) -> bool:
    if not s.trial and not s.service:
        s.count("gone")
    return not s.trial and s.service and "gone" in s.counts


#: Files of the bundle that `_sent` counts.
BULK_FILES = 100
#: The fault points of anchors.md 3.2, and the writes of a confirm one by one.
MOMENTS: dict[str, Moment] = {
    "P0 facts": _call("probe"),
    "P1 preflight": _call("history"),
    "P2 upload 25 %": _sent(25),
    "P2 upload 50 %": _sent(50),
    "P2 upload 99 %": _sent(99),
    "P3 verify": Moment(
        "the staged release is whole, not yet renamed",
        lambda s: any(s.path(STAGING).glob("*/dropin.conf")),
        poll=True,
    ),
    "P3 renamed": Moment("the release is in releases/", lambda s: bool(s.names(RELEASES) - s.releases)),
    "P3 begin": _call("begin"),
    "P4 armed": _state("ARMED"),
    "P4 written ahead": Moment(
        "the trial lies ready, nothing is stopped", lambda s: s.state == "ARMED" and bool(s.halves(TRIAL_DIR))
    ),
    "P5 draining": Moment(
        "the drain command begins", lambda s: s.state == "ARMED" and s.program == "touch", programs=True
    ),
    "P5 drained": _state("DRAINED"),
    "P6 stopped": _state("STOPPED"),
    "P7 trial in place": Moment(
        "the trial is in place, not yet loaded", lambda s: s.trial and s.state == "STOPPED"
    ),
    "P8 switched": _state("SWITCHED"),
    "P9 starting": _state("STARTING"),
    "P10 ready": _state("READY"),
    "P10 gated": _state("GATED"),
    "P11 confirm arrives": _call("confirm"),
    "P11 confirming": _state("CONFIRMING"),
    "P11 kept": Moment("the drop-in in /etc is the new one", lambda s: s.state == "CONFIRMING" and s.kept),
    "P11 recorded": Moment(
        "`confirmed` names the new release",
        lambda s: s.state == "CONFIRMING" and str(s.txn) in s.text(f"{STATE}/confirmed"),
    ),
    "P11 trial dropped": Moment(
        "the trial is gone, the history has no line yet",
        lambda s: s.state == "CONFIRMING" and s.kept and not s.trial,
    ),
    "P11 confirmed": _state("CONFIRMED"),
    "P13 undraining": Moment(
        "confirmed, the undrain command begins",
        lambda s: s.kept and not s.trial and s.program == "rm",
        programs=True,
    ),
    "P14 collecting": Moment(
        "gc has taken a release out of the store",
        lambda s: any(n.startswith("gc-") for n in s.names(STAGING)),
    ),
    "P12 confirm at the deadline": Moment(
        "the confirm looks at the unit a last time", lambda s: s.started[-1:] == ["confirm"], programs=True
    ),
    "R1 rolling back": _state("ROLLING_BACK"),
    "R2 trial dropped": _back("the trial is gone, systemd does not know", lambda s: not s.trial),
    "R3 reloaded": _back("systemd has read its files", lambda s: _systemctl(s) and s.count("systemctl") == 2),
    "R4 stopped": _back("the trial's process is gone", _stopped),
    "R5 started": _back("the old service starts", _started),
}


def thaw(host: LabHost) -> None:
    """Let a frozen host go on."""
    host.fault("thaw")


def until(so: Callable[[], bool], limit_s: float) -> bool:
    """Wait for `so`; False where it did not come within `limit_s`."""
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        if so():
            return True
        time.sleep(0.05)
    return False
