"""Preflight rules about who holds the GPUs: leftovers of an engine, hung processes, strangers, unexplained memory."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ddtree_ops.core.checks.gpu_facts import GPUS, Card, Gpus, chosen, needed
from ddtree_ops.core.checks.rule import Rule, Section
from ddtree_ops.core.facts_live import Live
from ddtree_ops.core.finding import Finding, block, ok, warn
from ddtree_ops.core.wanted import Wanted

#: A share of a GPU's memory: below, a desktop or a monitor; above, a second user; above the last, no room for a model.
SMALL, HALF = 0.05, 0.5
UNBALANCED = 0.1  # SGLang refuses ranks whose free memory differs by more than that
_BOX = re.compile(r"docker|containerd|kubepods|libpod|crio|lxc|podman")


@dataclass(frozen=True)
class Process:
    """ours: in the unit's cgroup. used: MiB by GPU, None where nvidia-smi cannot tell. nodes: GPU nodes it has open."""

    pid: int
    ppid: int
    state: str
    name: str
    engine: bool
    cgroup: str | None
    ours: bool
    age_s: int
    nodes: tuple[str, ...]
    used: Mapping[str, int | None]

    def __str__(self) -> str:
        return f"pid {self.pid} ({self.name}, {self.cgroup or 'unknown cgroup'})"

    @property
    def boxed(self) -> bool:
        """In a container of its own."""
        return bool(_BOX.search(self.cgroup or ""))

    @property
    def unit(self) -> str | None:
        """The system unit that answers for it; None for a login session's and for what nobody answers for."""
        if self.cgroup is None or "user.slice" in self.cgroup:
            return None
        return next((part for part in reversed(self.cgroup.split("/")) if part.endswith(".service")), None)


@dataclass(frozen=True)
class Holders:
    """apps_known: nvidia-smi told who uses what. unit_active: the service runs."""

    processes: tuple[Process, ...]
    apps_known: bool
    unit_active: bool


def read(raw: Mapping[str, Any]) -> Holders:
    """The section `gpu_processes` of the probe (probe_processes.holders)."""
    return Holders(
        tuple(
            Process(
                pid=item["pid"],
                ppid=item["ppid"],
                state=item["state"],
                name=item["name"],
                engine=bool(item["engine"]),
                cgroup=item["cgroup"],
                ours=bool(item["ours"]),
                age_s=item["age_s"],
                nodes=tuple(item["nodes"]),
                used=dict(item["used"]),
            )
            for item in raw["processes"]
        ),
        bool(raw["apps_known"]),
        bool(raw["unit_active"]),
    )


HOLDERS = Section("gpu_processes", Holders, read)


def unanswered(holders: Holders, wanted: Wanted) -> Iterator[tuple[Process, str, str]]:
    """(process, what is wrong with it, remedy) of those that no running unit answers for, for the rule `leftovers`."""
    for one in holders.processes:
        holds = bool(one.nodes or one.used)
        if one.state in ("Z", "X") and one.engine and not (one.ours and holders.unit_active):
            said = f"{one} is dead and not reaped by its parent {one.ppid}: its GPU memory can stay taken"
            yield one, said, f"stop pid {one.ppid}, on {wanted.host}; then nvidia-smi"
        elif one.state == "D" and holds and not one.ours:
            said = f"{one} sleeps in the driver (state D) and cannot be killed"
            yield one, said, f"dmesg | grep -E 'NVRM|Xid', then reboot {wanted.host}"
        elif one.ours and not holders.unit_active and (one.engine or holds):
            said = f"{wanted.service} is not running, and {one} of it still is"
            yield one, said, f"systemctl kill --signal=SIGKILL {wanted.service}, on {wanted.host}"
        elif one.engine and holds and not one.ours and one.unit is None and not one.boxed:
            held = _held(one)
            said = f"{one} is an engine outside of any unit{f', and holds {held}' if held else ''}"
            parent = " (its parent died)" if one.ppid == 1 else ""
            remedy = f"kill -KILL {one.pid}, on {wanted.host}; stop servers through systemd, never by one pid"
            yield one, said + parent, remedy


def strangers(holders: Holders, live: Live, wanted: Wanted) -> list[Finding]:
    """Other users of the GPUs that the server takes."""
    gpus = live.of(GPUS)
    if live.cuda is False or not isinstance(gpus, Gpus) or not gpus.cards:
        return []
    others = [one for one in holders.processes if not one.ours and (one.nodes or one.used)]
    shares: list[float] = []
    found = []
    taken = chosen(gpus, live).cards
    for card in taken:
        here = [one for one in others if card.uuid in one.used]
        share = _share(sum(one.used[card.uuid or ""] or 0 for one in here), card)
        shares.append(share)
        if share < SMALL:
            continue
        said = f"{card} is shared: {', '.join(map(str, here[:3]))} hold {share:.0%} of its memory"
        remedy = f"stop {here[0].unit or f'pid {here[0].pid}'} on {wanted.host}, or another GPU in CUDA_VISIBLE_DEVICES"
        found.append((block if share >= HALF else warn)("gpu-strangers", said, remedy))
    if needed(gpus, live) > 1 and shares and max(shares) - min(shares) > UNBALANCED and max(shares) < HALF:
        spread = f"{min(shares):.0%} to {max(shares):.0%}"
        said = f"strangers hold {spread} of the ranks' GPUs: the engine refuses unbalanced memory"
        found.append(block("gpu-strangers", said, f"nvidia-smi, on {wanted.host}, and stop them"))
    blind = [one for one in others if one.nodes and not any(used is not None for used in one.used.values())]
    if not found and blind and not holders.apps_known:
        said = f"{blind[0]} has a GPU open, how much it holds is unknown"
        found.append(warn("gpu-strangers", said, f"nvidia-smi, on {wanted.host}"))
    return found or [ok("gpu-strangers", "nobody else uses them to speak of")]


def memory(holders: Holders, live: Live, wanted: Wanted) -> list[Finding]:
    """Memory in use that no process here explains: another container's, or a context that was not freed."""
    gpus = live.of(GPUS)
    if live.cuda is False or not isinstance(gpus, Gpus):
        return []
    found = []
    for card in chosen(gpus, live).cards:
        if card.used is None or not card.total:
            found.append(
                warn(
                    "gpu-memory",
                    f"{card}: memory in use is unknown",
                    f"nvidia-smi -i {card.id}, on {wanted.host}",
                )
            )
            continue
        known = [one.used[card.uuid] for one in holders.processes if card.uuid in one.used]  # type: ignore[index]
        blind = any(used is None for used in known) or (
            not known and any(one.nodes for one in holders.processes)
        )
        rest = card.used - sum(used or 0 for used in known)
        share = _share(rest, card)
        if share < SMALL or (blind and holders.unit_active):
            continue
        said = f"{card}: {rest} MiB ({share:.0%}) are in use by nobody who is seen here"
        remedy = (
            f"nvidia-smi and fuser -v /dev/nvidia* on {wanted.host} and on its host (another container?), or "
            f"nvidia-smi --gpu-reset -i {card.id}"
        )
        found.append((block if share >= HALF else warn)("gpu-memory", said, remedy))
    return found or ([ok("gpu-memory", "what is in use has an owner")] if gpus.cards else [])


def _share(mib: int, card: Card) -> float:
    return mib / card.total if card.total else 0.0


def _held(one: Process) -> str:
    known = [used for used in one.used.values() if used is not None]
    return f"{sum(known)} MiB" if known else ""


RULES: tuple[Rule[Holders], ...] = (
    Rule(
        "gpu-strangers", HOLDERS, strangers,
        "Another user of the GPU leaves too little memory, or an unequal one, which tensor parallelism refuses.",
    ),
    Rule(
        "gpu-memory", HOLDERS, memory,
        "Memory that a dead context or another container holds is not there for the server, and no list shows whose.",
    ),
)  # fmt: skip
