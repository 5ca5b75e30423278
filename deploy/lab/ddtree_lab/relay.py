"""ProxyCommand of the lab's ssh_config: carries one TCP connection out of the lab's controller namespace.

usage: relay.py STATE_DIR ADDRESS PORT. Runs alone (`python -I -S`), so it imports nothing of this package.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import socket
import sys

CHUNK = 1 << 18


def fail(message: str) -> None:
    sys.stderr.write(message + "\n")
    raise SystemExit(255)


def supervisor(state: str) -> int:
    """The supervisor's pid of this moment: read for every connection, because a lab may have been started anew."""
    try:
        with open(os.path.join(state, "supervisor.json")) as record:
            return int(json.load(record)["pid"])
    except (OSError, ValueError, KeyError):
        fail(f"no lab is up in {state}: run ddtree-ops lab up")
        raise


def connect(pid: int, address: str, port: int) -> socket.socket:
    try:
        namespace = os.open(f"/proc/{pid}/root/run/netns/ctl", os.O_RDONLY)
        if ctypes.CDLL(None, use_errno=True).setns(namespace, 0x40000000):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        os.close(namespace)
    except OSError as error:
        fail(f"the lab is gone or not yours to enter ({error.strerror}): run ddtree-ops lab up as root")
    line = socket.socket()
    line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    try:
        line.connect((address, port))
    except OSError as error:
        fail(f"connect to host {address} port {port}: {error.strerror}")
    return line


def write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def pump(line: socket.socket, lab: int) -> None:
    """Copy both ways until the host closes, the ssh client is gone, or the lab (pidfd `lab`) dies.

    The last two matter on a dead link, where the socket itself never says a word.
    """
    poll = select.poll()
    poll.register(0, select.POLLIN)
    poll.register(1, 0)
    poll.register(line, select.POLLIN)
    poll.register(lab, select.POLLIN)
    while True:
        ready = dict(poll.poll())
        if lab in ready or 1 in ready:
            return
        if line.fileno() in ready:
            data = line.recv(CHUNK)
            if not data:
                return
            write_all(1, data)
        if 0 in ready:
            data = os.read(0, CHUNK)
            if data:
                line.sendall(data)
            else:
                poll.unregister(0)
                line.shutdown(socket.SHUT_WR)


def main() -> None:
    state, address, port = sys.argv[1:4]
    pid = supervisor(state)
    try:
        lab = os.pidfd_open(pid)
    except OSError:
        fail(f"the lab in {state} is down: run ddtree-ops lab up")
    line = connect(pid, address, int(port))
    try:
        pump(line, lab)
    except (OSError, KeyboardInterrupt):
        raise SystemExit(255) from None


if __name__ == "__main__":
    main()
