"""The rule on paths that systemd itself needs before the program runs: sandbox, credentials, log files."""

from __future__ import annotations

from collections.abc import Iterator

from ddtree_ops.core.checks.judge import rule
from ddtree_ops.core.checks.rule import Rule
from ddtree_ops.core.checks.unit_files import SECTION, UnitFiles, at, edit
from ddtree_ops.core.facts_live import Live
from ddtree_ops.core.finding import Finding, block, ok
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


RULES: tuple[Rule[UnitFiles], ...] = (
    rule(
        SECTION, "unit-paths", _paths,
        "systemd sets up the sandbox, the credentials and the log file before the program: a missing path ends the "
        "start with a status that blames the program.",
    ),
)  # fmt: skip
