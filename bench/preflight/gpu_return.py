"""How late GPU memory comes back after a SIGKILL, and whether the agent's wait sees it, on a machine with a GPU.

    python3 bench/preflight/gpu_return.py [GIB]

Starts a process that fills GIB (default 64) of the first GPU through libcuda, kills it, and reads memory as the agent
does between a stop and a start (deploy/agent/ddtree_agent/gpu_return.py). Needs neither torch nor systemd.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "deploy" / "agent"))
from ddtree_agent import gpu_return, nvidia_smi, probe_processes

FILL = """
import ctypes, sys, time
cuda = ctypes.CDLL("libcuda.so.1")
context, memory = ctypes.c_void_p(), ctypes.c_void_p()
assert cuda.cuInit(0) == 0 and cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert cuda.cuCtxSetCurrent(context) == 0
for _ in range(int(sys.argv[1])):
    assert cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(1 << 30)) == 0
    assert cuda.cuMemsetD8_v2(memory, 1, ctypes.c_size_t(1 << 30)) == 0
print("full", flush=True)
time.sleep(600)
"""


def once(tool: str, gib: str) -> dict[str, object]:
    """One process filled, killed and waited for; seconds from its end until the agent would start the next one."""
    filler = subprocess.Popen([sys.executable, "-c", FILL, gib], stdout=subprocess.PIPE, text=True)
    assert filler.stdout is not None
    assert filler.stdout.readline() == "full\n"
    apps = probe_processes.apps_of(
        nvidia_smi.query(tool, "compute-apps", ("pid", "gpu_uuid", "used_memory"), 10)
    )
    mine = {gpu: mib or 0 for gpu, mib in apps.get(filler.pid, {}).items()}
    noted = {"used": gpu_return._used(tool), "mine": mine, "others": {}}
    nodes = probe_processes.open_nodes(filler.pid)
    os.kill(filler.pid, signal.SIGKILL)
    filler.wait()
    begun, before, readings = time.monotonic(), noted["used"], []
    while True:
        asked = time.monotonic()
        now = gpu_return._used(tool)
        spent, ask = time.monotonic() - begun, time.monotonic() - asked
        readings.append([round(spent, 3), round(ask, 3), sum(now.values())])
        left = gpu_return.held(noted, before, now, {})
        if not left or spent > gpu_return.LIMIT_S:
            break
        before = now
        time.sleep(gpu_return._PAUSE_S)
    return {**noted, "nodes": nodes, "apps": apps, "readings": readings, "left": left}


def main() -> None:
    tool = nvidia_smi.find()
    if tool is None:
        raise SystemExit("no nvidia-smi here")
    for _ in range(3):
        print(json.dumps(once(tool, (sys.argv[1:] or ["64"])[0])))


if __name__ == "__main__":
    main()
