"""The one error tree: every error knows its sentence, its exit code and the next command to type.

OpsError
├── UsageProblem          2   bad arguments, configuration, bad input files
├── PreconditionFailed    3   preflight or a precondition failed, nothing touched
├── HostLocked            4   another operation holds the host
├── PendingChanges        5   drift or changes pending (asked for with --check or --exit-code; attach)
├── RolledBack           10   failed and rolled back, the old service serves
├── RollbackFailed       11   the old service did not come back
├── Unreachable          13   no connection, nothing changed
├── OutcomeUnknown       14   the line was cut after the switch began; the guard decides
└── Detached            130   the operator interrupted twice
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(eq=False)
class OpsError(Exception):
    """A failure a person can act on.

    what: one sentence, what failed. host: where. evidence: the first fatal line, quoted verbatim. meaning: what it
    means. serving: what answers requests now. next: the next command to type.
    """

    what: str
    host: str | None = None
    evidence: str | None = None
    meaning: str | None = None
    serving: str | None = None
    next: str | None = None

    exit_code = 1
    kind = "bug"
    evidence_label = "evidence"

    def __str__(self) -> str:
        lines = [f"{self.host}: {self.what}" if self.host else self.what]
        if self.evidence:
            lines.append(f"  {self.evidence_label}: {self.evidence}")
        if self.meaning:
            lines.append(f"  meaning: {self.meaning}")
        if self.serving:
            lines.append(f"  serving now: {self.serving}")
        if self.next:
            lines.append(f"  next: {self.next}")
        return "\n".join(lines)

    def to_json(self) -> dict[str, object]:
        """The error as `--json` prints it."""
        return {
            "kind": self.kind,
            "exit_code": self.exit_code,
            "what": self.what,
            "host": self.host,
            "evidence": self.evidence,
            "meaning": self.meaning,
            "serving": self.serving,
            "next": self.next,
        }


class UsageProblem(OpsError):
    exit_code = 2
    kind = "usage"


class PreconditionFailed(OpsError):
    exit_code = 3
    kind = "precondition"


class HostLocked(OpsError):
    exit_code = 4
    kind = "locked"


class PendingChanges(OpsError):
    exit_code = 5
    kind = "changes"


class RolledBack(OpsError):
    exit_code = 10
    kind = "rolled-back"
    evidence_label = "first fatal line"


class RollbackFailed(OpsError):
    exit_code = 11
    kind = "rollback-failed"
    evidence_label = "first fatal line"


class Unreachable(OpsError):
    exit_code = 13
    kind = "unreachable"


class OutcomeUnknown(OpsError):
    exit_code = 14
    kind = "unknown"


class Detached(OpsError):
    exit_code = 130
    kind = "detached"
