"""Rules on what systemd itself needs before the program runs: paths, conditions that hold, other units."""

from __future__ import annotations

from collections.abc import Iterator

from ddtree_ops.core.checks.judge import rule
from ddtree_ops.core.checks.rule import Rule
from ddtree_ops.core.checks.unit_files import SECTION, UnitFiles, at, edit
from ddtree_ops.core.facts_live import Live
from ddtree_ops.core.finding import Finding, block, ok, warn
from ddtree_ops.core.wanted import Wanted

_STATUS = {"LoadCredential": "243/CREDENTIALS", "StandardOutput": "209/STDOUT", "StandardError": "222/STDERR"}


def _paths(facts: UnitFiles, live: Live, wanted: Wanted) -> Iterator[Finding]:
    """What the sandbox mounts, a credential's file and the directory of a log file are there."""
    id, bad = "unit-paths", False
    for item in facts.paths:
        if item.exists is not False:
            continue
        bad = True
        status = _STATUS.get(item.key, "226/NAMESPACE")
        text = (
            f"{at(item)}: {item.path}, which {item.key}= needs, does not exist on the host: status={status}"
        )
        optional = "" if item.key in _STATUS else f", or {item.key}=-{item.path} where it may be missing"
        yield block(id, text, f"ssh {wanted.host} ls -ld {item.path}{optional}; {edit(wanted)}")
    if not bad:
        yield ok(id, f"{len(facts.paths)} paths that systemd needs, each there")


def _conditions(facts: UnitFiles, live: Live, wanted: Wanted) -> Iterator[Finding]:
    """A condition that does not hold: systemd skips the start and calls that no failure."""
    id, bad = "unit-conditions", False
    for item in facts.conditions:
        if item.met:
            continue
        bad = True
        what = "skips the start without an error" if item.key.startswith("Condition") else "refuses the start"
        text = f"{at(item)}: {item.key}={item.path} does not hold on the host: systemd {what}"
        yield block(id, text, f"ssh {wanted.host} ls -ld {item.path.lstrip('!')}; {edit(wanted)}")
    if not bad:
        yield ok(id, "no condition of the unit stands in its way")


def _required(facts: UnitFiles, live: Live, wanted: Wanted) -> Iterator[Finding]:
    """Units without which this one does not start."""
    id, bad = "unit-requires", False
    for item in facts.units:
        text = f"{wanted.service} {item.tie}= {item.name}, which is "
        look = f"ssh {wanted.host} systemctl status {item.name}"
        if item.load in ("not-found", "masked", "bad-setting", "error"):
            bad = True
            yield block(id, f"{text}{item.load}: the start fails with it", look)
        elif item.tie == "Requisite" and item.active not in ("active", None):
            bad = True
            yield block(id, f"{text}{item.active}: the start fails, for nothing starts it", look)
        elif item.active == "failed":
            bad = True
            yield warn(id, f"{text}failed: it is started again first, and this start fails with it", look)
    if not bad:
        yield ok(id, f"{len(facts.units)} required units")


RULES: tuple[Rule[UnitFiles], ...] = (
    rule(
        SECTION, "unit-paths", _paths,
        "systemd sets up the sandbox, the credentials and the log file before the program: a missing path ends the "
        "start with a status that blames the program.",
    ),
    rule(
        SECTION, "unit-conditions", _conditions,
        "An unmet condition leaves the service inactive with no failure that a deploy could see.",
    ),
    rule(
        SECTION, "unit-requires", _required,
        "Dependency failed: the service is not even tried where a unit that it requires cannot start.",
    ),
)  # fmt: skip
