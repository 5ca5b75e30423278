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
    """One cell. `ci`: runs in every CI run, else in the whole matrix alone. `then`: scenario of the new release;
    `bulk`: it carries files enough to be cut in the middle; `verdict`: what the record must blame; `drain`: the host
    has a router to be taken out of."""

    point: str
    fault: str
    expected: str
    ci: bool = False
    then: dict[str, Any] = field(default_factory=dict)
    bulk: bool = False
    confirm_s: float = 30.0
    verdict: str | None = None
    drain: bool = False

    @property
    def name(self) -> str:
        return f"{self.point} / {self.fault}"

    @property
    def allowed(self) -> set[tuple[str, int | None]]:
        """{(outcome, exit code)}."""
        cells = (cell.split() for cell in self.expected.split("|"))
        return {(outcome, None if code == "-" else int(code)) for outcome, code in cells}


#: The operator cannot confirm: the host waits so long for him (seconds).
_SHORT_S = 4.0
_CUT = ("operator SIGKILL", "black hole", "sshd stopped", "SIGINT twice")

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
#: Nothing is stopped yet: an end here may leave the old service as it is, and says so.
_ARMED = {
    **_TOUCHED,
    "SIGINT": "OLD 3 | RB 10",
    "agent SIGKILL": "OLD 3",
    "ENOSPC /var": "OLD 3 | RB 10 | NEW 0",
    "EROFS /var": "OLD 3 | RB 10 | RB 14",
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


def _cells(points: str, cells: dict[str, str], ci: dict[str, str] | None = None, **keys: Any) -> list[Case]:
    """Each fault at each of the points (`,` between them). `ci`: {fault: first words of the points that CI runs}."""
    found = []
    for point in points.split(", "):
        for fault, expected in cells.items():
            words = (ci or {}).get(fault, "").split()
            short = {"confirm_s": _SHORT_S} if fault in _CUT else {}
            one_word = point.split()[0]
            found.append(
                Case(point, fault, expected, ci=one_word in words or "all" in words, **{**keys, **short})
            )
    return found


TABLE: list[Case] = [
    *_cells("P0 facts", _BEFORE, {"SIGINT": "P0", "SSH reset": "P0", "host crash": "P0"}),
    *_cells("P1 preflight", _BEFORE, {"operator SIGKILL": "P1", "ENOSPC /opt": "P1"}),
    *_cells("P2 upload 25 %", _PUSH, {"operator SIGKILL": "P2", "ENOSPC /opt": "P2"}, bulk=True),
    *_cells("P2 upload 50 %", _PUSH, {"SSH reset": "P2", "2nd operator": "P2"}, bulk=True),
    *_cells("P2 upload 99 %", _PUSH, {"SIGINT": "P2", "host crash": "P2"}, bulk=True),
    *_cells("P3 verify", _PUSH, {"agent SIGKILL": "P3"}, bulk=True),
    *_cells("P3 renamed", _PUSH, {"operator SIGKILL": "P3", "host crash": "P3"}, bulk=True),
    *_cells("P4 armed", _ARMED, {"agent SIGKILL": "P4", "host crash": "P4", "SIGINT": "P4"}),
    *_cells("P4 written ahead", _ARMED, {"agent SIGKILL": "P4", "ENOSPC /var": "P4"}),
    *_cells("P5 draining", _ARMED, {"agent SIGKILL": "P5", "SIGINT": "P5", "host crash": "P5"}, drain=True),
    *_cells("P5 drained", _TOUCHED, {"operator SIGKILL": "P5"}),
    *_cells("P6 stopped", _TOUCHED, {"agent SIGKILL": "P6", "reboot": "P6", "ENOSPC /var": "P6"}),
    *_cells("P7 trial in place", _TOUCHED, {"SSH reset": "P7", "agent SIGKILL": "P7", "host crash": "P7"}),
    *_cells("P8 switched", _TOUCHED, {"SIGINT": "P8", "black hole": "P8", "host crash": "P8"}),
    *_cells("P9 starting", _TOUCHED, {"cut 3 s": "P9", "2nd operator": "P9", "EROFS /var": "P9"}, then=SLOW),
    Case("P9 starting", "device gone", "RB 10", ci=True, then={**SLOW, **DIES}, verdict="ENV"),
    *_cells("P10 ready", _TOUCHED, {"sshd stopped": "P10", "SIGINT twice": "P10"}),
    *_cells("P10 gated", _TOUCHED, {"agent SIGKILL": "P10", "host crash": "P10", "EROFS /etc": "P10"}),
    Case("P12 confirm at the deadline", "deadline passes", "NEW 0 | RB 10", ci=True, confirm_s=4.0),
    *_cells(
        "P11 confirming",
        {**_CONFIRM, "host crash": "RB 10", "reboot": "RB 10 | NEW 0", "black hole": "NEW 0 | NEW 14"},
        {"SSH reset": "P11", "host crash": "P11", "confirm and agent SIGKILL": "P11", "ENOSPC /var": "P11"},
    ),
    *_cells("P11 kept", {**_CONFIRM, "host crash": "NEW 0"}, {"host crash": "P11", "confirm SIGKILL": "P11"}),
    *_cells("P11 recorded", {**_CONFIRM, "host crash": "NEW 0"}, {"host crash": "P11"}),
    *_cells("P11 trial dropped", {**_CONFIRM, "host crash": "NEW 0"}, {"confirm and agent SIGKILL": "P11"}),
    *_cells("P11 confirmed", {**_CONFIRM, "host crash": "NEW 0"}, {"operator SIGKILL": "P11"}),
    *_cells(
        "R1 rolling back", _BACK, {"SIGINT": "R1", "agent SIGKILL": "R1", "2nd operator": "R1"}, then=DIES
    ),
    *_cells("R2 trial dropped", _BACK, {"agent SIGKILL": "R2", "host crash": "R2"}, then=DIES),
    *_cells("R3 reloaded", _BACK, {"agent SIGKILL": "R3", "ENOSPC /var": "R3"}, then=DIES),
    *_cells("R4 stopped", _BACK, {"agent SIGKILL": "R4", "host crash": "R4", "SSH reset": "R4"}, then=DIES),
    *_cells("R5 started", _BACK, {"agent SIGKILL": "R5", "reboot": "R5", "EROFS /var": "R5"}, then=DIES),
]
