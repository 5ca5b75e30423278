"""What a text of ssh, sshd or sudo means when a host does not let us in, and what a person types next."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Refusal:
    """What a text of ssh, sshd or sudo says: the rule that it breaks, in words, and what a person does next ({host}
    and {user} are filled in)."""

    id: str
    what: str
    meaning: str
    next: str

    def then(self, host: str, user: str) -> str:
        """The next command, with the names in it."""
        return self.next.replace("{host}", host).replace("{user}", user)


_TABLE: tuple[tuple[str, Refusal], ...] = (
    (
        r"BadHostKey|HOST IDENTIFICATION HAS CHANGED|Host key for server .* does not match|host key changed",
        Refusal(
            "ssh-host-key",
            "the host key changed",
            "the host was reinstalled, its address has another owner now, or somebody answers in its place; a changed"
            " key is never accepted by itself",
            "compare the fingerprints on the host's console, then: ssh-keygen -R {host}",
        ),
    ),
    (
        r"sudo: .*must have a tty",
        Refusal(
            "sudo",
            "sudo wants a terminal (requiretty)",
            "an unattended sudo has none",
            "on the host, visudo: Defaults:{user} !requiretty",
        ),
    ),
    (
        r"sudo: .*(terminal is required|no tty present|password is required|askpass)",
        Refusal(
            "sudo",
            "sudo asks {user} for a password",
            "an unattended sudo (sudo -n) answers none",
            "on the host, visudo: {user} ALL=(root) NOPASSWD: /usr/bin/python3; or user: root in hosts.yaml",
        ),
    ),
    (
        r"not in the sudoers file|is not allowed to (execute|run)|may not run sudo",
        Refusal(
            "sudo",
            "sudo does not let {user} run python3 as root",
            "no rule in sudoers names it",
            "on the host, visudo: {user} ALL=(root) NOPASSWD: /usr/bin/python3; or user: root in hosts.yaml",
        ),
    ),
    (
        r"sudo: (command )?not found",
        Refusal(
            "sudo",
            "the host has no sudo",
            "another user than root needs it",
            "user: root in hosts.yaml, or install sudo there",
        ),
    ),
    (
        r"Permission denied \(|did not accept any key|Authentication failed|Too many authentication failures",
        Refusal(
            "ssh-login",
            "sshd accepts none of our keys",
            "ddtree-ops logs in by key and never asks for a password",
            "ssh-copy-id {user}@{host}; with several keys in the agent set identity: in hosts.yaml",
        ),
    ),
    (
        r"Received message too long \d+|is your shell clean",
        Refusal(
            "ssh-noise",
            "the login shell prints text into the channel",
            "an rc file of {user} speaks where no person listens",
            "guard it on the host: [[ $- == *i* ]] || return, at the top of ~/.bashrc",
        ),
    ),
    (
        r"no more sessions|[Cc]hannel .*open fail|open failed|Connect failed|MaxSessions|administratively prohibited",
        Refusal(
            "ssh-sessions",
            "sshd opens no more sessions on this connection",
            "MaxSessions is reached: others work over the same connection, or it is set to 0",
            "on the host: sshd -T | grep -i maxsessions; then type the same command again",
        ),
    ),
    (
        r"banner|kex_exchange_identification|MaxStartups|Connection (closed|reset) by remote host",
        Refusal(
            "ssh-banner",
            "sshd hung up, or was silent, before it said who it is",
            "too many connections at once (MaxStartups), a loaded host, or slow reverse DNS (UseDNS)",
            "type it again; timeouts: {connect: 60} in hosts.yaml; on the host: sshd -T | grep -iE 'maxstart|usedns'",
        ),
    ),
    (
        r"account is (currently not available|expired|locked)|nologin|password has expired|change your password",
        Refusal(
            "ssh-login",
            "the account of {user} may not run commands",
            "its shell is nologin, or its password has expired",
            "on the host: chage -l {user}; getent passwd {user}",
        ),
    ),
    (
        r"[Cc]ertificate (is|invalid:)? ?not yet valid",
        Refusal(
            "clock",
            "a certificate is not yet valid",
            "the clocks of the two machines differ",
            "ssh {host} timedatectl set-ntp true, and the same here",
        ),
    ),
)  # fmt: skip
_COMPILED = tuple((re.compile(pattern), refusal) for pattern, refusal in _TABLE)


def explain(text: str) -> Refusal | None:
    """What a text of ssh, sshd or sudo means; None for one that we do not know."""
    return next((refusal for pattern, refusal in _COMPILED if pattern.search(text)), None)
