"""A scripted host for tests: answers by rule, breaks on order, records what it was asked."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum

from ddtree_ops.core.errors import Unreachable
from ddtree_ops.transport.base import Completed, Stream


class Fault(Enum):
    """How the line breaks. `Reply.after` says after how many bytes of output."""

    NONE = "none"
    REFUSE = "refuse"  # no connection at all
    RESET = "reset"  # the connection breaks
    BLACK_HOLE = "black-hole"  # nothing comes any more: the idle limit strikes
    TRUNCATE = "truncate"  # the command ends, its output cut


@dataclass(frozen=True)
class Reply:
    """What one command answers."""

    out: bytes = b""
    err: bytes = b""
    rc: int = 0
    fault: Fault = Fault.NONE
    after: int = 0


@dataclass(frozen=True)
class Call:
    """One command as it arrived, with all of its input."""

    argv: tuple[str, ...]
    stdin: bytes


@dataclass
class FakeTransport:
    """Answers the first unused of `replies`, in order; without one left, AssertionError."""

    replies: Iterable[Reply] = ()
    host: str = "fake"
    calls: list[Call] = field(default_factory=list)
    closed: bool = False

    def __post_init__(self) -> None:
        self._left = deque(self.replies)

    def run(
        self, argv: Sequence[str], stdin: Iterable[bytes] | None = None, timeout: float | None = None
    ) -> Completed:
        """See transport.base.Transport.run."""
        reply = self._take(argv, stdin)
        out = b"".join(_output(reply, self.host))
        return Completed(reply.rc, out, reply.err)

    def stream(
        self, argv: Sequence[str], stdin: Iterable[bytes] | None = None, idle_timeout: float | None = None
    ) -> Stream:
        """See transport.base.Transport.stream."""
        return _FakeStream(self._take(argv, stdin), self.host)

    def close(self) -> None:
        """Note that it was called."""
        self.closed = True

    def _take(self, argv: Sequence[str], stdin: Iterable[bytes] | None) -> Reply:
        if not self._left:
            raise AssertionError(f"unexpected command: {list(argv)}")
        reply = self._left.popleft()
        if reply.fault is Fault.REFUSE:
            raise Unreachable("connection refused (scripted)", host=self.host, next="ddtree-ops doctor")
        self.calls.append(Call(tuple(argv), b"".join(stdin or ())))
        return reply


def _output(reply: Reply, host: str) -> Iterator[bytes]:
    if reply.fault is Fault.NONE:
        yield reply.out
        return
    yield reply.out[: reply.after]
    if reply.fault is Fault.RESET:
        raise Unreachable("the connection was reset (scripted)", host=host, next="ddtree-ops status")
    if reply.fault is Fault.BLACK_HOLE:
        raise Unreachable("the host fell silent (scripted)", host=host, next="ddtree-ops status")


class _FakeStream:
    def __init__(self, reply: Reply, host: str) -> None:
        self.rc: int | None = None
        self.err = b""
        self._reply = reply
        self._lines = self._read(host)

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        return next(self._lines)

    def close(self) -> None:
        self._lines = iter(())

    def _read(self, host: str) -> Iterator[bytes]:
        held = b""
        for chunk in _output(self._reply, host):
            *whole, held = (held + chunk).split(b"\n")
            yield from whole
        if held:
            yield held
        self.rc, self.err = self._reply.rc, self._reply.err
