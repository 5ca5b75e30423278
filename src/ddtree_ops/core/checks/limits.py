"""Rules on limits: what the kernel grants the service inside its sandbox, and the memory that is left around it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ddtree_ops.core.checks.judge import rule
from ddtree_ops.core.checks.nccl import NCCL, ranks
from ddtree_ops.core.checks.rule import Rule, Section
from ddtree_ops.core.checks.sandbox import SECTION as SANDBOX
from ddtree_ops.core.checks.sandbox import Sandbox
from ddtree_ops.core.checks.unit_files import edit
from ddtree_ops.core.facts_live import Launch, Live, Unknown
from ddtree_ops.core.finding import Finding, block, ok, warn
from ddtree_ops.core.wanted import Wanted

MIB, GIB = 1 << 20, 1 << 30
#: SGLang raises its own soft limit to this where the hard one allows it (set_ulimit), and to nothing where not.
_SOFT_TARGET = 65535
_FILES, _FILES_PER_RANK = 2048, 1024
_TASKS_PER_RANK = 1024


@dataclass(frozen=True)
class Limit:
    """The tightest limit on the way up from the service's cgroup, and where it is set."""

    value: int
    at: str


@dataclass(frozen=True)
class Memory:
    """Bytes. version: of cgroups, None where none is mounted; a Limit of None: there is none."""

    total: int | None
    available: int | None
    swap_total: int | None
    swap_free: int | None
    version: int | None
    memory_max: Limit | None
    memory_high: Limit | None
    pids_max: Limit | None
    memory_current: int | None
    pids_current: int | None
    oom_kills: int | None


def read(raw: Mapping[str, Any]) -> Memory:
    """The raw section, typed."""
    memory, group = raw["memory"], raw["cgroup"]
    return Memory(
        total=memory["total"],
        available=memory["available"],
        swap_total=memory["swap_total"],
        swap_free=memory["swap_free"],
        version=group["version"],
        memory_max=_limit(group["memory_max"]),
        memory_high=_limit(group["memory_high"]),
        pids_max=_limit(group["pids_max"]),
        memory_current=group.get("memory_current"),
        pids_current=group.get("pids_current"),
        oom_kills=group.get("oom_kills"),
    )


def _limit(raw: Mapping[str, Any] | None) -> Limit | None:
    return Limit(int(raw["value"]), raw["at"]) if raw else None


SECTION = Section("limits", Memory, read)


def _ranks(live: Live) -> int:
    return live.launch.tp if isinstance(live.launch, Launch) else 1


def _files(facts: Sandbox, live: Live, wanted: Wanted) -> Iterator[Finding]:
    """Open files: many ranks, many shards, many connections."""
    id, need = "limit-nofile", min(_SOFT_TARGET, _FILES + _FILES_PER_RANK * _ranks(live))
    if "nofile" not in facts.rlimits:
        yield warn(
            id,
            "unknown: the limit of open files was not seen",
            f"ssh {wanted.host} systemctl show {wanted.service}",
        )
        return
    soft, hard = facts.rlimits["nofile"]
    raised = None if hard is None else _SOFT_TARGET if hard >= _SOFT_TARGET else soft
    if raised is not None and raised < need:
        text = f"the service may open {raised} files (soft {soft}, hard {hard}), {_ranks(live)} ranks want {need}"
        yield warn(
            id, text, f"LimitNOFILE=1048576 (limits.conf does not count for a service); {edit(wanted)}"
        )
    else:
        yield ok(id, f"open files: soft {_shown(soft)}, hard {_shown(hard)}")


def _memlock(facts: Sandbox, live: Live, wanted: Wanted) -> Iterator[Finding]:
    """Locked memory: pinned buffers, and what an InfiniBand card sends from, which the ranks cannot do without."""
    id = "limit-memlock"
    fix = f"LimitMEMLOCK=infinity (limits.conf is for logins, not for services); {edit(wanted)}"
    if "memlock" not in facts.rlimits:
        yield warn(id, "unknown: the limit of locked memory was not seen", fix)
        return
    soft, _ = facts.rlimits["memlock"]
    cards = _infiniband(live)
    least = 64 * MIB if _ranks(live) > 1 else 1 * MIB
    if soft is None:
        yield ok(id, "locked memory: no limit")
    elif cards and soft < GIB:
        text = f"{cards[0]} is here and the service may lock {soft // 1024} KiB: ibv_reg_mr fails"
        yield block(id, text, fix)
    elif soft < least:
        text = f"the service may lock {soft // 1024} KiB of memory: mlock and RDMA registration fail"
        yield warn(id, text, fix)
    else:
        yield ok(id, f"locked memory: {soft // MIB} MiB")


def _infiniband(live: Live) -> tuple[str, ...]:
    """The InfiniBand cards that the server's ranks would use; none where they share no GPU work, or NCCL may not."""
    nccl = live.of(NCCL)
    if isinstance(nccl, Unknown) or ranks(live) < 2 or nccl.env.get("NCCL_IB_DISABLE") == "1":
        return ()
    return nccl.infiniband


def _tasks(facts: Sandbox, live: Live, wanted: Wanted) -> Iterator[Finding]:
    """Processes and threads: every rank starts hundreds."""
    id, need = "limit-tasks", _TASKS_PER_RANK * _ranks(live)
    soft = facts.rlimits.get("nproc", (None, None))[0]
    if facts.uid != 0 and soft is not None and soft < need:  # root is not held to it
        yield warn(
            id,
            f"the service's user may run {soft} processes and threads, {need} are safe",
            f"LimitNPROC=infinity; {edit(wanted)}",
        )
        return
    memory = live.of(SECTION)
    top = None if isinstance(memory, Unknown) else memory.pids_max
    if top is not None and top.value < need:
        text = (
            f'{top.at} may hold {top.value} processes and threads, {need} are safe: "can\'t start new thread"'
        )
        yield warn(id, text, f"TasksMax=infinity; {edit(wanted)}")
    else:
        yield ok(id, "processes and threads are not limited too tightly")


def _address(facts: Sandbox, live: Live, wanted: Wanted) -> Iterator[Finding]:
    """A limit of address space or file size ends CUDA's and mmap's large reservations."""
    bad = False
    for name, key, fix in (
        ("as", "address space", "LimitAS"),
        ("data", "data", "LimitDATA"),
        ("fsize", "file size", "LimitFSIZE"),
    ):
        soft = facts.rlimits.get(name, (None, None))[0]
        if soft is not None:
            bad = True
            text = f"{fix}= limits the {key} to {soft // MIB} MiB: CUDA and mmap of weights reserve far more"
            hard = name != "fsize" and live.cuda is not False
            yield (block if hard else warn)("limit-address", text, f"{fix}=infinity; {edit(wanted)}")
    if not bad:
        yield ok("limit-address", "address space is not limited")


def _memory(facts: Memory, live: Live, wanted: Wanted) -> Iterator[Finding]:
    """Host memory that is left, and what the kernel already killed for it."""
    id, bad = "host-memory", False
    look = f"ssh {wanted.host} free -m"
    if facts.available is None:
        bad = True
        yield warn(id, "unknown: MemAvailable was not seen", look)
    elif facts.available < 2 * GIB:
        bad = True
        yield warn(
            id,
            f"{facts.available // MIB} MiB of memory are available on the host: a load may be killed",
            look,
        )
    if facts.oom_kills:
        bad = True
        text = f"the kernel killed {facts.oom_kills} processes of this service for memory since it started"
        yield warn(
            id,
            text,
            f"ssh {wanted.host} journalctl -k -g 'oom|Killed process'; raise MemoryMax= or shrink the load",
        )
    top, used = facts.memory_max, facts.memory_current
    if top is not None and used is not None and used > 0.95 * top.value:
        bad = True
        text = f"{top.at} uses {used // MIB} of the {top.value // MIB} MiB that it may: the next start may be killed"
        yield warn(
            id,
            text,
            f"ssh {wanted.host} systemctl set-property {wanted.service} MemoryMax=infinity, or raise the container's",
        )
    high = facts.memory_high
    if high is not None and used is not None and used > 0.95 * high.value:
        bad = True
        yield warn(
            id,
            f"{high.at} is throttled at MemoryHigh= {high.value // MIB} MiB",
            f"MemoryHigh=infinity; {edit(wanted)}",
        )
    total, free = facts.swap_total, facts.swap_free
    if total and free is not None and free < total // 10:
        bad = True
        yield warn(
            id, f"{(total - free) // MIB} of {total // MIB} MiB of swap are used: a load will crawl", look
        )
    if not bad:
        limit = f", limit {top.value // MIB} MiB at {top.at}" if top else ""
        yield ok(id, f"{(facts.available or 0) // MIB} MiB available{limit}")


def _shown(value: int | None) -> str:
    return "no limit" if value is None else str(value)


RULES: tuple[Rule[Any], ...] = (
    rule(SANDBOX, "limit-nofile", _files, "Too few open files: ranks die in the middle of a load.", "F186"),
    rule(
        SANDBOX,
        "limit-memlock",
        _memlock,
        "mlock fails in the service though it works in a shell, and InfiniBand with it.",
        "F094",
        "F183",
        "F184",
    ),
    rule(SANDBOX, "limit-tasks", _tasks, "A rank cannot start a thread and hangs or dies."),
    rule(
        SANDBOX,
        "limit-address",
        _address,
        "CUDA cannot reserve its address space: out of memory with memory free.",
    ),
    rule(SECTION, "host-memory", _memory, "The kernel kills the load, or it crawls in swap."),
)
