"""After a stop: the GPU memory of the service that ended is back before the next one starts (C23 of failures.md).

A start that meets it half returned gets a smaller KV pool, or none. Costs nothing where the service had no GPU open.
"""

import os
import time
from typing import Any, Dict, List

from . import nvidia_smi, probe_processes, service
from .journal import Txn
from .layout import read_json, write_json

LIMIT_S = 30.0
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


def held(noted: Dict[str, Any], before: Dict[str, int], now: Dict[str, int]) -> List[str]:
    """What is not free again, in words. noted: {used, mine} by GPU before the stop; before: the last reading.

    In a container nvidia-smi does not tell whose memory it is (mine is empty): there, until it fell and falls no more.
    """
    was: Dict[str, int] = {gpu: used for gpu, used in noted["used"].items() if gpu in now}
    mine: Dict[str, int] = noted["mine"]
    if mine:
        left = {gpu: now[gpu] - (was[gpu] - mine.get(gpu, 0)) for gpu in was if gpu in mine}
        return [f"{mib} MiB on {gpu}" for gpu, mib in left.items() if mib > _SMALL]
    total = sum(now[gpu] for gpu in was)
    fell, falls = sum(was.values()) - total, sum(before.get(gpu, 0) for gpu in was) - total
    return [] if not was or (fell > _SMALL and falls <= _SMALL) else [f"{total} MiB in all"]


def _look(txn: Txn) -> None:
    tool = nvidia_smi.find()
    if tool is None:
        return
    ours = service.pids(service.facts(txn.layout.service).get("ControlGroup", ""))
    if not any(probe_processes.open_nodes(pid) for pid in ours):
        return
    used = _used(tool)
    answer = nvidia_smi.query(tool, "compute-apps", ("pid", "gpu_uuid", "used_memory"), _ASK_S)
    apps = probe_processes.apps_of(answer)
    mine: Dict[str, int] = {}
    for pid in ours:
        for gpu, mib in apps.get(pid, {}).items():
            mine[gpu] = mine.get(gpu, 0) + (mib or 0)
    if used:
        write_json(_noted(txn), {"used": used, "mine": {gpu: mib for gpu, mib in mine.items() if mib}})


def _wait(txn: Txn, noted: Dict[str, Any]) -> None:
    tool = nvidia_smi.find()
    begun, before, polls = time.monotonic(), noted["used"], 0
    while tool is not None:
        now, polls = _used(tool), polls + 1
        spent = time.monotonic() - begun
        if not now:
            _say(txn, "WARN nvidia-smi does not say whether the GPU memory is free again")
            break
        left = held(noted, before, now)
        if not left:
            if polls > 1:
                _say(txn, f"the GPU memory is free again, {spent:.1f} s after the stop")
            break
        # a rollback is not aborted
        if spent >= LIMIT_S or (txn.state != "ROLLING_BACK" and txn.abort_asked()):
            _say(txn, f"WARN {spent:.0f} s after the stop GPU memory is not free: {', '.join(left)}")
            break
        before = now
        time.sleep(_PAUSE_S)


def _used(tool: str) -> Dict[str, int]:
    """{GPU: MiB in use}; empty where nobody says (no answer, MIG)."""
    rows = nvidia_smi.query(tool, "gpu", ("uuid", "memory.used"), _ASK_S)["rows"]
    return {row["uuid"]: int(row["memory.used"]) for row in rows if row.get("memory.used", "").isdigit()}


def _noted(txn: Txn) -> str:
    return os.path.join(txn.dir, "gpu.json")


def _say(txn: Txn, text: str) -> None:
    txn.say({"ev": "note", "text": text})
