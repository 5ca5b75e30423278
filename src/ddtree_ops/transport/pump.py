"""Feeds a running command its input while its output is read by lines, under deadlines of our own."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

from ddtree_ops.core.errors import OpsError
from ddtree_ops.transport.base import Completed

_TICK = 0.5  # seconds between looks at the deadlines while nothing arrives
_ERR_KEPT = 256 * 1024  # bytes of stderr kept, the newest
_PIECE = 32 * 1024


class Pipe(Protocol):
    """The ends of a running command. After `tick` seconds each raises TimeoutError. b"" is the end."""

    def recv(self, tick: float) -> bytes: ...

    def recv_err(self, tick: float) -> bytes: ...

    def send(self, data: memoryview, tick: float) -> int:
        """Write some of `data`; return how much. Raises OSError when nobody reads any more."""
        ...

    def end_input(self) -> None: ...

    def finish(self, tick: float) -> int:
        """Return the exit status. Raises OpsError if the line broke before the command ended."""
        ...

    def kill(self) -> None: ...


class PumpedStream:
    """A transport.base.Stream over a Pipe. `late` makes the error of a deadline that passed."""

    def __init__(
        self,
        pipe: Pipe,
        stdin: Iterable[bytes] | None,
        late: Callable[[str], OpsError],
        idle_timeout: float | None = None,
        deadline: float | None = None,
    ) -> None:
        self.rc: int | None = None
        self.err = b""
        self._pipe = pipe
        self._late = late
        self._idle = idle_timeout
        self._limit = deadline
        self._end = None if deadline is None else time.monotonic() + deadline
        self._moved = time.monotonic()
        self._stop = threading.Event()
        self._input_error: BaseException | None = None
        self._err_parts: deque[bytes] = deque()
        self._lines: Iterator[bytes] = self._read_lines()
        self._writer = threading.Thread(target=self._write, args=(stdin or (),), daemon=True)
        self._err_reader = threading.Thread(target=self._read_err, daemon=True)
        self._writer.start()
        self._err_reader.start()

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        return next(self._lines)

    def chunks(self) -> Iterator[bytes]:
        """The output as it comes, for `run`; use either this or the lines."""
        try:
            while data := self._recv():
                yield data
            self._finish()
        finally:
            self._let_go()

    def close(self) -> None:
        """Let go of the command; what it still says is dropped."""
        self._let_go()
        self._lines = iter(())

    def _let_go(self) -> None:
        self._stop.set()
        self._pipe.kill()

    def _read_lines(self) -> Iterator[bytes]:
        held = bytearray()
        for data in self.chunks():
            start = len(held)
            held += data
            end = held.find(b"\n", start)
            if end < 0:
                continue
            *whole, rest = bytes(held).split(b"\n")
            held = bytearray(rest)
            yield from whole
        if held:
            yield bytes(held)

    def _recv(self) -> bytes:
        while True:
            try:
                data = self._pipe.recv(self._tick())
            except TimeoutError:
                self._look_at_deadlines()
                continue
            self._moved = time.monotonic()
            if data:
                self._look_at_deadlines()
            return data

    def _tick(self) -> float:
        limits = [t for t in (self._idle, self._limit) if t is not None]
        return min([_TICK, *(t / 4 for t in limits)])

    def _look_at_deadlines(self) -> None:
        now = time.monotonic()
        if self._input_error is not None:
            raise self._input_error
        if self._end is not None and now > self._end:
            raise self._late(f"did not end within {self._limit:g} s")
        if self._idle is not None and now - self._moved > self._idle:
            raise self._late(f"was silent for {self._idle:g} s")

    def _finish(self) -> None:
        self._err_reader.join(timeout=5)
        self.err = b"".join(self._err_parts)
        if self._input_error is not None:
            raise self._input_error
        self.rc = self._exit_status()

    def _exit_status(self) -> int:
        while True:  # a command may close its output and go on
            try:
                return self._pipe.finish(self._tick())
            except TimeoutError:
                self._look_at_deadlines()

    def _write(self, stdin: Iterable[bytes]) -> None:
        try:
            for chunk in stdin:
                if not self._send_all(memoryview(chunk)):
                    return
            self._pipe.end_input()
        except OSError:
            return  # the command stopped reading: its exit status says whether that was right
        except BaseException as error:  # the caller's iterator failed: their error, raised where they read
            self._input_error = error
            self._pipe.kill()

    def _send_all(self, data: memoryview) -> bool:
        while data:
            if self._stop.is_set():
                return False
            try:
                sent = self._pipe.send(data[:_PIECE], _TICK)
            except TimeoutError:
                continue
            self._moved = time.monotonic()
            data = data[sent:]
        return True

    def _read_err(self) -> None:
        kept = 0
        while not self._stop.is_set():
            try:
                data = self._pipe.recv_err(_TICK)
            except TimeoutError:
                continue
            except OSError:
                return
            if not data:
                return
            self._moved = time.monotonic()
            self._err_parts.append(data)
            kept += len(data)
            while kept > _ERR_KEPT and len(self._err_parts) > 1:
                kept -= len(self._err_parts.popleft())


def complete(stream: PumpedStream) -> Completed:
    """Run a stream to its end and return all of it."""
    out = b"".join(stream.chunks())
    assert stream.rc is not None
    return Completed(stream.rc, out, stream.err)
