"""Sockets that live in another network namespace than the process which uses them."""

from __future__ import annotations

import ctypes
import os
import socket
import threading

CLONE_NEWNET = 0x40000000  # sched.h


def enter(path: str) -> None:
    """Move the calling thread into the network namespace at `path`; raises OSError (setns(2))."""
    libc = ctypes.CDLL(None, use_errno=True)
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if libc.setns(fd, CLONE_NEWNET):
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code), path)
    finally:
        os.close(fd)


def tcp_socket(path: str) -> socket.socket:
    """An unconnected TCP socket of the namespace at `path`. A socket stays in the one it was made in."""
    made: list[socket.socket] = []
    failed: list[OSError] = []

    def work() -> None:
        try:
            enter(path)
            made.append(socket.socket())
        except OSError as error:
            failed.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    if failed:
        raise failed[0]
    return made[0]
