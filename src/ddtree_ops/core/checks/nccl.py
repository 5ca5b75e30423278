"""Preflight rules about several GPUs in one server: shared memory, locked memory, the paths between the cards."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ddtree_ops.core.checks.gpu_facts import GPUS, Gpus, needed
from ddtree_ops.core.checks.rule import Rule, Section
from ddtree_ops.core.facts_live import Launch, Live
from ddtree_ops.core.finding import Finding, block, ok, warn
from ddtree_ops.core.wanted import Wanted

MIB, GIB = 1 << 20, 1 << 30


@dataclass(frozen=True)
class Shm:
    """/dev/shm as the service sees it. leftovers: files of dead ranks."""

    size: int
    free: int
    writable: bool
    entries: int
    leftovers: int


@dataclass(frozen=True)
class Pair:
    """access: the driver promises direct access. ok: a write arrived; None where nothing is promised."""

    access: bool
    ok: bool | None
    code: int


@dataclass(frozen=True)
class Nccl:
    """infiniband: its devices. env: NCCL_* of the unit, and torch's allocator."""

    shm: Shm | None
    infiniband: tuple[str, ...]
    interfaces: tuple[str, ...] | None
    env: Mapping[str, str]
    pairs: Mapping[str, Pair]
    peer_error: str | None


@dataclass(frozen=True)
class Topology:
    """links, p2p: by pair of GPUs as nvidia-smi writes them. iommu: "on" translates, "pt" passes through. redirecting:
    PCI bridges that send peer traffic to the root. None: not known. asked: False where the server takes one GPU."""

    asked: bool
    links: Mapping[str, str] | None = None
    p2p: Mapping[str, str] | None = None
    iommu: str | None = None
    redirecting: tuple[str, ...] | None = None


def read(raw: Mapping[str, Any]) -> Nccl:
    """The section `nccl` of the probe (inner_nccl.collect)."""
    shm = raw["shm"]
    return Nccl(
        shm=Shm(shm["size"], shm["free"], bool(shm["writable"]), shm["entries"], shm["leftovers"])
        if shm
        else None,
        infiniband=tuple(raw["infiniband"]),
        interfaces=None if raw["interfaces"] is None else tuple(raw["interfaces"]),
        env=dict(raw["env"]),
        pairs={
            name: Pair(bool(one["access"]), one["ok"], int(one["code"])) for name, one in raw["pairs"].items()
        },
        peer_error=raw["peer_error"],
    )


def read_topology(raw: Mapping[str, Any]) -> Topology:
    """The section `topology` of the probe (probe_topology.topology)."""
    if not raw["asked"]:
        return Topology(False)
    bridges = raw["redirecting"]
    return Topology(True, raw["links"], raw["p2p"], raw["iommu"], None if bridges is None else tuple(bridges))


NCCL = Section("nccl", Nccl, read)
TOPOLOGY = Section("topology", Topology, read_topology)


def ranks(live: Live) -> int:
    """GPUs of the server on this host; 0 with --device cpu, where none of these rules applies."""
    if live.cuda is False:
        return 0
    gpus = live.of(GPUS)
    if isinstance(gpus, Gpus):
        return needed(gpus, live)
    return live.launch.tp if isinstance(live.launch, Launch) else 1


def shared_memory(nccl: Nccl, live: Live, wanted: Wanted) -> list[Finding]:
    """NCCL and the engine pass data between ranks through /dev/shm: the more ranks, the more of it."""
    count = ranks(live)
    if count < 2:
        return []
    size = f"size={max(4, 2 * count)}G"
    grow = (
        f"mount -o remount,{size} /dev/shm on {wanted.host} (LXC: lxc.mount.entry = tmpfs dev/shm tmpfs {size}; "
        "docker: --shm-size or --ipc=host)"
    )
    if nccl.shm is None:
        return [block("shm-size", f"the service has no /dev/shm, and tp {count} needs it", grow)]
    shm = nccl.shm
    if not shm.writable:
        return [
            block(
                "shm-size",
                "the service may not write to /dev/shm: its ranks cannot meet",
                f"chmod 1777 /dev/shm, on {wanted.host}",
            )
        ]
    said = f"/dev/shm has {shm.free // MIB} of {shm.size // MIB} MiB free, tp {count}"
    least = max(GIB, count * GIB // 4)
    proof = "that a small model or fewer ranks started proves nothing"
    if shm.size < least:
        told = f"{said} needs {least // MIB} MiB at least: NCCL fails with posix_fallocate or ncclShmOpen; {proof}"
        return [block("shm-size", told, grow)]
    if shm.free < least:
        remedy = f"ls -l /dev/shm on {wanted.host} and remove what dead ranks left ({shm.leftovers} files), or {grow}"
        return [block("shm-size", f"{said} needs {least // MIB} MiB at least, and it is full", remedy)]
    if shm.free < count * GIB:
        remedy = grow if shm.size < count * GIB else f"ls -l /dev/shm, on {wanted.host}"
        return [warn("shm-size", f"{said}: 1 GiB a rank is the rule; {proof}", remedy)]
    return [ok("shm-size", said)]


def interfaces(nccl: Nccl, live: Live, wanted: Wanted) -> list[Finding]:
    """The ranks meet over a network interface, also on one host; a name that is not there ends the start."""
    if ranks(live) < 2:
        return []
    for variable in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"):
        value = nccl.env.get(variable)
        if not value or value.startswith("^"):
            continue
        remedy = f"ip -br link on {wanted.host}, then {variable}= in {wanted.service}"
        if nccl.interfaces is None:
            return [
                warn(
                    "nccl-interface", f"unknown: the interfaces cannot be listed ({variable}={value})", remedy
                )
            ]
        exact = variable.startswith("GLOO") or value.startswith("=")
        names = [name.partition(":")[0] for name in value.lstrip("=").split(",") if name]
        there = [
            one
            for one in nccl.interfaces
            for name in names
            if one == name or (not exact and one.startswith(name))
        ]
        if not there:
            said = f"{variable}={value} names no interface of this host ({', '.join(nccl.interfaces[:6])})"
            return [block("nccl-interface", said, remedy)]
    return [ok("nccl-interface", "the ranks' network interface is there or picked by itself")]


def peer_write(nccl: Nccl, live: Live, wanted: Wanted) -> list[Finding]:
    """What one GPU writes into another's memory arrives: the driver's promise is no proof."""
    if ranks(live) < 2:
        return []
    off = nccl.env.get("NCCL_P2P_DISABLE") == "1"
    remedy = (
        f"Environment=NCCL_P2P_DISABLE=1 in a drop-in of {wanted.service} (and --disable-custom-all-reduce), or "
        "iommu=pt and ACS off on the host"
    )
    broken = [
        name for name, pair in nccl.pairs.items() if pair.access and pair.ok is False and pair.code == 0
    ]
    failed = [(name, pair) for name, pair in nccl.pairs.items() if pair.code and pair.code != 2]
    if broken:
        said = f"the driver promises peer access between GPUs {', '.join(broken)}, and what one writes does not arrive"
        if off:
            return [warn("peer-write", f"{said}; NCCL_P2P_DISABLE=1 keeps NCCL off it", remedy)]
        return [block("peer-write", said, remedy)]
    if failed:
        name, pair = failed[0]
        return [
            (warn if off else block)(
                "peer-write", f"a write between GPUs {name} failed with CUDA error {pair.code}", remedy
            )
        ]
    if not nccl.pairs or any(pair.code for pair in nccl.pairs.values()):
        why = nccl.peer_error or "no pair of GPUs could be tried (full, or CUDA does not start)"
        return [
            warn(
                "peer-write",
                f"unknown: {why}",
                f"ddtree-ops doctor --host {wanted.host}, with the service stopped",
            )
        ]
    if not any(pair.access for pair in nccl.pairs.values()):
        return [ok("peer-write", "no direct access is promised: NCCL goes through shared memory")]
    return [ok("peer-write", f"writes arrive between {', '.join(nccl.pairs)}")]


def paths(topology: Topology, live: Live, wanted: Wanted) -> list[Finding]:
    """What breaks direct access between GPUs: an IOMMU that translates, bridges that redirect."""
    if ranks(live) < 2:
        return []
    if not topology.asked or (topology.links is None and topology.p2p is None):
        return [
            warn(
                "gpu-topology",
                "unknown: nvidia-smi topo gave no answer",
                f"nvidia-smi topo -m, on {wanted.host}",
            )
        ]
    links = topology.links or {}
    nvlink = bool(links) and all(link.startswith("NV") for link in links.values())
    nccl = live.of(NCCL)
    disabled = isinstance(nccl, Nccl) and nccl.env.get("NCCL_P2P_DISABLE") == "1"
    if nvlink or disabled:
        return [
            ok(
                "gpu-topology",
                "all pairs have NVLink" if nvlink else "NCCL_P2P_DISABLE=1: no direct path is used",
            )
        ]
    remedy = (
        f"iommu=pt and ACS off (setpci, or the BIOS) on {wanted.host}; or Environment=NCCL_P2P_DISABLE=1 in "
        f"{wanted.service}; NCCL_DEBUG=INFO shows the path"
    )
    risks = []
    if topology.iommu == "on":
        risks.append("an IOMMU translates (no iommu=pt)")
    if topology.redirecting:
        risks.append(f"ACS redirects at {', '.join(topology.redirecting[:2])}")
    used = [pair for pair, state in (topology.p2p or {}).items() if state == "OK"]
    if risks and used:
        said = f"GPUs {', '.join(used[:3])} use peer access over PCIe, and {' and '.join(risks)}: collectives can hang"
        return [warn("gpu-topology", said, remedy)]
    if topology.iommu is None and topology.redirecting is None and used:
        return [warn("gpu-topology", "unknown: neither IOMMU nor ACS can be read here", remedy)]
    return [
        ok(
            "gpu-topology",
            ", ".join(f"{pair} {link}" for pair, link in sorted(links.items())[:4]) or "no risk seen",
        )
    ]


RULES: tuple[Rule[Nccl], ...] = (
    Rule(
        "shm-size", NCCL, shared_memory,
        "NCCL's first collective fails, or fails only with more ranks, when /dev/shm is small or full.",
        ("F088", "F089", "F090"),
    ),
    Rule(
        "nccl-interface", NCCL, interfaces,
        "NCCL and Gloo end the start when the interface that a variable names is not there, as after a move.",
    ),
    Rule(
        "peer-write", NCCL, peer_write,
        "A driver may promise direct access that the machine does not carry: the first collective then hangs for ever.",
        ("F092", "F093"),
    ),
)  # fmt: skip
TOPOLOGY_RULES: tuple[Rule[Topology], ...] = (
    Rule(
        "gpu-topology", TOPOLOGY, paths,
        "An IOMMU that translates and bridges that redirect break direct access between GPUs on PCIe.",
        ("F092", "F093"),
    ),
)  # fmt: skip
