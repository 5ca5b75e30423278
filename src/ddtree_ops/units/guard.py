"""Refuses to render what would not take effect: a unit in which something else wins over the release's drop-in."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ddtree_ops.core.errors import PreconditionFailed
from ddtree_ops.units.dropins import OURS
from ddtree_ops.units.facts import ExecFact, UnitFact
from ddtree_ops.units.server import locate, python_switches

_STORE = "/opt/ddtree"


def flags_at(argv: Sequence[str]) -> int:
    """Return where the server's own flags begin in an adopted argv."""
    found = locate(list(argv))
    if found is None:
        raise PreconditionFailed(
            f"the recorded command {' '.join(argv[:4])} starts no SGLang server",
            next="ddtree-ops adopt --host HOST",
        )
    return found.flags


def check_patched(host: str, unit: UnitFact, fact: ExecFact, patched: bool) -> None:
    """Raise PreconditionFailed, naming the file or setting, where our drop-in would lose."""
    for dropin in unit.dropins:
        name = (dropin.path or "").rpartition("/")[2]
        if name > OURS[0] and dropin.sets:
            raise PreconditionFailed(
                f"the operator's drop-in {dropin.path} sorts after {OURS[0]} and would win: "
                f"it sets {', '.join(dropin.sets)}",
                host=host,
                next=f"rename it to sort before {OURS[0]}, systemctl daemon-reload, then adopt again",
            )
    if not patched:
        return
    for file in unit.environment_files:
        if "PYTHONPATH" in file.names:
            raise PreconditionFailed(
                f"{file.path} sets PYTHONPATH, and an environment file wins over Environment=", host=host,
                next=f"move PYTHONPATH from {file.path} to an Environment= line, then adopt again",
            )  # fmt: skip
    unset = unit.settings.get("UnsetEnvironment", [])
    if any(
        re.match(r"PYTHONPATH(?:=|$)", w)
        for line in ([unset] if isinstance(unset, str) else unset)
        for w in line.split()
    ):
        raise PreconditionFailed(
            "the unit removes PYTHONPATH (UnsetEnvironment=)", host=host, next="remove it, then adopt again"
        )
    for switch in python_switches(fact.argv):
        if re.match(r"-[a-zA-Z]*[EI]", switch):
            raise PreconditionFailed(
                f"the unit starts python with {switch}, which ignores PYTHONPATH", host=host,
                next=f"remove {switch} from ExecStart=, then adopt again",
            )  # fmt: skip
    for key in ("InaccessiblePaths", "InaccessibleDirectories", "TemporaryFileSystem"):
        value = unit.settings.get(key, [])
        for path in " ".join([value] if isinstance(value, str) else value).split():
            plain = path.lstrip("-+").split(":")[0].rstrip("/")
            if f"{_STORE}/".startswith(f"{plain}/"):
                raise PreconditionFailed(
                    f"the unit hides {_STORE} ({key}={path})",
                    host=host,
                    next=f"remove {key}={path}, then adopt again",
                )
