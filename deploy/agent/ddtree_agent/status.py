"""What runs here, by the host's own evidence, and what has run."""

import os
from typing import Any, Dict, List, Optional, Tuple

from . import evidence, hold, runtimes, service, store
from .decided import confirmed
from .drift import drift, files, overlay, unknown
from .journal import open_txn
from .layout import BASELINE, Layout, holder, read_history
from .systemd import run, show
from .wire import AgentError


def status(layout: Layout) -> Dict[str, Any]:
    """Ground truth: the main process's own release, the drop-ins in force, the record, and where they disagree."""
    unit = show(
        layout.service, ["ActiveState", "SubState", "MainPID", "NeedDaemonReload", "DropInPaths", "NRestarts"]
    )
    record, now = confirmed(layout), running(layout)
    txn = open_txn(layout)
    damaged = overlay(layout, record["release"])
    releases = [
        {"release": name, **{key: manifest.get(key) for key in ("mode", "source_digest", "runtime")}}
        for name, manifest in store.releases(layout)
    ]
    return {
        "service": layout.service,
        "active": unit.get("ActiveState", "unknown"),
        "sub": unit.get("SubState", "unknown"),
        "main_pid": int(unit.get("MainPID") or 0),
        "restarts": int(unit.get("NRestarts") or 0),
        "confirmed": record,
        "running": now["release"],
        "mode": now["mode"],
        "unit": {"dropins": unit.get("DropInPaths", "").split(), "files": files(layout)},
        "overlay": _overlay(record["release"], damaged),
        "runtime": runtime_of(layout, now["release"]),
        "trial": os.path.exists(layout.trial),
        "transaction": {"txn": txn.id, "state": txn.state} if txn else None,
        "held_by": holder(layout),
        "hold": hold.standing(layout),
        "last": last_rollout(layout),
        "releases": releases,
        "drift": drift(layout, None if txn else unknown(layout, damaged)),
    }


def last_rollout(layout: Layout) -> Optional[Dict[str, Any]]:
    """The newest rollout's line of the history (not what else is noted there); None before the first."""
    return next((entry for entry in reversed(read_history(layout)) if "txn" in entry), None)


def running(layout: Layout) -> Dict[str, Any]:
    """{release, mode} of the main process by its own environment: `baseline` for one that is not ours; both None
    where nothing runs, mode None where its release is gone from the store."""
    release = service.running_release(layout.service)
    if release is None:
        plain = BASELINE if service.main_pid(layout.service) else None
        return {"release": plain, "mode": plain}
    return {"release": release, "mode": store.find(layout, release).get("mode")}


def runtime_of(layout: Layout, release: Optional[str]) -> Optional[Dict[str, Any]]:
    """{runtime, dists: ["name version"]} that a release runs on; None for the host's own packages alone."""
    digest = store.find(layout, release).get("runtime") if release and release != BASELINE else None
    if digest is None:
        return None
    try:
        return {"runtime": digest, "dists": runtimes.label(runtimes.manifest_of(layout, digest))}
    except AgentError:
        return {"runtime": digest, "dists": []}


def _overlay(release: str, damaged: List[str]) -> Optional[Dict[str, Any]]:
    """{release, verified, problem} of the confirmed release; None for the baseline, which has no overlay."""
    if release == BASELINE:
        return None
    return {"release": release, "verified": not damaged, "problem": damaged[0] if damaged else None}


def history(layout: Layout, limit: int) -> List[Dict[str, Any]]:
    """The last `limit` entries, oldest first."""
    return read_history(layout)[-limit:]


def proven(layout: Layout) -> List[Dict[str, Any]]:
    """What this host confirmed, by deploys alone (a rollback passes no gates): mode, source_digest, release, at, who
    and argv (empty where the release is no longer here) of the last time for each mode and sources, oldest first."""
    found: Dict[Tuple[str, str], Dict[str, Any]] = {}
    manifests = dict(store.releases(layout))
    for entry in read_history(layout):
        if entry.get("outcome") != "confirmed" or entry.get("kind") != "deploy":
            continue
        manifest = manifests.get(str(entry.get("release")), {})
        # A line from before source_digest was recorded: the manifest has it, as long as the release is here.
        source = entry.get("source_digest") or manifest.get("source_digest")
        if source:
            key = (str(entry.get("mode")), str(source))
            found.pop(key, None)
            proof = {name: entry.get(name) for name in ("mode", "release", "at", "who")}
            found[key] = {**proof, "source_digest": source, "argv": manifest.get("argv", [])}
    return list(found.values())


def logs(layout: Layout, lines: int, log: str) -> List[str]:
    """The last lines that the service wrote, from where its unit writes them."""
    if log.startswith("file:"):
        status_, out, err = run(["tail", "-n", str(lines), log[5:]], 20)
    else:
        status_, out, err = run(
            ["journalctl", "--no-pager", "-o", "short-iso", "-n", str(lines), "-u", layout.service], 20
        )
    text = out if status_ == 0 else err
    return evidence.blanked(layout, text).splitlines()
