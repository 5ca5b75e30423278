"""What ranks need of each other, as the service gets it: shared memory, interfaces, and a peer write that arrives.

Runs in the unit's sandbox (sandbox.py): whole in this file, standard library, prints nothing.
"""

import ctypes
import glob
import os
from typing import Any, Dict, List, Optional

#: NCCL's own switches, where they send traffic, and how torch allocates what ranks share: no secret, and each changes
#: what a check means.
_TOLD = ("NCCL_P2P_DISABLE", "NCCL_P2P_LEVEL", "NCCL_SHM_DISABLE", "NCCL_IB_DISABLE", "NCCL_SOCKET_IFNAME",
         "GLOO_SOCKET_IFNAME", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")  # fmt: skip
SHM = "/dev/shm"
#: As in inner_cuda.py, whose text is not here: less left than this, and a context could make the running server fail.
ROOM = 3 << 30


def collect(argument: Any) -> Dict[str, Any]:
    """argument: {"need": GPUs that the server takes, "base": the first} or None.

    Returns {shm: {size, free, writable, entries, leftovers} | null, infiniband: [device], interfaces: [name] | null,
    env: {name: value}, pairs: {"0-1": {access, ok, code}}, peer_error}. pairs: of neighbours, a written block that was
    read back from the other; empty for fewer than two GPUs.
    """
    asked = argument or {}
    found: Dict[str, Any] = {
        "shm": shm(),
        "infiniband": sorted(os.path.basename(path) for path in glob.glob("/sys/class/infiniband/*")),
        "interfaces": sorted(os.listdir("/sys/class/net")) if os.path.isdir("/sys/class/net") else None,
        "env": {name: os.environ[name] for name in _TOLD if name in os.environ},
        "pairs": {},
        "peer_error": None,
    }
    if (asked.get("need") or 1) > 1:
        try:
            found["pairs"] = peers(asked.get("base") or 0, asked["need"])
        except (OSError, AttributeError) as error:
            found["peer_error"] = str(error)[:200]
    return found


def shm(path: str = SHM) -> Optional[Dict[str, Any]]:
    """Room in shared memory, and what NCCL and torch left there; None where it is not there."""
    try:
        room = os.statvfs(path)
        names = os.listdir(path)
    except OSError:
        return None
    return {
        "size": room.f_blocks * room.f_frsize,
        "free": room.f_bavail * room.f_frsize,
        "writable": os.access(path, os.W_OK | os.X_OK) and not room.f_flag & os.ST_RDONLY,
        "entries": len(names),
        "leftovers": len([name for name in names if name.startswith(("nccl-", "torch_", "psm_", "sem.mp-"))]),
    }


def peers(base: int, need: int) -> Dict[str, Dict[str, Any]]:
    """Neighbouring pairs: does what one GPU writes into the other arrive? {} where CUDA does not start at all, which is
    another section's to say."""
    cuda = ctypes.CDLL("libcuda.so.1")
    count = ctypes.c_int()
    if cuda.cuInit(0) != 0 or cuda.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return {}
    last = min(count.value, base + need)
    pairs = [(one, one + 1) for one in range(base, last - 1)] + (
        [(base, last - 1)] if last - base > 2 else []
    )
    return {f"{one}-{other}": peer(cuda, one, other) for one, other in pairs}


def peer(cuda: Any, one: int, other: int) -> Dict[str, Any]:
    """{access, ok, code}: whether the driver promises direct access, and whether 1 MiB sent over it is what comes back.

    ok is null where no direct access is promised: then nobody uses it.
    """
    size = 1 << 20
    devices = [ctypes.c_int(), ctypes.c_int()]
    contexts: List[Any] = [ctypes.c_void_p(), ctypes.c_void_p()]
    memory = [ctypes.c_uint64(), ctypes.c_uint64()]
    access, code = ctypes.c_int(), 0
    out = ctypes.create_string_buffer(size)

    def run(*calls: Any) -> int:
        for call in calls:
            failed = call()
            if failed:
                return int(failed)
        return 0

    code = run(
        lambda: cuda.cuDeviceGet(ctypes.byref(devices[0]), one),
        lambda: cuda.cuDeviceGet(ctypes.byref(devices[1]), other),
        lambda: cuda.cuDeviceCanAccessPeer(ctypes.byref(access), devices[0], devices[1]),
    )
    if code or not access.value:
        return {"access": bool(access.value), "ok": None, "code": code}
    if any(full(cuda, device) for device in devices):
        return {"access": True, "ok": None, "code": 2}
    try:
        for i in (0, 1):
            code = code or run(
                lambda i=i: cuda.cuDevicePrimaryCtxRetain(ctypes.byref(contexts[i]), devices[i]),
                lambda i=i: cuda.cuCtxSetCurrent(contexts[i]),
                lambda i=i: cuda.cuMemAlloc_v2(ctypes.byref(memory[i]), ctypes.c_size_t(size)),
                lambda i=i: cuda.cuMemsetD8_v2(memory[i], ctypes.c_ubyte(0x11), ctypes.c_size_t(size)),
                cuda.cuCtxSynchronize,
            )
        code = code or run(
            lambda: cuda.cuCtxSetCurrent(contexts[0]),
            lambda: _already(cuda.cuCtxEnablePeerAccess(contexts[1], 0)),
            # A store from the first GPU into the other's memory: a copy could be staged through the host.
            lambda: cuda.cuMemsetD8_v2(memory[1], ctypes.c_ubyte(0xA5), ctypes.c_size_t(size)),
            cuda.cuCtxSynchronize,
            lambda: cuda.cuCtxSetCurrent(contexts[1]),
            lambda: cuda.cuMemcpyDtoH_v2(out, memory[1], ctypes.c_size_t(size)),
        )
        return {"access": True, "ok": code == 0 and out.raw == b"\xa5" * size, "code": code}
    finally:
        for i in (0, 1):
            if contexts[i].value:
                cuda.cuCtxSetCurrent(contexts[i])
                if memory[i].value:
                    cuda.cuMemFree_v2(memory[i])
                (getattr(cuda, "cuDevicePrimaryCtxRelease_v2", None) or cuda.cuDevicePrimaryCtxRelease)(
                    devices[i]
                )


def full(cuda: Any, device: Any) -> bool:
    """Whether NVML, which needs no context, says that there is no room for one."""
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
        bus, handle, memory = ctypes.create_string_buffer(32), ctypes.c_void_p(), (ctypes.c_ulonglong * 3)()
        asked = cuda.cuDeviceGetPCIBusId(bus, 32, device) or nvml.nvmlInit_v2()
        asked = asked or nvml.nvmlDeviceGetHandleByPciBusId_v2(bus, ctypes.byref(handle))
        return not asked and nvml.nvmlDeviceGetMemoryInfo(handle, memory) == 0 and memory[1] < ROOM
    except (OSError, AttributeError):
        return False


def _already(code: int) -> int:
    """704: peer access is on already."""
    return 0 if code == 704 else code
