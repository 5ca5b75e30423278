"""The contract, and what breaks a line, over a host with its own systemd and sshd."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from ddtree_lab.client import Lab, LabHost
from ddtree_lab.spec import HostSpec

from ddtree_ops.config import load_inventory
from ddtree_ops.core.errors import Unreachable
from ddtree_ops.transport import Transport, fabric_, open_transport
from transport_contract import *  # noqa: F403  # the scenarios, over the fixture below

pytestmark = [pytest.mark.tier("main"), pytest.mark.lab, pytest.mark.timeout(120)]


@pytest.fixture(scope="module")
def host(lab: Lab) -> Iterator[LabHost]:
    lab.add(HostSpec("wire"))
    yield lab.host("wire")
    lab.remove("wire")


def reach(host: LabHost, path: Path, keys: str = "") -> Transport:
    """A transport by hosts.yaml and the lab's ssh_config, as an operator has them."""
    ssh_config = host.lab.state.ssh_config
    (path / "hosts.yaml").write_text(
        f"version: 1\ndefaults: {{ssh_config: {ssh_config}}}\nhosts: {{{host.name}: {{{keys}}}}}\n"
    )
    inventory = load_inventory(path / "hosts.yaml")
    return open_transport(inventory, inventory.hosts[host.name])


@pytest.fixture
def transport(host: LabHost, tmp_path: Path) -> Iterator[Transport]:
    with closing(reach(host, tmp_path)) as made:
        yield made


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fabric_, "_ALIVE_EVERY", 0.2)
    monkeypatch.setattr(fabric_, "_DEAD_AFTER", 1.0)


def test_sessions_killed_in_mid_transfer(host: LabHost, transport: Transport) -> None:
    def endless() -> Iterator[bytes]:
        while True:
            yield b"x" * 65536

    stream = transport.stream(["sh", "-c", "echo ready; cat >/dev/null"], endless())
    assert next(stream) == b"ready"
    host.fault("kill-sshd")
    with pytest.raises(Unreachable, match="broke before the command ended"):
        next(stream)
    assert transport.run(["echo", "back"]).out == b"back\n"


@pytest.mark.parametrize(("fault", "cure"), [("link-down", "link-up"), ("freeze", "thaw")])
def test_a_dead_line_is_noticed_in_mid_stream_and_at_the_next_command(
    host: LabHost, tmp_path: Path, impatient: None, fault: str, cure: str
) -> None:
    with closing(reach(host, tmp_path, "timeouts: {connect: 2}")) as transport:
        stream = transport.stream(["sh", "-c", "echo ready; sleep 100"])
        assert next(stream) == b"ready"
        host.fault(fault)
        try:
            with pytest.raises(Unreachable, match="did not answer for"):
                next(stream)
            with pytest.raises(Unreachable, match="did not complete the connection within 2 s"):
                transport.run(["true"])
        finally:
            host.fault(cure)
        assert transport.run(["echo", "back"]).out == b"back\n"


def test_a_line_that_died_between_two_commands(host: LabHost, tmp_path: Path, impatient: None) -> None:
    """The second command is started on a connection that looks open."""
    with closing(reach(host, tmp_path, "timeouts: {connect: 2}")) as transport:
        transport.run(["true"])
        host.fault("link-down")
        try:
            with pytest.raises(Unreachable):
                transport.run(["true"])
        finally:
            host.fault("link-up")


def test_a_crashed_host(host: LabHost, transport: Transport) -> None:
    stream = transport.stream(["sh", "-c", "echo ready; sleep 100"], idle_timeout=3)
    assert next(stream) == b"ready"
    host.fault("crash")
    try:
        with pytest.raises(Unreachable):
            next(stream)
    finally:
        host.fault("start")
    assert transport.run(["echo", "back"]).out == b"back\n"


def test_sshd_that_is_down_is_said_with_the_relays_words(host: LabHost, tmp_path: Path) -> None:
    host.fault("sshd-stop")
    try:
        with closing(reach(host, tmp_path)) as transport, pytest.raises(Unreachable) as caught:
            transport.run(["true"])
    finally:
        host.fault("sshd-start")
    assert caught.value.evidence is not None and "Connection refused" in caught.value.evidence


def test_a_reinstalled_host_is_not_trusted(host: LabHost, tmp_path: Path) -> None:
    remake = (
        "rm /etc/ssh/ssh_host_ed25519_key*; ssh-keygen -q -t ed25519 -N '' -f /etc/ssh/ssh_host_ed25519_key"
    )
    kept: Any = host.check("cd /etc/ssh && tar cf - ssh_host_ed25519_key* | base64 -w0")
    host.check(remake)
    try:
        with (
            closing(reach(host, tmp_path)) as transport,
            pytest.raises(Unreachable, match="host key changed") as caught,
        ):
            transport.run(["true"])
        assert caught.value.exit_code == 13
        assert f"{host.lab.state.known_hosts}:" in caught.value.what
        assert caught.value.next is not None and "ssh-keygen -R" in caught.value.next
    finally:
        host.check(f"cd /etc/ssh && echo {kept} | base64 -d | tar xf -")
