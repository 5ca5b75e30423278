"""One transaction on disk: what was asked, where it is, what happened. State changes are compare-and-swap."""

import fcntl
import os
import shutil
import time
from contextlib import contextmanager
from typing import Any, Dict, Iterator, List, Optional

from . import room
from .core import txn as table
from .layout import Layout, append_line, is_txn_id, read_json, rewrite_json, sync_dir, write_json
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
        """Begin a transaction. It appears whole, with intent and state, or not at all."""
        txn = cls(layout, intent["txn"])
        draft = os.path.join(layout.txns, f".new-{txn.id}")
        os.makedirs(draft, mode=0o755, exist_ok=True)
        try:
            for lock in ("state", "confirm"):  # here already: on a full disk a new inode may need a block
                os.close(os.open(os.path.join(draft, f"{lock}.lock"), os.O_RDWR | os.O_CREAT, 0o600))
            write_json(os.path.join(draft, "intent.json"), intent, mode=0o600)
            write_json(
                os.path.join(draft, "state"), {"state": "PREPARED", "t": time.time(), "boot": boot_id()}
            )
            os.rename(draft, txn.dir)
        except BaseException:
            shutil.rmtree(draft, ignore_errors=True)
            raise
        sync_dir(layout.txns)
        return txn

    @property
    def exists(self) -> bool:
        return os.path.isfile(os.path.join(self.dir, "intent.json"))

    @property
    def known(self) -> bool:
        """Whether what was asked can still be read: of one that cannot, only its trial can be told, by `status`."""
        try:
            return bool(self.intent)
        except AgentError:
            return False

    @property
    def intent(self) -> Dict[str, Any]:
        found = read_json(os.path.join(self.dir, "intent.json"))
        if found == {}:
            raise AgentError("precondition", f"{os.path.join(self.dir, 'intent.json')} is damaged")
        if not isinstance(found, dict):
            raise AgentError(
                "usage",
                f"there is no rollout {self.id} of {self.layout.service} on this host",
                next="ddtree-ops status",
            )
        return found

    @property
    def state(self) -> str:
        return str(self._read()["state"])

    @property
    def rebooted(self) -> bool:
        """Whether the host has booted since the last state change."""
        return bool(self._read().get("boot") != boot_id())

    def age_s(self) -> float:
        """Seconds since the last state change, by the clock of the wall."""
        return time.time() - float(self._read().get("t", 0))

    def _read(self) -> Dict[str, Any]:
        try:
            found = read_json(self._state_path)
        except AgentError:
            found = False
        if found is not None and not (isinstance(found, dict) and found.get("state") in table.TABLE):
            # One damaged record must not keep every verb off the host: what has an outcome has ended, and what may
            # not have is taken back.
            ended = os.path.exists(os.path.join(self.dir, "outcome.json"))
            return {"state": "ROLLED_BACK" if ended else "ROLLING_BACK"}
        return found if isinstance(found, dict) else {"state": "PREPARED"}

    @contextmanager
    def exclusive(self, name: str) -> Iterator[None]:
        """Hold one of the transaction's own locks (flock(2)): `state` for a change, `confirm` for the confirm."""
        fd = os.open(os.path.join(self.dir, f"{name}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)

    def to(self, new: str, **fields: Any) -> bool:
        """Move to a state, if the table allows it from where the transaction is now: the first writer wins.

        Returns False where somebody else moved it first; nothing is written then. Raises OSError where the disk takes
        no write at all.
        """
        with self.exclusive("state"):
            if not table.may(self.state, new):
                return False
            rewrite_json(self._state_path, {"state": new, "t": time.time(), "boot": boot_id(), **fields})
            self.say({"ev": "state", "state": new, **fields})
        return True

    def ask_abort(self, who: str) -> None:
        """Leave a note for the runner: the operator wants the confirmed release back. Raises AgentError(usage)."""
        assert self.intent
        room.spend(self.layout, lambda: write_json(os.path.join(self.dir, "abort"), {"who": who}))

    def abort_asked(self) -> Optional[str]:
        """The operator's note, in words."""
        found = read_json(os.path.join(self.dir, "abort"))
        return f"the rollout was ended: {found['who']}" if isinstance(found, dict) else None

    def beat(self) -> None:
        """Show that the runner runs (a stopped one, SIGSTOP, lives and does nothing)."""
        try:
            with open(os.path.join(self.dir, "beat"), "ab"):
                os.utime(os.path.join(self.dir, "beat"))
        except OSError:
            pass

    def silent_s(self) -> float:
        """Seconds since the last beat; 0 before the first one."""
        try:
            return time.time() - os.stat(os.path.join(self.dir, "beat")).st_mtime
        except OSError:
            return 0.0

    def say(self, event: Dict[str, Any]) -> None:
        """Append one event for whoever follows. A full disk loses the event, never the rollout."""
        try:
            append_line(self.events_path, {"t": time.time(), **event})
        except OSError:
            pass


def open_txn(layout: Layout) -> Optional[Txn]:
    """The transaction that somebody still has to finish, if there is one (the lock allows only one)."""
    for name in reversed(transactions(layout)):
        txn = Txn(layout, name)
        if table.is_open(txn.state) and txn.known:
            return txn
    return None


def transactions(layout: Layout) -> List[str]:
    """Ids, oldest first; what a crash left half made has none."""
    try:
        names = os.listdir(layout.txns)
    except FileNotFoundError:
        return []
    return sorted(name for name in names if is_txn_id(name) and Txn(layout, name).exists)


def boot_id() -> str:
    """random(4): changes at every boot of the kernel; in a container, the boot of its init (its start time)."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        kernel = file.read().strip()
    with open("/proc/1/stat") as file:
        init = file.read().rsplit(")", 1)[1].split()[19]
    return f"{kernel}-{init}"
