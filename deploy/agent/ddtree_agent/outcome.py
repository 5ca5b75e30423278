"""How a transaction ends: confirm, restore the confirmed release, and the record of either."""

import errno
import os
import time
from typing import Any, Dict, Optional

from . import drain, evidence, gate, gpu_return, guard, room, service, store
from .core.log_text import clean
from .core.txn import FORWARD, TOUCHED, is_open
from .decided import confirmed, keep_all, kept_text, set_confirmed, sweep_ready, undo_of
from .journal import Txn
from .layout import BASELINE, append_history, read_history, read_json, write_json
from .watching import Watching
from .wire import AgentError

#: A restored service must answer; what mode it runs in is its own affair.
HEALTHY: Dict[str, Any] = {"state": {}}
Failure = Dict[str, Any]
#: What a record keeps of the intent. `from`: the release confirmed before; `origin`: the operator's address.
_ASKED = ("txn", "kind", "release", "mode", "from", "who", "origin", "why", "adopted", "waived", "rehearsed")


def confirm(txn: Txn, nonce: str) -> Dict[str, Any]:
    """Compare-and-swap on the transaction's nonce; a second confirm of the same transaction answers the same."""
    if nonce != txn.intent["nonce"]:
        raise AgentError(
            "precondition",
            f"the nonce is not that of rollout {txn.id}",
            meaning="nothing changed",
            next="ddtree-ops status",
        )
    if txn.state == "GATED":
        _still_confirmable(txn)
    begun = ("CONFIRMING", "CONFIRMED")  # by us, or by another confirm while we asked
    if txn.state not in begun and not txn.to("CONFIRMING") and txn.state not in begun:
        if txn.state in FORWARD:
            raise AgentError(
                "precondition",
                f"rollout {txn.id} is not ready to be confirmed: it is {txn.state}",
                meaning="nothing changed",
                next="ddtree-ops status",
            )
        raise _too_late(txn)
    finish_confirm(txn)
    if txn.state == "ROLLED_BACK":
        raise _too_late(txn)
    return outcome(txn) or {}


def _too_late(txn: Txn) -> AgentError:
    return AgentError(
        "rolled-back",
        f"rollout {txn.id} cannot be confirmed any more: it is {txn.state}",
        next="ddtree-ops history",
    )


def _still_confirmable(txn: Txn) -> None:
    """Before the point of no return: the unit in force is the planned one, and /etc takes a write.

    Raises AgentError after asking the runner to roll back.
    """
    layout, release = txn.layout, txn.intent["release"]
    asked = txn.abort_asked()
    if asked:  # one operator asked it back, another one confirms: the host keeps the old release
        raise AgentError("rolled-back", asked)
    try:
        manifest = store.manifest_of(layout, release)
        service.read_back(layout, layout.trial, manifest["exec_argv"], store.dropin_text(manifest))
        folder = os.path.dirname(os.path.dirname(layout.kept))
        if not os.access(folder, os.W_OK):
            raise AgentError("rolled-back", f"{folder} is read-only: the release could not be kept")
    except AgentError as error:
        if error.fields["kind"] != "precondition":  # else the host could not be read just now
            txn.ask_abort(error.fields["what"])
        raise


def finish_confirm(txn: Txn) -> None:
    """Carry a begun confirm through; safe to repeat after a crash at any of its writes, and from two processes."""
    layout, intent = txn.layout, txn.intent
    with txn.exclusive("confirm"):
        if not is_open(txn.state):
            return
        if confirmed(layout).get("txn") != txn.id:
            if _forgotten(txn):
                open_gate(txn)
                rolled_back(txn, failure_of(txn, "reboot", "the host rebooted during the trial"))
                return
            room.spend(layout, lambda: _decide(txn))
        service.drop_trial(layout)
        service.reload()
        problem = open_gate(txn)
        if problem is not None:  # users cannot reach it yet: the guard comes back here
            raise AgentError("unknown", problem, next="ddtree-ops status")
        fields = {"outcome": "confirmed", "serving": intent["release"], **_put_back(txn)}
        _write_down(txn, fields)
        txn.to("CONFIRMED")
    _tidy(txn)


def _forgotten(txn: Txn) -> bool:
    """Whether a soft reboot, which changes no boot id, took the trial away before it was kept: the old one serves."""
    layout, release = txn.layout, txn.intent["release"]
    kept = os.path.exists(layout.trial) or service.kept_release(layout) == release
    return not kept and service.running_release(layout.service) != release


def _decide(txn: Txn) -> None:
    release = txn.intent["release"]
    undo = undo_of(txn.layout, release, txn.intent["kind"])
    set_confirmed(txn.layout, release, undo, txn.id, txn.intent.get("unit_files"))


def restore(txn: Txn, failure: Failure, archive: str) -> None:
    """Back to the confirmed release, and never stop trying it. `failure` says why; the caller holds the lock."""
    untouched = txn.state not in TOUCHED
    if not _claim(txn, failure):
        return
    failure = _first_cause(txn, failure)
    if untouched:
        rolled_back(txn, failure, touched=False)
        return
    begun, pause = time.monotonic(), 2.0
    while True:
        if service.shutting_down():
            # Nothing can be started any more; without the trial the host boots into the confirmed release.
            service.drop_trial(txn.layout)
            return
        guard.keep_armed(txn, archive, _patience(txn))
        problem = _restore_once(txn)
        if problem is None:
            break
        _remember(txn, failure, problem)
        txn.say({"ev": "note", "text": f"the old service did not come back; trying again in {pause:g} s"})
        time.sleep(pause)
        pause = min(pause * 2, 60.0)
    rolled_back(txn, failure, **_outage(txn, round(time.monotonic() - begun, 2)))


def _first_cause(txn: Txn, failure: Failure) -> Failure:
    """Why the rollback began: the runner that knew may have been killed, and its guard goes on with what it left."""
    path = os.path.join(txn.dir, "cause")
    try:
        found = read_json(path)
        if isinstance(found, dict):
            return found
        write_json(path, failure, mode=0o600)
    except (OSError, AgentError):
        pass  # the service comes first
    return failure


def open_gate(txn: Txn) -> Optional[str]:
    """Let users reach the port again; None where they do, else why not, in a sentence that was also noted."""
    if not txn.intent.get("gate"):
        return None  # never shut
    was = gate.there(txn.layout.service)
    problem = gate.open_(txn.layout.service)
    if problem is not None:
        problem = f"the traffic gate of port {txn.intent['port']} could not be opened: {problem}"
    if was or problem:
        txn.say(
            {
                "ev": "note",
                "text": problem or f"traffic gate open: port {txn.intent['port']} answers everyone",
            }
        )
    return problem


def rolled_back(txn: Txn, failure: Failure, **measured: Any) -> None:
    """Record a rollback that has happened (by us, or by a reboot that forgot /run); the evidence comes last."""
    if txn.state not in ("ROLLING_BACK", "CONFIRMING"):
        _claim(txn, failure)
    serving = confirmed(txn.layout)["release"] if txn.intent["was_active"] else None
    # A rollback whose target is what the host now boots has done what was asked, however it got there.
    reached = txn.intent["kind"] == "undo" and confirmed(txn.layout)["release"] == txn.intent["release"]
    fields = {
        "outcome": "confirmed" if reached else "rolled-back",
        "serving": serving,
        "failure": failure,
        **measured,
        **_put_back(txn),
    }
    try:
        room.spend(txn.layout, lambda: _record(txn, fields))
    except (OSError, AgentError) as error:
        txn.say({"ev": "note", "text": f"the history could not be written: {error}"})
    txn.to("ROLLED_BACK")
    _tidy(txn)
    try:
        _keep_evidence(txn, failure)
    except (OSError, AgentError):
        pass  # no room for evidence is no reason to touch a service that serves


def _outage(txn: Txn, rollback_s: float) -> Dict[str, float]:
    """Seconds without a service: the trial's own stop and start where it came up, then the way back."""
    seen = measures(txn)
    down = float(seen.get("downtime_s", 0)) + rollback_s
    if "down_since" in seen and "downtime_s" not in seen:
        down = time.time() - float(seen["down_since"])
    return {"rollback_s": rollback_s, "downtime_s": round(down, 2)}


def outcome(txn: Txn) -> Optional[Dict[str, Any]]:
    """The record of a finished transaction; the bare facts where a full disk took no record. None while it is open."""
    found = read_json(os.path.join(txn.dir, "outcome.json"))
    if isinstance(found, dict):
        return found
    if is_open(txn.state):
        return None
    ended = "confirmed" if txn.state == "CONFIRMED" else "rolled-back"
    bare = {key: txn.intent.get(key) for key in _ASKED}
    return {**bare, "outcome": ended, "serving": confirmed(txn.layout)["release"]}


def failed_rollback(txn: Txn) -> Optional[Dict[str, Any]]:
    """Why the old service did not come back at the last try; None where it was not tried in vain."""
    found = read_json(os.path.join(txn.dir, "failed-rollback"))
    return found if isinstance(found, dict) else None


def stopwatch(txn: Txn, **fields: Any) -> None:
    """Keep a measurement (seconds by phase, downtime) with the transaction."""
    try:
        write_json(os.path.join(txn.dir, "measures.json"), {**measures(txn), **fields})
    except OSError:
        pass  # a measurement is not worth a rollout


def measures(txn: Txn) -> Dict[str, Any]:
    """What stopwatch() kept."""
    found = read_json(os.path.join(txn.dir, "measures.json"))
    return found if isinstance(found, dict) else {}


def failure_of(txn: Txn, reason: str, hint: str, line: Optional[str] = None) -> Failure:
    """A failure in the shape of the watch's verdicts, for what the watch does not judge."""
    shown = clean(evidence.blanked(txn.layout, line)) if line else None
    return {
        "verdict": "FAIL",
        "reason": reason,
        "phase": txn.state,
        "line": shown,
        "context": [],
        "hint": hint,
    }


def _claim(txn: Txn, failure: Failure) -> bool:
    """Become the one who rolls back. A runner that was killed while rolling back left the state for its guard."""
    if txn.state == "ROLLING_BACK":
        return True
    try:
        return txn.to(
            "ROLLING_BACK", reason=failure.get("reason"), **evidence.mark(txn.intent.get("log", ""))
        )
    except OSError:
        # No write at all goes through (a read-only disk): a confirm cannot either, and the service comes first.
        return txn.state not in ("CONFIRMING", "CONFIRMED", "ROLLED_BACK")


def _patience(txn: Txn) -> float:
    timeouts = txn.intent["timeouts"]
    return float(timeouts["stop"] + timeouts["cap"] + guard.SLACK_S)


def _restore_once(txn: Txn) -> Optional[Failure]:
    layout, intent = txn.layout, txn.intent
    try:
        trial = service.drop_trial(layout)
        record = confirmed(layout)["release"]
        if service.kept_release(layout) != record:
            service.put_kept(layout, kept_text(layout, record))
        service.reload()
        if not trial and _serves_already(txn, record):
            return _shut_still(txn)
        stopped = service.stop(layout.service, intent["timeouts"]["stop"])
        txn.say({"ev": "note", "text": f"stopped in {stopped['seconds']} s"})
        gpu_return.wait(txn)
        shut = _shut_still(txn)
        if not intent["was_active"]:
            return shut
        owner = service.wait_port_free(intent["port"], 30)
        if owner:
            txn.say({"ev": "note", "text": f"port {intent['port']} is held by {owner}"})
        with Watching(txn, intent, HEALTHY) as watching:
            service.start(layout.service)
            return watching.verdict() or shut
    except AgentError as error:
        return failure_of(txn, "restart", error.fields["what"], error.fields["evidence"])
    except Exception as error:  # whatever it is, the service comes first and is tried again
        return failure_of(txn, "restart", f"{type(error).__name__}: {error}")


def _shut_still(txn: Txn) -> Optional[Failure]:
    """A gate that does not open: the service is started all the same, but users do not reach it."""
    problem = open_gate(txn)
    return None if problem is None else failure_of(txn, "gate", problem)


def _serves_already(txn: Txn, release: str) -> bool:
    """A second try must not stop what the first one, or systemd, has brought back."""
    unit, intent = txn.layout.service, txn.intent
    running = service.running_release(unit) or BASELINE
    return running == release and service.answers(unit, intent["port"], intent.get("address", "127.0.0.1"))


def _remember(txn: Txn, failure: Failure, problem: Failure) -> None:
    try:
        write_json(os.path.join(txn.dir, "failed-rollback"), {"failure": failure, "problem": problem})
        txn.to("ROLLBACK_FAILED", reason=problem.get("reason"))
        txn.to("ROLLING_BACK", reason="trying the confirmed release again")
    except OSError:
        pass


def _keep_evidence(txn: Txn, failure: Failure) -> None:
    release = txn.intent["release"]
    if release != BASELINE:
        # a release that went down with its host is not to blame, and is wanted again
        kept = (*keep_all(txn.layout), *([release] if failure.get("verdict") == "ENV" else []))
        evidence.keep(txn, {"txn": txn.id, "failure": failure, **(outcome(txn) or measures(txn))}, kept)


def _put_back(txn: Txn) -> Dict[str, Any]:
    problem = drain.undrain(txn)
    return {"undrain": problem} if problem else {}


def _tidy(txn: Txn) -> None:
    """Leave the host as the next one wants to find it."""
    guard.disarm(txn)
    try:
        sweep_ready(txn.layout, txn.id)  # the next rollout may have begun already
        room.reserve(txn.layout)
    except OSError:
        pass  # the next rollout sweeps, and reserves


def _record(txn: Txn, fields: Dict[str, Any]) -> None:
    whole = read_json(os.path.join(txn.dir, "outcome.json"))
    if not isinstance(whole, dict):
        asked = {key: txn.intent.get(key) for key in _ASKED}
        whole = {**asked, **_made_of(txn), **measures(txn), **fields}
        write_json(os.path.join(txn.dir, "outcome.json"), whole, mode=0o600)
    # a first try may have ended between the two writes, and the history is what proves
    try:
        written = any(entry.get("txn") == txn.id for entry in read_history(txn.layout))
    except AgentError:
        written = False  # it cannot be read; the write says why
    if not written:
        append_history(txn.layout, whole)


def _write_down(txn: Txn, fields: Dict[str, Any]) -> None:
    """The record of a confirm. What a disk refuses now it may take soon, and the guard comes back; a history that is
    no file (a hand, a restore from a backup) never will, and holds up no confirm."""
    try:
        room.spend(txn.layout, lambda: _record(txn, fields))
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO):
            raise
        txn.say({"ev": "note", "text": f"WARN the history could not be written: {error}"})


def _made_of(txn: Txn) -> Dict[str, Optional[str]]:
    """{source_digest, runtime} of the release: the history keeps them, so that they count when it is gone itself."""
    try:
        manifest = store.manifest_of(txn.layout, txn.intent["release"])
    except (AgentError, OSError):
        manifest = {}  # a failed release that cannot be read does not cost the record
    found = {key: manifest.get(key) for key in ("source_digest", "runtime")}
    return {key: str(value) if value else None for key, value in found.items()}
