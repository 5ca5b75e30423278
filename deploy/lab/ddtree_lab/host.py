"""One lab host: systemd as process 1 in a container on an overlay, with its own sshd, network and cgroups."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import threading
import time
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any

from . import engine, netns
from .cgroup import HostCgroups
from .guard import refuse_own_root
from .net import CONTROLLER, Port, namespace
from .overlay import mount_overlay, unmount_below
from .problem import LabProblem
from .proc import capture, last_line, run
from .spec import HostSpec
from .state import State

BOOT_LIMIT_S = 60
REBOOT_STATUS = 133  # systemd-nspawn --keep-unit exits so when its guest asks for a reboot


class Host:
    """A host from its first boot to its removal. Lives in the supervisor; crash and reboot keep its disk."""

    def __init__(
        self, spec: HostSpec, state: State, port: Port, image: Path, roots: set[tuple[int, int]]
    ) -> None:
        self.spec = spec
        self.name = spec.name
        self.port = port
        self.dir = state.hosts / spec.name
        self.root = self.dir / "root"
        self.host_key = ""
        self.boot_s: float | None = None
        self._state = state
        self._image = image
        self._roots = roots
        self._binds: list[str] = []
        self._cgroups: HostCgroups | None = None
        self._nspawn: subprocess.Popen[bytes] | None = None
        self._leader: int | None = None

    def prepare(self, cgroup_tops: list[Path]) -> None:
        """Make disk, identity, network, cgroups and engine; boots nothing yet."""
        shutil.rmtree(self.dir, ignore_errors=True)
        refuse_own_root(self._image, self._roots)
        mount_overlay(self._image, self.dir)
        self._identify()
        self.port.plug()
        self._cgroups = HostCgroups.create(cgroup_tops, self.name)
        self._binds = engine.install(self.spec, self.root, self.dir)

    def _identify(self) -> None:
        etc = self.root / "etc"
        (etc / "machine-id").write_text(uuid.uuid4().hex + "\n")
        (etc / "hostname").write_text(self.name + "\n")
        (etc / "hosts").write_text(f"127.0.0.1 localhost\n{self.port.address} {self.name}\n")
        key = etc / "ssh" / "ssh_host_ed25519_key"
        run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", self.name, "-f", key)
        self.host_key = " ".join(key.with_suffix(".pub").read_text().split()[:2])
        authorized = self.root / "root" / ".ssh" / "authorized_keys"
        authorized.write_bytes(self._state.key.with_suffix(".pub").read_bytes())
        authorized.chmod(0o600)

    @property
    def alive(self) -> bool:
        return self._nspawn is not None and self._nspawn.poll() is None

    @property
    def leader(self) -> int:
        """pid of the guest's systemd in the supervisor's namespace; raises LabProblem when the host is down."""
        if not self.alive or self._leader is None:
            raise LabProblem(f"{self.name} is down", next=f"ddtree-ops lab fault {self.name} start")
        return self._leader

    @property
    def cgroups(self) -> HostCgroups:
        assert self._cgroups, "prepare() comes first"
        return self._cgroups

    def start(self) -> float:
        """Boot, wait for a real SSH banner, return the seconds that took. Raises LabProblem after BOOT_LIMIT_S."""
        if self.alive:
            raise LabProblem(f"{self.name} already runs", usage=True)
        refuse_own_root(self.root, self._roots)
        if not os.path.ismount(self.root):
            raise LabProblem(f"{self.root} is not the overlay of {self.name}, and the lab boots nothing else")
        self.port.power(True)
        began = time.monotonic()
        with open(self.dir / "console.log", "ab") as console:
            self._nspawn = subprocess.Popen(
                self.cgroups.inside(self._command()),
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=subprocess.STDOUT,
                # The guest's own hierarchy is cgroup v2 as on today's hosts. In a v1 guest nobody tells systemd that a
                # unit's last process is gone: a stop can then last its whole TimeoutStopSec (seen: 90 s).
                env={**os.environ, "SYSTEMD_NSPAWN_UNIFIED_HIERARCHY": "1"},
            )
        threading.Thread(target=self._watch, args=(self._nspawn,), daemon=True).start()
        self._wait_for_sshd(self._nspawn, began)
        self.boot_s = round(time.monotonic() - began, 3)
        return self.boot_s

    def _command(self) -> list[str]:
        return [
            "systemd-nspawn",
            "--quiet",
            f"--directory={self.root}",
            f"--machine={self.name}",
            f"--hostname={self.name}",
            "--register=no",
            "--keep-unit",
            "--kill-signal=SIGRTMIN+3",
            f"--network-namespace-path={namespace(self.name)}",
            "--capability=CAP_NET_ADMIN",
            "--resolv-conf=off",
            "--timezone=off",
            "--link-journal=no",
            "--console=pipe",
            *self._binds,
            "/lib/systemd/systemd",
        ]

    def _watch(self, nspawn: subprocess.Popen[bytes]) -> None:
        """Boot again after a reboot from inside; a crash or a power-off stays down."""
        if nspawn.wait() == REBOOT_STATUS and self._nspawn is nspawn:
            self._leader = None
            self._nspawn = None
            try:
                self.start()
            except LabProblem as problem:
                print(f"{self.name}: {problem.what}", flush=True)

    def _wait_for_sshd(self, nspawn: subprocess.Popen[bytes], began: float) -> None:
        while time.monotonic() - began < BOOT_LIMIT_S:
            if nspawn.poll() is not None:
                raise LabProblem(f"{self.name} did not boot (exit {nspawn.returncode}): {self._last_words()}")
            if self._banner():
                # Not earlier: nspawn's first child is a helper that makes the one which stays.
                self._leader = self._find_leader(nspawn)
                if self._leader is not None:
                    return
            time.sleep(0.02)
        raise LabProblem(f"{self.name} gave no SSH banner in {BOOT_LIMIT_S} s: {self._last_words()}")

    def _last_words(self) -> str:
        return last_line((self.dir / "console.log").read_text(errors="replace"))

    def _banner(self) -> bool:
        with netns.tcp_socket(namespace(CONTROLLER)) as line:
            try:
                line.settimeout(1)
                line.connect((self.port.address, 22))
                line.settimeout(5)
                return line.recv(8).startswith(b"SSH-2.0")
            except OSError:
                return False

    @staticmethod
    def _find_leader(nspawn: subprocess.Popen[bytes]) -> int | None:
        """The guest's PID 1 among nspawn's children. The list may miss some while processes come and go (proc(5))."""
        try:
            children = Path(f"/proc/{nspawn.pid}/task/{nspawn.pid}/children").read_text().split()
            for child in children:
                status = Path(f"/proc/{child}/status").read_text()
                own = next(line for line in status.splitlines() if line.startswith("NSpid:")).split()
                if len(own) > 2 and own[-1] == "1":
                    return int(child)
        except (FileNotFoundError, ProcessLookupError, StopIteration):
            pass
        return None

    def crash(self) -> None:
        """Cut the power: no packet leaves any more, all processes die by SIGKILL, the disk stays as it was."""
        leader = self.leader
        self.port.power(False)
        self._kill(leader)

    def _kill(self, leader: int | None) -> None:
        nspawn, self._nspawn, self._leader = self._nspawn, None, None
        assert nspawn
        if leader is not None:
            with suppress(ProcessLookupError):  # it may be in the middle of a reboot
                os.kill(leader, signal.SIGKILL)
        nspawn.kill()
        self.cgroups.freeze(False)  # a frozen process does not even die
        nspawn.wait()

    def remove(self) -> None:
        """Destroy the host with its disk."""
        if self.alive:
            self._kill(self._leader)
        self.port.unplug()
        unmount_below(self.dir)
        self.cgroups.remove()
        shutil.rmtree(self.dir, ignore_errors=True)

    def execute(self, command: list[str], timeout: float) -> tuple[int, str]:
        """Run a command inside without SSH; returns (exit status, stdout and stderr), 124 after `timeout` seconds."""
        enter = ["nsenter", "-t", str(self.leader), "-m", "-u", "-i", "-n", "-p", "-C", "--"]
        return capture(enter + command, timeout)

    def status(self) -> dict[str, Any]:
        """{"address", "alive", "boot_s", "engine", "baseline", "pair", "tp"}."""
        facts = {k: v for k, v in self.spec.to_json().items() if k != "name"}
        return {"address": self.port.address, "alive": self.alive, "boot_s": self.boot_s, **facts}
