"""The compilers that the service would find: run as its user, with its PATH and its interpreter, in its sandbox."""

import ctypes
import glob
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from importlib import util
from typing import Any, Dict, List, Optional

#: No target of a PTX text is known to every ptxas: only its word on the option is read.
PTX = b".version 7.0\n.target sm_75\n.address_size 64\n"
LINKED = ("/usr/local/lib", "/usr/lib64", "/usr/lib", "/lib64", "/lib")
VARIABLES = (
    "CC",
    "CXX",
    "CUDA_HOME",
    "CUDA_PATH",
    "TRITON_PTXAS_PATH",
    "TRITON_LIBCUDA_PATH",
    "CUDA_VISIBLE_DEVICES",
)


def collect(argument: Any) -> Dict[str, Any]:
    """argument: {backends: {flag: value}} of the server's arguments.

    {variables, tools: {name: {path, version, error}}, cuda_home, nvcc: {version, archs}, python_h, ldconfig, ptxas:
    [{path, version, accepts: {arch: bool}}], devices: [{name, cc}] or null, devices_error, jit, hipcc, backends}.
    """
    devices, why = _devices()
    archs = sorted({d["cc"].replace(".", "") for d in devices or []})
    home = _cuda_home()
    nvcc = home.get("nvcc") or shutil.which("nvcc")
    return {
        "path": os.environ.get("PATH"),
        "variables": {name: os.environ[name] for name in VARIABLES if name in os.environ},
        "tools": {
            "ninja": _tool(shutil.which("ninja")),
            "cc": _tool(_compiler()),
            "cxx": _tool(_cxx()),
            "nvcc": _tool(nvcc),
        },
        "ninja_module": _where("ninja") is not None,
        "cuda_home": home,
        "nvcc_archs": _nvcc_archs(nvcc),
        "python_h": _python_h(),
        "ldconfig": _ldconfig(),
        "ptxas": _ptxas(archs),
        "devices": devices,
        "devices_error": why,
        "jit": _jit(),
        "hipcc": _hipcc(),
        "backends": (argument or {}).get("backends", {}),
    }


def _run(argv: List[str], data: bytes = b"") -> "subprocess.CompletedProcess[bytes]":
    return subprocess.run(
        argv, input=data, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=8, check=False
    )


def _tool(path: Optional[str]) -> Dict[str, Any]:
    """{path, version, error}: path is null where there is none; version is the last number with a dot that it says."""
    if not path:
        return {"path": None, "version": None, "error": None}
    try:
        done = _run([path, "--version"])
    except (OSError, subprocess.SubprocessError) as error:
        return {"path": path, "version": None, "error": str(error)[:200]}
    text = done.stdout.decode("utf-8", "replace").strip()
    if done.returncode:
        return {"path": path, "version": None, "error": text.splitlines()[-1][:200] if text else "no output"}
    release = re.search(r"release (\d+\.\d+)", text) or re.search(r"(\d+\.\d+(?:\.\d+)*)", text)
    return {"path": path, "version": release.group(1) if release else None, "error": None}


def _compiler() -> Optional[str]:
    """As Triton picks it: CC, else gcc, else clang."""
    chosen = os.environ.get("CC")
    if chosen:
        return shutil.which(chosen.split()[0])
    return shutil.which("gcc") or shutil.which("clang")


def _cxx() -> Optional[str]:
    """As nvcc and the C++ builders pick it: CXX, else g++, else c++ or clang++."""
    chosen = os.environ.get("CXX")
    if chosen:
        return shutil.which(chosen.split()[0])
    return shutil.which("g++") or shutil.which("c++") or shutil.which("clang++")


def _cuda_home() -> Dict[str, Any]:
    """The toolkit as CUDA's Python builders look for it: CUDA_HOME, CUDA_PATH, nvcc on PATH, /usr/local/cuda."""
    source = next((name for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name)), None)
    found = shutil.which("nvcc")
    if source:
        value = os.environ[source]
    elif found:
        source, value = "nvcc on PATH", os.path.dirname(os.path.dirname(os.path.realpath(found)))
    else:
        source, value = "the default", "/usr/local/cuda"
    compiler = os.path.join(value, "bin", "nvcc")
    include = [os.path.join(value, "include"), *glob.glob(os.path.join(value, "targets", "*", "include"))]
    return {
        "value": value,
        "source": source,
        "directory": os.path.isdir(value),
        "nvcc": compiler if os.access(compiler, os.X_OK) else None,
        "cuda_fp8": any(os.path.exists(os.path.join(folder, "cuda_fp8.h")) for folder in include),
        "cudart_header": any(os.path.exists(os.path.join(folder, "cuda_runtime.h")) for folder in include),
        "unlinked": _unlinked(value),
    }


def _unlinked(home: str) -> List[str]:
    """Of libcudart.so and libcuda.so those that FlashInfer's builds would not find to link: they name
    CUDA_HOME/lib64 and its stubs, beside the linker's own directories and LIBRARY_PATH."""
    places = [os.path.join(home, "lib64"), os.path.join(home, "lib64", "stubs")]
    places += [part for part in os.environ.get("LIBRARY_PATH", "").split(":") if part]
    places += [*LINKED, *glob.glob("/usr/lib/*-linux-gnu"), *glob.glob("/lib/*-linux-gnu")]
    return [
        name
        for name in ("libcudart.so", "libcuda.so")
        if not any(os.path.exists(os.path.join(place, name)) for place in places)
    ]


def _nvcc_archs(nvcc: Optional[str]) -> Optional[List[str]]:
    """The GPUs that nvcc can compile for: ["75", "80", ...]; null where it does not say."""
    if not nvcc:
        return None
    try:
        done = _run([nvcc, "--list-gpu-arch"])
    except (OSError, subprocess.SubprocessError):
        return None
    return re.findall(r"compute_(\d+[af]?)", done.stdout.decode("utf-8", "replace")) or None


def _python_h() -> Dict[str, Any]:
    scheme = "posix_prefix" if os.name == "posix" else None
    place = sysconfig.get_paths(scheme)["include"] if scheme else sysconfig.get_paths()["include"]
    extra = [p for name in ("CPATH", "C_INCLUDE_PATH") for p in os.environ.get(name, "").split(":") if p]
    found = [p for p in (place, *extra) if os.path.exists(os.path.join(p, "Python.h"))]
    return {"include": place, "found": bool(found), "version": f"{sys.version_info[0]}.{sys.version_info[1]}"}


def _ldconfig() -> Dict[str, Any]:
    """which: on PATH. triton: the word that the installed Triton calls, null where it calls none or is not there."""
    text = _text(_where("triton"), "backends/nvidia/driver.py") + _text(_where("triton"), "common/build.py")
    word = re.search(r"[\"']((?:/\w+)*/?ldconfig)[\"'],", text)
    return {
        "which": shutil.which("ldconfig"),
        "sbin": os.access("/sbin/ldconfig", os.X_OK),
        "triton": word.group(1) if word else None,
    }


def _ptxas(archs: List[str]) -> List[Dict[str, Any]]:
    """Those that Triton would use, each asked whether it knows the GPUs."""
    bundled = _where("triton") or ""
    found = []
    for name, variable in (
        ("ptxas", "TRITON_PTXAS_PATH"),
        ("ptxas-blackwell", "TRITON_PTXAS_BLACKWELL_PATH"),
    ):
        given = os.environ.get(variable)
        path = given or os.path.join(os.path.dirname(bundled), "backends", "nvidia", "bin", name)
        wanted = [a for a in archs if (int(a) >= 100) == (name != "ptxas")]
        both = os.path.exists(os.path.join(os.path.dirname(path), "ptxas-blackwell")) or bool(
            os.environ.get("TRITON_PTXAS_BLACKWELL_PATH")
        )
        if name == "ptxas" and not both:
            wanted = archs  # an older Triton has one for all
        if name != "ptxas" and not both:
            continue
        if not given and not os.path.exists(path):
            continue
        told = _tool(path)
        found.append(
            {
                "path": path,
                "given": bool(given),
                "accepts": {a: _accepts(path, a) for a in wanted},
                **_less(told),
            }
        )
    return found


def _less(told: Dict[str, Any]) -> Dict[str, Any]:
    return {"version": told["version"], "error": told["error"]}


def _accepts(ptxas: str, arch: str) -> Optional[bool]:
    name = f"sm_{arch}{'a' if int(arch) >= 90 else ''}"
    try:
        done = _run([ptxas, f"--gpu-name={name}", "/dev/stdin", "-o", "/dev/null"], PTX)
    except (OSError, subprocess.SubprocessError):
        return None
    return b"is not defined for option 'gpu-name'" not in done.stdout


def _devices() -> "tuple[Optional[List[Dict[str, str]]], Optional[str]]":
    """The GPUs that this process may use, by the driver itself: no context is made, no memory taken."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        return None, str(error)[:200]
    status = cuda.cuInit(0)
    if status:
        return None, f"cuInit says {status}"
    count = ctypes.c_int()
    cuda.cuDeviceGetCount(ctypes.byref(count))
    found = []
    for i in range(count.value):
        device, text = ctypes.c_int(), ctypes.create_string_buffer(128)
        cuda.cuDeviceGet(ctypes.byref(device), i)
        cuda.cuDeviceGetName(text, 128, device)
        numbers = []
        for attribute in (75, 76):  # compute capability, major and minor
            value = ctypes.c_int()
            cuda.cuDeviceGetAttribute(ctypes.byref(value), attribute, device)
            numbers.append(value.value)
        found.append({"name": text.value.decode("utf-8", "replace"), "cc": f"{numbers[0]}.{numbers[1]}"})
    return found, None


def _jit() -> Dict[str, Any]:
    """What compiles at start: the engine's own jit_kernel, FlashInfer, and whether it brought compiled code."""
    engine, flashinfer = _where("sglang"), _where("flashinfer")
    aot = (
        glob.glob(os.path.join(os.path.dirname(flashinfer), "data", "aot", "**", "*.so"), recursive=True)
        if flashinfer
        else []
    )
    off = os.environ.get("SGLANG_IS_FLASHINFER_AVAILABLE", "true").lower() in ("0", "false")
    return {
        "jit_kernel": bool(engine)
        and os.path.isdir(os.path.join(os.path.dirname(str(engine)), "jit_kernel", "csrc")),
        "flashinfer": flashinfer is not None and not off,
        "flashinfer_aot": bool(aot) or _where("flashinfer_jit_cache") is not None,
        "triton": _where("triton") is not None,
    }


def _hipcc() -> Optional[str]:
    """Why tvm-ffi would compile with AMD's hipcc, in words; null where it would not.

    Until 2026-07 (0.1.9 and before 0.1.15) it asked for ROCm's directory before it asked torch.
    """
    text = _text(_where("tvm_ffi"), "cpp/extension.py")
    if os.environ.get("TVM_FFI_GPU_BACKEND", "").lower() in ("cuda", "hip"):
        return "TVM_FFI_GPU_BACKEND=hip" if os.environ["TVM_FFI_GPU_BACKEND"].lower() == "hip" else None
    asks = re.search(r"\ndef _detect_gpu_backend\(.*?(?=\n(?:def |@)|\Z)", text, re.S)
    if asks is None or "_find_rocm_home()" not in asks.group(0) or "import torch" in asks.group(0):
        return None
    for name in ("ROCM_HOME", "ROCM_PATH"):
        if os.environ.get(name):
            return f"{name}={os.environ[name]}"
    return shutil.which("hipcc") or ("/opt/rocm" if os.path.exists("/opt/rocm") else None)


def _where(name: str) -> Optional[str]:
    try:
        found = util.find_spec(name)
    except (ImportError, ValueError):
        return None
    if found is None:
        return None
    places = found.submodule_search_locations
    return found.origin or (os.path.join(next(iter(places)), "__init__.py") if places else None)


def _text(package: Optional[str], name: str) -> str:
    if not package:
        return ""
    try:
        with open(os.path.join(os.path.dirname(package), name), encoding="utf-8", errors="replace") as file:
            return file.read(200_000)
    except OSError:
        return ""
