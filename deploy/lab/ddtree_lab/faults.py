"""The faults that `lab fault HOST FAULT [ARGS]` injects, each with the one that mends it."""

from __future__ import annotations

import difflib
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from .host import Host
from .problem import LabProblem

GUEST_LIMIT_S = 60

# What systemctl(1) reboot asks for, but of systemd itself: right after boot logind may not be there to be asked.
REBOOT = "systemctl --no-block --job-mode=replace-irreversibly start reboot.target"
# $1 directory, $2 KiB to leave free. What lies below moves with its mounts; what is written meanwhile is kept.
FILL = """
set -eu
mkdir -p "$1" /run/lab-full
mountpoint -q /run/lab-full && { echo 'a disk is full already'; exit 1; }
mount -t tmpfs tmpfs /run/lab-full
cp -ax "$1/." /run/lab-full/
awk -v top="${1%/}/" 'index($5, top) == 1 {print $5}' /proc/self/mountinfo | while read -r below; do
  mount --bind "$below" "/run/lab-full/${below#"${1%/}/"}"
done
used=$(df -k --output=used /run/lab-full | tail -n 1)
mount -o "remount,size=$((used + $2 > 4 ? used + $2 : 4))k" /run/lab-full
mount --rbind /run/lab-full "$1"
"""
UNFILL = """
set -eu
mountpoint -q /run/lab-full || { echo 'no disk is full'; exit 1; }
mkdir -p /run/lab-under
mount --bind "$(dirname "$1")" /run/lab-under
rsync -aHx --delete /run/lab-full/ "/run/lab-under/$(basename "$1")/"
umount /run/lab-under
umount -l "$1"
umount -l /run/lab-full
"""
# Private first: else lifting the fault would also lift what is mounted below, through mount propagation.
READ_ONLY = 'set -eu; mkdir -p "$1"; mount --rbind "$1" "$1"; mount --make-rprivate "$1"; mount -o remount,bind,ro "$1"'
WRITABLE = 'umount -l "$1"'
GONE = 'mv "$1" "$(dirname "$1")/.lab-gone-$(basename "$1")"'
BACK = 'mv "$(dirname "$1")/.lab-gone-$(basename "$1")" "$1"'


@dataclass(frozen=True)
class Fault:
    """args: what follows the name on a command line, [optional] ones last. run says what holds now, or ""."""

    args: str
    does: str
    run: Callable[[Host, list[str]], str]


def inject(host: Host, name: str, args: list[str]) -> str:
    """Inject a fault; returns one line that says what holds now. Raises LabProblem for a wrong name or argument."""
    fault = FAULTS.get(name)
    if fault is None:
        near = difflib.get_close_matches(name, FAULTS, 1)
        hint = f"did you mean {near[0]}?" if near else f"choose {', '.join(FAULTS)}"
        raise LabProblem(f"no fault {name!r}: {hint}", usage=True)
    words = fault.args.split()
    least = len([word for word in words if not word.startswith("[")])
    if not least <= len(args) <= len(words):
        usage = " ".join(["ddtree-ops lab fault", host.name, name, *words])
        raise LabProblem(f"{name} takes {fault.args or 'no arguments'}", usage=True, next=usage)
    return fault.run(host, args) or f"{host.name}: {fault.does}"


def _guest(script: str, *defaults: str) -> Callable[[Host, list[str]], str]:
    """A fault that is a shell script in the guest, with `defaults` for the arguments that were left out."""

    def run(host: Host, args: list[str]) -> str:
        given = [*args, *defaults[len(args) :]]
        status, said = host.execute(["sh", "-c", script, "sh", *given], GUEST_LIMIT_S)
        if status:
            raise LabProblem(f"{host.name}: {(said.strip().splitlines() or [f'exit {status}'])[-1]}")
        return ""

    return run


def _copied(script: str, *defaults: str) -> Callable[[Host, list[str]], str]:
    """`_guest` for a script that copies files of the host: nobody writes there meanwhile, as on a disk of its own."""
    inject = _guest(script, *defaults)

    def run(host: Host, args: list[str]) -> str:
        with host.cgroups.still():
            return inject(host, args)

    return run


def _quietly(act: Callable[[Host], None]) -> Callable[[Host, list[str]], str]:
    """A fault without arguments that has nothing more to say than `does`."""

    def run(host: Host, _: list[str]) -> str:
        act(host)
        return ""

    return run


def _number(text: str, what: str, least: float, most: float) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1
    if not least <= value <= most:
        raise LabProblem(f"{what} is {text!r}, and must be a number from {least:g} to {most:g}", usage=True)
    return value


def _start(host: Host, _: list[str]) -> str:
    return f"{host.name}: SSH answers after {host.start()} s"


def _cpu(host: Host, args: list[str]) -> str:
    percent = _number(args[0], "PCT", 0, 10_000)
    host.cgroups.limit_cpu(percent)
    return f"{host.name}: {percent:g} % of one core" if percent else f"{host.name}: no CPU limit"


def _wan(host: Host, args: list[str]) -> str:
    rtt = _number(args[0], "RTT_MS", 0, 10_000)
    loss = _number(args[1], "LOSS", 0, 99) if len(args) > 1 else 0
    host.port.wan(rtt, loss)
    return f"{host.name}: {rtt:g} ms round trip, {loss:g} % of frames lost each way"


def _kill_sshd(host: Host, _: list[str]) -> str:
    """SIGKILL the sshd of every session, not the listener: the client sees a reset in the middle of a transfer."""
    inside = os.readlink(f"/proc/{host.leader}/ns/pid")
    killed = 0
    for process in Path("/proc").glob("[0-9]*"):
        try:
            line = (process / "cmdline").read_bytes()
            ours = os.readlink(process / "ns" / "pid") == inside
        except OSError:
            continue
        if ours and line.startswith(b"sshd: ") and b"@" in line:
            os.kill(int(process.name), signal.SIGKILL)
            killed += 1
    return f"{host.name}: killed {killed} session sshd"


FAULTS = {
    "crash": Fault("", "crashed; it stays down until `start`", _quietly(lambda h: h.crash())),
    "start": Fault("", "boots", _start),
    "reboot": Fault("", "reboots", _guest(REBOOT)),
    "link-down": Fault("", "is cut off", _quietly(lambda h: h.port.cable(False))),
    "link-up": Fault("", "is connected", _quietly(lambda h: h.port.cable(True))),
    "wan": Fault("RTT_MS [LOSS]", "is far away", _wan),
    "freeze": Fault("", "hangs", _quietly(lambda h: h.cgroups.freeze(True))),
    "thaw": Fault("", "goes on", _quietly(lambda h: h.cgroups.freeze(False))),
    "cpu": Fault("PCT", "is slow", _cpu),
    "disk-full": Fault("[DIR] [FREE_KIB]", "has a full disk", _copied(FILL, "/opt", "0")),
    "disk-restore": Fault("[DIR]", "has room on its disk again", _copied(UNFILL, "/opt")),
    "read-only": Fault("[DIR]", "has a read-only disk", _guest(READ_ONLY, "/opt")),
    "read-only-restore": Fault("[DIR]", "can write again", _guest(WRITABLE, "/opt")),
    "kill-sshd": Fault("", "lost its sessions", _kill_sshd),
    "sshd-stop": Fault("", "takes no connections", _guest("systemctl stop ssh.socket ssh.service 2>&1")),
    "sshd-start": Fault("", "takes connections", _guest("systemctl start ssh.service 2>&1")),
    "device-gone": Fault("PATH", "lost a device", _guest(GONE)),
    "device-back": Fault("PATH", "has its device again", _guest(BACK)),
}
