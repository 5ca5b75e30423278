"""Proves who we are to sshd: agent and key files in OpenSSH's order, never a question to the terminal."""

from __future__ import annotations

import base64
import os
import socket
from pathlib import Path
from typing import Any

from paramiko import Agent, PKey
from paramiko.agent import AgentSSH
from paramiko.pkey import UnknownKeyType
from paramiko.ssh_exception import (
    AuthenticationException,
    BadAuthenticationType,
    PasswordRequiredException,
    SSHException,
)

from ddtree_ops.core.errors import Unreachable
from ddtree_ops.transport.ssh_settings import SshSettings


class KeysOnly:
    """Paramiko's `auth_strategy`: public keys and nothing that would prompt."""

    def __init__(self, settings: SshSettings) -> None:
        self.settings = settings
        self.notes: list[str] = []

    def authenticate(self, transport: Any) -> list[str]:
        """Return an empty list once sshd accepted a key. Raises Unreachable, naming what was tried."""
        tried = 0
        for label, key in self._keys():
            try:
                more = transport.auth_publickey(self.settings.user, key)
            except BadAuthenticationType as error:
                allowed = ", ".join(error.allowed_types)
                raise self._refused(f"sshd takes no keys, only: {allowed}") from None
            except AuthenticationException as error:
                tried += 1
                self.notes.append(f"{label}: {str(error).rstrip('.').lower()}")
                if not transport.is_active():
                    raise self._refused(
                        "sshd hung up after too many keys; IdentitiesOnly limits them"
                    ) from None
                continue
            if more:
                raise self._refused(f"sshd wants a second proof ({', '.join(more)})")
            return []
        raise self._refused(None if tried else "no key to offer was found")

    def _keys(self) -> list[tuple[str, Any]]:
        files = [p for p in self.settings.identities if p.exists() or _public(p).exists()]
        wanted = {blob for p in files if (blob := _blob(_public(p)))}
        agent = [(f"agent key {k.get_fingerprint().hex()[:8]}", k) for k in self._agent_keys()]
        named = [(label, k) for label, k in agent if k.asbytes() in wanted]
        others = (
            [] if self.settings.identities_only else [(n, k) for n, k in agent if k.asbytes() not in wanted]
        )
        held = {k.asbytes() for _, k in agent}
        loaded = [(str(p), self._load(p)) for p in files if _blob(_public(p)) not in held]
        return named + others + [(label, key) for label, key in loaded if key is not None]

    def _agent_keys(self) -> tuple[Any, ...]:
        path = self.settings.agent
        if path == "none":
            return ()
        try:
            if path in (None, "SSH_AUTH_SOCK"):
                return tuple(Agent().get_keys())
            name = os.environ.get(path[1:], "") if path.startswith("$") else path
            agent = AgentSSH()
            line = socket.socket(socket.AF_UNIX)
            line.settimeout(self.settings.connect_timeout)
            line.connect(os.path.expanduser(name))  # noqa: PTH111  # an abstract socket is no path
            agent._connect(line)
            return tuple(agent.get_keys())
        except (OSError, SSHException) as error:
            self.notes.append(f"agent: {error}")
            return ()

    def _load(self, path: Path) -> Any:
        try:
            key = PKey.from_path(path)
        except UnknownKeyType:
            self.notes.append(f"{path}: a kind of key that paramiko cannot read (ssh-add {path})")
        except (OSError, SSHException, ValueError, TypeError) as error:
            why = str(error).splitlines()[0] if str(error) else type(error).__name__
            # PasswordRequiredException, or for some formats ValueError or TypeError of the cryptography package.
            if isinstance(error, PasswordRequiredException) or "password" in why.lower():
                why = f"encrypted and not in the agent (ssh-add {path})"
            self.notes.append(f"{path}: {why}")
        else:
            certificate = path.with_name(f"{path.name}-cert.pub")
            if certificate.exists():
                key.load_certificate(str(certificate))
            return key
        return None

    def _refused(self, why: str | None) -> Unreachable:
        user, host = self.settings.user, self.settings.hostname
        what = f"{user}@{host} did not accept any key" + (f": {why}" if why else "")
        return Unreachable(
            what,
            host=self.settings.host,
            evidence="; ".join(self.notes) or None,
            meaning="ddtree-ops logs in by key and never asks for a password",
            next=self.settings.ssh_command("true"),
        )


def _public(path: Path) -> Path:
    return path if path.suffix == ".pub" else path.with_name(f"{path.name}.pub")


def _blob(public: Path) -> bytes | None:
    try:
        return base64.b64decode(public.read_text(encoding="ascii").split()[1])
    except (OSError, ValueError, IndexError):
        return None
