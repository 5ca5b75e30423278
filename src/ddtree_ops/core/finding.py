"""One line of a preflight: a rule, what it saw, what that means for a deploy, and the command that helps."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from enum import StrEnum


class Level(StrEnum):
    """BLOCK: nothing may be stopped on this host. WARN: unknown, or a risk that a person should read."""

    OK = "OK"
    WARN = "WARN"
    BLOCK = "BLOCK"


@dataclass(frozen=True)
class Finding:
    """waived: the reason for which a person lets pass what would have blocked."""

    rule: str
    level: Level
    evidence: str
    remedy: str | None = None
    waived: str | None = None

    def to_json(self) -> dict[str, str | None]:
        """The finding as `doctor --json` prints it."""
        return {key: None if value is None else str(value) for key, value in asdict(self).items()}


def ok(rule: str, evidence: str) -> Finding:
    """A rule that holds."""
    return Finding(rule, Level.OK, evidence)


def warn(rule: str, evidence: str, remedy: str | None = None) -> Finding:
    """A rule that nobody could check, or a risk."""
    return Finding(rule, Level.WARN, evidence, remedy)


def block(rule: str, evidence: str, remedy: str) -> Finding:
    """A rule that is broken: exit 3."""
    return Finding(rule, Level.BLOCK, evidence, remedy)


def grouped(findings: Iterable[Finding]) -> list[tuple[list[str], Finding]]:
    """(rules, finding) worst first; rules that say the very same, such as why nothing is known, are told once."""
    found: dict[Finding, list[str]] = {}
    for finding in findings:
        rules = found.setdefault(replace(finding, rule=""), [])
        if finding.rule not in rules:
            rules.append(finding.rule)
    order = [Level.BLOCK, Level.WARN, Level.OK]
    return sorted(((rules, said) for said, rules in found.items()), key=lambda one: order.index(one[1].level))
