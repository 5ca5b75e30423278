"""CUDA as the service gets it, without torch: the libraries its loader picks, the nodes it may open, a real context.

Runs in the unit's sandbox (sandbox.py): whole in this file, standard library, prints nothing.
"""

import ctypes
import errno
import glob
import os
import re
from typing import Any, Dict, List, Optional

NAMES = {
    0: "CUDA_SUCCESS", 1: "CUDA_ERROR_INVALID_VALUE", 2: "CUDA_ERROR_OUT_OF_MEMORY", 3: "CUDA_ERROR_NOT_INITIALIZED",
    34: "CUDA_ERROR_STUB_LIBRARY", 46: "CUDA_ERROR_DEVICE_UNAVAILABLE", 100: "CUDA_ERROR_NO_DEVICE",
    101: "CUDA_ERROR_INVALID_DEVICE", 201: "CUDA_ERROR_INVALID_CONTEXT", 214: "CUDA_ERROR_ECC_UNCORRECTABLE",
    304: "CUDA_ERROR_OPERATING_SYSTEM", 719: "CUDA_ERROR_LAUNCH_FAILED", 800: "CUDA_ERROR_NOT_PERMITTED",
    802: "CUDA_ERROR_SYSTEM_NOT_READY", 803: "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
    804: "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE", 999: "CUDA_ERROR_UNKNOWN",
}  # fmt: skip
#: A driver's version at the end of a file's name; WSL's and Tegra's libcuda.so.1.1 is none.
_VERSION = re.compile(r"\.so\.(\d{3,}(?:\.\d+)+)$")
#: A context takes some hundred MiB: on a GPU with less than this left it could make the running server fail.
ROOM = 3 << 30
#: CUdevice_attribute: COMPUTE_CAPABILITY_MAJOR, COMPUTE_CAPABILITY_MINOR.
MAJOR, MINOR = 75, 76


def collect(argument: Any) -> Dict[str, Any]:
    """argument: {"need": GPUs that the server takes, "base": the first of them}; None for a server on CPUs.

    A context is made only where there is room for it beside the running server. Returns {libcuda, libnvml: {path,
    version, error}, compat, nodes: {path: errno name or null}, init, driver_cuda, count, devices: [{index, cc, name,
    step, code, total}], visible}. init: cuInit's code, null where libcuda did not load; step, code: where a device
    failed; code 0: it worked.
    """
    if argument is None:
        return {"error": "not asked: --device cpu"}
    asked = argument
    found: Dict[str, Any] = {
        "nodes": opened(),
        "compat": compat(os.environ.get("LD_LIBRARY_PATH", "")),
        "visible": os.environ.get("CUDA_VISIBLE_DEVICES"),
        "init": None,
        "driver_cuda": None,
        "count": None,
        "devices": [],
    }
    cuda, found["libcuda"] = library("libcuda.so.1")
    _, found["libnvml"] = library("libnvidia-ml.so.1")
    if cuda is None:
        return found
    version = ctypes.c_int()
    if cuda.cuDriverGetVersion(ctypes.byref(version)) == 0:
        found["driver_cuda"] = f"{version.value // 1000}.{version.value % 1000 // 10}"
    found["init"] = cuda.cuInit(0)
    if found["init"] != 0:
        return found
    count = ctypes.c_int()
    code = cuda.cuDeviceGetCount(ctypes.byref(count))
    found["count"] = count.value if code == 0 else 0
    first = asked.get("base") or 0
    used = range(first, min(found["count"], first + (asked.get("need") or found["count"])))
    found["devices"] = [device(cuda, index, index in used) for index in range(min(found["count"], 16))]
    return found


def device(cuda: Any, index: int, whole: bool) -> Dict[str, Any]:
    """One device: its primary context, 1 MiB allocated, set and waited for. whole: False for a device that the server
    does not take, of which only the compute capability is read."""
    answer: Dict[str, Any] = {
        "index": index,
        "cc": None,
        "name": None,
        "total": None,
        "step": None,
        "code": 0,
    }
    handle, value = ctypes.c_int(), ctypes.c_int()
    context, memory = ctypes.c_void_p(), ctypes.c_uint64()
    total, name = ctypes.c_size_t(), ctypes.create_string_buffer(96)
    code = cuda.cuDeviceGet(ctypes.byref(handle), index)
    if code != 0:
        return dict(answer, step="cuDeviceGet", code=code)
    parts = []
    for attribute in (MAJOR, MINOR):
        if cuda.cuDeviceGetAttribute(ctypes.byref(value), attribute, handle) == 0:
            parts.append(str(value.value))
    answer["cc"] = ".".join(parts) if len(parts) == 2 else None
    if cuda.cuDeviceGetName(name, 96, handle) == 0:
        answer["name"] = name.value.decode("utf-8", "replace")
    if cuda.cuDeviceTotalMem_v2(ctypes.byref(total), handle) == 0:
        answer["total"] = total.value
    if not whole:
        return answer
    left = free(cuda, handle)
    if left is not None and left < ROOM:
        return dict(answer, step="room for a context", code=2)
    size = ctypes.c_size_t(1 << 20)
    steps = [
        ("cuDevicePrimaryCtxRetain", lambda: cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), handle)),
        ("cuCtxSetCurrent", lambda: cuda.cuCtxSetCurrent(context)),
        ("cuMemAlloc", lambda: cuda.cuMemAlloc_v2(ctypes.byref(memory), size)),
        ("cuMemsetD8", lambda: cuda.cuMemsetD8_v2(memory, ctypes.c_ubyte(0x5A), size)),
        ("cuCtxSynchronize", cuda.cuCtxSynchronize),
    ]
    for step, call in steps:
        code = call()
        if code != 0:
            answer.update(step=step, code=code)
            break
    if memory.value:
        cuda.cuMemFree_v2(memory)
    if context.value:
        (getattr(cuda, "cuDevicePrimaryCtxRelease_v2", None) or cuda.cuDevicePrimaryCtxRelease)(handle)
    return answer


def free(cuda: Any, device: Any) -> Optional[int]:
    """Bytes that are free on a device, by NVML, which needs no context; None where it does not tell."""
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
        bus, handle, memory = ctypes.create_string_buffer(32), ctypes.c_void_p(), (ctypes.c_ulonglong * 3)()
        if cuda.cuDeviceGetPCIBusId(bus, 32, device) or nvml.nvmlInit_v2():
            return None
        if nvml.nvmlDeviceGetHandleByPciBusId_v2(bus, ctypes.byref(handle)):
            return None
        return int(memory[1]) if nvml.nvmlDeviceGetMemoryInfo(handle, memory) == 0 else None
    except (OSError, AttributeError):
        return None


def library(name: str) -> "tuple[Any, Dict[str, Any]]":
    """(the library as this process's loader finds it, {path, version, error})."""
    try:
        loaded = ctypes.CDLL(name)
    except OSError as error:
        return None, {"path": None, "version": None, "error": str(error)[:200]}
    path = mapped(name.partition(".so")[0])
    version = _VERSION.search(os.path.realpath(path)) if path else None
    return loaded, {
        "path": path,
        "version": version.group(1) if version else None,
        "error": None,
    }


def mapped(stem: str) -> Optional[str]:
    """The file that is mapped for a library of that name, as the loader opened it (/proc/self/maps, real path)."""
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as file:
            for line in file:
                path = line.split(None, 5)[-1].strip()
                if os.path.basename(path).startswith(stem + ".so"):
                    return path
    except OSError:
        pass
    return None


def compat(path: str) -> Optional[str]:
    """The first directory of a library path that holds a forward-compatibility libcuda."""
    for place in path.split(":"):
        if "compat" in os.path.realpath(place or ".") and glob.glob(os.path.join(place, "libcuda.so*")):
            return place
    return None


def opened() -> Dict[str, Optional[str]]:
    """Each GPU node by what open(2) for reading and writing says: null where it works, else the errno's name."""
    found: Dict[str, Optional[str]] = {}
    paths: List[str] = ["/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"]
    paths += [path for path in sorted(glob.glob("/dev/nvidia*")) if re.search(r"/nvidia\d+$", path)]
    for path in paths:
        try:
            os.close(os.open(path, os.O_RDWR | os.O_CLOEXEC))
            found[path] = None
        except OSError as error:
            found[path] = errno.errorcode.get(error.errno or 0, str(error.errno))
    return found
