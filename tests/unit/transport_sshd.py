"""A real sshd on 127.0.0.1 for the transport tests: own keys, own files, own port, ended with the test run."""

from __future__ import annotations

import getpass
import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

from ddtree_ops.config import load_inventory
from ddtree_ops.transport.fabric_ import FabricTransport
from ddtree_ops.transport.ssh_settings import settings_for

SSHD = shutil.which("sshd", path="/usr/sbin:/usr/local/sbin:" + os.environ.get("PATH", ""))
USER = getpass.getuser()
RELAY = """
import os, socket, sys, threading
line = socket.create_connection((sys.argv[1], int(sys.argv[2])))
def up():
    while data := os.read(0, 65536):
        line.sendall(data)
    line.shutdown(socket.SHUT_WR)
threading.Thread(target=up, daemon=True).start()
while data := line.recv(65536):
    os.write(1, data)
"""


def keygen(path: Path, kind: str = "ed25519", passphrase: str = "") -> None:
    subprocess.run(["ssh-keygen", "-q", "-t", kind, "-N", passphrase, "-f", str(path)], check=True)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def public(path: Path) -> str:
    return " ".join(path.with_name(path.name + ".pub").read_text().split()[:2])


class Sshd:
    """One sshd with an ed25519 and an RSA host key; `id` is the key it accepts."""

    def __init__(self, root: Path, extra: str = "") -> None:
        self.root = root
        self.port = free_port()
        for name, kind in (("hk_ed25519", "ed25519"), ("hk_rsa", "rsa"), ("id", "ed25519")):
            keygen(root / name, kind)
        shutil.copy(root / "id.pub", root / "authorized")
        (root / "relay.py").write_text(RELAY)
        (root / "sshd_config").write_text(
            f"ListenAddress 127.0.0.1\nPort {self.port}\nHostKey {root}/hk_ed25519\nHostKey {root}/hk_rsa\n"
            f"AuthorizedKeysFile {root}/authorized\nPidFile none\nUsePAM no\nStrictModes no\n"
            "PasswordAuthentication no\nKbdInteractiveAuthentication no\nMaxStartups 100\n" + extra
        )
        if os.geteuid() == 0:
            Path("/run/sshd").mkdir(exist_ok=True)
        assert SSHD is not None
        self.process = subprocess.Popen(
            [SSHD, "-D", "-e", "-f", str(root / "sshd_config")],
            stdin=subprocess.DEVNULL,
            stderr=(root / "log").open("wb"),
        )
        for _ in range(100):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            time.sleep(0.05)
        raise AssertionError((root / "log").read_text())

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()

    @property
    def name(self) -> str:
        """As known_hosts lists it."""
        return f"[127.0.0.1]:{self.port}"

    def known(self, kind: str = "ed25519") -> str:
        return f"{self.name} {public(self.root / f'hk_{kind}')}\n"

    def fingerprint(self, kind: str = "ed25519") -> str:
        out = subprocess.run(
            ["ssh-keygen", "-lf", str(self.root / f"hk_{kind}.pub")],
            check=True,
            capture_output=True,
            text=True,
        )
        return out.stdout.split()[1]


class Site:
    """An operator's directory: hosts.yaml, ssh_config, known_hosts."""

    def __init__(self, path: Path, sshd: Sshd) -> None:
        self.path = path
        self.sshd = sshd
        self.known_hosts = path / "known_hosts"
        self.known_hosts.write_text(sshd.known())

    def transport(
        self, keys: str = "", ssh: str = "", hosts: str = "", identity: Path | None = None
    ) -> FabricTransport:
        """To host `t`. `keys`: its keys in hosts.yaml; `ssh`: more lines for `Host t`; `hosts`: more Hosts."""
        proxy = f"{sys.executable} {self.sshd.root}/relay.py"
        common = (
            f"  User {USER}\n  IdentityFile {identity or self.sshd.root / 'id'}\n  IdentitiesOnly yes\n"
            f"  UserKnownHostsFile {self.known_hosts}\n  GlobalKnownHostsFile none\n"
        )
        (self.path / "ssh_config").write_text(
            f"{hosts}\nHost t\n{ssh.replace('RELAY', proxy)}\n  HostName 127.0.0.1\n"
            f"  Port {self.sshd.port}\nHost *\n{common}"
        )
        (self.path / "hosts.yaml").write_text(
            f"version: 1\ndefaults: {{user: {USER}, ssh_config: ssh_config}}\nhosts: {{t: {{{keys}}}}}\n"
        )
        inventory = load_inventory(self.path / "hosts.yaml")
        return FabricTransport(settings_for(inventory, inventory.hosts["t"]))
