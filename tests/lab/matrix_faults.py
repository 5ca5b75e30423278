"""The faults of the matrix: each strikes a host that is frozen at a moment, lets it go on, and mends what it broke."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from ddtree_lab.client import LabHost
from moments import Sight, init, numbers, processes, thaw, until
from rig import Rig, Run

#: A fault that the host must sit out is mended when the host has decided, or after this long.
DECIDED_S = 90.0
#: Where no record can be written the host has decided as well as it can: the guard writes it down afterwards.
READ_ONLY_S = 15.0
DEVICE = "/dev/nvidia0"
OURS, STATE, ETC = "/opt/ddtree", "/var/lib/ddtree", "/etc"


@dataclass
class Live:
    """A rollout whose host is frozen. `others`: command lines of further operators, ended."""

    rig: Rig
    operator: subprocess.Popen[str]
    sight: Sight
    confirm_s: float
    others: list[Run] = field(default_factory=list)

    @property
    def host(self) -> LabHost:
        return self.rig.host

    def decided(self) -> bool:
        """The host has ended the rollout, or the operator his command."""
        return self.sight.state in ("CONFIRMED", "ROLLED_BACK") or self.operator.poll() is not None

    def agents(self) -> list[int]:
        """The process that carries the rollout at this moment: its runner, else the operator's call."""
        verbs = ("run",), ("begin", "push", "gc"), ("confirm",), ("history", "snapshot", "probe")
        found = ([pid for verb in group for pid in self.sight.agents(verb)] for group in verbs)
        return next((pids for pids in found if pids), [])


def _nothing(live: Live) -> None:
    thaw(live.host)


def _interrupt(live: Live) -> None:
    live.operator.send_signal(signal.SIGINT)
    thaw(live.host)


def _interrupt_twice(live: Live) -> None:
    live.operator.send_signal(signal.SIGINT)
    time.sleep(0.5)
    live.operator.send_signal(signal.SIGINT)
    thaw(live.host)


def _kill_operator(live: Live) -> None:
    Rig.kill(live.operator)
    thaw(live.host)


def _reset(live: Live) -> None:
    live.host.fault("kill-sshd")
    thaw(live.host)


def _cut(live: Live, seconds: float) -> None:
    live.host.fault("link-down")
    thaw(live.host)
    try:
        until(live.decided, seconds)
    finally:
        live.host.fault("link-up")


def _kill(live: Live, pids: list[int]) -> None:
    assert pids, "no agent is at work"
    for pid in set(pids):
        os.kill(pid, signal.SIGKILL)
    thaw(live.host)


def _crash(live: Live) -> None:
    """The power goes at this very moment: a frozen host is let go on to be killed, and must do nothing meanwhile."""
    live.host.fault("link-down")
    first = init(live.host)
    depth = len(numbers(first))  # the container's own manager is outside, and goes last
    for pid in set(processes(live.host)) - {first}:
        if len(numbers(pid)) != depth:
            continue
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    live.host.fault("crash")
    live.host.fault("link-up")
    live.host.fault("start")


def _reboot(live: Live) -> None:
    before = live.host.boot_id()
    os.kill(init(live.host), signal.SIGRTMIN + 5)  # systemd(1): reboot.target
    thaw(live.host)
    live.host.wait_boot(before)


def _broken(
    fault: str, mend: str, place: str, *args: str, limit_s: float = DECIDED_S
) -> Callable[[Live], None]:
    def strike(live: Live) -> None:
        live.host.fault(fault, place, *args)
        thaw(live.host)
        try:
            until(live.decided, limit_s)
        finally:
            live.host.fault(mend, place)

    return strike


def _second(live: Live) -> None:
    """Another operator while the first one's rollout stands at this very moment."""
    pids = live.agents() + live.sight.agents("confirm")
    assert pids, "no agent is at work"
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    thaw(live.host)
    try:
        live.others.append(live.rig.cli("deploy", "--json"))
    finally:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


def _device_gone(live: Live) -> None:
    live.host.fault("device-gone", DEVICE)
    thaw(live.host)
    until(live.decided, DECIDED_S)
    live.host.fault("device-back", DEVICE)


def _sshd_stops(live: Live) -> None:
    thaw(live.host)
    live.host.fault("sshd-stop")
    try:
        until(live.decided, DECIDED_S)
    finally:
        live.host.fault("sshd-start")


def _late(live: Live) -> None:
    """The confirm deadline passes while the confirm is on its way: both go on at the same instant."""
    time.sleep(live.confirm_s + 1)
    thaw(live.host)


FAULTS: dict[str, Callable[[Live], None]] = {
    "none": _nothing,
    "SIGINT": _interrupt,
    "SIGINT twice": _interrupt_twice,
    "operator SIGKILL": _kill_operator,
    "SSH reset": _reset,
    "cut 3 s": lambda live: _cut(live, 3),
    "black hole": lambda live: _cut(live, DECIDED_S),
    "agent SIGKILL": lambda live: _kill(live, live.agents()),
    "confirm SIGKILL": lambda live: _kill(live, live.sight.agents("confirm")),
    "confirm and agent SIGKILL": lambda live: _kill(live, live.agents() + live.sight.agents("confirm")),
    "host crash": _crash,
    "reboot": _reboot,
    "ENOSPC /opt": _broken("disk-full", "disk-restore", OURS, "0"),
    "ENOSPC /var": _broken("disk-full", "disk-restore", STATE, "0"),
    "EROFS /opt": _broken("read-only", "read-only-restore", OURS),
    "EROFS /var": _broken("read-only", "read-only-restore", STATE, limit_s=READ_ONLY_S),
    "EROFS /etc": _broken("read-only", "read-only-restore", ETC),
    "2nd operator": _second,
    "device gone": _device_gone,
    "sshd stopped": _sshd_stops,
    "deadline passes": _late,
}
