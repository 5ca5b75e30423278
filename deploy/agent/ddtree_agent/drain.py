"""The operator's own commands around a stop: take this server out of the router before it, put it back after it."""

import os
import time
from typing import Any, Dict, List, Optional

from .journal import Txn
from .layout import remove_file, write_json
from .systemd import run
from .wire import AgentError

_TRIES, _PAUSE_S = 3, 2.0


def drain(txn: Txn) -> None:
    """Run the host's drain command, where it has one. Raises AgentError where it fails: nothing is stopped then."""
    hook = txn.intent.get("drain")
    if not hook:
        return
    # first the note: whoever ends this transaction, however the command ends, puts the server back
    write_json(_note(txn), {"since": time.time()})
    problem = _run(txn, hook, hook["command"])
    if problem:
        raise AgentError(
            "precondition",
            f"the drain command failed: {problem}",
            meaning="nothing was stopped",
            next="correct drain.command in hosts.yaml, or the router",
        )


def undrain(txn: Txn) -> Optional[str]:
    """Put the server back, where this transaction took it out; safe to repeat. Returns what is wrong, in words."""
    if not drained(txn):
        return None
    hook = txn.intent["drain"]
    for left in reversed(range(_TRIES)):
        problem = _run(txn, hook, hook["undo"])
        if problem is None:
            remove_file(_note(txn))
            return None
        if left:
            time.sleep(_PAUSE_S)
    txn.say({"ev": "note", "text": f"WARN the server is still drained: {problem}"})
    return problem


def drained(txn: Txn) -> bool:
    """Whether this transaction took the server out and nobody has put it back."""
    return os.path.exists(_note(txn))


def limit_s(intent: Dict[str, Any]) -> float:
    """Seconds that the drain may take."""
    return float((intent.get("drain") or {}).get("limit", 0))


def _run(txn: Txn, hook: Dict[str, Any], command: List[str]) -> Optional[str]:
    intent = txn.intent
    told = {
        "SERVICE": txn.layout.service,
        "TXN": txn.id,
        "RELEASE": intent["release"],
        "PORT": intent["port"],
    }
    env = {f"DDTREE_{name}": str(value) for name, value in told.items()}
    status, out, err = run(command, limit_s(intent), env=env)
    if status == 0:
        return None
    said = [line for line in (err + out).splitlines() if line.strip()]
    return f"{command[0]}: exit status {status}" + (f": {said[-1].strip()}" if said else "")


def _note(txn: Txn) -> str:
    return os.path.join(txn.dir, "drained")
