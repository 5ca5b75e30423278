"""This machine as a host: for agent operations that need no systemd, and for the contract tests."""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
from collections.abc import Iterable, Sequence
from typing import IO

from ddtree_ops.core.errors import Unreachable
from ddtree_ops.transport.base import Completed, Stream
from ddtree_ops.transport.pump import PumpedStream, complete


class LocalTransport:
    """Runs commands as children of this process."""

    def __init__(self, host: str = "local", command_timeout: float = 60) -> None:
        self.host = host
        self.command_timeout = command_timeout
        self._running: list[PumpedStream] = []

    def run(
        self, argv: Sequence[str], stdin: Iterable[bytes] | None = None, timeout: float | None = None
    ) -> Completed:
        """See transport.base.Transport.run."""
        return complete(self._start(argv, stdin, deadline=timeout or self.command_timeout))

    def stream(
        self, argv: Sequence[str], stdin: Iterable[bytes] | None = None, idle_timeout: float | None = None
    ) -> Stream:
        """See transport.base.Transport.stream."""
        return self._start(argv, stdin, idle=idle_timeout)

    def close(self) -> None:
        """Kill what still runs."""
        for stream in self._running:
            stream.close()
        self._running.clear()

    def _start(
        self,
        argv: Sequence[str],
        stdin: Iterable[bytes] | None,
        idle: float | None = None,
        deadline: float | None = None,
    ) -> PumpedStream:
        try:
            pipe = _LocalPipe(argv)
        except OSError as error:
            what = f"{argv[0]} could not be started: {error.strerror}"
            raise Unreachable(what, host=self.host, next=f"command -v {argv[0]}") from None
        stream = PumpedStream(pipe, stdin, lambda text: self._late(argv, text), idle, deadline)
        self._running = [s for s in self._running if s.rc is None] + [stream]
        return stream

    def _late(self, argv: Sequence[str], text: str) -> Unreachable:
        return Unreachable(f"{argv[0]} {text}", host=self.host, next="ddtree-ops doctor")


class _LocalPipe:
    """A child process in a session of its own, so that all of it can be killed."""

    def __init__(self, argv: Sequence[str]) -> None:
        self._child = subprocess.Popen(
            list(argv),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        assert self._child.stdin and self._child.stdout and self._child.stderr
        self._in, self._out, self._err = self._child.stdin, self._child.stdout, self._child.stderr
        os.set_blocking(self._in.fileno(), False)

    def recv(self, tick: float) -> bytes:
        return _read(self._out, tick)

    def recv_err(self, tick: float) -> bytes:
        return _read(self._err, tick)

    def send(self, data: memoryview, tick: float) -> int:
        if not select.select([], [self._in], [], tick)[1]:
            raise TimeoutError
        return os.write(self._in.fileno(), data)

    def end_input(self) -> None:
        self._in.close()

    def finish(self, tick: float) -> int:
        try:
            rc = self._child.wait(timeout=tick)
        except subprocess.TimeoutExpired:
            raise TimeoutError from None
        return 128 - rc if rc < 0 else rc

    def kill(self) -> None:
        if self._child.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._child.pid, 9)
            self._child.wait()


def _read(file: IO[bytes], tick: float) -> bytes:
    if not select.select([file], [], [], tick)[0]:
        raise TimeoutError
    return os.read(file.fileno(), 65536)
