"""Rules on inference processes: nothing of an earlier start may be left, and the schedulers that run must be alive."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ddtree_ops.core.checks.gpu_processes import HOLDERS, unanswered
from ddtree_ops.core.checks.judge import rule
from ddtree_ops.core.checks.rule import Rule, Section
from ddtree_ops.core.facts_live import Live, Unknown
from ddtree_ops.core.finding import Finding, block, ok, warn
from ddtree_ops.core.wanted import Wanted

#: A reaper adopts what lost its parent: the init of the host or of a user's session.
_REAPERS = ("systemd", "init", "dumb-init", "tini")
MIB = 1 << 20


@dataclass(frozen=True)
class Process:
    """An inference server or a child of one. unit: the service whose cgroup holds it; ours: ours. gpu: holds one."""

    pid: int
    ppid: int
    parent: str | None
    state: str
    name: str
    cgroup: str
    unit: str | None
    ours: bool
    container: bool
    gpu: bool | None
    rss: int

    @property
    def orphan(self) -> bool:
        """Whether whoever started it is gone."""
        return self.ppid == 1 or (self.parent or "") in _REAPERS


@dataclass(frozen=True)
class Processes:
    """unit_active: the service ran, or was starting or stopping, when its processes were looked at."""

    main_pid: int
    unit_active: bool
    found: tuple[Process, ...]


def read(raw: Mapping[str, Any]) -> Processes:
    """The raw section, typed."""
    names = Process.__dataclass_fields__
    return Processes(
        main_pid=int(raw["main_pid"]),
        unit_active=bool(raw["unit_active"]),
        found=tuple(Process(**{k: v for k, v in item.items() if k in names}) for item in raw["processes"]),
    )


SECTION = Section("processes", Processes, read)


def _leftovers(facts: Processes, live: Live, wanted: Wanted) -> Iterator[Finding]:
    """Orphans keep GPU memory and ports: the next start, and the rollback too, would fail."""
    id, named = "leftovers", set[int]()
    own = {p.pid for p in facts.found}
    for p in facts.found:
        if p.container or p.state in "ZX" or p.pid == facts.main_pid:
            continue
        if p.ours and not facts.unit_active:
            why = f"still in the cgroup of {wanted.service}, which is not running"
        elif p.ours and p.orphan and "::" in p.name:
            why = f"in {wanted.service}, but its server is gone: left from an earlier start"
        elif not p.ours and p.orphan and p.unit is None:
            why = "in no service, and whoever started it is gone"
        elif p.unit == wanted.service and not p.ours:
            why = f"from an earlier start of {wanted.service}"
        else:
            continue
        if p.ppid in own and not p.ours:
            continue  # its parent is named
        named.add(p.pid)
        holds = ", holds a GPU" if p.gpu else ""
        text = f"pid {p.pid} ({p.name}) is {why}; {p.rss // MIB} MiB{holds}"
        yield block(id, text, f"ssh {wanted.host} kill {p.pid}, then kill -9 {p.pid}; deploy when it is gone")
    others = list(_holders(live, wanted, named))
    yield from others[:4]
    if not named and not others:
        yield ok(id, "no inference process is left from an earlier start")


def _holders(live: Live, wanted: Wanted, named: set[int]) -> Iterator[Finding]:
    """What holds a GPU and is not named yet: dead ones, those that hang in the driver, engines without a unit."""
    holders = live.of(HOLDERS)
    if live.cuda is False:
        return
    if isinstance(holders, Unknown):
        again = f"ddtree-ops doctor --host {wanted.host}"
        yield warn("leftovers", f"unknown who holds the GPUs: {holders.why}", again)
        return
    for one, text, remedy in unanswered(holders, wanted):
        if not {one.pid, one.ppid} & named:
            yield block("leftovers", text, remedy)


def _neighbours(facts: Processes, live: Live, wanted: Wanted) -> Iterator[Finding]:
    """Other engines on the host share GPUs, ports and the time of its disks."""
    id, own = "neighbours", {p.pid for p in facts.found}
    others = [
        p for p in facts.found if not p.ours and p.ppid not in own and p.state not in "ZX" and not p.container
    ]
    for p in others:
        if p.unit is not None and p.unit != wanted.service:
            text = f"{p.unit} runs another engine (pid {p.pid}, {p.name})"
            yield warn(
                id,
                text,
                f"its own GPUs and ports, never both starts at once: ssh {wanted.host} systemctl status {p.unit}",
            )
        elif p.unit is None and not p.orphan:
            text = f"pid {p.pid} ({p.name}) was started by hand (from {p.parent or 'a shell'})"
            yield warn(
                id,
                text,
                f"ssh {wanted.host} ps -fp {p.pid}; end it, or keep it off the service's GPUs and ports",
            )
    if not others:
        yield ok(id, "no other engine runs on the host")


def _alive(facts: Processes, live: Live, wanted: Wanted) -> Iterator[Finding]:
    """A server whose scheduler died may answer /health for hours."""
    id = "schedulers"
    dead = [p for p in facts.found if p.ours and p.state in "ZX"]
    stuck = [p for p in facts.found if p.ours and p.state == "D"]
    for p in dead:
        text = f"pid {p.pid} ({p.name}) of {wanted.service} is dead and not reaped: its server may still answer /health"
        yield warn(id, text, f"ddtree-ops logs --host {wanted.host}; ask it for a token before trusting it")
    for p in stuck:
        text = f"pid {p.pid} ({p.name}) is in uninterruptible sleep: if it stays so, no stop can end it"
        yield warn(
            id,
            text,
            f"ssh {wanted.host} cat /proc/{p.pid}/stack; dmesg | tail; a reboot is the usual way out",
        )
    if not dead and not stuck:
        yield ok(id, "no process of the service is dead or stuck")


RULES: tuple[Rule[Processes], ...] = (
    rule(SECTION, "leftovers", _leftovers, "Each restart fails as the one before: memory and ports are not free.",
         "F154", "F155", "F160"),
    rule(SECTION, "neighbours", _neighbours, "Two engines race for ports and memory.", "F107"),
    rule(SECTION, "schedulers", _alive, "Traffic goes on to a server that cannot answer.", "F141", "F147", "F158"),
)  # fmt: skip
