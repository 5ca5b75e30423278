"""How a transaction ends: confirm, restore the confirmed release, and the record of either."""

import os
import time
from typing import Any, Dict, Optional

from . import guard, service, store
from .journal import Txn
from .layout import BASELINE, Layout, append_history, read_json, write_json
from .watching import Watching
from .wire import AgentError

#: A restored service must answer; what mode it runs in is its own affair.
HEALTHY: Dict[str, Any] = {"state": {}}


def confirmed(layout: Layout) -> Dict[str, Any]:
    """What this host runs by decision: {"release": digest or baseline, "undo": the one before, or None}."""
    found = read_json(layout.confirmed)
    return found if isinstance(found, dict) else {"release": BASELINE, "undo": None}


def set_confirmed(layout: Layout, release: str, undo: Optional[str], txn_id: str) -> None:
    """Record the confirmed release: first what boots (the drop-in in /etc), then our own note of it."""
    text = None if release == BASELINE else store.dropin_text(store.manifest_of(layout, release))
    service.put_kept(layout, text)
    write_json(layout.confirmed, {"schema_version": 1, "release": release, "undo": undo, "txn": txn_id})


def confirm(txn: Txn, nonce: str) -> Dict[str, Any]:
    """Compare-and-swap on the transaction's nonce; a second confirm of the same transaction answers the same."""
    intent = txn.intent
    if nonce != intent["nonce"]:
        raise AgentError(
            "precondition", f"the nonce is not that of transaction {txn.id}", meaning="nothing changed"
        )
    if txn.state != "CONFIRMED" and not txn.to("CONFIRMING"):
        raise AgentError(
            "rolled-back",
            f"transaction {txn.id} cannot be confirmed any more: it is {txn.state}",
            next="ddtree-ops history",
        )
    if txn.state == "CONFIRMING":
        finish_confirm(txn)
    return outcome(txn) or {}


def finish_confirm(txn: Txn) -> None:
    """Carry a begun confirm through; safe to repeat after a crash at any of its writes."""
    layout, intent = txn.layout, txn.intent
    before = confirmed(layout)
    undo = before["undo"] if before["release"] == intent["release"] else before["release"]
    set_confirmed(layout, intent["release"], undo, txn.id)
    service.drop_trial(layout)
    service.reload()
    _record(txn, {"outcome": "confirmed", "serving": intent["release"]})
    txn.to("CONFIRMED")
    guard.disarm(txn)


def restore(txn: Txn, failure: Dict[str, Any]) -> None:
    """Back to the confirmed release, and never stop trying it.

    The caller holds the lock. `failure` says why, as the watch's verdict does.
    """
    intent = txn.intent
    # A runner that was killed while rolling back left this state: its guard goes on from there.
    if txn.state != "ROLLING_BACK" and not txn.to("ROLLING_BACK", reason=failure.get("reason")):
        return
    begun, pause = time.monotonic(), 2.0
    while True:
        problem = _restore_once(txn, intent)
        if problem is None:
            break
        txn.to("ROLLBACK_FAILED", reason=problem.get("reason"))
        write_json(os.path.join(txn.dir, "failed-rollback"), {"failure": failure, "problem": problem})
        txn.say({"ev": "note", "text": f"the old service did not come back; trying again in {pause:g} s"})
        time.sleep(pause)
        pause = min(pause * 2, 60.0)
        txn.to("ROLLING_BACK", reason="trying the confirmed release again")
    rolled_back(txn, failure, rollback_s=round(time.monotonic() - begun, 2))


def rolled_back(txn: Txn, failure: Dict[str, Any], **seconds: Any) -> None:
    """Record a rollback that has happened (by us, or by a reboot that forgot /run) and keep the evidence."""
    if txn.state != "ROLLING_BACK":
        txn.to("ROLLING_BACK", reason=failure.get("reason"))
    serving = confirmed(txn.layout)["release"]
    _record(txn, {"outcome": "rolled-back", "serving": serving, "failure": failure, **seconds})
    _keep_evidence(txn, txn.intent, failure)
    txn.to("ROLLED_BACK")
    guard.disarm(txn)


def outcome(txn: Txn) -> Optional[Dict[str, Any]]:
    """The record of a finished transaction."""
    found = read_json(os.path.join(txn.dir, "outcome.json"))
    return found if isinstance(found, dict) else None


def stopwatch(txn: Txn, **fields: Any) -> None:
    """Keep a measurement (seconds by phase, downtime) with the transaction."""
    write_json(os.path.join(txn.dir, "measures.json"), {**measures(txn), **fields})


def measures(txn: Txn) -> Dict[str, Any]:
    """What stopwatch() kept."""
    found = read_json(os.path.join(txn.dir, "measures.json"))
    return found if isinstance(found, dict) else {}


def _restore_once(txn: Txn, intent: Dict[str, Any]) -> Optional[Dict[str, Any]]:
    layout = txn.layout
    try:
        service.drop_trial(layout)
        service.reload()
        stopped = service.stop(layout.service, intent["timeouts"]["stop"])
        txn.say({"ev": "note", "text": f"stopped in {stopped['seconds']} s"})
        if not intent["was_active"]:
            return None
        owner = service.wait_port_free(intent["port"], 30)
        if owner:
            txn.say({"ev": "note", "text": f"port {intent['port']} is held by {owner}"})
        with Watching(txn, intent, HEALTHY) as watching:
            service.start(layout.service)
            return watching.verdict()
    except AgentError as error:
        return {"reason": "restart", "line": error.fields["evidence"], "hint": error.fields["what"]}


def _keep_evidence(txn: Txn, intent: Dict[str, Any], failure: Dict[str, Any]) -> None:
    layout, digest, now = txn.layout, intent["release"], confirmed(txn.layout)
    if digest in (now["release"], now["undo"], BASELINE) or not os.path.isdir(layout.release(digest)):
        return
    store.retire(layout, digest, txn.id, {"txn": txn.id, "failure": failure})


def _record(txn: Txn, fields: Dict[str, Any]) -> None:
    intent = txn.intent
    whole = {
        **{key: intent.get(key) for key in ("txn", "kind", "release", "mode", "from", "who", "why")},
        **measures(txn),
        **fields,
    }
    if outcome(txn) is None:
        write_json(os.path.join(txn.dir, "outcome.json"), whole)
        append_history(txn.layout, whole)
