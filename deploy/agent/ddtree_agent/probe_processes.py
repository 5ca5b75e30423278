"""Who holds the GPUs: every process with an open device node or an engine's name, and whether it is the unit's."""

import glob
import os
import re
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Set

from . import nvidia_smi, sockets
from .service import pids as cgroup_pids

if TYPE_CHECKING:
    from .probe_areas import Context

#: How engines call their processes (setproctitle(3) included).
_ENGINE = re.compile(
    r"sglang::|sglang\.launch_server|sglang serve|VLLM::|vllm serve|vllm\.entrypoints|EngineCore"
)
_TICKS = os.sysconf("SC_CLK_TCK")


def holders(context: "Context") -> Dict[str, Any]:
    """{processes: [{pid, ppid, state, name, engine, cgroup, ours, age_s, nodes, used: {uuid: MiB | null}}], apps_known,
    unit_active}.

    used: what nvidia-smi says it holds, by GPU; null where it cannot tell. apps_known is False where nvidia-smi did not
    answer. A process in another PID namespace is not seen here, only its memory is.
    """
    ours = set(cgroup_pids(context.show.get("ControlGroup", "")))
    apps, known = compute_apps()
    found = []
    for entry in sorted((name for name in os.listdir("/proc") if name.isdigit()), key=int):
        pid = int(entry)
        nodes = open_nodes(pid)
        words = sockets.words(pid)
        stat = _stat(pid)
        if not stat:
            continue
        title = " ".join(words[:6]) or stat["name"]
        engine = bool(_ENGINE.search(title)) or stat["name"].startswith("sglang::")
        if nodes or engine:
            found.append(
                {
                    "pid": pid,
                    **stat,
                    "engine": engine,
                    "cgroup": _cgroup(pid),
                    "ours": pid in ours,
                    "nodes": nodes,
                    # In a container nvidia-smi may tell its host's pids: only a process with a node open can be meant.
                    "used": apps.get(pid, {}) if nodes else {},
                }
            )
    return {
        "processes": found[:64],
        "apps_known": known,
        "unit_active": context.show.get("ActiveState")
        in ("active", "activating", "reloading", "deactivating"),
    }


def compute_apps() -> "tuple[Dict[int, Dict[str, Optional[int]]], bool]":
    """({pid: {GPU: MiB or None}}, whether nvidia-smi answered)."""
    tool = nvidia_smi.find()
    if tool is None:
        return {}, False
    answer = nvidia_smi.query(tool, "compute-apps", ("pid", "gpu_uuid", "used_memory"), 40.0)
    return apps_of(answer), answer["status"] == 0


def apps_of(answer: Dict[str, Any]) -> Dict[int, Dict[str, Optional[int]]]:
    """compute-apps rows as {pid: {GPU: MiB}}; a row with an unknown pid is left out."""
    found: Dict[int, Dict[str, Optional[int]]] = {}
    for row in answer["rows"]:
        pid, used = row.get("pid", ""), row.get("used_memory", "")
        if pid.isdigit():
            found.setdefault(int(pid), {})[row.get("gpu_uuid", "?")] = int(used) if used.isdigit() else None
    return found


def open_nodes(pid: int) -> List[str]:
    """GPU nodes that a process has open (WSL's too); a monitor holds nvidiactl only, which is no use of a GPU."""
    found: Set[str] = set()
    for link in glob.glob(f"/proc/{pid}/fd/*"):
        try:
            target = os.readlink(link)
        except OSError:
            continue
        if re.match(r"/dev/(nvidia(\d+|-uvm)|dxg)$", target):
            found.add(target)
    return sorted(found)


def _stat(pid: int) -> Dict[str, Any]:
    """ppid, state, name and age from /proc/PID/stat (proc(5)); {} where it is gone."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            head, _, tail = file.read().rpartition(")")
        with open("/proc/uptime", encoding="ascii") as file:
            up = float(file.read().split()[0])
    except (OSError, ValueError):
        return {}
    fields = tail.split()
    return {
        "ppid": int(fields[1]),
        "state": fields[0],
        "name": head.partition("(")[2],
        "age_s": int(up - int(fields[19]) / _TICKS),
    }


def _cgroup(pid: int) -> Optional[str]:
    """The process's place in systemd's hierarchy, or in the only one."""
    try:
        with open(f"/proc/{pid}/cgroup", encoding="utf-8") as file:
            rows = [line.rstrip("\n").split(":", 2) for line in file]
    except OSError:
        return None
    named = [row[2] for row in rows if len(row) == 3 and (row[1] in ("", "name=systemd"))]
    return named[0] if named else None
