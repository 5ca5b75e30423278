"""Rules on ports and proxies: what the server will bind, and what its own warm-up request passes through."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ddtree_ops.core.checks.judge import rule
from ddtree_ops.core.checks.rule import Rule, Section
from ddtree_ops.core.checks.sandbox import SECTION as SANDBOX
from ddtree_ops.core.checks.unit_files import SECTION as UNIT
from ddtree_ops.core.checks.unit_files import edit
from ddtree_ops.core.facts_live import Launch, Live, Unknown
from ddtree_ops.core.finding import Finding, block, ok, warn
from ddtree_ops.core.wanted import Wanted

#: Where Linux begins the ephemeral range by itself.
_EPHEMERAL = 32768


@dataclass(frozen=True)
class Proxies:
    """http: whether a plain http request would use one. no_proxy: the hosts that need none."""

    http: bool
    names: tuple[str, ...]
    no_proxy: tuple[str, ...]


@dataclass(frozen=True)
class Holder:
    pid: int
    command: str
    ours: bool


@dataclass(frozen=True)
class Planned:
    """A port that the command line decides. unknown: sockets on it whose process the agent cannot see."""

    flag: str
    port: int
    owners: tuple[Holder, ...]
    unknown: int


@dataclass(frozen=True)
class Network:
    """ephemeral: (first, last) of the ports that the kernel gives to outgoing connections, minus `reserved`.
    unprivileged: the first port that an ordinary user may bind."""

    host: str
    port: int
    ports: tuple[Planned, ...]
    ephemeral: tuple[int, int] | None
    reserved: tuple[tuple[int, int], ...]
    running: Proxies | None
    unprivileged: int | None = None


@dataclass(frozen=True)
class Inside:
    """As the service's user sees it in its sandbox. bind_error: why the server's address cannot be bound."""

    proxies: Proxies
    hostname: str
    addresses: tuple[str, ...]
    local: bool | None
    bind_error: str | None


def _proxies(raw: Mapping[str, Any]) -> Proxies:
    return Proxies(bool(raw["http"]), tuple(raw["names"]), tuple(raw["no_proxy"]))


def _ranges(text: str) -> tuple[tuple[int, int], ...]:
    """`30000,40000-40010` of ip_local_reserved_ports."""
    parts = [part.strip().partition("-") for part in text.split(",") if part.strip()]
    return tuple((int(first), int(last or first)) for first, _, last in parts)


def read(raw: Mapping[str, Any]) -> Network:
    """The raw section, typed."""
    ephemeral = raw["ephemeral"]
    return Network(
        host=raw["host"],
        port=int(raw["port"]),
        ports=tuple(
            Planned(
                item["flag"],
                int(item["port"]),
                tuple(Holder(o["pid"], o["command"], o["ours"]) for o in item["owners"]),
                item["unknown"],
            )
            for item in raw["ports"]
        ),
        ephemeral=(int(ephemeral[0]), int(ephemeral[1])) if ephemeral else None,
        reserved=_ranges(raw.get("reserved") or ""),
        running=_proxies(raw["running"]) if raw.get("running") else None,
        unprivileged=raw.get("unprivileged"),
    )


def read_inside(raw: Mapping[str, Any]) -> Inside:
    """The raw section, typed."""
    return Inside(
        proxies=_proxies(raw["proxies"]),
        hostname=raw["hostname"],
        addresses=tuple(raw["addresses"]),
        local=raw["local"],
        bind_error=(raw["bind"] or {}).get("error"),
    )


SECTION = Section("network", Network, read)
INSIDE = Section("sandbox_network", Inside, read_inside)


def _ports(facts: Network, live: Live, wanted: Wanted) -> Iterator[Finding]:
    """Ports beside the server's own (which the rule `port` judges): free, and each once."""
    id, bad = "ports", False
    seen: dict[int, str] = {}
    for item in facts.ports:
        if item.port in seen and seen[item.port] != item.flag:
            bad = True
            text = f"{seen[item.port]} and {item.flag} both want port {item.port}"
            yield block(id, text, f"give each its own port in the unit; {edit(wanted)}")
        seen.setdefault(item.port, item.flag)
        strangers = [owner for owner in item.owners if not owner.ours]
        look = f"ssh {wanted.host} ss -ltnp 'sport = :{item.port}'"
        if item.flag != "--port" and strangers:
            bad = True
            who = strangers[0]
            text = f"port {item.port} ({item.flag}) is held by pid {who.pid} ({who.command}): address already in use"
            yield block(id, text, f"{look}; another port for {item.flag}, or stop that process")
        elif item.flag != "--port" and item.unknown and not item.owners:
            bad = True
            yield warn(
                id, f"port {item.port} ({item.flag}) is held by a process that the agent cannot see", look
            )
        elif item.flag != "--port" and item.port < _lowest(facts, live):
            bad = True
            text = f"port {item.port} ({item.flag}) is below {facts.unprivileged}, and the service is not root: no bind"
            yield block(id, text, f"a port of 1024 or more for {item.flag} in the unit; {edit(wanted)}")
    if not bad:
        yield ok(id, f"{len(facts.ports)} planned ports, each free or our own")


def _lowest(facts: Network, live: Live) -> int:
    """The first port that the service's user may bind; 0 for root, with the capability, or where it is unknown."""
    inside, unit = live.of(SANDBOX), live.of(UNIT)
    root = getattr(inside, "uid", 0) == 0
    capable = "cap_net_bind_service" in getattr(unit, "properties", {}).get("AmbientCapabilities", "").lower()
    return 0 if root or capable else facts.unprivileged or 0


def _range(facts: Network, live: Live, wanted: Wanted) -> Iterator[Finding]:
    """A listening port inside the ephemeral range may be taken by any outgoing connection before the bind.

    The server's own port is bound last, after the load. Where somebody widened the range over the usual service ports,
    a port there is no mistake of the unit: a warning. The other ports are bound in the first seconds.
    """
    id = "port-range"
    if facts.ephemeral is None:
        yield warn(
            id,
            "unknown: the ephemeral range was not seen",
            f"ssh {wanted.host} sysctl net.ipv4.ip_local_port_range",
        )
        return
    first, last = facts.ephemeral
    inside = [
        item
        for item in facts.ports
        if first <= item.port <= last and not any(low <= item.port <= high for low, high in facts.reserved)
    ]
    kept = [f"{low}-{high}" if high > low else f"{low}" for low, high in facts.reserved]
    every = ",".join([*kept, *sorted({str(item.port) for item in inside})])
    fix = (
        f"ssh {wanted.host} sysctl -w net.ipv4.ip_local_reserved_ports={every} (and in /etc/sysctl.d, for the next"
        f" boot), or a port below {min(first, _EPHEMERAL)} in the unit"
    )
    for item in inside:
        text = (
            f"port {item.port} ({item.flag}) lies in the ephemeral range {first}-{last}: an outgoing connection may"
            " take it while the model loads"
        )
        last_bound = item.flag == "--port" and item.port >= _EPHEMERAL
        yield (block if last_bound else warn)(id, text, fix)
    if not inside:
        yield ok(id, f"no planned port lies in {first}-{last}")


def _bind(facts: Inside, live: Live, wanted: Wanted) -> Iterator[Finding]:
    """The server binds only at the end of its start, so a wrong address costs the whole load."""
    id = "bind"
    network = live.of(SECTION)
    where = "the server's address" if isinstance(network, Unknown) else f"{network.host} port {network.port}"
    if facts.bind_error:
        text = f"the service may not bind {where}: {facts.bind_error}"
        low = "ermission" in facts.bind_error
        fix = (
            "AmbientCapabilities=CAP_NET_BIND_SERVICE, or a port above 1023"
            if low
            else "--host 0.0.0.0, or an address of this host"
        )
        yield block(id, text, f"{fix}; {edit(wanted)}")
    else:
        yield ok(id, f"{where} can be bound")


def _proxy(facts: Inside, live: Live, wanted: Wanted) -> Iterator[Finding]:
    """The warm-up asks the server itself over HTTP: a proxy in its environment answers 502 or 503."""
    id = "proxy"
    network = live.of(SECTION)
    running = None if isinstance(network, Unknown) else network.running
    host = "127.0.0.1" if isinstance(network, Unknown) else network.host
    for place, found in (("the unit", facts.proxies), ("the running server", running)):
        if found is None or not found.http:
            continue
        lacking = [name for name in _asked(host) if not passes(name, found.no_proxy)]
        if lacking:
            names = ", ".join(name for name in found.names if name != "https_proxy")
            text = f"{place} has {names} in its environment, and no_proxy lacks {', '.join(lacking)}: the warm-up fails"
            fix = f"add {','.join(lacking)} to no_proxy in the unit, or unset {names} there; {edit(wanted)}"
            yield block(id, text, fix)
            return
    yield ok(id, "no proxy stands between the server and itself")


def _asked(host: str) -> tuple[str, ...]:
    """What releases of the engine put into their own URL for a host: the loopback, or the address as it is given."""
    return tuple(dict.fromkeys(("::1" if host == "::" else "127.0.0.1", host.strip("[]"))))


def passes(host: str, no_proxy: Sequence[str]) -> bool:
    """Whether `requests` asks `host` directly: `*`, the name, a domain's end, or a network that holds the address."""
    for entry in no_proxy:
        name = entry.rsplit(":", 1)[0] if entry.count(":") == 1 else entry.strip("[]")
        if name == "*" or host == name or host.endswith("." + name.lstrip(".")):
            return True
        try:
            if ipaddress.ip_address(host) in ipaddress.ip_network(name, strict=False):
                return True
        except ValueError:
            continue
    return False


def _hostname(facts: Inside, live: Live, wanted: Wanted) -> Iterator[Finding]:
    """Gloo and NCCL find their interface by the host's own name."""
    id, fix = "hostname", f"ssh {wanted.host} 'echo 127.0.1.1 {facts.hostname} >> /etc/hosts'"
    ranks = live.launch.tp if isinstance(live.launch, Launch) else 1
    if not facts.addresses:
        yield warn(
            id, f"the host's name {facts.hostname} does not resolve there: collectives fall back or fail", fix
        )
    elif facts.local is False:
        text = f"{facts.hostname} resolves to {facts.addresses[0]}, which is no address of this host"
        yield block(id, f"{text}: {ranks} ranks cannot meet", fix) if ranks > 1 else warn(id, text, fix)
    else:
        yield ok(id, f"{facts.hostname} resolves to the host itself")


RULES: tuple[Rule[Any], ...] = (
    rule(SECTION, "ports", _ports, "The start fails only after the model is loaded: address already in use.", "F104",
         "F106", "F107", "F108"),
    rule(SECTION, "port-range", _range, "A free port is taken before the server binds it.", "F104", "F106"),
    rule(INSIDE, "bind", _bind, "The start fails at its very end, after the load."),
    rule(INSIDE, "proxy", _proxy, "The server loads, fails its own warm-up and kills itself.", "F149", "F150"),
    rule(INSIDE, "hostname", _hostname, "Ranks wait for each other at an address that is not theirs."),
)  # fmt: skip
