"""`rollback`: undo the last confirmed change, or go to a named release; needs nothing but this host."""

import os
import secrets
import time
from typing import Any, Dict, Optional

from . import rollout, store
from .decided import confirmed
from .journal import Txn, open_txn, transactions
from .layout import BASELINE, Layout
from .wire import AgentError

#: Limits of a rollback that was asked for on the host itself, without a hosts.yaml at hand (seconds).
DEFAULTS: Dict[str, Any] = {"stop": 30, "confirm": 60, "cap": 1800}


def rollback(layout: Layout, request: Dict[str, Any], archive: str) -> Dict[str, Any]:
    """Begin going back.

    Returns {"txn": id, "release": target} to follow, {"txn": id, "ended": True} where a rollout on its way is ended
    (that is the rollback), or {"nothing": sentence} where there is nothing to undo.
    """
    rollout.note_reboot(layout)
    request = {**local_request(layout), **request}
    running = open_txn(layout)
    if running is not None and running.intent["kind"] == "undo":
        if request.get("to") not in (None, running.intent["release"]):
            raise AgentError(
                "locked",
                f"a rollback to {running.intent['release']} is on its way",
                next="ddtree-ops status, then type the same command again when it has ended",
            )
        return {"txn": running.id, "release": running.intent["release"]}  # two who want the same
    if running is not None:
        running.ask_abort(request["who"])
        return {"txn": running.id, "ended": True}
    now = confirmed(layout)
    target = _target(layout, now, request.get("to"))
    if target is None and os.path.exists(layout.trial):
        target = now["release"]  # a trial that no rollout speaks for: the confirmed release must serve
    if target is None:
        further = "" if now["release"] == BASELINE else " (further back: --to baseline, or another release)"
        return {
            "nothing": f"nothing to do: {now['release']} is confirmed and no change before it is left to undo"
            + further
        }
    begun = {
        **request,
        "kind": "undo",
        "txn": request.get("txn") or f"{int(time.time() * 1000):x}-{secrets.token_hex(3)}",
        "nonce": secrets.token_hex(8),
        "release": target,
        "mode": BASELINE if target == BASELINE else store.manifest_of(layout, target).get("mode"),
        "from": now["release"],
        "unit_files": {},
    }
    return {"txn": rollout.begin(layout, begun, archive).id, "release": target}


def local_request(layout: Layout) -> Dict[str, Any]:
    """What a rollback needs where no hosts.yaml is at hand (typed on the host): as in the last rollout here."""
    request: Dict[str, Any] = {
        "who": f"{os.environ.get('SUDO_USER') or 'root'} on the host",
        "why": "rollback",
        "port": 30000,
        "log": "journal",
        "limits": {},
        "timeouts": DEFAULTS,
    }
    for name in transactions(layout)[-1:]:
        try:
            intent = Txn(layout, name).intent
        except AgentError:
            break  # damaged: the defaults do
        request.update(
            {
                key: intent[key]
                for key in ("port", "log", "limits", "timeouts", "address", "drain")
                if key in intent
            }
        )
    return request


def _target(layout: Layout, now: Dict[str, Any], to: Optional[str]) -> Optional[str]:
    if to is None:
        return None if now["undo"] is None else str(now["undo"])
    known = [BASELINE, *(name for name, _ in store.releases(layout))]
    found = [name for name in known if name == to] or [name for name in known if name.startswith(to)]
    if len(found) != 1:
        raise AgentError(
            "usage",
            f"{to!r} names {'no release' if not found else 'several releases'} on this host",
            evidence="there are: " + ", ".join(known),
            next="ddtree-ops status",
        )
    return None if found[0] == now["release"] else found[0]
