"""Rules on the way to the host: a shell that talks, clocks apart; and what a refusal of ssh or sudo means."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ddtree_ops.core.checks.judge import rule
from ddtree_ops.core.checks.rule import Rule, Section
from ddtree_ops.core.facts_live import Live, Session
from ddtree_ops.core.finding import Finding, block, ok, warn
from ddtree_ops.core.wanted import Wanted

#: Certificates, tokens and files "from the future" begin to fail at about this (seconds).
_APART_S = 5.0


@dataclass(frozen=True)
class Failure:
    """Why no answer came: the text that ssh, sshd or sudo said."""

    text: str
    user: str


@dataclass(frozen=True)
class Transport:
    """sent, answered: the operator's clock (unix seconds) around the probe. noise: lines before the agent's first
    frame, of `noise_lines` in all."""

    sent: float
    answered: float
    noise: tuple[str, ...]
    noise_lines: int
    failure: Failure | None = None


def read(raw: Mapping[str, Any]) -> Transport:
    """The section that the controller adds to the probe's document."""
    failure = raw.get("failure")
    return Transport(
        sent=float(raw["sent"]),
        answered=float(raw["answered"]),
        noise=tuple(raw["noise"]),
        noise_lines=int(raw["noise_lines"]),
        failure=Failure(failure["text"], failure.get("user") or "root") if failure else None,
    )


SECTION = Section("transport", Transport, read)


@dataclass(frozen=True)
class Refusal:
    """What a text of ssh, sshd or sudo says: the rule that it breaks, in words, and what a person does next ({host}
    and {user} are filled in). passing: the same may work in a moment."""

    id: str
    what: str
    meaning: str
    next: str
    passing: bool = False

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
            passing=True,
        ),
    ),
    (
        r"banner|kex_exchange_identification|MaxStartups|Connection (closed|reset) by remote host",
        Refusal(
            "ssh-banner",
            "sshd hung up, or was silent, before it said who it is",
            "too many connections at once (MaxStartups), a loaded host, or slow reverse DNS (UseDNS)",
            "type it again; timeouts: {connect: 60} in hosts.yaml; on the host: sshd -T | grep -iE 'maxstart|usedns'",
            passing=True,
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
        r"certificate is not yet valid|not valid (yet|before)",
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


def _refused(facts: Transport, live: Live, wanted: Wanted) -> Iterator[Finding]:
    """The host must let us in, and let us be root, before anything is planned."""
    if facts.failure is None:
        yield ok("ssh-refused", "the host let us in")
        return
    found = explain(facts.failure.text)
    line = facts.failure.text.strip().splitlines()[-1] if facts.failure.text.strip() else "no word"
    if found is None:
        yield block("ssh-refused", line, f"ssh -v {wanted.host} true")
        return
    who = found.what.replace("{user}", facts.failure.user)
    then = found.then(wanted.host, facts.failure.user)
    yield block("ssh-refused", f"{who}: {line} ({found.meaning.replace('{user}', facts.failure.user)})", then)


def _noise(facts: Transport, live: Live, wanted: Wanted) -> Iterator[Finding]:
    """Frames survive it; scp, sftp and rsync of other tools do not."""
    if not facts.noise_lines:
        yield ok("shell-noise", "the login shell is quiet")
        return
    text = f"the login shell prints {facts.noise_lines} lines before the answer: {facts.noise[0]!r}"
    fix = "[[ $- == *i* ]] || return, at the top of ~/.bashrc there (we read only framed lines; sftp and rsync fail)"
    yield warn("shell-noise", text, fix)


def _clock(facts: Transport, live: Live, wanted: Wanted) -> Iterator[Finding]:
    """Clocks apart make certificates not yet valid, files from the future, and a history in the wrong order."""
    if not isinstance(live.session, Session):
        yield warn("clock", "unknown: the host did not say its time", f"ssh {wanted.host} date -u")
        return
    apart = max(facts.sent - live.session.time, live.session.time - facts.answered, 0.0)
    if apart > _APART_S:
        side = "behind" if live.session.time < facts.sent else "ahead of"
        text = f"the host's clock is at least {apart:.0f} s {side} ours: certificates and time stamps will not match"
        yield warn("clock", text, f"ssh {wanted.host} timedatectl set-ntp true (and timedatectl here)")
    else:
        yield ok("clock", "the clocks agree")


RULES: tuple[Rule[Transport], ...] = (
    rule(SECTION, "ssh-refused", _refused, "Found at the last step, after something was already changed.", "F190",
         "F191", "F193", "F194", "F198", "F199", "F201", waivable=False),
    rule(SECTION, "shell-noise", _noise, "Text of an rc file is taken for data.", "F195", "F197"),
    rule(SECTION, "clock", _clock, "Certificates are not yet valid; what was made now looks older.", "F205"),
)  # fmt: skip
