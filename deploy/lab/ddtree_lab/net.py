"""The lab's network: one bridge in a namespace of its own, reachable from the controller's namespace only."""

from __future__ import annotations

import hashlib
import os
import subprocess
import tempfile
from pathlib import Path

from .problem import LabProblem
from .proc import run
from .state import SOURCES, cache_dir

SUBNET = "10.77.0."
FIRST_HOST = 10
NETNS = Path("/run/netns")
SWITCH, CONTROLLER = "sw", "ctl"


def _ip(words: str) -> None:
    run("ip", *words.split())


def namespace(name: str) -> str:
    return str(NETNS / name)


def build_switch() -> None:
    """Make the bridge and the controller's end (10.77.0.1). The controller gets no route to anywhere else."""
    NETNS.mkdir(parents=True, exist_ok=True)
    run("mount", "-t", "tmpfs", "tmpfs", NETNS)
    for name in (SWITCH, CONTROLLER):
        _ip(f"netns add {name}")
        _ip(f"-n {name} link set lo up")
    _bridge("br0")
    _ip(f"-n {SWITCH} link add c0 type veth peer name eth0 netns {CONTROLLER}")
    _ip(f"-n {SWITCH} link set c0 master br0 up")
    _ip(f"-n {CONTROLLER} addr add {SUBNET}1/24 dev eth0")
    _ip(f"-n {CONTROLLER} link set eth0 up")


def _bridge(name: str) -> None:
    _ip(f"-n {SWITCH} link add {name} type bridge forward_delay 0 stp_state 0")
    _ip(f"-n {SWITCH} link set {name} up")


class Port:
    """One host's place on the switch: namespace `host`, address `SUBNET + number`, interface host0."""

    def __init__(self, host: str, number: int) -> None:
        self.host = host
        self.number = number
        self.address = f"{SUBNET}{number}"
        self._whole = True
        self._powered = True
        self._wan: subprocess.Popen[bytes] | None = None

    def plug(self) -> None:
        veth, name = f"v{self.number}", self.host
        _ip(f"netns add {name}")
        _ip(f"-n {SWITCH} link add {veth} type veth peer name host0 netns {name}")
        # The address of a removed host is given to the next one, and nobody may remember it by another MAC.
        _ip(f"-n {name} link set host0 address 02:00:0a:4d:00:{self.number:02x}")
        _ip(f"-n {name} addr add {self.address}/24 dev host0")
        _ip(f"-n {name} link set lo up")
        _ip(f"-n {name} link set host0 up")
        _ip(f"-n {SWITCH} link set {veth} master br0 up")

    def unplug(self) -> None:
        self._direct()
        _ip(f"-n {SWITCH} link del v{self.number}")
        _ip(f"netns del {self.host}")

    def cable(self, whole: bool) -> None:
        """Cut or mend the cable: packets are lost in silence, as when a switch dies."""
        self._whole = whole
        self._set_link()

    def power(self, on: bool) -> None:
        """Whether the host has power: without, its connections fall silent, where a dying process would reset them."""
        self._powered = on
        if on:  # a kernel that boots has no packet filter; the namespace outlives the boots of its host
            _ip(f"netns exec {self.host} nft flush ruleset")
        self._set_link()

    def _set_link(self) -> None:
        _ip(f"-n {SWITCH} link set v{self.number} {'up' if self._whole and self._powered else 'down'}")

    def wan(self, rtt_ms: float, loss_percent: float) -> None:
        """Put a delay line between the host and the bridge, or take it out (both 0). Connections live on."""
        self._direct()
        if not rtt_ms and not loss_percent:
            return
        near, far, side = f"wn{self.number}", f"wf{self.number}", f"bw{self.number}"
        words = [str(wan_binary()), str(rtt_ms / 2), str(loss_percent), namespace(SWITCH), near, far]
        self._wan = subprocess.Popen(words, stdout=subprocess.PIPE)
        assert self._wan.stdout
        if not self._wan.stdout.readline():
            raise LabProblem(
                f"the delay line did not start (exit {self._wan.wait()}): is there a /dev/net/tun?"
            )
        _bridge(side)
        _ip(f"-n {SWITCH} link set {near} master br0 up")
        _ip(f"-n {SWITCH} link set {far} master {side} up")
        _ip(f"-n {SWITCH} link set v{self.number} master {side}")

    def _direct(self) -> None:
        if self._wan:
            self._wan.kill()
            self._wan.wait()
            self._wan = None
            _ip(f"-n {SWITCH} link set v{self.number} master br0")
            _ip(f"-n {SWITCH} link del bw{self.number}")


def wan_binary() -> Path:
    """Compile wan.c once for each of its versions; raises LabProblem where there is no C compiler."""
    source = SOURCES / "wan.c"
    binary = cache_dir() / ("wan-" + hashlib.sha256(source.read_bytes()).hexdigest()[:16])
    if not binary.exists():
        try:
            with tempfile.TemporaryDirectory(dir=binary.parent) as scratch:
                run("gcc", "-O2", "-o", f"{scratch}/wan", source)
                os.replace(f"{scratch}/wan", binary)
        except FileNotFoundError:
            raise LabProblem(
                "the wan fault needs a C compiler, which this machine lacks",
                next="apt-get install -y gcc libc6-dev",
            ) from None
    return binary
