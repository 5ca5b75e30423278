"""The fault matrix as data: at each moment, each fault, the outcomes that keep the promise.

OLD: the old release serves, untouched · RB: rolled back · NEW: confirmed · RS: untouched, and the next run resumes.
The number is the exit code, `-` where the operator is dead. A cell may allow several (`|`) where the fault itself
leaves two truths open; the host's own record then decides which, and exit code, JSON and reader must agree on it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

BUDGET = "speculative_ddtree_budget"
#: What the new release does at its start, where the moment needs more than a healthy one.
SLOW = {"delay": {"weights": 2}}
DIES = {"exit": {"weights": 3}}


@dataclass(frozen=True)
class Case:
    """One cell. `then`: scenario of the new release;
    `bulk`: it carries files enough to be cut in the middle; `verdict`: what the record must blame; `drain`: the host
    has a router to be taken out of; `verb`: the operator's command."""

    point: str
    fault: str
    expected: str
    then: dict[str, Any] = field(default_factory=dict)
    bulk: bool = False
    confirm_s: float = 30.0
    verdict: str | None = None
    drain: bool = False
    verb: tuple[str, ...] = ("deploy", "--json")

    @property
    def name(self) -> str:
        return f"{self.point} / {self.fault}"

    @property
    def ci(self) -> bool:
        """Whether every CI run has it, else the whole matrix alone."""
        return self.fault in EVERY_RUN.get(self.point, "").split(", ")

    @property
    def allowed(self) -> set[tuple[str, int | None]]:
        """{(outcome, exit code)}. What may be resumed may as well have been swept already."""
        cells = [cell.split() for cell in self.expected.split("|")]
        cells += [["OLD", code] for outcome, code in cells if outcome == "RS"]
        return {(outcome, None if code == "-" else int(code)) for outcome, code in cells}


#: The operator cannot confirm, and the host waits `_SHORT_S` for him (seconds).
_SHORT_S = 4.0
CUT = ("operator SIGKILL", "black hole", "sshd stopped", "SIGINT twice")

_BEFORE = {
    "SIGINT": "OLD 130",
    "operator SIGKILL": "OLD -",
    "SSH reset": "OLD 13",
    "black hole": "OLD 13",
    "agent SIGKILL": "OLD 13 | OLD 3",
    "host crash": "OLD 13",
    "reboot": "OLD 13",
    "ENOSPC /opt": "OLD 3",
    "EROFS /opt": "OLD 3",
}
_PUSH = {
    "SIGINT": "RS 130",
    "operator SIGKILL": "RS -",
    "SSH reset": "RS 13",
    "black hole": "RS 13",
    "agent SIGKILL": "RS 13 | RS 3",
    "host crash": "RS 13",
    "reboot": "RS 13",
    "ENOSPC /opt": "RS 3",
    "EROFS /opt": "RS 3",
    "2nd operator": "NEW 0",
}
#: All that needs room under /opt is there.
_SEALED = {**_PUSH, "ENOSPC /opt": "RS 3 | NEW 0", "EROFS /opt": "RS 3 | NEW 0"}
_TOUCHED = {
    "SIGINT": "RB 10",
    "SIGINT twice": "RB 130",
    "operator SIGKILL": "RB -",
    "SSH reset": "NEW 0",
    "cut 3 s": "NEW 0",
    "black hole": "RB 10",
    "sshd stopped": "RB 10",
    "agent SIGKILL": "RB 10",
    "host crash": "RB 10",
    "reboot": "RB 10",
    "ENOSPC /var": "RB 10 | NEW 0",
    "EROFS /var": "RB 10 | RB 14",
    "EROFS /etc": "RB 10",
    "2nd operator": "NEW 0",
}
#: The call that hands the rollout to the host has arrived; whether it outlives its line is the host's affair.
_BEGIN = {
    "SIGINT": "RB 10 | RS 3 | RS 130 | RS 13",
    "SIGINT twice": "RB 130 | RS 130",
    "operator SIGKILL": "RB - | RS -",
    "SSH reset": "NEW 0 | RS 13",
    "cut 3 s": "NEW 0 | RS 13",
    "black hole": "RB 10 | RB 14 | RS 13",
    "agent SIGKILL": "RS 13 | RS 3",
    "host crash": "RB 10 | RS 13",
    "reboot": "RB 10 | RS 13 | RS 3",
    "2nd operator": "NEW 3",
}
#: Nothing is stopped yet: an end here may leave the old service as it is, and says so.
_ARMED = {
    **_TOUCHED,
    "SIGINT": "OLD 3 | RB 10",
    "agent SIGKILL": "OLD 3",
    "ENOSPC /var": "OLD 3 | RB 10 | NEW 0",
    "EROFS /var": "OLD 3 | RB 10 | RB 14",
    "EROFS /etc": "OLD 3 | RB 10",
}
_CONFIRM = {
    "SIGINT": "NEW 0",
    "operator SIGKILL": "NEW -",
    "SSH reset": "NEW 0",
    "cut 3 s": "NEW 0",
    "agent SIGKILL": "NEW 0",
    "confirm SIGKILL": "NEW 0",
    "confirm and agent SIGKILL": "NEW 0",
    "reboot": "NEW 0",
    "ENOSPC /var": "NEW 0",
    "2nd operator": "NEW 0",
}
_BACK = {
    "SIGINT": "RB 10",
    "operator SIGKILL": "RB -",
    "SSH reset": "RB 10",
    "cut 3 s": "RB 10",
    "black hole": "RB 10",
    "agent SIGKILL": "RB 10",
    "host crash": "RB 10",
    "reboot": "RB 10",
    "ENOSPC /var": "RB 10",
    "EROFS /var": "RB 10 | RB 14",
    "2nd operator": "RB 10",
}

_GC = {
    "SIGINT": "OLD 130",
    "operator SIGKILL": "OLD -",
    "SSH reset": "OLD 14",
    "black hole": "OLD 14",
    "agent SIGKILL": "RS 14",
    "host crash": "RS 14",
    "reboot": "RS 14 | OLD 14 | OLD 0",
    "EROFS /opt": "RS 3",
    "2nd operator": "OLD 0",
}


def _cells(points: str, cells: dict[str, str], **keys: Any) -> list[Case]:
    """Each fault at each of the points (`,` between them)."""
    found = []
    for point in points.split(", "):
        for fault, expected in cells.items():
            short = {"confirm_s": _SHORT_S} if fault in CUT else {}
            found.append(Case(point, fault, expected, **{**keys, **short}))
    return found


TABLE: list[Case] = [
    *_cells("P0 facts, P1 preflight", _BEFORE),
    *_cells("P2 upload 25 %, P2 upload 50 %, P2 upload 99 %", _PUSH, bulk=True),
    *_cells("P3 verify, P3 renamed", _SEALED, bulk=True),
    *_cells("P3 begin", _BEGIN),
    *_cells("P4 armed, P4 written ahead", _ARMED),
    *_cells("P5 draining", _ARMED, drain=True),
    *_cells("P5 drained, P6 stopped, P7 trial in place, P8 switched", _TOUCHED),
    *_cells("P9 starting", _TOUCHED, then=SLOW),
    Case("P9 starting", "device gone", "RB 10", then={**SLOW, **DIES}, verdict="ENV"),
    *_cells("P10 ready, P10 gated", _TOUCHED),
    Case("P12 confirm at the deadline", "deadline passes", "NEW 0 | RB 10", confirm_s=12.0),
    *_cells(
        "P11 confirming",
        {**_CONFIRM, "host crash": "RB 10", "reboot": "RB 10 | NEW 0", "black hole": "NEW 0 | NEW 14"},
    ),
    *_cells("P11 kept, P11 recorded, P11 trial dropped, P11 confirmed", {**_CONFIRM, "host crash": "NEW 0"}),
    *_cells("P13 undraining", {**_CONFIRM, "host crash": "NEW 0"}, drain=True),
    *_cells("P14 collecting", _GC, verb=("gc", "--json")),
    *_cells("R1 rolling back, R2 trial dropped, R3 reloaded, R4 stopped, R5 started", _BACK, then=DIES),
]
#: What two cores have the minutes for: each point, and each fault, at least once.
EVERY_RUN: dict[str, str] = {
    "P0 facts": "SIGINT",
    "P1 preflight": "SSH reset, ENOSPC /opt",
    "P2 upload 25 %": "operator SIGKILL",
    "P2 upload 50 %": "2nd operator",
    "P2 upload 99 %": "host crash",
    "P3 verify": "agent SIGKILL",
    "P3 renamed": "EROFS /opt",
    "P3 begin": "SSH reset",
    "P4 armed": "SIGINT, host crash",
    "P4 written ahead": "agent SIGKILL",
    "P5 draining": "agent SIGKILL, host crash",
    "P5 drained": "operator SIGKILL",
    "P6 stopped": "agent SIGKILL, ENOSPC /var",
    "P7 trial in place": "host crash",
    "P8 switched": "SIGINT, black hole",
    "P9 starting": "cut 3 s, 2nd operator, device gone",
    "P10 ready": "sshd stopped",
    "P10 gated": "SIGINT twice, EROFS /etc",
    "P11 confirming": "SSH reset, confirm and agent SIGKILL",
    "P11 kept": "host crash, confirm SIGKILL",
    "P11 recorded": "host crash",
    "P11 trial dropped": "agent SIGKILL",
    "P11 confirmed": "reboot",
    "P12 confirm at the deadline": "deadline passes",
    "P13 undraining": "agent SIGKILL",
    "P14 collecting": "agent SIGKILL",
    "R1 rolling back": "SIGINT",
    "R2 trial dropped": "host crash",
    "R3 reloaded": "agent SIGKILL",
    "R4 stopped": "SSH reset",
    "R5 started": "EROFS /var",
}
