"""The process that owns a lab: process 1 of its own namespaces, so that its death removes everything.

usage: python -m ddtree_lab.supervisor STATE_DIR IMAGE. Started by client.py under unshare(1); serves one JSON
request a connection on STATE_DIR/lab.sock.
"""

from __future__ import annotations

import json
import os
import signal
import socketserver
import sys
import threading
import time
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any

from . import cgroup, faults
from .guard import own_roots
from .host import Host
from .net import FIRST_HOST, Port, build_switch
from .problem import LabProblem
from .proc import run
from .spec import HostSpec
from .state import State, write_atomically

INOTIFY = Path("/proc/sys/fs/inotify/max_user_instances")
INOTIFY_NEED = 2048  # a systemd takes several, and the default of 128 ends at about 20 hosts

SSH_HOST = """\
Host {names}
  HostName {host.port.address}
  HostKeyAlias {host.name}
"""
# sshd listens on 22 whatever port hosts.yaml has for the host that this one stands for.
SSH_ALL = """\
Host {names}
  User root
  IdentityFile {state.key}
  IdentitiesOnly yes
  UserKnownHostsFile {state.known_hosts}
  GlobalKnownHostsFile /dev/null
  HostKeyAlgorithms ssh-ed25519
  StrictHostKeyChecking yes
  BatchMode yes
  ConnectTimeout 10
  ProxyCommand {python} -I -S {relay} {state.root} %h 22
"""


class Supervisor:
    """All hosts of one lab."""

    def __init__(self, state: State, image: Path, roots: set[tuple[int, int]]) -> None:
        self.hosts: dict[str, Host] = {}
        self._state = state
        self._image = image
        self._roots = roots
        self._tops = [parent / state.tag for parent in cgroup.parents()]
        self._lock = threading.Lock()

    def prepare(self) -> None:
        """Sweep what a killed predecessor left, then make keys and the network."""
        for top in self._tops:
            cgroup.sweep(top)
        if int(INOTIFY.read_text()) < INOTIFY_NEED:
            INOTIFY.write_text(str(INOTIFY_NEED))
        if not self._state.key.exists():
            run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "ddtree-lab", "-f", self._state.key)
        build_switch()
        self._write_ssh_files()

    def answer(self, request: dict[str, Any]) -> Any:
        """Do one request {"op": ..., ...}; the operations are the methods named op_*."""
        operation = getattr(self, "op_" + str(request.pop("op", "")).replace("-", "_"), None)
        if operation is None:
            raise LabProblem(
                "the lab does not know this operation: ddtree-ops lab down, then up, after an upgrade"
            )
        return operation(**request)

    def op_add(self, **spec: Any) -> float:
        """Make and boot a host; returns the seconds to its SSH banner."""
        asked = HostSpec(**{**spec, "aliases": tuple(spec.get("aliases", ()))}).check()
        with self._lock:
            if asked.name in self.hosts:
                raise LabProblem(
                    f"{asked.name} is there already", next=f"ddtree-ops lab status # {asked.name}"
                )
            used = {host.port.number for host in self.hosts.values()}
            number = next(n for n in range(FIRST_HOST, 255) if n not in used)
            host = Host(asked, self._state, Port(asked.name, number), self._image, self._roots)
            self.hosts[asked.name] = host
        try:
            host.prepare(self._tops)
            with self._lock:
                self._write_ssh_files()
            return host.start()
        except BaseException:
            self._forget(host)
            raise

    def op_remove(self, host: str) -> None:
        self._forget(self._host(host))

    def op_status(self) -> dict[str, Any]:
        return {name: host.status() for name, host in sorted(self.hosts.items())}

    def op_fault(self, host: str, fault: str, args: list[str]) -> str:
        return faults.inject(self._host(host), fault, args)

    def op_exec(self, host: str, command: list[str], timeout: float) -> list[Any]:
        return list(self._host(host).execute(command, timeout))

    def op_down(self) -> None:
        """End, once the answer is out: the namespaces take everything with them but the cgroups."""
        for host in self.hosts.values():
            host.cgroups.freeze(False)
        threading.Timer(0.05, os._exit, (0,)).start()

    def _host(self, name: str) -> Host:
        if name not in self.hosts:
            there = ", ".join(sorted(self.hosts)) or "none"
            raise LabProblem(f"no host {name!r} in this lab (there: {there})", usage=True)
        return self.hosts[name]

    def _forget(self, host: Host) -> None:
        host.remove()
        with self._lock:
            self.hosts.pop(host.name, None)
            self._write_ssh_files()

    def _write_ssh_files(self) -> None:
        ready = sorted((host for host in self.hosts.values() if host.host_key), key=lambda host: host.name)
        keys = [f"{host.name},{host.port.address} {host.host_key}\n" for host in ready]
        write_atomically(self._state.known_hosts, "".join(keys))
        names = {host.name: " ".join([host.name, host.port.address, *host.spec.aliases]) for host in ready}
        blocks = [SSH_HOST.format(names=names[host.name], host=host) for host in ready]
        if ready:
            relay = Path(__file__).with_name("relay.py")
            blocks.append(
                SSH_ALL.format(
                    names=" ".join(names.values()), state=self._state, python=sys.executable, relay=relay
                )
            )
        write_atomically(self._state.ssh_config, "\n".join(blocks))


def _reply(supervisor: Supervisor, line: bytes) -> dict[str, Any]:
    try:
        return {"ok": True, "value": supervisor.answer(json.loads(line))}
    except LabProblem as problem:
        return {"ok": False, "what": problem.what, "usage": problem.usage, "next": problem.next}
    except Exception as error:
        traceback.print_exc()
        return {"ok": False, "what": f"the lab failed: {error!r}", "usage": False, "next": None}


def _let_stopped_go_on() -> None:
    """A host that shuts down stops each of its processes before it ends them, and nsenter(1) stops along with the one
    that it waits for. Nobody else continues it, so that process would never be reaped, and the host would wait for it.
    """
    while True:
        try:
            found = os.waitid(os.P_ALL, 0, os.WSTOPPED)
        except ChildProcessError:
            time.sleep(0.1)
            continue
        if found is not None:
            with suppress(ProcessLookupError):
                os.kill(found.si_pid, signal.SIGCONT)


def serve(supervisor: Supervisor, state: State) -> None:
    """Answer on the socket for ever."""
    threading.Thread(target=_let_stopped_go_on, daemon=True).start()

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            line = self.rfile.readline()
            if line:
                self.wfile.write(json.dumps(_reply(supervisor, line)).encode() + b"\n")

    class Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
        daemon_threads = True
        request_queue_size = 64

    path = socket_path(state)
    Path(path).unlink(missing_ok=True)
    with Server(path, Handler) as server:
        server.serve_forever()


def socket_path(state: State) -> str:
    """A short name for the socket, as sockaddr_un holds 107 bytes and a state directory may be deep."""
    directory = os.open(state.root, os.O_PATH | os.O_DIRECTORY)
    return f"/proc/self/fd/{directory}/lab.sock"


def main() -> None:
    state, image = State.at(Path(sys.argv[1])), Path(sys.argv[2])
    roots = {(int(device), int(inode)) for device, inode in json.loads(sys.argv[3])} | own_roots()
    supervisor = Supervisor(state, image, roots)
    try:
        supervisor.prepare()
    except LabProblem as problem:
        raise SystemExit(problem.what) from None
    serve(supervisor, state)


if __name__ == "__main__":
    main()
