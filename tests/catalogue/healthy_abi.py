"""Python environment, binaries, tool chain, caches and files of the healthy hosts: an H200 pair, and one on CPUs."""

from __future__ import annotations

from typing import Any

SITE = "/v/lib/python3.11/site-packages"
GIB = 1 << 30


def binary(
    package: str, file: str, groups: list[dict[str, Any]] | None = None, **more: Any
) -> dict[str, Any]:
    """One library as probe_binaries gives it, without a fault."""
    return {
        "package": package, "file": file, "machine": "x86_64",
        "needed": ["libc10.so", "libtorch.so", "libcudart.so.12"],
        "missing": [], "missing_count": 0, "lost": [], "driver": [], "versions": [], "groups": groups, **more,
    }  # fmt: skip


def place(path: str, source: str = "HOME", compiled: int | None = 40, **more: Any) -> dict[str, Any]:
    """One directory as inner_caches gives it, without a fault."""
    content = {} if compiled is None else {
        "files": compiled * 4, "compiled": compiled, "broken": [], "broken_count": 0, "locks": [], "locks_count": 0,
        "foreign": [], "more": False,
    }  # fmt: skip
    return {
        "path": path, "from": source, "exists": True, "base": path, "real": path, "owner": 0, "mode": 0o755,
        "bytes": 200 * GIB, "inodes": 1 << 22, "fs": "ext4", "options": "rw,relatime", "remote": False, "write": True,
        "exec": True, "why": None, **content, **more,
    }  # fmt: skip


#: As in torch 2.11.0+cu130: machine code for each, hardly any PTX.
TORCH_GROUPS = [
    {"cubin": ["100", "120", "75", "80", "86", "90"], "ptx": [], "count": 339},
    {"cubin": ["100", "100a", "103a", "120", "75", "80", "86", "90"], "ptx": [], "count": 57},
]
#: As in sglang-kernel 0.4.2, both variants.
KERNEL_GROUPS = [
    {"cubin": ["100a", "103a", "120a", "80", "89", "90", "90a"], "ptx": [], "count": 56},
]
SECTIONS: dict[str, Any] = {
    "python": {
        "user_site": "/root/.local/lib/python3.11/site-packages", "user_dists": [],
        "site_dists": ["flashinfer-python", "sglang", "sglang-kernel", "torch"], "pycache_prefix": None, "conda": False,
        "requires": {"sglang": {"torch": "==2.9.1", "sglang-kernel": "==0.4.2", "xgrammar": "==0.1.27"}},
        "versions": {"torch": "2.9.1+cu128", "sglang-kernel": "0.4.2", "xgrammar": "0.1.27"},
        "missing": [], "newer": [],
        "editable": [], "cudnn_check_off": False,
    },
    "binaries": {
        "torch": {"lib": f"{SITE}/torch/lib", "cxx11": True},
        "host": {"machine": "x86_64", "glibc": "2.39"},
        "libcuda": "/usr/lib/x86_64-linux-gnu/libcuda.so.1",
        "libs": [
            binary("torch", f"{SITE}/torch/lib/libtorch_cpu.so"),
            binary("torch", f"{SITE}/torch/lib/libtorch_cuda.so", TORCH_GROUPS),
            binary("sgl_kernel", f"{SITE}/sgl_kernel/sm90/common_ops.abi3.so", KERNEL_GROUPS),
            binary("sgl_kernel", f"{SITE}/sgl_kernel/sm100/common_ops.abi3.so", KERNEL_GROUPS),
            binary("sgl_kernel", f"{SITE}/sgl_kernel/flash_ops.abi3.so", [
                {"cubin": ["80", "86", "90a"], "ptx": [], "count": 372},
            ]),
            binary("sgl_kernel", f"{SITE}/sgl_kernel/flashmla_ops.abi3.so", [
                {"cubin": ["100a", "103a", "90a"], "ptx": [], "count": 25},
            ]),
            binary("torchvision", f"{SITE}/torchvision/_C.so"),
        ],
        "seen": 20, "left": 0,
    },
    "toolchain": {
        "path": "/v/bin:/usr/local/cuda/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "variables": {},
        "tools": {
            "ninja": {"path": "/v/bin/ninja", "version": "1.13.0", "error": None},
            "cc": {"path": "/usr/bin/gcc", "version": "13.3.0", "error": None},
            "cxx": {"path": "/usr/bin/g++", "version": "13.3.0", "error": None},
            "nvcc": {"path": "/usr/local/cuda/bin/nvcc", "version": "12.8", "error": None},
        },
        "ninja_module": True,
        "cuda_home": {
            "value": "/usr/local/cuda", "source": "nvcc on PATH", "directory": True, "nvcc": "/usr/local/cuda/bin/nvcc",
            "cuda_fp8": True, "cudart_header": True, "unlinked": [],
        },
        "nvcc_archs": ["75", "80", "86", "87", "88", "89", "90", "100", "101", "120"],
        "python_h": {"include": "/usr/include/python3.11", "found": True, "version": "3.11"},
        "ldconfig": {"which": "/usr/sbin/ldconfig", "sbin": True, "triton": "/sbin/ldconfig"},
        "ptxas": [{
            "path": f"{SITE}/triton/backends/nvidia/bin/ptxas", "given": False, "version": "12.8", "error": None,
            "accepts": {"90": True},
        }],
        "devices": [{"name": "NVIDIA H200", "cc": "9.0"}, {"name": "NVIDIA H200", "cc": "9.0"}], "devices_error": None,
        "jit": {"jit_kernel": True, "flashinfer": True, "flashinfer_aot": False, "triton": True},
        "hipcc": None, "backends": {},
    },
    "caches": {
        "home": "/root", "uid": 0, "boot": 1.0,
        "places": {
            "home": place("/root", compiled=None), "tmp": place("/tmp", "the default", None, mode=0o1777),
            "triton": place("/root/.triton/cache"),
            "inductor": place("/tmp/torchinductor_root", "TMPDIR", 0, exists=False, base="/tmp"),
            "flashinfer": place("/root/.cache/flashinfer"), "tvm-ffi": place("/root/.cache/tvm-ffi"),
            "deep-gemm": place("/root/.cache/deep_gemm", compiled=0, exists=False, base="/root/.cache"),
            "torch-extensions": place("/root/.cache/torch_extensions", compiled=0, exists=False, base="/root/.cache"),
            "huggingface": place("/root/.cache/huggingface", compiled=None),
        },
    },
    "sources": {
        "uid": 0, "seen": 1882, "unreadable": [], "unreadable_count": 0, "stale": [],
        "roots": [{"path": "/opt/ddtree/releases", "ok": True, "at": "/opt", "mode": 0o755, "owner": 0}],
    },
}  # fmt: skip
_NO_TOOL = {"path": None, "version": None, "error": None}
SECTIONS_CPU: dict[str, Any] = {
    "python": {**SECTIONS["python"], "site_dists": ["sglang", "torch"], "requires": {"sglang": {"torch": "==2.9.1"}}},
    "binaries": {
        "torch": {"lib": f"{SITE}/torch/lib", "cxx11": True}, "host": {"machine": "x86_64", "glibc": "2.36"},
        "libcuda": None,
        "libs": [binary("torch", f"{SITE}/torch/lib/libtorch_cpu.so", driver=None)], "seen": 6, "left": 0,
    },
    "toolchain": {
        **SECTIONS["toolchain"], "tools": dict.fromkeys(("ninja", "cc", "cxx", "nvcc"), _NO_TOOL), "ptxas": [],
        "nvcc_archs": None, "devices": None, "devices_error": "libcuda.so.1: cannot open shared object file",
        "cuda_home": {
            "value": "/usr/local/cuda", "source": "the default", "directory": False, "nvcc": None, "cuda_fp8": False,
            "cudart_header": False,
        },
    },
}  # fmt: skip
