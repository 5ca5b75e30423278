"""Tells an operator what a transaction does until it ends. Many may follow; none is needed."""

import json
import os
import time
from typing import Any, Dict, Iterator, Optional

from . import service
from .guard import runner_unit
from .journal import Txn
from .layout import read_json
from .outcome import outcome
from .wire import emit, result

_POLL_S = 0.1
_BEAT_S = 3.0
#: Without a runner and without a state change for this long, nobody is at work.
_ORPHAN_S = 20.0


def follow(txn: Txn, skip: int = 0) -> None:
    """Emit the transaction's events, then the result: its outcome, or that the rollback failed.

    `skip`: how many events the operator has seen already, on a line that was cut. A beat every few seconds
    lets the other end tell a quiet start from a dead line.
    """
    seen = skip
    beat = quiet = time.monotonic()
    while True:
        state = txn.state
        for event in _events(txn, seen):
            seen += 1
            quiet = beat = time.monotonic()
            emit(event)
        if _ended(txn, state):
            return
        now = time.monotonic()
        if now - beat > _BEAT_S:
            beat = now
            emit({"ev": "beat", "state": state})
        if now - quiet > _ORPHAN_S and not service.main_pid(runner_unit(txn.id)):
            result(outcome=None, state=state, orphan=True)
            return
        time.sleep(_POLL_S)


def _ended(txn: Txn, state: str) -> bool:
    if state in ("CONFIRMED", "ROLLED_BACK"):
        result(outcome=outcome(txn), state=state)
        return True
    if state == "ROLLBACK_FAILED" or (state == "ROLLING_BACK" and _failed_rollback(txn)):
        result(outcome={"outcome": "rollback-failed", **(_failed_rollback(txn) or {})}, state=state)
        return True
    return False


def _failed_rollback(txn: Txn) -> Optional[Dict[str, Any]]:
    found = read_json(os.path.join(txn.dir, "failed-rollback"))
    return found if isinstance(found, dict) else None


def _events(txn: Txn, skip: int) -> Iterator[Dict[str, Any]]:
    try:
        with open(txn.events_path, encoding="utf-8") as file:
            lines = file.read().splitlines(keepends=True)
    except FileNotFoundError:
        return
    for line in lines[skip:]:
        if line.endswith("\n"):  # a line without its end is still being written
            yield json.loads(line)
