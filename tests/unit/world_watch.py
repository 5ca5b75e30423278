"""What no systemd shows: how releases behave under the watch, the main process's environment, ports, the boot id."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from ddtree_agent import capacity, guard, journal, nvidia_smi, observe_env, service, watching
from ddtree_agent.layout import BASELINE

if TYPE_CHECKING:
    from world import World

TIMEOUTS = {"stop": 30, "confirm": 60, "cap": 300}
#: How a release behaves: it serves, is refused by its gates, never becomes ready, or serves and dies later.
PASS, FAIL, HANG, DIES = "pass", "fail", "hang", "dies"
TICK_S = 5.0


class Observer:
    """What the host shows of a start: which release runs, since when."""

    def __init__(self, unit: str, port: int, log: str, **_: Any) -> None:
        pass

    def observe(self) -> None:
        pass

    def close(self) -> None:
        pass


class _Judge:
    """The watch's verdict by script: how the release that runs behaves, two looks after its start."""

    verdict = None

    def __init__(self, world: World) -> None:
        self._world, self._looks, self._said = world, 0, False

    def observe(self, _: object) -> list[dict[str, Any]]:
        systemd = self._world.systemd
        self._looks += 1
        how = self._world.behaviour.get(systemd.running, PASS)
        if not systemd.pid:
            return [_verdict("FAIL", "process", "the main process is gone")] if self._looks > 1 else []
        if self._said:
            return [_verdict("FAIL", "hold", "it died")] if how == DIES and self._looks > 4 else []
        if self._looks < 2 or (how == HANG and self._looks * TICK_S < TIMEOUTS["cap"]):
            return []
        self._said = True
        return [_verdict("PASS" if how in (PASS, DIES) else "FAIL", "serve", how)]


def _verdict(kind: str, phase: str, reason: str) -> dict[str, Any]:
    shown = {"verdict": kind, "phase": phase, "reason": reason, "line": None, "context": [], "hint": ""}
    return {"ev": "verdict", **shown}


def enter(world: World) -> list[tuple[Any, str, Any]]:
    """What no systemd shows: the watch, the main process's environment, ports, devices, the boot id."""
    judge = SimpleNamespace(
        Expect=lambda **_: None,
        Limits=lambda **_: None,
        start=lambda *_: _Judge(world),
        blame_host=lambda verdict, _: verdict,
    )

    def environ(pid: int) -> list[bytes]:
        release = world.systemd.running
        ours = pid == world.systemd.pid and release not in ("", BASELINE)
        return [f"DDTREE_RELEASE={release}".encode()] if ours else []

    def healthy(*_: object) -> bool:
        return bool(world.systemd.pid) and world.behaviour.get(world.systemd.running, PASS) in (PASS, DIES)

    to = journal.Txn.to

    def noted(txn: journal.Txn, new: str, **fields: Any) -> bool:
        moved = to(txn, new, **fields)
        if moved:
            world.reached.add((txn.id, new))
            world.systemd.by_hand &= new != "ARMED"
        return moved

    new: list[tuple[Any, str, Any]] = [
        (journal.Txn, "to", noted),
        (watching, "Observer", Observer),
        (watching, "reducer", judge),
        (watching, "signatures", list),
        (watching, "_TICK_S", TICK_S),
        (service, "_environ", environ),
        (service, "answers", healthy),
        (service, "wait_port_free", lambda *_: None),
        (capacity, "bounds", lambda *_: {}),
        (nvidia_smi, "find", lambda: None),
        (observe_env, "look", lambda *_: observe_env.HostState(None, (), (), {})),
        (journal, "boot_id", lambda: f"boot-{world.boots}"),
        (guard, "boot_id", lambda: f"boot-{world.boots}"),
    ]
    old = [(target, name, getattr(target, name)) for target, name, _ in new]
    for target, name, value in new:
        setattr(target, name, value)
    return old
