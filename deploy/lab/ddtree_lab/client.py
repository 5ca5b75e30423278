"""What the CLI and the tests call: bring a lab up, talk to it, take it down."""

from __future__ import annotations

import fcntl
import hashlib
import http.client
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from . import cgroup, engine, netns
from .guard import own_roots, root_on_linux, tools
from .image import ensure_image, image_path
from .problem import LabProblem
from .proc import capture
from .spec import HostSpec
from .state import SOURCES, State, own_directory, write_atomically

START_LIMIT_S = 30
END_LIMIT_S = 10


def check_machine() -> None:
    """Raise LabProblem, one sentence, unless a lab can be brought up here."""
    root_on_linux()
    tools(image_path().is_dir())


def _quiet(_: str) -> None:
    return


class Lab:
    """The lab whose files lie in `state`. Every method raises LabProblem for what a person can put right."""

    def __init__(self, state: State) -> None:
        self.state = state

    @property
    def alive(self) -> bool:
        try:
            self._connect().close()
        except LabProblem:
            return False
        return True

    def up(self, specs: Iterable[HostSpec] = (), say: Callable[[str], None] = _quiet) -> list[LabHost]:
        """Start the supervisor unless it runs, then boot the hosts that are not there yet; returns those of `specs`."""
        wanted = [spec.check() for spec in specs]
        check_machine()
        if any(spec.engine == "real" for spec in wanted):
            engine.prepare_real()
        image = ensure_image(say)
        own_directory(self.state.root)
        with self._locked():
            if not self.alive:
                self._start_supervisor(image)
            there = self.status()
            for spec in wanted:
                if spec.name in there:
                    say(f"{spec.name}: is up already")
                    continue
                seconds = self.add(spec)
                say(f"{spec.name}: SSH answers after {seconds} s")
            self.state.active.write_text("")
        return [self.host(spec.name) for spec in wanted]

    def down(self) -> None:
        """Remove every host; also cleans up after a lab that was killed. Keys and the image cache stay."""
        if not self.state.root.is_dir():
            return
        with self._locked():
            self.state.active.unlink(missing_ok=True)
            if self.alive:
                gone = os.pidfd_open(self.pid)
                self.call("down")
                _wait_end(gone)
            self._sweep()

    def add(self, spec: HostSpec) -> float:
        """Boot one more host of a running lab; returns the seconds to its SSH banner."""
        return float(self.call("add", **spec.check().to_json()))

    def remove(self, name: str) -> None:
        """Destroy one host with its disk."""
        self.call("remove", host=name)

    def status(self) -> dict[str, dict[str, Any]]:
        """{name: {"address", "alive", "boot_s", "engine", "baseline", "pair", "tp"}}."""
        found: dict[str, dict[str, Any]] = self.call("status")
        return found

    def host(self, name: str) -> LabHost:
        return LabHost(self, name)

    @property
    def pid(self) -> int:
        """The supervisor's pid. SIGKILL of it removes the whole lab."""
        return int(self.state.read_record().get("pid", 0))

    @property
    def controller_netns(self) -> str:
        """Path of the network namespace that reaches the hosts."""
        return f"/proc/{self.pid}/root/run/netns/ctl"

    def call(self, op: str, **request: Any) -> Any:
        """One request to the supervisor."""
        with self._connect() as line:
            line.sendall(json.dumps({"op": op, **request}).encode() + b"\n")
            answer = line.makefile("rb").readline()
        if not answer:
            raise LabProblem("the lab died while it worked", next=f"less {self.state.log}")
        reply = json.loads(answer)
        if not reply["ok"]:
            raise LabProblem(reply["what"], usage=reply["usage"], next=reply["next"])
        return reply["value"]

    def _connect(self) -> socket.socket:
        down = LabProblem(f"no lab is up in {self.state.root}", next="ddtree-ops lab up")
        try:
            directory = os.open(self.state.root, os.O_PATH | os.O_DIRECTORY)
        except FileNotFoundError:
            raise down from None
        line = socket.socket(socket.AF_UNIX)
        try:
            line.connect(f"/proc/self/fd/{directory}/lab.sock")
        except OSError:
            line.close()
            raise down from None
        finally:
            os.close(directory)
        return line

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with open(self.state.root / "lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _start_supervisor(self, image: Path) -> None:
        self._sweep()
        roots = json.dumps(sorted(own_roots()))
        main = [sys.executable, "-m", "ddtree_lab.supervisor", str(self.state.root), str(image), roots]
        unshare = [
            "unshare",
            "--mount",
            "--pid",
            "--ipc",
            "--uts",
            "--fork",
            "--kill-child=SIGKILL",
            "--mount-proc",
        ]
        with open(self.state.log, "w") as log:
            parent = subprocess.Popen(
                [*unshare, "--propagation", "private", *main],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, "PYTHONPATH": str(SOURCES)},
                start_new_session=True,
            )
        for _ in range(START_LIMIT_S * 50):
            if parent.poll() is not None or self.alive:
                break
            time.sleep(0.02)
        if not self.alive:
            parent.kill()
            said = self.state.log.read_text().strip().splitlines() or ["it said nothing"]
            raise LabProblem(f"the lab's supervisor did not start: {said[-1]}", next=f"less {self.state.log}")
        child = Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text().split()[0]
        groups = [str(top / self.state.tag) for top in cgroup.parents()]
        write_atomically(self.state.record, json.dumps({"pid": int(child), "cgroups": groups}))

    def _sweep(self) -> None:
        """What namespaces do not take with them: cgroup directories and files."""
        for directory in self.state.read_record().get("cgroups", []):
            cgroup.sweep(Path(directory))
        shutil.rmtree(self.state.hosts, ignore_errors=True)
        for path in (self.state.record, self.state.root / "lab.sock", self.state.active):
            path.unlink(missing_ok=True)

    def kill(self) -> None:
        """SIGKILL the supervisor, for tests of what that leaves behind."""
        gone = os.pidfd_open(self.pid)
        os.kill(self.pid, signal.SIGKILL)
        _wait_end(gone)


def _wait_end(pidfd: int) -> None:
    select.select([pidfd], [], [], END_LIMIT_S)
    os.close(pidfd)


class LabHost:
    """One host of a lab, as a test sees it."""

    def __init__(self, lab: Lab, name: str) -> None:
        self.lab = lab
        self.name = name

    @property
    def address(self) -> str:
        return str(self.lab.status()[self.name]["address"])

    @property
    def alive(self) -> bool:
        return bool(self.lab.status()[self.name]["alive"])

    def ssh(self, command: str, timeout: float = 30, options: Iterable[str] = ()) -> tuple[int, str]:
        """Run over a real, unwrapped ssh; returns (exit status, stdout and stderr), 124 after `timeout` seconds."""
        words = ["ssh", "-F", str(self.lab.state.ssh_config), *options, self.name, command]
        return capture(words, timeout)

    def exec(self, command: str | list[str], timeout: float = 60) -> tuple[int, str]:
        """Run inside without SSH, which works whatever the network or sshd does; returns as `ssh`."""
        words = ["sh", "-c", command] if isinstance(command, str) else command
        status, said = self.lab.call("exec", host=self.name, command=words, timeout=timeout)
        return int(status), str(said)

    def boot_id(self) -> str:
        """Different after every boot; empty while the host is down or between two boots."""
        try:
            status, said = self.exec(["cat", "/proc/sys/kernel/random/boot_id"], 10)
        except LabProblem:
            return ""
        return said.strip() if status == 0 else ""

    def wait_boot(self, before: str, limit_s: float = 60) -> None:
        """Wait until the host runs under another boot_id than `before` and answers over SSH."""
        until = time.monotonic() + limit_s
        while time.monotonic() < until:
            if self.boot_id() not in ("", before) and self.ssh("true", 10)[0] == 0:
                return
            time.sleep(0.05)
        raise LabProblem(
            f"{self.name} did not boot again in {limit_s:g} s", next=f"less {self.lab.state.log}"
        )

    def check(self, command: str | list[str], timeout: float = 60) -> str:
        """Run inside as `exec` and return what it said; raises LabProblem where it fails."""
        status, said = self.exec(command, timeout)
        if status:
            raise LabProblem(f"{self.name}: {command!r} exited {status}: {said.strip()}")
        return said

    def read(self, path: str) -> str:
        return self.check(["cat", path])

    def write(self, path: str, text: str, mode: int = 0o644) -> None:
        """Replace a file of the host, making its directory."""
        script = 'mkdir -p "$(dirname "$1")"; printf %s "$2" > "$1"; chmod "$3" "$1"'
        self.check(["sh", "-c", script, "sh", path, text, f"{mode:o}"])

    def fault(self, name: str, *args: object) -> str:
        """Inject a fault (faults.FAULTS); returns one line that says what holds now."""
        return str(self.lab.call("fault", host=self.name, fault=name, args=[str(arg) for arg in args]))

    def tree_hash(self, paths: Iterable[str]) -> str:
        """One sha256 over names, types, modes, owners, link targets and contents below `paths` (bytecode apart)."""
        script = (
            'for p in "$@"; do find "$p" -name __pycache__ -prune -o -printf "%p %y %m %U:%G %l\\n" | LC_ALL=C sort; '
            'find "$p" -name __pycache__ -prune -o -type f -print0 | LC_ALL=C sort -z | xargs -0r sha256sum; done'
        )
        return hashlib.sha256(self.check(["sh", "-c", script, "sh", *paths]).encode()).hexdigest()

    def show(self, service: str, prop: str) -> str:
        """One property of a unit, as `systemctl show` has it."""
        return self.check(["systemctl", "show", "--value", f"--property={prop}", service]).strip()

    def main_pid(self, service: str = engine.UNIT) -> int:
        """The unit's main pid inside the host, 0 when it does not run."""
        return int(self.show(service, "MainPID"))

    def http(
        self, path: str, json_body: object = None, port: int = 30000, timeout: float = 30
    ) -> tuple[int, str]:
        """GET, or POST of `json_body`, from the controller's namespace; returns (status, body), (0, reason) if none."""
        line = netns.tcp_socket(self.lab.controller_netns)
        line.settimeout(timeout)
        ask = http.client.HTTPConnection(self.address, port, timeout=timeout)
        try:
            line.connect((self.address, port))
            ask.sock = line
            body = None if json_body is None else json.dumps(json_body)
            headers = {} if body is None else {"Content-Type": "application/json"}
            ask.request("GET" if body is None else "POST", path, body, headers)
            answer = ask.getresponse()
            return answer.status, answer.read().decode(errors="replace")
        except (OSError, http.client.HTTPException) as error:
            return 0, repr(error)
        finally:
            line.close()

    def wait_http(self, path: str = "/health", limit_s: float = 120) -> float:
        """Wait for a 200; returns the seconds it took, raises LabProblem at `limit_s`."""
        began = time.monotonic()
        answer: tuple[int, str] = (0, "")
        while time.monotonic() - began < limit_s:
            answer = self.http(path)
            if answer[0] == 200:
                return round(time.monotonic() - began, 2)
            time.sleep(0.1)
        raise LabProblem(
            f"{self.name}: {path} gave no 200 in {limit_s:g} s (last: {answer[0]} {answer[1][:100]})",
            next=f"ddtree-ops lab ssh {self.name} journalctl -u {engine.UNIT} -n 40",
        )
