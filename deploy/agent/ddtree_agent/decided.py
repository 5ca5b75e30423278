"""What this host runs by decision: the confirmed record, and the drop-in in /etc that boots it.

A change is readied before anything stops, so that it is two renames when it comes: a full disk cannot spoil a confirm.
"""

import os
from typing import Any, Dict, Optional

from . import service, store
from .layout import (
    BASELINE,
    Layout,
    is_digest,
    json_bytes,
    make_ready,
    read_json,
    ready_path,
    sweep_temporary,
    write_json,
)
from .wire import AgentError


def confirmed(layout: Layout) -> Dict[str, Any]:
    """What this host runs by decision: {"release": digest or baseline, "undo": the one before, or None}."""
    try:
        found = read_json(layout.confirmed)
    except AgentError:
        found = False
    if found is None and not os.path.islink(layout.confirmed):
        return {"release": BASELINE, "undo": None}
    if _whole(layout, found):
        return dict(found)
    # Our note is damaged; the drop-in in /etc is what boots, and so what counts.
    return {"release": service.kept_release(layout), "undo": None, "damaged": True}


def _whole(layout: Layout, found: Any) -> bool:
    """Whether it is a record of ours. One that names a release which is not here, and does not boot, is none."""
    if not isinstance(found, dict) or not _names(found.get("release")):
        return False
    if found.get("undo", False) is not None and not _names(found.get("undo")):
        return False
    release = str(found["release"])
    return (
        release == BASELINE
        or os.path.isdir(layout.release(release))
        or (service.kept_release(layout) == release)
    )


def _names(word: Any) -> bool:
    return isinstance(word, str) and (word == BASELINE or is_digest(word))


def keep(layout: Layout) -> "tuple[str, ...]":
    """Releases that nothing may remove: the confirmed one and the one before it."""
    now = confirmed(layout)
    return tuple(str(now[key]) for key in ("release", "undo") if now.get(key))


def keep_all(layout: Layout) -> "tuple[str, ...]":
    """keep() of every service of this host: they share the releases."""
    return tuple(digest for each in layout.services() for digest in keep(each))


def undo_of(layout: Layout, release: str, kind: str = "deploy") -> Optional[str]:
    """What a confirm of `release` leaves to be undone. A change that was undone leaves nothing: a repeat of the same
    command must not bring the abandoned release back."""
    now = confirmed(layout)
    left = None if kind == "undo" else now["release"]
    undo = now["undo"] if now["release"] == release else left
    return None if undo is None else str(undo)


def set_confirmed(
    layout: Layout, release: str, undo: Optional[str], txn_id: str, files: Optional[Dict[str, str]] = None
) -> None:
    """Record the confirmed release: first what boots (the drop-in in /etc), then our own note of it.

    `files`: sha256 by path of the operator's own unit files that it was confirmed with; none keeps those noted before.
    """
    record = _record(layout, release, undo, txn_id, files)
    service.put_kept(layout, kept_text(layout, release), ready_path(layout.kept, txn_id))
    write_json(layout.confirmed, record, ready=ready_path(layout.confirmed, txn_id))


def ready_confirmed(
    layout: Layout, release: str, undo: Optional[str], txn_id: str, files: Optional[Dict[str, str]] = None
) -> None:
    """Write ahead, under hidden names, what `set_confirmed` with the same arguments puts in place. Raises OSError."""
    text = kept_text(layout, release)
    if text is not None:
        make_ready(layout.kept, text.encode(), txn_id)
    make_ready(layout.confirmed, json_bytes(_record(layout, release, undo, txn_id, files)), txn_id)


def ready_trial(layout: Layout, text: str, txn_id: str) -> str:
    """Write ahead the drop-in of the release on trial; returns its hidden path. Raises OSError."""
    return make_ready(layout.trial, text.encode(), txn_id)


def sweep_ready(layout: Layout, txn_id: str = "") -> None:
    """Remove what was written ahead and never used: by one rollout, or (by the lock's holder) by any, with what a
    crash left half-written."""
    for path in (layout.kept, layout.confirmed, layout.trial):
        if sweep_temporary(path, txn_id):
            service.prune(path)
    if not txn_id and os.path.isdir(layout.txns):
        for name in os.listdir(layout.txns):
            sweep_temporary(os.path.join(layout.txns, name, "state"))


def kept_text(layout: Layout, release: str) -> Optional[str]:
    """The drop-in in /etc that boots a release; None for the baseline, which needs none."""
    return None if release == BASELINE else store.dropin_text(store.manifest_of(layout, release))


def _record(
    layout: Layout, release: str, undo: Optional[str], txn_id: str, files: Optional[Dict[str, str]]
) -> Dict[str, Any]:
    before = confirmed(layout)
    record = {**before, "schema_version": 1, "release": release, "undo": undo, "txn": txn_id}
    for passing in ("abandoned", "damaged"):
        record.pop(passing, None)
    if files:
        record["files"] = files
    if undo is None and before["release"] != release:
        record["abandoned"] = before["release"]
    return record
