"""Connects within one deadline, and turns every way it can fail into a sentence."""

from __future__ import annotations

import contextlib
import logging
import random
import threading
import time
from typing import Any

import fabric
import paramiko
from paramiko.ssh_exception import ChannelException, IncompatiblePeer, SSHException

from ddtree_ops.core.errors import OpsError, Unreachable
from ddtree_ops.core.refusals import explain
from ddtree_ops.transport.auth import KeysOnly
from ddtree_ops.transport.host_key import HostKeyPolicy
from ddtree_ops.transport.ssh_settings import SshSettings
from ddtree_ops.transport.ssh_socket import Proxy, tcp, through

#: How often an sshd that hung up is asked, and the pause before it is asked again (seconds).
_TRIES, _PAUSE_S = 3, (0.2, 0.8)
# Paramiko logs tracebacks of connections that break; our errors say it.
logging.getLogger("paramiko").addHandler(logging.NullHandler())


_MEANING = (
    "too many connections at once (MaxStartups of sshd), a loaded host, slow reverse DNS (UseDNS), or no sshd;"
    f" asked {_TRIES} times, nothing was sent to it"
)


class _Late(Exception):
    """The deadline passed while a connection was being made."""


def _dropped(error: BaseException | None) -> bool:
    """Whether the far side hung up before it said who it is."""
    if isinstance(error, (EOFError, ConnectionResetError, BrokenPipeError)):
        return True
    return isinstance(error, SSHException) and "banner" in str(error)


class Line:
    """An open connection with all that it stands on. `transport` is paramiko's."""

    def __init__(self, settings: SshSettings) -> None:
        self.settings = settings
        self.transport: Any = None
        self._parts: list[Any] = []  # closed in reverse
        self._ended = False
        self._proxy: Proxy | None = None

    def open(self) -> Line:
        """Connect, check the host key, log in; all of it within `connect_timeout`. Raises Unreachable.

        An sshd that hangs up before its banner has too many callers at once (MaxStartups drops them at random): it is
        asked again after a moment, which differs so that not all of them come back together.
        """
        end = time.monotonic() + self.settings.connect_timeout
        for tries_left in reversed(range(_TRIES)):
            error, said = self._attempt(end - time.monotonic())
            if error is None and said is None:
                return self
            pause = random.uniform(*_PAUSE_S)
            if said or not tries_left or not _dropped(error) or time.monotonic() + pause >= end:
                break
            time.sleep(pause)
            self._ended = False
        if error is not None and not isinstance(error, Exception):
            raise error
        raise self._sentence(None if isinstance(error, _Late) else error, said)

    def _attempt(self, limit: float) -> tuple[BaseException | None, str | None]:
        """Connect once. (None, None) where it worked, else the error and what a ProxyCommand said."""
        done = threading.Event()
        failure: list[BaseException] = []

        def work() -> None:
            try:
                self._open()
            except BaseException as error:
                failure.append(error)
            done.set()

        # In a thread, because neither a resolver nor paramiko's handshake keeps a deadline that we could set.
        threading.Thread(target=work, daemon=True).start()
        in_time = done.wait(limit)
        if in_time and not failure:
            return None, None
        said = self._proxy.failure() if self._proxy else None
        self.close()
        return failure[0] if in_time else _Late(), said

    def close(self) -> None:
        """Hang up, from any thread, as often as wanted."""
        self._ended = True
        for part in reversed(self._parts):
            with contextlib.suppress(Exception):  # closing what is broken already
                part.close()
        self._parts.clear()

    def _open(self) -> None:
        previous: Any = None
        for hop in (*self.settings.jumps, self.settings):
            previous = self._connect(hop, previous)
        self.transport = previous

    def _connect(self, hop: SshSettings, previous: Any) -> Any:
        policy = HostKeyPolicy(hop)

        def transport_factory(sock: Any, **kwargs: Any) -> Any:
            made = paramiko.Transport(sock, **kwargs)
            options = made.get_security_options()
            options.key_types = policy.key_types(list(options.key_types))
            return self._own(made)

        limit = hop.connect_timeout
        connection = fabric.Connection(
            hop.hostname,
            user=hop.user,
            port=hop.port,
            gateway=False,
            # Neither ~/.fabric.yaml nor a second reading of ssh_config may change what `settings` says.
            config=fabric.Config(lazy=True, ssh_config=paramiko.SSHConfig()),
            connect_kwargs={
                "sock": self._socket(hop, previous),
                "timeout": limit,
                "banner_timeout": limit,
                "auth_timeout": limit,
                "channel_timeout": limit,
                "transport_factory": transport_factory,
                "auth_strategy": KeysOnly(hop),
            },
        )
        connection.client.set_missing_host_key_policy(policy)
        connection.open()
        return connection.transport

    def _socket(self, hop: SshSettings, previous: Any) -> Any:
        if previous is not None:
            return self._own(through(previous, hop))
        if hop.proxy_command:
            self._proxy = self._own(Proxy(hop))
            return self._proxy.line
        return self._own(tcp(hop))

    def _own(self, part: Any) -> Any:
        self._parts.append(part)
        if self._ended:  # the deadline struck meanwhile
            self.close()
            raise TimeoutError
        return part

    def _sentence(self, error: BaseException | None, proxy: str | None) -> OpsError:
        settings = self.settings
        if isinstance(error, OpsError):
            return error
        where = f"{settings.hostname} port {settings.port}"
        evidence = proxy or (str(error).splitlines()[0] if error and str(error) else None)
        if error is None or isinstance(error, TimeoutError):
            what = f"{where} did not complete the connection within {settings.connect_timeout:g} s"
        elif proxy:
            what = f"the ProxyCommand to {where} failed"
        elif isinstance(error, ChannelException):
            what = f"the jump host could not reach {where}"
        elif isinstance(error, IncompatiblePeer):
            what = f"{where} and ddtree-ops share no SSH algorithm"
        elif isinstance(error, SSHException) and "banner" in str(error):
            what = f"what answers on {where} is no SSH server, or is one that hung up"
        elif isinstance(error, (SSHException, EOFError, OSError)):
            what = f"the connection to {where} broke while it was being made"
        else:
            raise error
        meaning: str | None = None
        step = settings.ssh_command("true")
        known = explain(proxy) if proxy else None  # an ssh of its own speaks there
        if known is not None:
            meaning = known.meaning.replace("{user}", settings.user)
            step = f"{known.then(settings.hostname, settings.user)}; {step}"
        elif error is not None and _dropped(error) and not proxy:
            meaning = _MEANING
        return Unreachable(what, host=settings.host, evidence=evidence, meaning=meaning, next=step)
