"""One transaction on disk: what was asked, where it is, what happened. State changes are compare-and-swap."""

import fcntl
import json
import os
import time
from contextlib import contextmanager
from typing import Any, Dict, Iterator, List, Optional

from .core import txn as table
from .layout import Layout, read_json, write_json
from .wire import AgentError


class Txn:
    """A transaction's directory. Any process may hold one; the state file decides."""

    def __init__(self, layout: Layout, txn_id: str) -> None:
        self.layout, self.id = layout, txn_id
        self.dir = layout.txn(txn_id)
        self.events_path = os.path.join(self.dir, "events.jsonl")
        self._state_path = os.path.join(self.dir, "state")

    @classmethod
    def create(cls, layout: Layout, intent: Dict[str, Any]) -> "Txn":
        """Begin a transaction: its intent is on disk before anything else happens."""
        txn = cls(layout, intent["txn"])
        os.makedirs(txn.dir, mode=0o755, exist_ok=True)
        write_json(os.path.join(txn.dir, "intent.json"), intent, mode=0o600)
        write_json(txn._state_path, {"state": "PREPARED", "t": time.time(), "boot": boot_id()})
        return txn

    @property
    def intent(self) -> Dict[str, Any]:
        found = read_json(os.path.join(self.dir, "intent.json"))
        if not isinstance(found, dict):
            raise AgentError(
                "usage", f"there is no transaction {self.id} of {self.layout.service} on this host"
            )
        return found

    @property
    def state(self) -> str:
        return str(self._read()["state"])

    @property
    def rebooted(self) -> bool:
        """Whether the host has booted since the last state change."""
        return bool(self._read().get("boot") != boot_id())

    def _read(self) -> Dict[str, Any]:
        found = read_json(self._state_path)
        return found if isinstance(found, dict) else {"state": "PREPARED"}

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        fd = os.open(os.path.join(self.dir, "cas"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)

    def to(self, new: str, **fields: Any) -> bool:
        """Move to a state, if the table allows it from where the transaction is now: the first writer wins.

        Returns False where somebody else moved it first; nothing is written then.
        """
        with self._guarded():
            current = self.state
            if not table.may(current, new):
                return False
            write_json(self._state_path, {"state": new, "t": time.time(), "boot": boot_id(), **fields})
        self.say({"ev": "state", "state": new, **fields})
        return True

    def ask_abort(self, who: str) -> None:
        """Leave a note for the runner: the operator wants the confirmed release back."""
        write_json(os.path.join(self.dir, "abort"), {"who": who})

    def abort_asked(self) -> Optional[str]:
        """The operator's note, in words."""
        found = read_json(os.path.join(self.dir, "abort"))
        return f"{found['who']} ended the rollout" if isinstance(found, dict) else None

    def say(self, event: Dict[str, Any]) -> None:
        """Append one event for whoever follows."""
        line = json.dumps({"t": time.time(), **event}, sort_keys=True) + "\n"
        with open(self.events_path, "ab") as file:
            file.write(line.encode())


def open_txn(layout: Layout) -> Optional[Txn]:
    """The transaction that somebody still has to finish, if there is one (the lock allows only one)."""
    for name in reversed(transactions(layout)):
        txn = Txn(layout, name)
        if table.is_open(txn.state):
            return txn
    return None


def transactions(layout: Layout) -> List[str]:
    """Ids, oldest first."""
    try:
        names = os.listdir(layout.txns)
    except FileNotFoundError:
        return []
    return sorted(names)


def boot_id() -> str:
    """random(4): changes at every boot of the kernel; in a container, the boot of its init (its start time)."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        kernel = file.read().strip()
    with open("/proc/1/stat") as file:
        init = file.read().rsplit(")", 1)[1].split()[19]
    return f"{kernel}-{init}"
