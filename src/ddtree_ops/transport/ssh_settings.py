"""What OpenSSH's own configuration says about a host, as values: hosts.yaml first, then ssh_config."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ddtree_ops.core.errors import UsageProblem

if TYPE_CHECKING:
    from ddtree_ops.config import HostConfig, Inventory


@dataclass(frozen=True)
class SshSettings:
    """All that a connection needs. `jumps` are visited in order; `host` is the name in hosts.yaml."""

    host: str
    hostname: str
    port: int
    user: str
    host_key: str = "strict"
    alias: str | None = None
    known_hosts: tuple[Path, ...] = ()
    host_key_algorithms: tuple[str, ...] = ()
    identities: tuple[Path, ...] = ()
    identities_only: bool = False
    agent: str | None = None
    proxy_command: str | None = None
    jumps: tuple[SshSettings, ...] = ()
    config_file: Path | None = None
    connect_timeout: float = 10
    command_timeout: float = 60
    original: str = ""

    @property
    def known_as(self) -> str:
        """The name that known_hosts lists (sshd(8), SSH_KNOWN_HOSTS FILE FORMAT)."""
        if self.alias:
            return self.alias
        name = self.hostname.lower()
        return name if self.port == 22 else f"[{name}]:{self.port}"

    def ssh_command(self, *words: str) -> str:
        """An `ssh` command line for a person to type, that connects as we do."""
        option = ["-F", str(self.config_file)] if self.config_file else []
        port = ["-p", str(self.port)] if self.port != 22 and not self.config_file else []
        return shlex.join(["ssh", *option, *port, f"{self.user}@{self.original or self.hostname}", *words])


def settings_for(inventory: Inventory, host: HostConfig) -> SshSettings:
    """Return the settings of `host`. Raises UsageProblem where ssh_config is missing or not understood."""
    config_file = _config_file(inventory, host)
    identity = (inventory.base / Path(host.identity).expanduser(),) if host.identity else ()
    if identity and not identity[0].is_file():
        raise UsageProblem(
            f"the identity {identity[0]} is not there", host=host.name, next=f"ls -l {identity[0]}"
        )
    found = _resolve(host.target, host.user, host.ssh_port, config_file, host.name, host.timeouts.connect)
    return SshSettings(
        **{
            **vars(found),
            "host_key": host.host_key if host.host_key != "strict" else found.host_key,
            "identities": identity or found.identities,
            "identities_only": bool(identity) or found.identities_only,
            "command_timeout": host.timeouts.command,
        }
    )


def _config_file(inventory: Inventory, host: HostConfig) -> Path | None:
    named = host.ssh_config or os.environ.get("DDTREE_OPS_SSH_CONFIG")
    if named:
        # A path in hosts.yaml starts beside it, one in the environment where the person stands.
        start = inventory.base if host.ssh_config else Path()
        path = (start / Path(named).expanduser()).absolute()
        if not path.is_file():
            raise UsageProblem(f"the ssh_config {path} is not there", host=host.name, next=f"ls -l {path}")
        return path
    lab = inventory.base / ".lab"
    if (lab / "active").exists() and (lab / "ssh_config").is_file():
        return lab / "ssh_config"
    return None


def _resolve(
    target: str,
    user: str | None,
    port: int | None,
    config_file: Path | None,
    host: str,
    timeout: float,
    depth: int = 0,
) -> SshSettings:
    if depth > 8:
        raise UsageProblem(f"ProxyJump of {target} leads in a circle", host=host, next=f"ssh -G {target}")
    options = _ssh_g(target, user, port, config_file, host)
    first = {k: v[0] for k, v in options.items()}
    jump = first.get("proxyjump", "none")
    hops = [] if jump == "none" else jump.split(",")
    proxy = first.get("proxycommand", "none")
    return SshSettings(
        host=host,
        original=target,
        hostname=first.get("hostname", target),
        port=int(first.get("port", "22")),
        user=first.get("user", user or ""),
        host_key="accept-new" if first.get("stricthostkeychecking") == "accept-new" else "strict",
        alias=first.get("hostkeyalias"),
        known_hosts=_files(first.get("userknownhostsfile", "~/.ssh/known_hosts"))
        + _files(first.get("globalknownhostsfile", "/etc/ssh/ssh_known_hosts")),
        host_key_algorithms=tuple(filter(None, first.get("hostkeyalgorithms", "").split(","))),
        identities=tuple(Path(p).expanduser() for p in options.get("identityfile", []) if p != "none"),
        identities_only=first.get("identitiesonly") == "yes",
        agent=first.get("identityagent"),
        proxy_command=None if proxy == "none" else _expand(proxy, first, target),
        jumps=tuple(_hop(h, config_file, host, timeout, depth) for h in hops),
        config_file=config_file,
        connect_timeout=timeout,
    )


def _hop(text: str, config_file: Path | None, host: str, timeout: float, depth: int) -> SshSettings:
    match = re.fullmatch(
        r"(?:ssh://)?(?:([^@]+)@)?(\[[^]]+\]|[^:]+|[^:]*:[^:]*:.*?)(?::(\d+))?/?", text.strip()
    )
    if not match:
        raise UsageProblem(f"ProxyJump {text} is not [user@]host[:port]", host=host, next="man ssh_config")
    user, name, port = match.groups()
    return _resolve(
        name.strip("[]"), user, int(port) if port else None, config_file, host, timeout, depth + 1
    )


def _ssh_g(
    target: str, user: str | None, port: int | None, config_file: Path | None, host: str
) -> dict[str, list[str]]:
    """Ask OpenSSH itself: its Include, Match and canonical names are nobody else's to re-implement."""
    ssh = shutil.which("ssh")
    if ssh is None:
        return _without_ssh(target, user, port, config_file, host)
    words = [ssh, "-G"]
    words += ["-F", str(config_file)] if config_file else []
    words += ["-l", user] if user else []
    words += ["-p", str(port)] if port else []
    try:
        done = subprocess.run(
            [*words, "--", target],
            check=False,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=20,
        )
    except subprocess.TimeoutExpired:
        raise UsageProblem("ssh -G did not answer within 20 s: a `Match exec`?", host=host) from None
    if done.returncode != 0:
        line = (done.stderr.strip().splitlines() or ["no message"])[0]
        raise UsageProblem(
            "ssh does not accept its configuration", host=host, evidence=line, next=" ".join([*words, target])
        )
    options: dict[str, list[str]] = {}
    for line in done.stdout.splitlines():
        key, _, value = line.partition(" ")
        options.setdefault(key.lower(), []).append(value)
    return options


def _without_ssh(
    target: str, user: str | None, port: int | None, config_file: Path | None, host: str
) -> dict[str, list[str]]:
    from paramiko import SSHConfig

    config = SSHConfig()
    for path in (
        [config_file] if config_file else [Path("~/.ssh/config").expanduser(), Path("/etc/ssh/ssh_config")]
    ):
        if not path.is_file():
            continue
        text = path.read_text(encoding="utf-8", errors="replace")
        if config_file and re.search(r"^\s*include\s", text, re.IGNORECASE | re.MULTILINE):
            raise UsageProblem(
                f"{path} uses Include, which needs the ssh command", host=host, next="command -v ssh"
            )
        config.parse(text.splitlines())
    found = dict(config.lookup(target))
    defaults = [f"~/.ssh/id_{kind}" for kind in ("ed25519", "ecdsa", "rsa")]
    options = {k: v if isinstance(v, list) else [str(v)] for k, v in found.items()}
    options.setdefault("identityfile", defaults)
    options.update({"user": [user]} if user else {}, **({"port": [str(port)]} if port else {}))
    return options


def _files(text: str) -> tuple[Path, ...]:
    """`ssh -G` prints several files in one line, unquoted; one with a space in it is taken whole if it exists."""
    if text == "none":
        return ()
    whole = Path(text.strip('"')).expanduser()
    return (whole,) if whole.exists() else tuple(Path(p).expanduser() for p in text.split())


def _expand(command: str, options: dict[str, str], target: str) -> str:
    """The tokens of ProxyCommand, ssh_config(5) TOKENS."""
    values = {
        "%": "%",
        "h": options.get("hostname", target),
        "n": target,
        "p": options.get("port", "22"),
        "r": options.get("user", ""),
        "d": str(Path.home()),
    }
    return re.sub(r"%(.)", lambda m: values.get(m[1], m[0]), command)
