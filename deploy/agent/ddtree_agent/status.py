"""What runs here, by the host's own evidence, and what has run."""

import json
import os
from typing import Any, Dict, List

from . import service, store
from .journal import open_txn
from .layout import Layout, holder
from .outcome import confirmed
from .systemd import run, show


def status(layout: Layout) -> Dict[str, Any]:
    """Ground truth: the main process's own release, the drop-ins in force, the record, and where they disagree."""
    unit = show(
        layout.service, ["ActiveState", "SubState", "MainPID", "NeedDaemonReload", "DropInPaths", "NRestarts"]
    )
    record, running = confirmed(layout), service.running_release(layout.service)
    txn = open_txn(layout)
    releases = [
        {"release": name, "mode": manifest.get("mode"), "source_digest": manifest.get("source_digest")}
        for name, manifest in store.releases(layout)
    ]
    return {
        "service": layout.service,
        "active": unit.get("ActiveState", "unknown"),
        "sub": unit.get("SubState", "unknown"),
        "main_pid": int(unit.get("MainPID") or 0),
        "restarts": int(unit.get("NRestarts") or 0),
        "confirmed": record,
        "running": running or ("baseline" if int(unit.get("MainPID") or 0) else None),
        "trial": os.path.exists(layout.trial),
        "transaction": {"txn": txn.id, "state": txn.state} if txn else None,
        "held_by": holder(layout),
        "releases": releases,
        "drift": _drift(layout, unit, record, running),
    }


def _drift(layout: Layout, unit: Dict[str, str], record: Dict[str, Any], running: Any) -> List[str]:
    found = []
    kept = os.path.exists(layout.kept)
    if kept != (record["release"] != "baseline"):
        found.append(
            f"{layout.kept} is {'there' if kept else 'missing'} though {record['release']} is confirmed"
        )
    trial = os.path.exists(layout.trial)
    want = None if record["release"] == "baseline" else record["release"]
    if unit.get("MainPID", "0") != "0" and running != want and not trial:
        found.append(f"the main process runs {running or 'the baseline'}, {record['release']} is confirmed")
    if unit.get("ActiveState") != "active" and not trial:
        found.append(f"{layout.service} is {unit.get('ActiveState', 'unknown')}: nothing serves")
    if unit.get("NeedDaemonReload") == "yes":
        found.append(f"unit files of {layout.service} changed on disk: systemctl daemon-reload")
    return found


def history(layout: Layout, limit: int) -> List[Dict[str, Any]]:
    """The last `limit` entries, oldest first. A torn last line (power cut) is skipped."""
    entries = []
    try:
        with open(layout.history, encoding="utf-8") as file:
            for line in file:
                try:
                    entries.append(json.loads(line))
                except ValueError:
                    continue
    except FileNotFoundError:
        pass
    return entries[-limit:]


def logs(layout: Layout, lines: int, log: str) -> List[str]:
    """The last lines that the service wrote, from where its unit writes them."""
    if log.startswith("file:"):
        status_, out, err = run(["tail", "-n", str(lines), log[5:]], 20)
    else:
        status_, out, err = run(
            ["journalctl", "--no-pager", "-o", "short-iso", "-n", str(lines), "-u", layout.service], 20
        )
    text = out if status_ == 0 else err
    # The engine prints its own API key in its start-up arguments.
    for value in service.headers(layout.service).values():
        text = text.replace(value.split()[-1], "***")
    return text.splitlines()
