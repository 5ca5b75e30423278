"""The invariants of design section 4, read from a modelled host by itself: files, units and the main process."""

from __future__ import annotations

import json
import os
import re
from typing import Any

from world import PASS, World
from world_process import Process

from ddtree_agent import store
from ddtree_agent.core.txn import is_open
from ddtree_agent.layout import BASELINE
from ddtree_agent.wire import AgentError


class Broken(AssertionError):
    """An invariant does not hold; the message begins with its name."""


def require(holds: object, invariant: str, says: object) -> None:
    """Raise Broken where an invariant does not hold."""
    if not holds:
        raise Broken(f"{invariant}: {says}")


def _read(path: str) -> Any:
    try:
        with open(path) as file:
            return json.load(file)
    except FileNotFoundError:
        return None


def _record(world: World) -> dict[str, Any]:
    return _read(world.layout.confirmed) or {"release": BASELINE}


def release_in(dropin: str | None) -> str:
    """The release that a drop-in's text names, "baseline" where there is none."""
    return BASELINE if dropin is None else str(re.findall(r"DDTREE_RELEASE=([0-9a-f]+)", dropin)[-1])


def named(path: str) -> str:
    """The release that a drop-in names, "baseline" where the file is not there."""
    try:
        with open(path) as file:
            return release_in(file.read())
    except FileNotFoundError:
        return BASELINE


class Truth:
    """What must hold after every step, with the memory that "never again" and "at most once" need."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._ended: dict[str, tuple[str, Any]] = {}
        self._confirms: list[tuple[str, Process]] = []

    def asked_confirm(self, txn: str, proc: Process) -> None:
        """Remember a confirm, to compare its answer with what became of the rollout."""
        self._confirms.append((txn, proc))

    def always(self) -> None:
        """After every step, whoever is in the middle of what."""
        world, layout = self.world, self.world.layout
        require(not world.bugs, "bug", world.bugs)
        record = _record(world)
        opened = [txn for txn in world.transactions() if is_open(txn.state)]
        require(len(opened) <= 1, "I5", f"two rollouts are open at once: {[txn.id for txn in opened]}")
        for path in (layout.kept, layout.trial):
            release = named(path)
            require(release == BASELINE or self._there(release), "I2", f"{path} names {release}")
        require(record["release"] == BASELINE or self._there(record["release"]), "I3", record)
        # Pull the plug now: what boots is the confirmed release, or the one whose confirm has begun.
        boots, may = named(layout.kept), {record["release"]}
        may |= {t.intent["release"] for t in opened if t.state == "CONFIRMING" or t.intent["kind"] == "undo"}
        # A rollback of an undo puts the record's release back; the drop-in may lag behind by one step.
        require(boots in may, "I1", f"{boots} would boot, {record['release']} is confirmed; open: {opened}")
        for txn in world.transactions():
            self._once(txn.id, txn.state)
        for txn in opened:
            self._gated(txn.id, txn.intent, record["release"])

    def _gated(self, txn: str, intent: dict[str, Any], confirmed: str) -> None:
        systemd = self.world.systemd
        trial = intent["kind"] == "deploy" and systemd.running == intent["release"] != confirmed
        if trial and not systemd.by_hand and (txn, "GATED") not in self.world.reached:
            require(systemd.tables, "I8", f"{intent['release']} answers users, and no gate has passed it")

    def _there(self, release: str) -> bool:
        return os.path.isfile(os.path.join(self.world.layout.release(release), "manifest.json"))

    def _once(self, txn: str, state: str) -> None:
        if is_open(state):
            require(txn not in self._ended, "I4", f"{txn} had ended and is {state} again")
            return
        found = _read(os.path.join(self.world.layout.txn(txn), "outcome.json"))
        before = self._ended.setdefault(txn, (state, found))
        require(
            before == (state, found), "I4", f"the record of {txn} changed: {before} is now {state}, {found}"
        )

    def converged(self) -> None:
        """No more faults, and all timers have fired: the host is whole, and every record tells the truth."""
        world, layout = self.world, self.world.layout
        world.set_disk("ok")
        world.unreadable.clear()
        world.systemd.nft_works = True
        for proc in world.procs:
            proc.frozen = False
        self._let_all_end()
        self.always()
        left = world.open_txn()
        require(left is None, "I9", f"{left and (left.id, left.state)} never ends")
        require(not world.procs, "I5", f"still there: {world.procs}")
        require(not world.systemd.timers, "I5", f"guards without a rollout: {list(world.systemd.timers)}")
        record = _record(world)
        runs = world.systemd.running or "nothing"
        agree = {record["release"], named(layout.kept), runs}
        require(len(agree) == 1, "I1", f"confirmed {record}, {named(layout.kept)} in /etc, {runs} runs")
        require(not os.path.exists(layout.trial), "I1", "a trial is left")
        require(not world.systemd.tables, "I8", f"a traffic gate is left: {world.systemd.tables}")
        require(not world.drained, "I1", "the server is left out of the router")
        try:
            if record["release"] != BASELINE:
                store.verify(layout, record["release"])
        except AgentError as error:
            raise Broken(f"I3: {error}") from None
        self._records(record)

    def _let_all_end(self) -> None:
        for _ in range(4):
            # What is confirmed works again: until then a rollback rightly goes on and on.
            self.world.behaviour[_record(self.world)["release"]] = PASS
            self.world.pass_time(4000)
            if self.world.open_txn() is None and not self.world.procs:
                return
            # The next call, whoever makes it.
            self.world.run(self.world.note())

    def _records(self, record: dict[str, Any]) -> None:
        world = self.world
        lines = _history(world)
        won = ""
        # By when they ended: an operator whose command stood still may be older than the rollout it goes back behind.
        ended = {line["txn"]: at for at, line in enumerate(lines)}
        for txn in sorted(world.transactions(), key=lambda txn: ended.get(txn.id, len(lines))):
            found = _read(os.path.join(world.layout.txn(txn.id), "outcome.json"))
            told = [line for line in lines if line["txn"] == txn.id]
            require(len(told) <= 1, "I7", f"{txn.id} is in the history {len(told)} times")
            require(_rollbacks(txn.events_path) <= 1, "I7", f"{txn.id} was rolled back more than once")
            if not world.disk_failed:
                require(found is not None and len(told) == 1, "I4", f"{txn.id} left no record: {txn.state}")
            if found is None:
                continue
            good = found["outcome"] == "confirmed"
            require(good or txn.state == "ROLLED_BACK", "I4", f"{txn.id} is {txn.state}, told as {found}")
            require(not good or found["serving"] == txn.intent["release"], "I4", found)
            won = txn.id if good else won
            for asked, proc in self._confirms:
                if asked == txn.id:
                    _answered(proc, good)
        if won:
            require(record.get("txn") == won, "I4", f"{won} is told to be confirmed, the record is {record}")


def _answered(proc: Process, good: bool) -> None:
    if proc.error is None and not proc.killed:
        require(good, "I4", f"{proc} was told yes")
    if proc.refused == "rolled-back":
        require(not good, "I4", f"{proc} was told no: {proc.error}")


def _history(world: World) -> list[dict[str, Any]]:
    try:
        with open(world.layout.history) as file:
            return [json.loads(line) for line in file if line.startswith("{")]
    except FileNotFoundError:
        return []


def _rollbacks(events: str) -> int:
    """Times that a rollout left the way forward (a second try of a failed rollback is not a second rollback)."""
    try:
        with open(events) as file:  # which a power cut may have torn: nobody makes it durable
            whole = [json.loads(line) for line in file if line.startswith("{") and line.endswith("}\n")]
            states = [event["state"] for event in whole if event.get("ev") == "state"]
    except FileNotFoundError:
        return 0
    back = [i for i, state in enumerate(states) if state == "ROLLING_BACK"]
    return sum(1 for i in back if i == 0 or states[i - 1] != "ROLLBACK_FAILED")
