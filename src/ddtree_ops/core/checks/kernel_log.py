"""Preflight rules about the kernel's log since boot: Xid events by what they mean, driver faults, OOM kills, disks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ddtree_ops.core.checks.gpu_facts import GPUS, NA, Card, Gpus, chosen, needed
from ddtree_ops.core.checks.rule import Rule, Section
from ddtree_ops.core.facts_live import Live
from ddtree_ops.core.finding import Finding, Level, block, ok, warn
from ddtree_ops.core.wanted import Wanted
from ddtree_ops.core.xid import APPLICATION, HARDWARE, LINKS, MEMORY, POWER, REMARKS


@dataclass(frozen=True)
class Event:
    """kind: xid, sxid, bus, mismatch, map, flavour, unsupported, unsigned, probe, gsp, oom, disk, aer (agent's
    kernel_log). detail: of an OOM kill the process, of Xid 154 the action, of a SXid "fatal". age_s: seconds since the
    last one, None where not known."""

    kind: str
    code: int | None
    bus: str | None
    detail: str
    count: int
    text: str
    age_s: int | None

    @property
    def ago(self) -> str:
        if self.age_s is None:
            return ""
        return f", {self.age_s // 60} min ago" if self.age_s < 7200 else f", {self.age_s // 3600} h ago"


@dataclass(frozen=True)
class KernelLog:
    readable: bool
    source: str | None
    why: str | None
    lines: int
    events: tuple[Event, ...]


def read(raw: Mapping[str, Any]) -> KernelLog:
    """The section `kernel_log` of the probe (probe_kernel_log.log)."""
    names = ("kind", "code", "bus", "detail", "count", "text", "age_s")
    return KernelLog(
        bool(raw["readable"]),
        raw["source"],
        raw["why"],
        int(raw["lines"]),
        tuple(Event(**{name: item[name] for name in names}) for item in raw["events"]),
    )


KERNEL_LOG = Section("kernel_log", KernelLog, read)


def unreadable(log: KernelLog, live: Live, wanted: Wanted) -> list[Finding]:
    """Whether the log can be read at all."""
    if log.readable:
        return [ok("kernel-log", f"{log.lines} lines since boot ({log.source})")]
    if live.cuda is False:
        return []
    said = f"unknown: the kernel's log cannot be read here ({log.why}): Xid events and OOM kills would not be seen"
    return [
        warn(
            "kernel-log", said, f"dmesg | grep -E 'NVRM|Xid', on {wanted.host} (in a container: on its host)"
        )
    ]


def xid(log: KernelLog, live: Live, wanted: Wanted) -> list[Finding]:
    """What the driver reported of each GPU since boot."""
    if live.cuda is False or not log.readable:
        return []
    gpus = live.of(GPUS)
    found, history = [], []
    for event in log.events:
        if event.kind == "xid" and event.code is not None:
            level, said, remedy = _xid(event, gpus if isinstance(gpus, Gpus) else None, live)
            history.append(f"Xid {event.code} at {event.bus} x{event.count}")
            if level is not Level.OK:
                found.append(Finding("gpu-xid", level, said, remedy.format(bus=event.bus, host=wanted.host)))
        elif event.kind == "sxid":
            fatal = event.detail == "fatal" and isinstance(gpus, Gpus) and needed(gpus, live) > 1
            said = f"NVSwitch {event.bus} reported SXid {event.code} {event.count} times{event.ago}"
            remedy = f"systemctl restart nvidia-fabricmanager, then nvidia-smi --gpu-reset, on {wanted.host}"
            found.append((block if fatal else warn)("gpu-xid", said, remedy))
    found.sort(key=lambda finding: finding.level is not Level.BLOCK)
    if found:
        return found[:6]
    return [ok("gpu-xid", f"none that matters ({'; '.join(history[:3])})" if history else "none since boot")]


def _xid(event: Event, gpus: Gpus | None, live: Live) -> tuple[Level, str, str]:
    code, where = event.code or 0, f"the GPU at {event.bus} reported Xid {event.code}"
    times = f" {event.count} times" if event.count > 1 else ""
    if code in APPLICATION:
        said = f"{where}{times}{event.ago}: a fault of a program, as a rule"
        return (
            Level.WARN,
            said,
            "journalctl of {host} at that time names the program; if other programs make it too, it is the GPU",
        )
    if code == 154 and event.detail in ("None", NA):
        return Level.OK, "", ""
    if code in REMARKS:
        return Level.WARN, f"{where}{times}{event.ago}: {REMARKS[code][0]}", REMARKS[code][1]
    if code not in HARDWARE:
        return (
            Level.WARN,
            f"{where}{times}{event.ago}: {event.text}",
            "NVIDIA's list of Xid errors says what it is",
        )
    means, remedy, curable = HARDWARE[code]
    if code == 154 and event.detail:
        means = f"the driver asks for recovery action {event.detail}"
        if "eboot" in event.detail:
            remedy = "reboot {host}"
    card = next((card for card in gpus.cards if _same(card, event)), None) if gpus else None
    said = f"{where}{times}{event.ago}: {means}"
    if card is not None and curable and _well(card, code in MEMORY):
        return Level.WARN, f"{said}; the GPU is well now (reset since?)", remedy
    if card is not None and gpus and card not in chosen(gpus, live).cards and code != 79:
        return Level.WARN, f"{said}; the server does not take it", remedy
    if code in LINKS and gpus and needed(gpus, live) < 2:
        return Level.WARN, said, remedy
    return Level.BLOCK, said, remedy


def _same(card: Card, event: Event) -> bool:
    return event.bus is not None and card.bus.rpartition(".")[0] == event.bus.rpartition(".")[0]


def _well(card: Card, memory: bool = False) -> bool:
    """The driver itself says that nothing is left to do; not knowing is not enough."""
    told = card.recovery in ("None", NA) or (memory and card.recovery is None)
    rows = card.rows_pending in ("No", NA) and card.rows_failure in ("No", NA)
    return told and rows and (card.uncorrected == 0 or card.ecc == NA) and not card.errors


#: kind -> (rule, what it means, what helps).
FAULTS: dict[str, tuple[str, str]] = {
    "bus": ("a GPU fell off the bus", POWER),
    "mismatch": (
        "the driver's user space and the loaded kernel module are of different versions",
        "reboot {host}, or install the module's version (in LXC: the host's, --no-kernel-modules)",
    ),
    "map": (
        "the GPU's memory window was not mapped",
        "on the hypervisor: 64-bit MMIO above 4 GiB for the guest (a larger BAR window); nothing in {host} repairs it",
    ),
    "flavour": (
        "this flavour of the driver does not support that card (Blackwell and later: the open kernel modules; before "
        "Turing: the proprietary ones; older: a legacy branch)",
        "apt install nvidia-driver-NNN-open (or the one without -open) of the same version on {host}, then reboot it",
    ),
    "unsigned": (
        "Secure Boot refused a kernel module without a known signature, and no GPU answers",
        "mokutil --sb-state on {host}; mokutil --import the key that signs the NVIDIA module, or the signed package",
    ),
    "probe": ("the driver could start no GPU", "dmesg | grep NVRM on {host}: the lines before say why"),
    "unsupported": (
        "this driver does not support that GPU: it is too old for it, or its open modules want a newer card",
        "another driver branch, or the proprietary modules, on {host}; nvidia.com/drivers says which; then reboot",
    ),
    "gsp": (
        "the GPU's system processor (GSP) gave no answer",
        "reboot {host}; a newer driver if it comes again",
    ),
    "aer": ("a fatal PCIe error", "lspci -vv, risers and slots of {host}; reboot it"),
}


def driver_faults(log: KernelLog, live: Live, wanted: Wanted) -> list[Finding]:
    """What the driver said in words, with no Xid number: fell off the bus, could not start, wrong version."""
    if live.cuda is False or not log.readable:
        return []
    gpus = live.of(GPUS)
    found = []
    for event in log.events:
        if event.kind not in FAULTS:
            continue
        if event.kind == "unsigned" and isinstance(gpus, Gpus) and gpus.cards:
            continue  # another module's
        means, remedy = FAULTS[event.kind]
        said = f"the kernel's log: {event.text[:160]}: {means}{event.ago}"
        hint = remedy.format(host=wanted.host)
        over = _over(event, gpus, live) if isinstance(gpus, Gpus) else None
        if over or event.kind == "aer":
            found.append(warn("gpu-kernel", f"{said}; {over}" if over else said, hint))
        else:
            found.append(block("gpu-kernel", said, hint))
    # What names the cause comes before "could start no GPU".
    found.sort(key=lambda one: (one.level is not Level.BLOCK, FAULTS["probe"][0] in one.evidence))
    return found[:4] or [ok("gpu-kernel", "the driver reported no fault in words")]


def _over(event: Event, gpus: Gpus, live: Live) -> str | None:
    """Why such a fault is no longer one; None where it is."""
    card = next((card for card in gpus.cards if _same(card, event)), None)
    if event.kind == "gsp":
        return "that GPU is well now" if card is not None and _well(card) else None
    if card is not None and not card.errors:
        return "that GPU answers now"
    if event.kind == "mismatch" and gpus.cards:
        return "the GPUs answer now"
    dead = any(one.dead for one in gpus.pci)
    enough = len(chosen(gpus, live).cards) >= needed(gpus, live) and not chosen(gpus, live).missing
    if event.kind in ("probe", "map", "flavour", "unsupported") and enough and not dead:
        return "the server's own GPUs answer (another card, for a display?)"
    return None


def oom(log: KernelLog, live: Live, wanted: Wanted) -> list[Finding]:
    """The kernel killed for want of memory since boot."""
    if not log.readable:
        return []
    killed = [event for event in log.events if event.kind == "oom"]
    if not killed:
        return [ok("oom-kills", "none since boot")]
    engine = [event for event in killed if event.detail.startswith(("python", "sglang", "pt_main_thread"))]
    one = (engine or killed)[0]
    said = f"the kernel killed {one.detail or 'a process'} {one.count} times for want of memory{one.ago}"
    return [
        warn(
            "oom-kills",
            said,
            f"free -g and MemoryMax= of {wanted.service}, on {wanted.host}: a start needs room for the weights",
        )
    ]


def disks(log: KernelLog, live: Live, wanted: Wanted) -> list[Finding]:
    """Filesystems that the kernel gave up on."""
    if not log.readable:
        return []
    events = [event for event in log.events if event.kind == "disk"]
    if not events:
        return [ok("disk-errors", "none since boot")]
    gone = next(
        (event for event in events if "read-only" in event.text.lower() or "readonly" in event.text.lower()),
        None,
    )
    one = gone or events[0]
    remedy = (
        f"findmnt -o TARGET,OPTIONS and smartctl -a of that disk, on {wanted.host}; fsck it before a deploy"
    )
    said = f"the kernel's log: {one.text[:160]}{one.ago}"
    return [
        block("disk-errors", f"{said}: a filesystem went read-only", remedy)
        if gone
        else warn("disk-errors", said, remedy)
    ]


RULES: tuple[Rule[KernelLog], ...] = (
    Rule(
        "kernel-log", KERNEL_LOG, unreadable,
        "Xid events and OOM kills are only there; in containers it is often closed.",
    ),
    Rule(
        "gpu-xid", KERNEL_LOG, xid,
        "After a fault of its GPU no restart helps, and what the engine then says (a hang, a timeout) names the wrong "
        "culprit.",
        ("F061", "F064", "F065", "F067", "F068"),
    ),
    Rule(
        "gpu-kernel", KERNEL_LOG, driver_faults,
        "The driver tells some faults in words alone, over several lines, with no Xid number.",
        ("F026", "F027", "F063", "F086"),
    ),
    Rule("oom-kills", KERNEL_LOG, oom, "A host that killed for want of memory will do it again at the next load."),
    Rule(
        "disk-errors", KERNEL_LOG, disks,
        "A filesystem that went read-only takes the release, the journal or the model with it.",
    ),
)  # fmt: skip
