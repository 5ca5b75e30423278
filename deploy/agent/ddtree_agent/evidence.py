"""What is kept of a release that failed: its manifest, the report, and the last lines that its run wrote."""

import glob
import json
import os
import re
from typing import Any, Dict, List, Tuple

from . import service, store
from .core.log_text import clean
from .journal import Txn
from .layout import Layout, write_atomic
from .systemd import run

#: 200 lines, each cut by clean(), and never more than this many bytes of them.
_LINES, _BYTES = 200, 64 << 10
#: What `main.write_secrets` writes: NAME="value", with quotes and backslashes escaped.
_QUOTED = re.compile(r'^\w+="((?:\\.|[^"\\])*)"$', re.M | re.S)


def mark(log: str) -> Dict[str, int]:
    """Where a log file ends now, for the event that begins the rollback; {} for a journal, which has times."""
    if not log.startswith("file:"):
        return {}
    try:
        return {"log_size": os.stat(log[5:]).st_size}
    except OSError:
        return {}


def keep(txn: Txn, report: Dict[str, Any], stay: Tuple[str, ...]) -> None:
    """Put the report into failed/, free the release's bytes unless it is one that must `stay`, and add the log tail."""
    layout, release = txn.layout, txn.intent["release"]
    store.retire(layout, release, txn.id, report, stay)
    lines = tail(txn)
    if lines:
        path = os.path.join(store.evidence_dir(layout, release, txn.id), "log.txt")
        write_atomic(path, _bounded(lines), mode=0o600)


def tail(txn: Txn) -> List[str]:
    """The last lines of the failed run, without secrets; [] where the release was never started.

    The service that was brought back has written since: only what came before the rollback counts.
    """
    begun, ended, size = _span(txn)
    if not begun:
        return []
    log = str(txn.intent.get("log", "journal"))
    text = _file(log[5:], size) if log.startswith("file:") else _journal(txn.layout.service, begun, ended)
    return scrub(txn.layout, text).splitlines()[-_LINES:]


def scrub(layout: Layout, text: str) -> str:
    """Without secrets, and without what no line of evidence needs."""
    return "\n".join(clean(line) for line in blanked(layout, text).splitlines())


def blanked(layout: Layout, text: str) -> str:
    """With every secret of this host's service blanked: the engine prints its own API key when it starts."""
    for value in hidden(layout):
        text = text.replace(value, "***")
    return text


def told(layout: Layout, event: Dict[str, Any]) -> Dict[str, Any]:
    """An event or failure as it may be kept and told: a line of the log that it quotes may hold a key."""
    text = json.dumps(event)
    for value in hidden(layout):
        text = text.replace(json.dumps(value)[1:-1], "***")
    clear: Dict[str, Any] = json.loads(text)
    return clear


def hidden(layout: Layout) -> List[str]:
    """The values that nobody may read, the longest first."""
    values = [value.split()[-1] for value in service.headers(layout.service).values()] + _stored(layout)
    # shorter ones would blot out ordinary text
    return sorted({value for value in values if len(value) >= 4}, key=len, reverse=True)


def _stored(layout: Layout) -> List[str]:
    values: List[str] = []
    for path in glob.glob(layout.secrets("*")):
        try:
            with open(path, encoding="utf-8", errors="replace") as file:
                values += [
                    re.sub(r"\\(.)", r"\1", found, flags=re.S) for found in _QUOTED.findall(file.read())
                ]
        except OSError:
            continue
    # a log has a value of several lines in pieces
    return [piece for value in values for piece in {value, *value.splitlines()}]


def _span(txn: Txn) -> Tuple[float, float, int]:
    """When the release was switched to and when its rollback began (unix seconds), and the log's size then."""
    begun, ended, size = 0.0, 0.0, -1
    try:
        with open(txn.events_path, encoding="utf-8", errors="replace") as file:
            lines = file.read().splitlines()
    except OSError:
        return begun, ended, size
    for line in lines:
        try:
            event = json.loads(line)
            if event.get("state") == "SWITCHED":
                begun = begun or float(event["t"])
            if event.get("state") == "ROLLING_BACK" and not ended:
                ended, size = float(event["t"]), int(event.get("log_size", -1))
        except (ValueError, TypeError, KeyError, AttributeError):
            continue  # a line that a full disk tore
    return begun, ended, size


def _journal(unit: str, begun: float, ended: float) -> str:
    until = [f"--until=@{ended:.6f}"] if ended else []
    since = [f"--since=@{begun:.6f}", *until]
    argv = ["journalctl", "--no-pager", "-o", "short-full", "-n", str(_LINES), "-u", unit, *since]
    return run(argv, 20)[1]


def _file(path: str, size: int) -> str:
    try:
        with open(path, "rb") as file:
            end = file.seek(0, os.SEEK_END)
            if 0 <= size <= end:
                end = size
            start = max(0, end - 4 * _BYTES)
            file.seek(start)
            return file.read(end - start).decode("utf-8", "replace")
    except OSError:
        return ""


def _bounded(lines: List[str]) -> bytes:
    raw = ("\n".join(lines) + "\n").encode()
    return raw if len(raw) <= _BYTES else raw[-_BYTES:].partition(b"\n")[2]
