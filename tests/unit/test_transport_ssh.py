"""Host keys, logins, detours and broken lines against a real sshd."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import paramiko
import pytest
from transport_sshd import SSHD, USER, Site, Sshd, keygen, public

from ddtree_ops.core.errors import Unreachable, UsageProblem
from ddtree_ops.transport import fabric_

pytestmark = [
    pytest.mark.tier("main"),
    pytest.mark.timeout(60),
    pytest.mark.skipif(SSHD is None, reason="no sshd on this machine"),
]


@pytest.fixture(scope="module")
def sshd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    server = Sshd(tmp_path_factory.mktemp("sshd"))
    yield server
    server.stop()


@pytest.fixture
def site(tmp_path: Path, sshd: Sshd, monkeypatch: pytest.MonkeyPatch) -> Site:
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    return Site(tmp_path, sshd)


def works(transport: fabric_.FabricTransport) -> None:
    with closing(transport):
        assert transport.run(["echo", "here"]).out == b"here\n"


def fails(transport: fabric_.FabricTransport, pattern: str) -> Unreachable:
    with closing(transport), pytest.raises(Unreachable, match=pattern) as caught:
        transport.run(["true"])
    assert caught.value.exit_code == 13
    assert caught.value.host == "t"
    assert caught.value.next
    return caught.value


# Host keys


def test_an_unknown_key_is_refused_with_its_fingerprint(site: Site) -> None:
    site.known_hosts.write_text("")
    error = fails(site.transport(), "the host key is not in")
    assert error.evidence is not None and site.sshd.fingerprint() in error.evidence
    assert str(site.known_hosts) in error.what
    assert site.known_hosts.read_text() == ""


def test_a_changed_key_names_file_and_line_and_the_cure_works(site: Site, tmp_path: Path) -> None:
    keygen(tmp_path / "other")
    site.known_hosts.write_text(
        f"# mine\nelsewhere {public(tmp_path / 'other')}\n{site.sshd.name} {public(tmp_path / 'other')}\n"
    )
    error = fails(site.transport(), "the host key changed")
    assert f"{site.known_hosts}:3" in error.what
    assert error.evidence is not None and site.sshd.fingerprint() in error.evidence
    assert error.next is not None
    subprocess.run(shlex.split(error.next.split(": ", 1)[1]), check=True, capture_output=True)
    fails(site.transport(), "the host key is not in")


def test_accept_new_records_once_and_is_strict_from_then_on(site: Site, tmp_path: Path) -> None:
    site.known_hosts.write_text("elsewhere ssh-ed25519 AAAA")  # no line end: must not swallow the new line
    works(site.transport("host_key: accept-new"))
    works(site.transport())
    assert site.known_hosts.read_text().count(site.sshd.name) == 1
    keygen(tmp_path / "other")
    site.known_hosts.write_text(f"{site.sshd.name} {public(tmp_path / 'other')}\n")
    fails(site.transport("host_key: accept-new"), "the host key changed")


def test_a_pinned_key_needs_no_known_hosts_and_admits_no_other(site: Site) -> None:
    site.known_hosts.write_text("")
    works(site.transport(f"host_key: '{site.sshd.fingerprint()}'"))
    other = "SHA256:" + "A" * 43
    error = fails(site.transport(f"host_key: '{other}'"), "not the one pinned in hosts.yaml")
    assert other in error.what


def test_a_revoked_key_is_refused_though_it_is_known(site: Site) -> None:
    site.known_hosts.write_text(
        site.sshd.known() + "@revoked * " + public(site.sshd.root / "hk_ed25519") + "\n"
    )
    fails(site.transport(), "is revoked in .*:2")


def test_hashed_names_are_found(site: Site) -> None:
    subprocess.run(["ssh-keygen", "-q", "-H", "-f", str(site.known_hosts)], check=True, capture_output=True)
    assert site.sshd.name not in site.known_hosts.read_text()
    works(site.transport())


def test_the_kind_of_key_that_is_known_is_asked_for(site: Site) -> None:
    """The server prefers ed25519; with only its RSA key known, that must not look like a change."""
    site.known_hosts.write_text(site.sshd.known("rsa"))
    works(site.transport())


def test_hostkeyalias_is_the_name_that_counts(site: Site) -> None:
    site.known_hosts.write_text(site.sshd.known().replace(site.sshd.name, "ct129-key"))
    works(site.transport(ssh="  HostKeyAlias ct129-key"))


# Logins


def test_a_refused_key_says_what_was_tried_and_asks_nothing(site: Site, tmp_path: Path) -> None:
    keygen(tmp_path / "stranger")
    error = fails(site.transport(identity=tmp_path / "stranger"), "did not accept any key")
    assert error.evidence is not None and str(tmp_path / "stranger") in error.evidence


def test_an_encrypted_key_is_named_as_such(site: Site, tmp_path: Path) -> None:
    keygen(tmp_path / "locked", passphrase="correct horse")
    error = fails(site.transport(identity=tmp_path / "locked"), "no key to offer")
    assert error.evidence is not None and "ssh-add" in error.evidence


@contextmanager
def agent(path: Path, *keys: Path) -> Iterator[None]:
    process = subprocess.Popen(["ssh-agent", "-D", "-a", str(path)], stdout=subprocess.DEVNULL)
    try:
        while not path.exists():
            assert process.poll() is None
        for key in keys:
            env = {**os.environ, "SSH_AUTH_SOCK": str(path)}
            subprocess.run(["ssh-add", "-q", str(key)], check=True, env=env, capture_output=True)
        yield
    finally:
        process.kill()
        process.wait()


def test_an_agent_key_works_with_only_its_public_half_on_disk(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keygen(tmp_path / "stranger")
    shutil.copy(site.sshd.root / "id.pub", tmp_path / "mine.pub")
    with agent(tmp_path / "agent", tmp_path / "stranger", site.sshd.root / "id"):
        monkeypatch.setenv("SSH_AUTH_SOCK", str(tmp_path / "agent"))
        works(site.transport(identity=tmp_path / "mine.pub"))
        monkeypatch.delenv("SSH_AUTH_SOCK")
        works(site.transport(identity=tmp_path / "mine.pub", ssh=f"  IdentityAgent {tmp_path}/agent"))
    fails(site.transport(identity=tmp_path / "mine.pub"), "no key to offer")


# Ways


def test_proxy_command_carries_the_connection(site: Site) -> None:
    works(site.transport(ssh="  ProxyCommand RELAY %h %p 2>/dev/null"))


def test_a_proxy_command_that_fails_is_quoted(site: Site) -> None:
    error = fails(
        site.transport(ssh="  ProxyCommand sh -c 'echo no route to %h >&2; exit 4'"), "ProxyCommand .* failed"
    )
    assert error.evidence == "ProxyCommand ended with 4: no route to 127.0.0.1"


def test_jump_hosts_are_visited_in_the_order_written(site: Site) -> None:
    hops = f"Host one two\n  HostName 127.0.0.1\n  Port {site.sshd.port}\n"
    transport = site.transport(ssh="  ProxyJump one,two", hosts=hops)
    assert [j.original for j in transport.settings.jumps] == ["one", "two"]
    works(transport)


def test_a_jump_host_with_an_unknown_key_is_refused(site: Site) -> None:
    hops = f"Host one\n  HostName 127.0.0.1\n  Port {site.sshd.port}\n  HostKeyAlias jump-one\n"
    error = fails(site.transport(ssh="  ProxyJump one", hosts=hops), "the host key is not in")
    assert error.evidence is not None and "jump-one" in error.evidence


def test_the_first_jump_host_is_the_first_to_be_met(site: Site) -> None:
    each = "Host {0}\n  HostName 127.0.0.1\n  Port {1}\n  HostKeyAlias jump-{0}\n"
    hops = "".join(each.format(name, site.sshd.port) for name in ("one", "two"))
    error = fails(site.transport(ssh="  ProxyJump one,two", hosts=hops), "the host key is not in")
    assert error.evidence is not None and "jump-one" in error.evidence


def test_a_jump_that_leads_nowhere_says_so(site: Site) -> None:
    with closing(socket.socket()) as taken:
        taken.bind(("127.0.0.1", 0))  # bound, not listening: refused, and nobody else's
        hops = f"Host one\n  HostName 127.0.0.1\n  Port {site.sshd.port}\n"
        keys = f"ssh_port: {taken.getsockname()[1]}"
        fails(site.transport(keys, ssh="  ProxyJump one", hosts=hops), "the jump host could not reach")


def test_include_is_followed(site: Site, tmp_path: Path) -> None:
    transport = site.transport()
    config = tmp_path / "ssh_config"
    config.rename(tmp_path / "real_config")
    config.write_text(f"Include {tmp_path}/real_config\n")
    from ddtree_ops.config import load_inventory
    from ddtree_ops.transport import open_transport

    inventory = load_inventory(tmp_path / "hosts.yaml")
    again = open_transport(inventory, inventory.hosts["t"])
    assert isinstance(again, fabric_.FabricTransport)
    assert again.settings.port == transport.settings.port
    works(again)


# Broken lines


def once_set(event: threading.Event) -> Iterator[bytes]:
    """Input that comes when `event` is set: `read x` in the command waits for it."""
    event.wait(20)
    yield b"go\n"


@contextmanager
def listener(answer: bytes | None) -> Iterator[int]:
    """A port that says `answer` and hangs up; None: takes connections and stays silent."""
    server = socket.create_server(("127.0.0.1", 0))
    held: list[socket.socket] = []

    def serve() -> None:
        while True:
            try:
                line, _ = server.accept()
            except OSError:
                return
            held.append(line)
            if answer is not None:
                line.sendall(answer)
                line.close()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield int(server.getsockname()[1])
    finally:
        server.close()
        for line in held:
            line.close()


def test_a_black_hole_fails_at_the_connect_limit(site: Site) -> None:
    with listener(None) as port:
        keys = f"ssh_port: {port}, timeouts: {{connect: 0.5}}"
        fails(site.transport(keys), r"did not complete the connection within 0\.5 s")


def test_a_silent_proxy_fails_at_the_connect_limit(site: Site, tmp_path: Path) -> None:
    ssh = f"  ProxyCommand sh -c 'echo $$ > {tmp_path}/pid; sleep 600'"
    fails(site.transport("timeouts: {connect: 0.5}", ssh=ssh), "did not complete the connection")
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


def test_something_else_on_the_port_is_not_called_a_refusal(site: Site) -> None:
    with listener(b"HTTP/1.1 400 Bad Request\r\n\r\n") as port:
        fails(site.transport(f"ssh_port: {port}"), "is no SSH server")


def test_a_closed_port_and_an_unknown_name(site: Site) -> None:
    with closing(socket.socket()) as taken:
        taken.bind(("127.0.0.1", 0))
        fails(site.transport(f"ssh_port: {taken.getsockname()[1]}"), "connection refused")
    hosts = "Host ghost\n  HostName ghost.invalid\n"
    fails(site.transport("address: ghost", hosts=hosts), "does not resolve")


def test_a_line_cut_in_mid_stream_is_no_exit_status(site: Site) -> None:
    with closing(site.transport()) as transport:
        heard = threading.Event()
        stream = transport.stream(
            ["sh", "-c", "echo one; read x; kill -9 $PPID; sleep 30"], once_set(heard), 30
        )
        assert next(stream) == b"one"
        heard.set()
        with pytest.raises(Unreachable, match="the connection broke before the command ended"):
            next(stream)
        assert stream.rc is None
        assert transport.run(["echo", "again"]).out == b"again\n"  # the next command connects afresh


def test_a_line_that_broke_between_two_commands_is_opened_once_more(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rebooted host resets the old connection only when somebody writes to it."""
    opened = paramiko.Transport.open_session
    reset: list[paramiko.Transport] = []
    always = False

    def open_session(self: paramiko.Transport, timeout: float) -> paramiko.Channel:
        if always or self in reset:
            self.close()
            raise EOFError
        return opened(self, timeout=timeout)

    monkeypatch.setattr(paramiko.Transport, "open_session", open_session)
    with closing(site.transport()) as transport:
        transport.run(["true"])
        reset.append(transport._connected().transport)
        assert transport.run(["echo", "here"]).out == b"here\n"
        always = True
        with pytest.raises(Unreachable, match="no command could be started"):
            transport.run(["true"])


def test_a_host_that_stops_answering_is_noticed_without_an_idle_limit(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fabric_, "_ALIVE_EVERY", 0.1)
    monkeypatch.setattr(fabric_, "_DEAD_AFTER", 0.5)
    with closing(site.transport()) as transport:
        heard = threading.Event()
        stream = transport.stream(
            ["sh", "-c", "echo $PPID; read x; kill -STOP $PPID; sleep 20"], once_set(heard)
        )
        frozen = int(next(stream))
        heard.set()
        try:
            with pytest.raises(Unreachable, match="the host did not answer for"):
                next(stream)
        finally:
            os.kill(frozen, signal.SIGKILL)


# Settings


def test_the_lab_beside_hosts_yaml_is_used_while_it_is_up(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ddtree_ops.config import load_inventory
    from ddtree_ops.transport.ssh_settings import settings_for

    monkeypatch.delenv("DDTREE_OPS_SSH_CONFIG", raising=False)
    (tmp_path / "hosts.yaml").write_text("version: 1\nhosts: {ct129: {}}\n")
    (tmp_path / ".lab").mkdir()
    (tmp_path / ".lab/ssh_config").write_text(
        "Host ct129\n  HostName 192.0.2.9\n  ProxyCommand relay %h %p %r %n %%\n"
    )
    inventory = load_inventory(tmp_path / "hosts.yaml")
    assert settings_for(inventory, inventory.hosts["ct129"]).hostname == "ct129"
    (tmp_path / ".lab/active").touch()
    found = settings_for(inventory, inventory.hosts["ct129"])
    assert (found.hostname, found.proxy_command) == ("192.0.2.9", "relay 192.0.2.9 22 root ct129 %")
    (tmp_path / "mine").write_text("Host ct129\n  HostName 192.0.2.7\n")
    monkeypatch.setenv("DDTREE_OPS_SSH_CONFIG", str(tmp_path / "mine"))
    assert settings_for(inventory, inventory.hosts["ct129"]).hostname == "192.0.2.7"


def test_a_missing_or_broken_ssh_config_is_a_usage_problem(site: Site, tmp_path: Path) -> None:
    from ddtree_ops.config import load_inventory
    from ddtree_ops.transport.ssh_settings import settings_for

    (tmp_path / "hosts.yaml").write_text("version: 1\nhosts: {a: {ssh_config: nope}, b: {ssh_config: bad}}\n")
    (tmp_path / "bad").write_text("Host *\n  NoSuchWord yes\n")
    inventory = load_inventory(tmp_path / "hosts.yaml")
    with pytest.raises(UsageProblem, match="nope is not there"):
        settings_for(inventory, inventory.hosts["a"])
    with pytest.raises(UsageProblem, match="does not accept its configuration") as caught:
        settings_for(inventory, inventory.hosts["b"])
    assert caught.value.evidence is not None and "line 2" in caught.value.evidence


def test_without_the_ssh_command_paramiko_reads_ssh_config_and_refuses_include(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ddtree_ops.transport import ssh_settings

    monkeypatch.setattr(ssh_settings.shutil, "which", lambda name: None)
    works(site.transport(ssh="  ProxyCommand RELAY %h %p"))
    with pytest.raises(UsageProblem, match="uses Include"):
        site.transport(hosts="Include other")


def test_user_is_the_one_of_hosts_yaml(site: Site) -> None:
    assert site.transport().settings.user == USER
