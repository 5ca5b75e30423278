"""After a stop: the GPU memory of the service that ended is back before the next one starts (C23 of failures.md).

A start that meets it half returned gets a smaller KV pool, or none. Costs nothing where the service had no GPU open.
"""

import os
import time
from typing import Any, Dict, Iterable, List, Mapping, Optional

from . import nvidia_smi, probe_processes, service
from .journal import Txn
from .layout import read_json, write_json

LIMIT_S = 30.0
#: Where nobody says whose the memory is: so long without any movement, and none is expected any more.
STILL_S = 5.0
_ASK_S = 5.0
_PAUSE_S = 0.25
#: Less than this is a monitor's or a desktop's coming and going (MiB).
_SMALL = 256


def look(txn: Txn) -> None:
    """Before a stop: note what each GPU holds, and how much of it is the service's. Never raises."""
    try:
        _look(txn)
    except Exception as error:  # a measurement is not worth a rollout
        _say(txn, f"the GPU memory before the stop is unknown: {type(error).__name__}: {error}")


def wait(txn: Txn) -> None:
    """After a stop: until the service's part of each GPU is free again, LIMIT_S at most. Never raises."""
    try:
        noted = read_json(_noted(txn))
        if noted:
            _wait(txn, noted)
    except Exception as error:
        _say(txn, f"whether the GPU memory is free again is unknown: {type(error).__name__}: {error}")


def held(
    noted: Dict[str, Any], before: Mapping[str, int], now: Mapping[str, int], others: Mapping[str, int]
) -> List[str]:
    """What is not free again, in words. noted: {used, mine, others} by GPU before the stop; before: the last reading;
    others: what living processes of others hold now, which may have grown meanwhile.

    In a container nvidia-smi does not tell whose memory it is (mine is empty): there, until it fell and falls no more.
    """
    was: Dict[str, int] = {gpu: used for gpu, used in noted["used"].items() if gpu in now}
    mine: Dict[str, int] = noted["mine"]
    if mine:
        grown = {gpu: max(0, mib - noted["others"].get(gpu, 0)) for gpu, mib in others.items()}
        left = {gpu: now[gpu] - (was[gpu] - mine[gpu]) - grown.get(gpu, 0) for gpu in was if gpu in mine}
        return [f"{mib} MiB on {gpu}" for gpu, mib in left.items() if mib > _SMALL]
    total = sum(now[gpu] for gpu in was)
    fell, falls = sum(was.values()) - total, sum(before.get(gpu, 0) for gpu in was) - total
    return [] if not was or (fell > _SMALL and falls <= _SMALL) else [f"{total} MiB in use"]


def _look(txn: Txn) -> None:
    tool = nvidia_smi.find()
    if tool is None:
        return
    ours = _ours(txn)
    if not any(probe_processes.open_nodes(pid) for pid in ours):
        return
    used, apps = _used(tool), _apps(tool)
    if used:
        mine = _sum(apps[pid] for pid in ours if pid in apps)
        others = _sum(held for pid, held in apps.items() if pid not in ours)
        write_json(_noted(txn), {"used": used, "mine": mine, "others": others})


def _wait(txn: Txn, noted: Dict[str, Any]) -> None:
    tool = nvidia_smi.find()
    begun, before, polls, moved = time.monotonic(), noted["used"], 0, 0.0
    while tool is not None:
        now, polls = _used(tool), polls + 1
        spent = time.monotonic() - begun
        if not now:
            _say(txn, "WARN nvidia-smi does not say whether the GPU memory is free again")
            break
        left = held(noted, before, now, {})
        if left and noted["mine"]:
            left = held(noted, before, now, _others(tool, txn))
        if not left:
            if polls > 1:
                _say(txn, _done(noted, now, spent))
            break
        if any(abs(mib - before.get(gpu, 0)) > _SMALL for gpu, mib in now.items()):
            moved = spent
        still = not noted["mine"] and spent - moved >= STILL_S
        # a rollback is not aborted
        if still or spent >= LIMIT_S or (txn.state != "ROLLING_BACK" and txn.abort_asked()):
            what = "is not free" if noted["mine"] else "has not fallen"
            _say(txn, f"WARN {spent:.0f} s after the stop GPU memory {what}: {', '.join(left)}")
            break
        before = now
        time.sleep(_PAUSE_S)


def _done(noted: Dict[str, Any], now: Dict[str, int], spent: float) -> str:
    if noted["mine"]:
        return f"the GPU memory is free again, {spent:.1f} s after the stop"
    return f"GPU memory falls no more, {spent:.1f} s after the stop: {sum(now.values())} MiB in use"


def _ours(txn: Txn) -> List[int]:
    return service.pids(service.facts(txn.layout.service).get("ControlGroup", ""))


def _apps(tool: str) -> Dict[int, Dict[str, Optional[int]]]:
    answer = nvidia_smi.query(tool, "compute-apps", ("pid", "gpu_uuid", "used_memory"), _ASK_S)
    return probe_processes.apps_of(answer)


def _others(tool: str, txn: Txn) -> Dict[str, int]:
    """{GPU: MiB} of living processes that are not the service's; what a dead one still has is no neighbour's."""
    ours = _ours(txn)
    apps = {pid: held for pid, held in _apps(tool).items() if pid not in ours}
    return _sum(held for pid, held in apps.items() if probe_processes.open_nodes(pid))


def _sum(parts: "Iterable[Mapping[str, Optional[int]]]") -> Dict[str, int]:
    """{GPU: MiB} of several processes."""
    found: Dict[str, int] = {}
    for part in parts:
        for gpu, mib in part.items():
            found[gpu] = found.get(gpu, 0) + (mib or 0)
    return {gpu: mib for gpu, mib in found.items() if mib}


def _used(tool: str) -> Dict[str, int]:
    """{GPU: MiB in use}; empty where nobody says (no answer, MIG)."""
    rows = nvidia_smi.query(tool, "gpu", ("uuid", "memory.used"), _ASK_S)["rows"]
    return {row["uuid"]: int(row["memory.used"]) for row in rows if row.get("memory.used", "").isdigit()}


def _noted(txn: Txn) -> str:
    return os.path.join(txn.dir, "gpu.json")


def _say(txn: Txn, text: str) -> None:
    txn.say({"ev": "note", "text": text})
