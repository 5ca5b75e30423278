"""What sshd and sudo refuse with: each in a sentence that says what, where, what it means and what to type next."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from transport_sshd import SSHD, Site, Sshd

from ddtree_ops.apply.agent import AgentClient, AgentSilent
from ddtree_ops.config.model import HostConfig
from ddtree_ops.core.errors import Unreachable
from ddtree_ops.core.refusals import explain
from ddtree_ops.transport import ssh_connect
from ddtree_ops.transport.fake import FakeTransport, Reply

pytestmark = [pytest.mark.tier("preflight"), pytest.mark.timeout(60)]
needs_sshd = pytest.mark.skipif(SSHD is None, reason="no sshd on this machine")
OPS = HostConfig(name="ct129", user="ops")


@pytest.mark.parametrize(
    ("text", "what", "step"),
    [
        ("sudo: a password is required", "asks ops for a password", "NOPASSWD"),
        ("sudo: a terminal is required to read the password; use -S", "asks ops for a password", "NOPASSWD"),
        ("sudo: no tty present and no askpass program specified", "asks ops for a password", "NOPASSWD"),
        ("sudo: sorry, you must have a tty to run sudo", "wants a terminal", "Defaults:ops !requiretty"),
        ("ops is not in the sudoers file.", "does not let ops run", "ops ALL=(root) NOPASSWD"),
        (
            "Sorry, user ops is not allowed to execute '/bin/python3' as root on ct129.",
            "does not let ops",
            "visudo",
        ),
        ("sh: 1: sudo: not found", "the host has no sudo", "user: root"),
        ("This account is currently not available.", "may not run commands", "getent passwd ops"),
    ],
)
def test_a_refused_sudo_says_which_rule_helps(text: str, what: str, step: str) -> None:
    noise = b"Welcome to ct129!\n"
    client = AgentClient(FakeTransport([Reply(noise, err=text.encode() + b"\nmore\n", rc=1)]), OPS)
    with pytest.raises(AgentSilent) as caught:
        client.call("probe", {})
    error = caught.value
    assert what in error.what and error.host == "ct129" and error.exit_code == 3
    assert error.evidence == text and "nothing was touched" in str(error.meaning)
    assert error.next is not None and step in error.next and "{" not in error.next


@pytest.mark.parametrize(
    "text",
    [
        "Traceback (most recent call last): MemoryError",
        "bash: python3: command not found",
        "sudo: unable to resolve host ct129: Name or service not known",
        "PAM session opened for user ops",
    ],
)
def test_other_texts_are_not_taken_for_a_refusal(text: str) -> None:
    assert explain(text) is None


def test_the_line_is_described_for_the_probe() -> None:
    out = b'\x1b[33mMOTD\x1b[0m of ct129\n\ntoken sk-0123456789abcdef0123\n@ddt {"ev": "result", "ok": true}\nbye\n'
    client = AgentClient(FakeTransport([Reply(out)]), OPS)
    client.call("probe", {})
    assert client.line["noise_lines"] == 2
    assert "MOTD" in client.line["noise"][0] and "\x1b" not in client.line["noise"][0]
    assert "0123456789abcdef" not in "".join(client.line["noise"])
    assert client.line["sent"] <= client.line["answered"]


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    monkeypatch.setattr(ssh_connect, "_PAUSE_S", (0.01, 0.05))
    root = tmp_path / "sshd"
    root.mkdir()
    server = Sshd(root, "MaxSessions 1\n")
    yield Site(tmp_path, server)
    server.stop()


@contextmanager
def crowded(port: int, drops: int) -> Iterator[tuple[int, list[int]]]:
    """A port before sshd that hangs up on the first `drops` callers, as MaxStartups does; yields (port, [callers])."""
    front = socket.create_server(("127.0.0.1", 0))
    callers = [0]

    def carry(one: socket.socket, other: socket.socket) -> None:
        with closing(one), closing(other):
            try:
                while data := one.recv(65536):
                    other.sendall(data)
            except OSError:
                return

    def serve() -> None:
        while True:
            try:
                line, _ = front.accept()
            except OSError:
                return
            callers[0] += 1
            if callers[0] <= drops:
                line.close()
                continue
            behind = socket.create_connection(("127.0.0.1", port))
            for pair in ((line, behind), (behind, line)):
                threading.Thread(target=carry, args=pair, daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    try:
        yield int(front.getsockname()[1]), callers
    finally:
        front.close()


@needs_sshd
def test_an_sshd_with_too_many_callers_is_asked_again(site: Site) -> None:
    with crowded(site.sshd.port, 2) as (port, callers):
        site.known_hosts.write_text(site.known_hosts.read_text().replace(str(site.sshd.port), str(port)))
        with closing(site.transport(f"ssh_port: {port}")) as transport:
            assert transport.run(["echo", "here"]).out == b"here\n"
    assert callers == [3]


@needs_sshd
def test_an_sshd_that_always_hangs_up_is_left_after_three_times(site: Site) -> None:
    with (
        crowded(site.sshd.port, 99) as (port, callers),
        closing(site.transport(f"ssh_port: {port}")) as transport,
        pytest.raises(Unreachable) as caught,
    ):
        transport.run(["true"])
    assert callers == [3]
    assert "MaxStartups" in str(caught.value.meaning) and "UseDNS" in str(caught.value.meaning)
    assert caught.value.next is not None and caught.value.next.startswith("ssh ")


@needs_sshd
def test_no_session_left_on_the_connection_is_named(site: Site) -> None:
    with closing(site.transport()) as transport:
        held = transport.stream(["sleep", "30"])
        with pytest.raises(Unreachable, match="opens no more sessions") as caught:
            transport.run(["true"])
        held.close()
    assert "MaxSessions" in str(caught.value.meaning) and "maxsessions" in str(caught.value.next)
