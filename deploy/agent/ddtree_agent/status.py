"""What runs here, by the host's own evidence, and what has run."""

import os
from typing import Any, Dict, List, Tuple

from . import drain, gate, hold, service, store
from .decided import confirmed
from .journal import Txn, open_txn, transactions
from .layout import Layout, holder, read_history
from .systemd import run, show
from .wire import AgentError

#: A confirm is a few renames.
_STUCK_S = 30.0


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
        "hold": hold.standing(layout),
        "releases": releases,
        "drift": drift(layout),
    }


def drift(layout: Layout) -> List[str]:
    """Where the host differs from what was confirmed, a sentence each; [] while a rollout is on its way."""
    txn = open_txn(layout)
    if txn is not None:
        stuck = txn.state == "CONFIRMING" and txn.age_s() > _STUCK_S
        return [f"rollout {txn.id} cannot end its confirm: is the disk full, or read-only?"] if stuck else []
    unit = show(layout.service, ["ActiveState", "MainPID", "NeedDaemonReload"])
    record = confirmed(layout)
    found = []
    if record.get("damaged"):
        found.append(f"{layout.confirmed} is damaged; the drop-in in /etc was read instead")
    if any(drain.drained(Txn(layout, name)) for name in transactions(layout)[-1:]):
        found.append("the last rollout's drain was not undone: run drain.undo of hosts.yaml by hand")
    if os.path.exists(layout.trial):
        found.append(
            f"{layout.trial} is in place though no rollout is open: ddtree-ops rollback takes it away"
        )
    if gate.there(layout.service):
        found.append(
            f"a traffic gate keeps users out though no rollout is open: nft delete table inet "
            f"{gate.table_of(layout.service)}"
        )
    found += _release_drift(layout, record["release"])
    running = service.running_release(layout.service) or "baseline"
    if unit.get("ActiveState") != "active":
        found.append(f"{layout.service} is {unit.get('ActiveState', 'unknown')}: nothing serves")
    elif running != record["release"]:
        found.append(f"the main process runs {running}, {record['release']} is confirmed")
    if unit.get("NeedDaemonReload") == "yes":
        found.append(f"unit files of {layout.service} changed on disk: systemctl daemon-reload")
    return found


def _release_drift(layout: Layout, release: str) -> List[str]:
    if release == "baseline":
        return (
            [f"{layout.kept} is there though the baseline is confirmed"]
            if os.path.exists(layout.kept)
            else []
        )
    try:
        store.verify(layout, release)
        manifest = store.manifest_of(layout, release)
        text = store.dropin_text(manifest)
        with open(layout.kept, encoding="utf-8") as file:
            if file.read() != text:
                return [f"{layout.kept} is not what release {release} put there"]
        service.read_back(layout, layout.kept, manifest["exec_argv"], text)
    except FileNotFoundError:
        return [f"{layout.kept} is missing though {release} is confirmed"]
    except AgentError as error:
        return [" ".join(str(error.fields[key]) for key in ("what", "meaning") if error.fields[key])]
    return []


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
    # The engine prints its own API key in its start-up arguments.
    for value in service.headers(layout.service).values():
        text = text.replace(value.split()[-1], "***")
    return text.splitlines()
