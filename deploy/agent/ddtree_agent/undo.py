"""`rollback`: undo the last confirmed change, or go to a named release; needs nothing but this host."""

import secrets
import time
from typing import Any, Dict, Optional

from . import rollout, store
from .guard import at_work
from .journal import open_txn
from .layout import BASELINE, Layout, locked
from .outcome import confirmed
from .wire import AgentError

#: Limits of a rollback that was asked for on the host itself, without a hosts.yaml at hand (seconds).
DEFAULTS: Dict[str, Any] = {"stop": 90, "confirm": 60, "cap": 1800}


def rollback(layout: Layout, request: Dict[str, Any], archive: str) -> Dict[str, Any]:
    """Begin going back. Returns {"txn": id} to follow, or {"nothing": sentence} where there is nothing to undo."""
    running = open_txn(layout)
    if running is not None and at_work(running):
        # A rollout on its way: ending it is the rollback that the operator means.
        running.ask_abort(request["who"])
        return {"txn": running.id}
    if running is not None:
        # Nobody works on it any more: closing it brings the confirmed release back, and is all that was asked for.
        with locked(layout, f"rollback by {request['who']}"):
            rollout.settle(layout)
        return {"nothing": f"closed the open rollout {running.id}; {confirmed(layout)['release']} serves"}
    now = confirmed(layout)
    target = _target(layout, now, request.get("to"))
    if target is None:
        return {
            "nothing": f"nothing to do: {now['release']} is confirmed and no change before it is left to undo"
        }
    begun = {
        **request,
        "kind": "undo",
        "txn": request.get("txn") or f"{int(time.time() * 1000):x}-{secrets.token_hex(3)}",
        "nonce": secrets.token_hex(8),
        "release": target,
        "mode": BASELINE if target == BASELINE else store.manifest_of(layout, target).get("mode"),
        "from": now["release"],
        "timeouts": {**DEFAULTS, **request.get("timeouts", {})},
        "unit_files": {},
    }
    return {"txn": rollout.begin(layout, begun, archive).id, "release": target}


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
