"""SSH by Fabric and paramiko, with strict host keys and deadlines of our own."""

from __future__ import annotations

import contextlib
import shlex
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from paramiko.ssh_exception import ChannelException, SSHException

from ddtree_ops.core.errors import Unreachable
from ddtree_ops.transport.base import Completed, Stream
from ddtree_ops.transport.pump import PumpedStream, complete
from ddtree_ops.transport.ssh_connect import Line
from ddtree_ops.transport.ssh_settings import SshSettings

_ALIVE_EVERY = 5.0  # seconds between questions to sshd; ServerAliveInterval in ssh_config(5)
_DEAD_AFTER = 20.0  # seconds without an answer
_BREAKS = (SSHException, EOFError, OSError)  # what paramiko raises where a line breaks


class FabricTransport:
    """A host behind sshd. Connects at the first command, again after a break."""

    def __init__(self, settings: SshSettings) -> None:
        self.host = settings.host
        self.settings = settings
        self._line: Line | None = None
        self._pulse: Pulse | None = None

    def run(
        self, argv: Sequence[str], stdin: Iterable[bytes] | None = None, timeout: float | None = None
    ) -> Completed:
        """See transport.base.Transport.run."""
        return complete(self._start(argv, stdin, deadline=timeout or self.settings.command_timeout))

    def stream(
        self, argv: Sequence[str], stdin: Iterable[bytes] | None = None, idle_timeout: float | None = None
    ) -> Stream:
        """See transport.base.Transport.stream."""
        return self._start(argv, stdin, idle=idle_timeout)

    def close(self) -> None:
        """See transport.base.Transport.close."""
        if self._pulse:
            self._pulse.stop()
        if self._line:
            self._line.close()
        self._line = self._pulse = None

    def _start(
        self,
        argv: Sequence[str],
        stdin: Iterable[bytes] | None,
        idle: float | None = None,
        deadline: float | None = None,
    ) -> PumpedStream:
        pulse, channel = self._session()
        try:
            channel.settimeout(self.settings.connect_timeout)
            channel.exec_command(shlex.join(argv))
        except _BREAKS as error:
            raise self._not_started(pulse, error) from None
        pipe = _ChannelPipe(channel, pulse, lambda: self._broken(pulse))
        return PumpedStream(pipe, stdin, lambda text: self._late(argv, text), idle, deadline)

    def _session(self) -> tuple[Pulse, Any]:
        """A channel for one command. A line that an earlier command left and that turns out to be gone (the host
        rebooted since) is opened once more: nothing was asked for on it yet."""
        before = self._pulse
        pulse = self._connected()
        try:
            return pulse, pulse.transport.open_session(timeout=self.settings.connect_timeout)
        except ChannelException as error:
            raise self._no_session(str(error)) from None
        except _BREAKS as error:
            if pulse is not before or pulse.dead or pulse.transport.is_active():
                raise self._not_started(pulse, error) from None
        return self._session()

    def _not_started(self, pulse: Pulse, error: Exception) -> Unreachable:
        return self._broken(pulse, "no command could be started", str(error) or None)

    def _connected(self) -> Pulse:
        if self._pulse is None or not self._pulse.transport.is_active():
            self.close()
            self._line = Line(self.settings).open()
            self._pulse = Pulse(self._line.transport)
        return self._pulse

    def _broken(
        self,
        pulse: Pulse,
        what: str = "the connection broke before the command ended",
        evidence: str | None = None,
    ) -> Unreachable:
        if pulse.dead:
            what = f"the host did not answer for {_DEAD_AFTER:g} s"
        return Unreachable(
            what, host=self.host, evidence=evidence, next=f"ddtree-ops status --host {self.host}"
        )

    def _no_session(self, evidence: str) -> Unreachable:
        """sshd holds the connection and opens no channel: MaxSessions of sshd_config(5)."""
        return Unreachable(
            "sshd opens no more sessions on our connection",
            host=self.host,
            evidence=evidence or None,
            meaning="MaxSessions is reached, or the account may not run commands; nothing was started",
            next=f"on the host: sshd -T | grep -i maxsessions; then ddtree-ops status --host {self.host}",
        )

    def _late(self, argv: Sequence[str], text: str) -> Unreachable:
        what = f"{argv[0]} on the host {text}"
        return Unreachable(what, host=self.host, next=f"ddtree-ops status --host {self.host}")


class Pulse:
    """Asks sshd every few seconds whether it is there, and hangs up where no answer comes.

    Paramiko sends keepalives but never misses the answer, and its wait for a started command has no time limit:
    hanging up is what ends every such wait.
    """

    def __init__(self, transport: Any) -> None:
        self.transport = transport
        self.dead = False
        self._end = threading.Event()
        self._one = threading.Lock()
        threading.Thread(target=self._beat, daemon=True).start()

    def ask(self) -> bool:
        """Ask once and wait; return whether the line holds."""
        with self._one:
            patience = threading.Timer(_DEAD_AFTER, self._give_up)
            patience.daemon = True
            patience.start()
            try:
                self.transport.global_request("keepalive@openssh.com", wait=True)
            except _BREAKS:
                return False
            finally:
                patience.cancel()
        return bool(self.transport.is_active())

    def stop(self) -> None:
        """Ask no more."""
        self._end.set()

    def _give_up(self) -> None:
        self.dead = True
        self.transport.close()

    def _beat(self) -> None:
        while not self._end.wait(_ALIVE_EVERY) and self.transport.is_active():
            self.ask()


class _ChannelPipe:
    """A paramiko channel as a pump's Pipe."""

    def __init__(self, channel: Any, pulse: Pulse, broken: Callable[[], Unreachable]) -> None:
        self._channel = channel
        self._pulse = pulse
        self._broken = broken

    def recv(self, tick: float) -> bytes:
        self._channel.settimeout(tick)
        try:
            return bytes(self._channel.recv(65536))
        except TimeoutError:
            raise
        except _BREAKS:  # reading also writes: it opens the window for more
            raise self._broken() from None

    def recv_err(self, tick: float) -> bytes:
        self._channel.settimeout(tick)
        with _as_oserror():
            return bytes(self._channel.recv_stderr(65536))

    def send(self, data: memoryview, tick: float) -> int:
        self._channel.settimeout(tick)
        with _as_oserror():
            return int(self._channel.send(bytes(data)))

    def end_input(self) -> None:
        with _as_oserror():
            self._channel.shutdown_write()

    def finish(self, tick: float) -> int:
        if not self._channel.status_event.wait(tick):
            raise TimeoutError
        rc = int(self._channel.recv_exit_status())
        if rc >= 0:
            return rc
        if not self._pulse.ask():
            raise self._broken()
        return 255  # ended by a signal, which paramiko does not hand on

    def kill(self) -> None:
        with contextlib.suppress(*_BREAKS):
            self._channel.close()


@contextlib.contextmanager
def _as_oserror() -> Iterator[None]:
    """What a Pipe promises where the line breaks; a TimeoutError is one already."""
    try:
        yield
    except (SSHException, EOFError) as error:
        raise OSError(str(error)) from None
