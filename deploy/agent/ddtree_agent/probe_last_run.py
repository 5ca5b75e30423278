"""Facts about how the last start went: what systemd counted, and the first fatal line that it left in the log."""

import json
import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Dict, List, Optional

from . import caps, evidence, observe, systemd
from .core.log_text import clean
from .core.scanner import Evidence, Scanner
from .layout import Layout

if TYPE_CHECKING:
    from .probe_areas import Context

_PROPERTIES = ["Result", "ActiveState", "SubState", "NRestarts", "ExecMainStatus", "InvocationID"]
_LINES, _BYTES = 400, 1 << 17
_PHASES = ("process", "import", "weights", "graphs", "serve")


def collect(context: "Context") -> Dict[str, Any]:
    """{result, active, sub, restarts, status, start_limit, log, fatal: {line, reason, hint} | null}.

    fatal: of the last start that is not the one that runs now. log: whether there were lines to read.
    """
    name = context.request.get("service") or "sglang.service"
    show = systemd.show(name, _PROPERTIES)
    if not show:
        return {"error": f"systemctl show {name} gave no answer"}
    running = show.get("InvocationID", "") if show.get("ActiveState") == "active" else ""
    target = caps.log_target(context.show)
    if target.startswith("file:"):
        # One file holds all starts: while the service runs, its end tells of a start that went well.
        lines: Optional[List[str]] = None if running else _file(target[5:])
    else:
        lines = previous(_journal(name), running)
    found = fatal(evidence.blanked(Layout(name), "\n".join(lines or [])).splitlines())
    return {
        "result": show.get("Result", ""),
        "active": show.get("ActiveState", ""),
        "sub": show.get("SubState", ""),
        "restarts": int(show["NRestarts"]) if show.get("NRestarts", "").isdigit() else None,
        "status": int(show["ExecMainStatus"]) if show.get("ExecMainStatus", "").isdigit() else None,
        "start_limit": show.get("Result") == "start-limit-hit"
        or any("start-limit-hit" in x for x in lines or []),
        "log": lines is not None,
        "fatal": found and {"line": clean(found.line), "reason": found.reason, "hint": found.hint},
    }


def previous(text: str, running: str) -> Optional[List[str]]:
    """The messages of the last start in `journalctl -o json` that is not `running`; null where there are none.

    What systemd itself says of the unit carries its invocation in another field.
    """
    starts: Dict[str, List[str]] = {}
    for line in text.splitlines():
        try:
            entry = json.loads(line)
            start = entry.get("_SYSTEMD_INVOCATION_ID") if "UNIT" not in entry else entry.get("INVOCATION_ID")
            message = entry.get("MESSAGE")
        except (ValueError, AttributeError):
            continue
        if isinstance(message, list):  # bytes that are no text
            message = bytes(message).decode("utf-8", "replace")
        if isinstance(start, str) and start != running and isinstance(message, str):
            starts.setdefault(start, []).extend(message.splitlines())
    return list(starts.values())[-1] if starts else None


def fatal(lines: List[str]) -> Optional[Evidence]:
    """The cause that the watch would have named, in whatever phase it came; null where no line is one, or where the
    start went well: how it ended later (our own stop, most often) is no failed start."""
    start, table = frozenset(_PHASES), observe.signatures()
    ready = [s.pattern for s in table if s.role == "passed" and "serve" in s.phases]
    if any(pattern.search(line) for pattern in ready for line in lines):
        return None
    known = [replace(s, phases=start) for s in table if s.phases & start and s.reason != "terminated"]
    scanner = Scanner(known)
    for line in lines[-_LINES:]:
        scanner.feed(line, _PHASES[0])
    return scanner.best if scanner.best is not None and scanner.best.kills else None


def _journal(name: str) -> str:
    argv = ["journalctl", "--no-pager", "-q", "-o", "json", "-n", str(_LINES * 3), "-u", name]
    argv.append("--output-fields=MESSAGE,_SYSTEMD_INVOCATION_ID,INVOCATION_ID,UNIT")
    return systemd.run(argv, 4)[1]


def _file(path: str) -> Optional[List[str]]:
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _BYTES))
            return file.read().decode("utf-8", "replace").splitlines()[-_LINES:]
    except OSError:
        return None
