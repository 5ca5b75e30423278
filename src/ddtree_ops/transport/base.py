"""What the rest of ddtree-ops may ask of a way to reach a host."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable


@dataclass(frozen=True)
class Completed:
    """A command that ended: exit status (128 + n for signal n, as a shell says it), stdout and stderr."""

    rc: int
    out: bytes
    err: bytes


@runtime_checkable
class Stream(Protocol):
    """A running command: iterate for its stdout, line by line, without line ends.

    `rc` and `err` hold once the iteration has ended; leaving early (`close`) stops reading, and the far side
    sees its output close.
    """

    rc: int | None
    err: bytes

    def __iter__(self) -> Iterator[bytes]: ...

    def __next__(self) -> bytes: ...

    def close(self) -> None: ...


@runtime_checkable
class Transport(Protocol):
    """A host that takes commands.

    `host` is its name in hosts.yaml. `argv` is a list of words, quoted with `shlex.join` where a shell reads
    it, never concatenated. `stdin` is written as it comes and then closed; None means an empty input. Both
    methods raise core.errors.Unreachable when the line fails: whoever had begun a change turns that into
    OutcomeUnknown.
    """

    host: str

    def run(
        self, argv: Sequence[str], stdin: Iterable[bytes] | None = None, timeout: float | None = None
    ) -> Completed:
        """Run `argv` to its end, within `timeout` seconds (default: the host's `timeouts.command`)."""
        ...

    def stream(
        self, argv: Sequence[str], stdin: Iterable[bytes] | None = None, idle_timeout: float | None = None
    ) -> Stream:
        """Start `argv`. `idle_timeout` (seconds) limits silence: no output, and no input taken."""
        ...

    def close(self) -> None:
        """Hang up. A command still running on the host is not waited for."""
        ...
