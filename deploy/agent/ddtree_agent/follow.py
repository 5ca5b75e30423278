"""Tells an operator what a transaction does until it ends. Many may follow; none is needed."""

import json
import time
from typing import Any, Dict, Iterator

from . import drain
from .core.txn import is_open
from .journal import Txn
from .layout import holder
from .outcome import failed_rollback, outcome
from .wire import AgentError, emit, result

_POLL_S = 0.1
#: A request that has arrived may not have taken the lock yet.
_GRACE_S = 2.0
_BEAT_S = 3.0
#: Without a runner and without a state change for this long, nobody is at work.
_ORPHAN_S = 60.0


def await_begin(txn: Txn) -> None:
    """Wait for a rollout that is not there yet as long as a call is at work that may be making it: the line of the
    call was cut, the call itself was not."""
    quiet = time.monotonic()
    beat = quiet
    while not txn.exists and time.monotonic() - quiet < _GRACE_S:
        if holder(txn.layout) is not None:
            quiet = time.monotonic()
        if time.monotonic() - beat > _BEAT_S:
            beat = time.monotonic()
            emit({"ev": "beat", "state": "PREPARED"})
        time.sleep(_POLL_S)


def follow(txn: Txn, skip: int = 0) -> None:
    """Emit the transaction's events, then the result: its outcome, or that the rollback failed.

    `skip`: how many events the operator has seen already, on a line that was cut. A beat every few seconds
    lets the other end tell a quiet start from a dead line.
    """
    patience = _ORPHAN_S + 4 * drain.limit_s(txn.intent)
    seen = skip
    beat = quiet = time.monotonic()
    while True:
        state = txn.state
        if not txn.exists:
            raise AgentError(
                "rollback-failed",
                f"the record of rollout {txn.id} was removed on the host",
                meaning="its guard takes the trial away within half a minute",
                next="ddtree-ops status, then ddtree-ops rollback",
            )
        for event in _events(txn, seen):
            seen += 1
            quiet = beat = time.monotonic()
            emit(event)
        if _ended(txn, state, seen):
            return
        now = time.monotonic()
        if now - beat > _BEAT_S:
            beat = now
            emit({"ev": "beat", "state": state})
            if txn.silent_s() < _BEAT_S * 3 and state != "CONFIRMING":
                quiet = now  # the runner, or its guard, is at work; a confirm takes no time unless it cannot
        if now - quiet > patience:
            result(outcome=None, state=state, orphan=True)
            return
        time.sleep(_POLL_S)


def _ended(txn: Txn, state: str, seen: int) -> bool:
    if not is_open(state):
        _last_words(txn, state, seen)
        result(outcome=outcome(txn), state=state)
        return True
    tried = failed_rollback(txn)
    if tried and state in ("ROLLING_BACK", "ROLLBACK_FAILED"):
        result(outcome={"outcome": "rollback-failed", **tried}, state=state)
        return True
    return False


def _last_words(txn: Txn, state: str, seen: int) -> None:
    """Emit what came between our look at the events and the end. The state is written before it is told, so that the
    last event may be missing even now (a crash between the two, a full disk): then it is told here."""
    for event in _events(txn, seen):
        emit(event)
    told = [event["state"] for event in _events(txn, 0) if event.get("ev") == "state"]
    if told[-1:] != [state]:
        emit({"ev": "state", "t": time.time(), "state": state})


def _events(txn: Txn, skip: int) -> Iterator[Dict[str, Any]]:
    try:
        with open(txn.events_path, encoding="utf-8", errors="replace") as file:
            lines = file.read().splitlines(keepends=True)
    except FileNotFoundError:
        return
    for line in lines[skip:]:
        if not line.endswith("\n"):
            return  # still being written
        try:
            yield json.loads(line)
        except ValueError:
            yield {"ev": "note", "text": "an event was lost: the disk was full"}
