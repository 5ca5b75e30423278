"""Kernel lines that bear on a deploy, taken apart: NVIDIA's Xid events and driver faults, OOM kills, dying disks.

Forms seen: `NVRM: Xid (PCI:0000:9c:00): 79, pid=…`, `NVRM: Xid (0000:02:00): 13, …` of old drivers, `NVRM: GPU at
PCI:… GPU-…` before them, and faults told over several lines, which newer drivers do.
"""

import re
from typing import Any, Dict, Iterable, List, Optional, Tuple

from .nvidia_smi import short_bus

_STAMP = re.compile(
    r"^\[\s*(\d+\.\d+)\]\s*|^\[\w{3} [^\]]*\]\s*|^\S+T\S+\s+(?:\S+\s+)?kernel:\s*|^\w{3} +\d+ [\d:.]+ \S+ kernel:\s*"
)
#: A sentence's next line begins with a plain small word or a bracket; a function's name or a new event does not.
_GOES_ON = re.compile(r"\(|[a-z]+(?:\s|$)")
_XID = re.compile(r"NVRM: Xid \((?:PCI:)?([^)]+)\): (\d+)(?:,|\s|$)(.*)")
_SXID = re.compile(r"SXid \(PCI:([^)]+)\): (\d+), (Fatal|Non-fatal)?,?(.*)", re.I)
_BUS = re.compile(r"(?:PCI:)?((?:[0-9a-fA-F]{4,8}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-9a-fA-F])?)")
#: (kind, what tells it); the text is a fault's lines joined.
KINDS: Tuple[Tuple[str, "re.Pattern[str]"], ...] = (
    ("bus", re.compile(
            r"(?i)fallen off the bus|NVRM:.*GPU (?:has been |is )?lost\b"
            r"|\bnvidia [0-9a-f:.]+: .*(?:device inaccessible|not ready .*giving up)"
        )),
    ("mismatch", re.compile(r"NVRM: API mismatch")),
    (
        "map",
        re.compile(
            r"(?i)NVRM:.*(?:I/O region assigned to your NVIDIA device is invalid|BAR\d? is 0M|can.t find an IRQ)"
        ),
    ),
    (
        "flavour",
        re.compile(
            r"NVRM:.*(?:requires use of the NVIDIA open kernel modules|is not supported by open\b"
            r"|supported through the NVIDIA \S+ Legacy)"
        ),
    ),
    (
        "unsupported",
        re.compile(
            r"(?i)NVRM:.*(?:not supported by (?:the )?(?:open )?NVIDIA|is not supported by (?:the|open)?$"
            r"|GPU is not supported)"
        ),
    ),
    (
        "probe",
        re.compile(
            r"(?i)NVRM:.*(?:probe routine (?:failed|was not called)|RmInitAdapter failed|rm_init_adapter failed"
            r"|None of the NVIDIA (?:devices|graphics adapters) were initialized|nvidia_dev_open.*failed)"
        ),
    ),
    ("gsp", re.compile(r"(?i)NVRM:.*(?:GSP.{0,60}(?:timeout|timed out|failed|crash)|Timeout .{0,60}GSP)")),
    ("unsigned", re.compile(
            r"Loading of (?:unsigned module|module with unavailable key) is rejected"
            r"|Lockdown: .*unsigned module loading"
        )),
    (
        "oom",
        re.compile(
            r"Out of memory: Killed process|Memory cgroup out of memory: Killed process|oom-kill:|oom_reaper: reaped"
        ),
    ),
    (
        "disk",
        re.compile(
            r"(?i)remounting filesystem read-only|EXT4-fs error|XFS.*(?:shutting down|corruption)"
            r"|BTRFS.*(?:forced readonly|transaction aborted)|(?:critical medium|I/O) error, dev (?!loop|fd|sr)"
            r"|Buffer I/O error on dev (?!loop|fd|sr)|nvme.*controller is down"
        ),
    ),
    ("aer", re.compile(r"(?i)AER:.*(?:Uncorrected|Uncorrectable).*Fatal|PCIe Bus Error: severity=Uncorrected.*Fatal")),
)  # fmt: skip
_OOM = re.compile(r"Killed process (\d+) \(([^)]*)\)")


def events(lines: Iterable[str], now: Optional[float] = None) -> List[Dict[str, Any]]:
    """[{kind, code, bus, count, text, age_s, process}], equal ones counted together, in order of the first. age_s: of
    the last, where lines have a boot-time stamp and `now` is the time since boot.
    """
    found: Dict[Tuple[str, Optional[int], Optional[str], str], Dict[str, Any]] = {}
    for at, text in joined(lines):
        event = _event(text)
        if event is None:
            continue
        key = (event["kind"], event["code"], event["bus"], event["detail"])
        kept = found.setdefault(key, dict(event, count=0))
        kept["count"] += 1
        kept["text"] = text[:240]
        kept["age_s"] = int(now - at) if now is not None and at is not None else None
    return list(found.values())[:64]


def joined(lines: Iterable[str]) -> List[Tuple[Optional[float], str]]:
    """(stamp, text) with the lines of one NVRM sentence joined, also where another CPU's line came in between."""
    found: List[Tuple[Optional[float], str]] = []
    last: Optional[int] = None  # index of the last line of NVRM
    for raw in lines:
        match = _STAMP.match(raw)
        stamp = float(match.group(1)) if match and match.group(1) else None
        text = (raw[match.end() :] if match else raw).strip()
        if not text:
            continue
        if not text.startswith("NVRM:"):
            found.append((stamp, text))
            continue
        body = text[5:].strip()
        if last is not None and _GOES_ON.match(body) and not found[last][1].endswith("."):
            before, so_far = found[last]
            if stamp is None or before is None or stamp - before < 1:
                found[last] = (stamp or before, f"{so_far} {body}"[:1000])
                continue
        last = len(found)
        found.append((stamp, f"NVRM: {body}"))
    return found


def xid_of(line: str) -> Optional[int]:
    """The number of the Xid event that a line tells; None where it tells none."""
    found = _XID.search(line)
    return int(found.group(2)) if found else None


def _event(text: str) -> Optional[Dict[str, Any]]:
    xid = _XID.search(text)
    if xid:
        code, rest = int(xid.group(2)), xid.group(3)
        detail = _action(rest) if code == 154 else ""
        return _made("xid", text, code, short_bus(_full(xid.group(1))), detail)
    switch = _SXID.search(text)
    if switch:
        fatal = (switch.group(3) or "").lower() == "fatal"
        return _made(
            "sxid", text, int(switch.group(2)), short_bus(_full(switch.group(1))), "fatal" if fatal else ""
        )
    for kind, sign in KINDS:
        if sign.search(text):
            # Only where the line is about a PCI device: a time of day looks like an address too.
            bus = (
                _BUS.search(text.partition("NVRM:")[2] or text)
                if kind in ("bus", "flavour", "unsupported", "probe", "map", "gsp")
                else None
            )
            victim = _OOM.search(text) if kind == "oom" else None
            detail = victim.group(2) if victim else ""
            if kind == "oom" and not victim:
                return None  # the lines around the kill: it is counted once
            return _made(kind, text, None, short_bus(_full(bus.group(1))) if bus else None, detail)
    return None


def _made(kind: str, text: str, code: Optional[int], bus: Optional[str], detail: str) -> Dict[str, Any]:
    return {"kind": kind, "code": code, "bus": bus, "detail": detail, "text": text[:240]}


def _action(rest: str) -> str:
    """What Xid 154 says is needed now: the state after "to" in "changed from 0x0 (None) to 0x1 (GPU Reset)"."""
    found = re.search(r"to \S+ \(([^)]*)\)", rest)
    return found.group(1) if found else ""


def _full(bus: str) -> str:
    """An Xid names a device without its function."""
    return bus if "." in bus else bus + ".0"
