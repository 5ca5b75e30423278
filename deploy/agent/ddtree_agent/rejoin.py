"""What `attach` needs to know: the open rollout and its nonce, or how the last one ended and what runs now."""

import time
from typing import Any, Dict

from . import status
from .journal import Txn, open_txn
from .layout import Layout, holder

#: A runner whose rollout has just ended holds the lock for a moment more.
_LINGER_S = 10.0


def rejoin(layout: Layout) -> Dict[str, Any]:
    """{"open": {txn, nonce, kind, who, why, mode, release, state, began}} for the caller (root) to follow and confirm.

    Without an open rollout {"open": None, "last": the newest one's line of the history | None, "status": as `status`
    says, "held_by": who is at work without one (a push) | None}.
    """
    until = time.monotonic() + _LINGER_S
    while True:
        txn = open_txn(layout)
        if txn is not None:
            return {"open": _open(txn)}
        held = holder(layout)
        if held is None or time.monotonic() > until:
            break
        time.sleep(0.2)
    now = status.status(layout)
    return {"open": None, "last": now["last"], "held_by": held, "status": now}


def _open(txn: Txn) -> Dict[str, Any]:
    intent = txn.intent
    said = {key: intent.get(key) for key in ("nonce", "kind", "who", "why", "mode", "release")}
    # an id begins with its time, in milliseconds, hex
    return {"txn": txn.id, "state": txn.state, "began": int(txn.id.split("-")[0], 16) / 1000, **said}
