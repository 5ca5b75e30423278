"""Which log lines mean what: the table of signatures, read and checked.

Standard library only, no I/O: built verbatim into the host agent; the text of signatures.json is passed in.
"""

import json
import re
from dataclasses import dataclass
from typing import Any, Dict, FrozenSet, List, Optional, Pattern, Tuple

#: The phases of a start, in order (design section 5); `hold` is the bake time after the last of them.
PHASES: Tuple[str, ...] = ("process", "import", "weights", "graphs", "serve", "mode", "capacity")
_START = ("process", "import", "weights", "graphs", "serve")
_ALL = (*PHASES, "hold")

#: Where the collected signatures say a line is seen -> our phases, and the scopes outside a start.
PHASE_OF: Dict[str, Tuple[str, ...]] = {
    "start": _ALL,
    "start/kernel": (*_ALL, "kernel"),
    "start/first request": _ALL,
    "start/request": (
        "process",
        "import",
        "weights",
        "graphs",
        "traffic",
    ),  # once it serves: one request's refusal
    "import": ("import",),
    "load": ("weights", "import", "graphs"),
    "graphs": ("graphs",),
    "serve": ("serve",),
    "runtime": _ALL,
    "runtime, sustained 60 s": ("traffic",),
    "systemd": _ALL,
    "systemd, before ready": _START,
    "unit": ("unit", "process"),
    "journal": _ALL,
    "kernel": ("kernel",),
    "probe": ("preflight",),
    "probe/kernel": ("preflight", "kernel"),
    "container": ("preflight",),
    "canary": ("parity",),
    "canary output": ("parity",),
    "ssh": ("transport",),
    "ssh/push": ("transport",),
    "push": ("transport",),
    "push/start": ("transport", *_ALL),
    "push/start/kernel": ("transport", "kernel", *_ALL),
    "start/push": (*_ALL, "transport"),
    "start/probe": (*_ALL, "preflight"),
    # Only a log that somebody pasted shows these: no start is judged by them.
    "outside": ("outside",),
    "pasted": ("pasted",),
}
#: What the collected signatures advise -> the role a line plays for us (a signature may name a narrower one).
ROLE_OF: Dict[str, str] = {
    "FAILFAST": "fatal",  # fails at once, also while the process still lives
    "BLOCK": "fatal",
    "WAIT": "wait",  # explains a silence
    "WARN": "note",
    "IGNORE": "benign",  # a healthy start prints it too
    "PASSED": "passed",  # its phase is over
    "ENTERED": "entered",  # its phase has begun
}
ROLES: FrozenSet[str] = frozenset(
    {"root", "fatal", "explains", "effect", "consequence", "wait", "note", "benign", "passed", "entered"}
)


@dataclass(frozen=True)
class Signature:
    """One known line. `phases`: where it is looked for; `reason`: a word for machines; `host`: the host broke, not
    the release; `firm`: no "warning" or "ignored" beside it takes anything back; `general`: a line that says more
    exactly what happened is the better cause; `symptom`: what is missing here failed to load earlier."""

    id: str
    pattern: "Pattern[str]"
    phases: FrozenSet[str]
    role: str
    reason: str
    hint: str
    host: bool = False
    firm: bool = False
    general: bool = False
    symptom: bool = False


def load(text: str) -> List[Signature]:
    """Parse signatures.json. Raises ValueError naming the entry whose phase, verdict, role or expression we cannot
    place, so that no line of it is ever silently without meaning."""
    found: List[Signature] = []
    for entry in json.loads(text):
        try:
            found.append(_signature(entry))
        except (KeyError, re.error) as error:
            raise ValueError(f"signature {entry.get('id', '?')}: unmapped or broken: {error}") from None
    if len({signature.id for signature in found}) != len(found):
        raise ValueError("two signatures share an id")
    return found


def _signature(entry: Dict[str, Any]) -> Signature:
    role = entry.get("role", ROLE_OF[entry["verdict"]])
    if role not in ROLES:
        raise KeyError(role)
    phases = PHASE_OF[entry["phase"]]
    if role in ("passed", "entered"):
        phases = phases[:1]
    return Signature(
        id=entry["id"],
        pattern=re.compile(entry["regex"]),
        phases=frozenset(phases),
        role=role,
        reason=entry["reason"],
        hint=entry["hint"],
        host=bool(entry.get("host", False)),
        firm=bool(entry.get("firm", False)),
        general=bool(entry.get("general", False)),
        symptom=bool(entry.get("symptom", False)),
    )


def match(line: str, phase: str, signatures: List[Signature]) -> Optional[Signature]:
    """The first signature that gives `line` a meaning in `phase`; None for a line that a healthy start prints too."""
    for signature in signatures:
        if (
            phase in signature.phases
            and signature.role not in ("passed", "entered")
            and signature.pattern.search(line)
        ):
            return None if signature.role == "benign" else signature
    return None
