"""Decides whether a server's key is the host's, and says what to do where it is not."""

from __future__ import annotations

import shlex
from typing import Any

from paramiko import MissingHostKeyPolicy

from ddtree_ops.core.errors import Unreachable
from ddtree_ops.transport.known_hosts import KnownKey, fingerprint, known_keys, remember
from ddtree_ops.transport.ssh_settings import SshSettings


class HostKeyPolicy(MissingHostKeyPolicy):  # type: ignore[misc]  # paramiko is untyped
    """Asked for every key, because the client itself is given no known ones (it knows no markers and no globs)."""

    def __init__(self, settings: SshSettings) -> None:
        self.settings = settings
        self.known = known_keys(settings.known_hosts, settings.known_as)

    def key_types(self, offered: list[str]) -> list[str]:
        """Return `offered` in the order to ask for them: the kinds we know first, or the known one looks changed."""
        kinds = {k.kind for k in self.known if not k.marker}
        if "ssh-rsa" in kinds:
            kinds |= {"rsa-sha2-512", "rsa-sha2-256"}
        allowed = [t for t in offered if t in self.settings.host_key_algorithms] or list(offered)
        return sorted(allowed, key=lambda kind: kind not in kinds)

    def missing_host_key(self, client: Any, hostname: str, key: Any) -> None:
        """Return if the key is right. Raises Unreachable otherwise."""
        self.check(key.get_name(), key.asbytes())

    def check(self, kind: str, blob: bytes) -> None:
        """As `missing_host_key`, from the key's parts."""
        for line in self.known:
            if line.marker == "@revoked" and line.blob == blob:
                raise self._error(
                    f"the host's key is revoked in {line.file}:{line.line}", blob, "ask who revoked it"
                )
        pinned = self.settings.host_key
        if pinned.startswith("SHA256:"):
            if fingerprint(blob) != pinned.rstrip("="):
                raise self._error(
                    f"the host key is not the one pinned in hosts.yaml ({pinned})",
                    blob,
                    "correct host_key in hosts.yaml",
                )
            return
        plain = [line for line in self.known if not line.marker]
        if any(line.blob == blob for line in plain):
            return
        if plain:
            raise self._changed(next((k for k in plain if k.kind == kind), plain[0]), blob)
        if pinned != "accept-new" or any(k.marker == "@cert-authority" for k in self.known):
            raise self._unknown(blob)
        self._accept(kind, blob)

    def _accept(self, kind: str, blob: bytes) -> None:
        file = self.settings.known_hosts[0] if self.settings.known_hosts else None
        if file is None:
            raise self._error("accept-new has no file to record the key in", blob, "set UserKnownHostsFile")
        try:
            remember(file, self.settings.known_as, kind, blob)
        except OSError as error:
            raise self._error(
                f"the host key could not be recorded in {file}: {error.strerror}", blob, f"ls -l {file}"
            ) from None

    def _changed(self, line: KnownKey, blob: bytes) -> Unreachable:
        name = self.settings.known_as
        return self._error(
            f"the host key changed: {line.file}:{line.line} has another one ({fingerprint(line.blob)})",
            blob,
            f"if the host was reinstalled: {shlex.join(['ssh-keygen', '-R', name, '-f', str(line.file)])}",
            meaning="the host was reinstalled, or something else answers in its place; nothing was sent to it",
        )

    def _unknown(self, blob: bytes) -> Unreachable:
        where = self.settings.known_hosts[0] if self.settings.known_hosts else "known_hosts"
        ca = any(k.marker == "@cert-authority" for k in self.known)
        meaning = "host certificates are not checked here: pin the key in hosts.yaml" if ca else None
        on_the_host = "ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub"
        step = f"compare it on the host ({on_the_host}), then: {self.settings.ssh_command('true')}"
        return self._error(f"the host key is not in {where}", blob, step, meaning=meaning)

    def _error(self, what: str, blob: bytes, step: str, meaning: str | None = None) -> Unreachable:
        evidence = f"{self.settings.known_as} presented {fingerprint(blob)}"
        return Unreachable(what, host=self.settings.host, evidence=evidence, meaning=meaning, next=step)
