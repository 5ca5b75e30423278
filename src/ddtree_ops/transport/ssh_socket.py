"""Opens the byte stream that SSH runs over: TCP, a ProxyCommand, or a channel of a jump host."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import tempfile
from typing import Any, BinaryIO

from ddtree_ops.core.errors import Unreachable
from ddtree_ops.transport.ssh_settings import SshSettings


def tcp(settings: SshSettings) -> socket.socket:
    """Connect by TCP. Raises Unreachable."""
    where = f"{settings.hostname} port {settings.port}"
    step = settings.ssh_command("true")
    try:
        line = socket.create_connection((settings.hostname, settings.port), timeout=settings.connect_timeout)
    except socket.gaierror as error:
        what = f"the name {settings.hostname} does not resolve"
        step = f"set `address` of {settings.host} in hosts.yaml, or: getent hosts {settings.hostname}"
        raise Unreachable(what, host=settings.host, evidence=error.strerror, next=step) from None
    except TimeoutError:
        what = f"{where} did not answer within {settings.connect_timeout:g} s"
        raise Unreachable(what, host=settings.host, next=step) from None
    except OSError as error:
        what = f"no connection to {where}: {(error.strerror or str(error)).lower()}"
        raise Unreachable(what, host=settings.host, next=step) from None
    line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return line


class Proxy:
    """A ProxyCommand and our end of it.

    Paramiko's own class reads a dead proxy's end of file for ever, runs no shell and loses its messages; a socket
    pair behaves like a connection.
    """

    def __init__(self, settings: SshSettings) -> None:
        self._settings = settings
        self._said: BinaryIO = tempfile.TemporaryFile()  # noqa: SIM115  # closed with the proxy
        self.line, theirs = socket.socketpair()
        self._child = subprocess.Popen(
            ["/bin/sh", "-c", f"exec {settings.proxy_command}"],
            stdin=theirs.fileno(),
            stdout=theirs.fileno(),
            stderr=self._said,
            start_new_session=True,
        )
        theirs.close()

    def failure(self) -> str | None:
        """Return what the command said if it has ended."""
        try:
            rc = self._child.wait(timeout=0.5)
        except subprocess.TimeoutExpired:
            return None
        self._said.seek(0)
        lines = self._said.read().decode(errors="replace").strip().splitlines()
        if rc == 0 and not lines:
            return None  # it carried the line until the far end hung up
        return f"ProxyCommand ended with {rc}: {lines[-1] if lines else 'no message'}"

    def close(self) -> None:
        """End the command and all that it started."""
        self.line.close()
        if self._child.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._child.pid, signal.SIGTERM)
            try:
                self._child.wait(timeout=1)
            except subprocess.TimeoutExpired:
                os.killpg(self._child.pid, signal.SIGKILL)
                self._child.wait()
        self._said.close()


def through(transport: Any, settings: SshSettings) -> Any:
    """Return a channel of the jump host's connection that leads to `settings`. Raises paramiko's errors."""
    return transport.open_channel(
        "direct-tcpip", (settings.hostname, settings.port), ("", 0), timeout=settings.connect_timeout
    )
