"""The campaign's faults, each from its blow to the end that mends it, and a client that polls meanwhile."""

from __future__ import annotations

import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

from ddtree_lab import netns
from ddtree_lab.client import LabHost
from ddtree_lab.problem import LabProblem
from rig import Rig

Operator = subprocess.Popen[str]
RUNNER = ["ddtree-txn-*.service"]
AGENTS = [*RUNNER, "ddtree-guard-*.service"]
BUSY = "systemctl list-units 'ddtree-*' --state=active,activating,deactivating --plain --no-legend"
OUTCOME_LIMIT_S = 120
#: A cut that hits no rollout lasts this long: longer than a client's first retransmissions.
SHORT_CUT_S = 4.0


class Blows:
    """Faults on one host during one run; `others` are the commands that it started beside the first operator."""

    def __init__(self, rig: Rig, operator: Operator) -> None:
        self.rig, self.host, self.operator = rig, rig.host, operator
        self.others: list[Operator] = []
        self.errors: list[str] = []
        self._table: dict[str, Callable[[], None]] = {
            "host-crash": self._crash,
            "kill-runner": lambda: self._kill(RUNNER),
            "kill-agents": lambda: self._kill(AGENTS),
            "kill-operator": lambda: _send(self.operator, signal.SIGKILL),
            "interrupt": lambda: _send(self.operator, signal.SIGINT),
            "cut-link": self._cut,
            "cut-for-good": self._cut_for_good,
            "reset": lambda: self._fault("kill-sshd"),
            "second-operator": self._second,
            "reboot": self._reboot,
        }

    def strike(self, name: str) -> None:
        """Inject the fault and, where somebody must mend it, mend it. A host that is down already takes no other."""
        try:
            self._table[name]()
        except Exception as error:  # in a thread of its own nobody would hear of it
            if not isinstance(error, LabProblem) or self._is_up():
                self.errors.append(f"the tester's own: {name}: {type(error).__name__}: {error}")

    def _is_up(self) -> bool:
        try:
            return self.host.alive and bool(self.host.boot_id())
        except LabProblem:
            return True  # no lab any more

    def _fault(self, name: str) -> None:
        self.host.fault(name)

    def _crash(self) -> None:
        self._fault("crash")
        self._fault("start")

    def _reboot(self) -> None:
        before = self.host.boot_id()
        self._fault("reboot")
        self.host.wait_boot(before)

    def _kill(self, units: list[str]) -> None:
        self.host.exec(["systemctl", "kill", "--kill-who=all", "--signal=KILL", *units])

    def _cut(self) -> None:
        """Nobody reaches the host until it has decided by itself."""
        self._fault("link-down")
        try:
            time.sleep(SHORT_CUT_S)
            self._until(lambda: not self.host.exec(BUSY)[1].strip())
        finally:
            self._fault("link-up")

    def _cut_for_good(self) -> None:
        """Nobody reaches the host until the operator has given up."""
        self._fault("link-down")
        try:
            self._until(lambda: self.operator.poll() is not None)
        finally:
            self._fault("link-up")

    def _second(self) -> None:
        self.others.append(self.rig.start("deploy", "--json"))

    @staticmethod
    def _until(so: Callable[[], bool]) -> None:
        until = time.monotonic() + OUTCOME_LIMIT_S
        while not so() and time.monotonic() < until:
            time.sleep(0.3)


def _send(operator: Operator, number: signal.Signals) -> None:
    """Send a signal to a command line unless it has ended."""
    if operator.poll() is None:
        operator.send_signal(number)


class Client(threading.Thread):
    """Polls /health on the host's own loopback, which a cut cable does not touch, and keeps when nobody answered."""

    def __init__(self, host: LabHost, port: int = 30000) -> None:
        super().__init__(daemon=True)
        self.host, self.port = host, port
        self.down: list[float] = []
        self._place = str(Path(host.lab.controller_netns).with_name(host.name))
        self._ended = threading.Event()

    def run(self) -> None:
        while not self._ended.wait(0.25):
            if not self._answers():
                self.down.append(time.time())

    def end(self) -> None:
        self._ended.set()
        self.join()

    def recovery_s(self, since: float) -> float:
        """Seconds from `since` to the last moment without an answer; 0 where there was none."""
        return round(max([0.0, *(t - since for t in self.down)]), 2)

    def _answers(self) -> bool:
        try:
            with netns.tcp_socket(self._place) as line:
                line.settimeout(5)
                line.connect(("127.0.0.1", self.port))
                line.sendall(b"GET /health HTTP/1.0\r\n\r\n")
                return b" 200 " in line.recv(64)
        except OSError:
            return False
