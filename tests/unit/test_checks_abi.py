"""Rules over Python environment, binaries, compilers and caches: each fails for its cause and for nothing near it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from healthy import CORE, HEALTHY_CPU, HEALTHY_H200, WANTED, overlaid
from healthy_abi import KERNEL_GROUPS, SECTIONS, SITE, TORCH_GROUPS, binary, place
from healthy_gpu import NO_NVIDIA

from ddtree_ops.core.checks import arch, binaries, caches, python_env, sources, toolchain
from ddtree_ops.core.checks.arch import runs
from ddtree_ops.core.checks.binary_facts import Group
from ddtree_ops.core.checks.python_env import satisfies
from ddtree_ops.core.doctor import examine
from ddtree_ops.core.finding import Finding, Level
from ddtree_ops.core.wanted import Wanted

pytestmark = pytest.mark.tier("preflight")
Facts = dict[str, Any]
IDLE: Facts = {"active_state": "inactive", "sub_state": "dead"}
COLD: Facts = {"places": {"flashinfer": {"files": 0, "compiled": 0}, "tvm-ffi": {"files": 0, "compiled": 0}}}
NONE = {"path": None, "version": None, "error": None}
AREAS = (python_env, binaries, arch, toolchain, caches, sources)
DISTS = CORE["abi"]["dists"]


def all_of(facts: Facts, on: Facts = HEALTHY_H200, wanted: Wanted = WANTED) -> list[Finding]:
    return examine(overlaid(on, facts), wanted)


def said(facts: Facts, rule: str, on: Facts = HEALTHY_H200) -> Finding:
    seen = [one for one in all_of(facts, on) if one.rule == rule]
    assert len(seen) == 1, seen
    return seen[0]


def libs(*more: Facts) -> Facts:
    """The healthy binaries and these."""
    return {"libs": [*SECTIONS["binaries"]["libs"], *more]}


def dists(*more: tuple[str, str]) -> list[Facts]:
    return [
        *DISTS,
        *({"name": n, "version": v, "local": v.partition("+")[2] or None, "path": "x"} for n, v in more),
    ]


def without(name: str) -> Facts:
    """The tool chain without one of its tools, and nothing compiled ahead."""
    home = {
        "value": "/usr/local/cuda",
        "source": "the default",
        "directory": False,
        "nvcc": None,
        "cuda_fp8": False,
        "cudart_header": False,
    }
    return {"tools": {name: NONE}, **({"cuda_home": home, "nvcc_archs": None} if name == "nvcc" else {})}


LOST = [{"name": "librdmacm.so.1", "elsewhere": None, "preloaded": False}]
MISSING = [{"symbol": "_ZN3c1013MessageLoggerC1EPKciib", "from": "torch"}]
PTX_TORCH = binary("torch", "/v/torch/lib/libtorch_cuda.so", [{"cubin": ["120"], "ptx": ["120"], "count": 9}])
#: (what is said of, facts, rule, level, words)
FAULTS: list[tuple[str, Facts, str, Level, str]] = [
    (
        "the pair that the issue names",
        {"abi": {"dists": dists(("sgl-kernel", "0.3.16+cu130")), "kernels": []}},
        "cuda-kernel",
        Level.BLOCK,
        "sgl-kernel 0.3.16+cu130 against torch's CUDA 12.8 (torch 2.9.1+cu128)",
    ),
    (
        "a PyPI torch without a suffix",
        {
            "abi": {
                "torch": {"version": "2.9.1", "cuda": "12.8"},
                "kernels": [{"file": "/v/sgl_kernel/common_ops.so", "needed": ["libcudart.so.13"]}],
            }
        },
        "cuda-kernel",
        Level.BLOCK,
        "built for CUDA 13",
    ),
    (
        "one wheel of FlashInfer's for another CUDA",
        {"abi": {"dists": dists(("flashinfer-jit-cache", "0.6.8+cu130"))}},
        "cuda-companions",
        Level.BLOCK,
        "flashinfer-jit-cache 0.6.8+cu130",
    ),
    (
        "cuDNN twice, idle",
        {
            "service": IDLE,
            "abi": {"dists": dists(("nvidia-cudnn-cu12", "9.16"), ("nvidia-cudnn-cu13", "9.16"))},
        },
        "cuda-companions",
        Level.BLOCK,
        "nvidia-cudnn-cu12 9.16 and nvidia-cudnn-cu13 9.16",
    ),
    (
        "cuDNN twice, and it serves",
        {"abi": {"dists": dists(("nvidia-cudnn-cu12", "9.16"), ("nvidia-cudnn-cu13", "9.16"))}},
        "cuda-companions",
        Level.WARN,
        "both installed",
    ),
    (
        "a runtime of CUDA 13 under its new name",
        {"abi": {"dists": dists(("nvidia-cuda-runtime", "13.0.96"))}},
        "cuda-companions",
        Level.WARN,
        "nvidia-cuda-runtime 13.0.96",
    ),
    (
        "torchvision of another torch",
        {"binaries": libs(binary("torchvision", "/v/torchvision/image.so", missing=MISSING))},
        "torch-symbols",
        Level.BLOCK,
        "c10::MessageLogger",
    ),
    (
        "a plug-in that the running server does not import",
        {"binaries": libs(binary("deep_ep", "/v/deep_ep.so", missing=MISSING))},
        "torch-symbols",
        Level.WARN,
        "deep_ep",
    ),
    (
        "the same after an upgrade under the running server",
        {
            "python": {"newer": ["deep-ep"]},
            "binaries": libs(binary("deep_ep", "/v/deep_ep.so", missing=MISSING)),
        },
        "torch-symbols",
        Level.BLOCK,
        "deep_ep",
    ),
    (
        "kernels for GPUs beside a torch for CPUs",
        {
            "binaries": libs(
                binary(
                    "sgl_kernel",
                    "/v/sgl_kernel/x.so",
                    lost=[{"name": "libtorch_cuda.so", "elsewhere": None, "preloaded": False}],
                )
            )
        },
        "torch-symbols",
        Level.BLOCK,
        "libtorch_cuda.so",
    ),
    (
        "a library of the network for a plug-in",
        {"binaries": libs(binary("mooncake", "/v/mooncake/engine.so", lost=LOST))},
        "library-path",
        Level.WARN,
        "librdmacm.so.1",
    ),
    (
        "the same for the kernels",
        {"binaries": libs(binary("sgl_kernel", "/v/sgl_kernel/x.so", lost=LOST))},
        "library-path",
        Level.BLOCK,
        "nowhere on this host",
    ),
    (
        "a wheel of another machine",
        {"binaries": libs(binary("flashinfer", "/v/flashinfer/x.so", machine="aarch64"))},
        "c-library",
        Level.BLOCK,
        "built for aarch64, this host is x86_64",
    ),
    (
        "a newer glibc",
        {
            "binaries": libs(
                binary(
                    "sgl_kernel",
                    "/v/sgl_kernel/x.so",
                    versions=[
                        {
                            "file": "/lib/x86_64-linux-gnu/libc.so.6",
                            "version": "GLIBC_2.38",
                            "has": "GLIBC_2.36",
                        }
                    ],
                )
            )
        },
        "c-library",
        Level.BLOCK,
        "GLIBC_2.38",
    ),
    (
        "cuBLAS of the toolkit before the wheel's",
        {
            "binaries": libs(
                binary(
                    "nvidia",
                    f"{SITE}/nvidia/cusparse/lib/libcusparse.so.12",
                    missing=[
                        {
                            "symbol": "__nvJitLinkComplete_12_4",
                            "from": "/usr/local/cuda-12.1/lib64/libnvJitLink.so.12",
                        }
                    ],
                )
            )
        },
        "cuda-libraries",
        Level.BLOCK,
        "/usr/local/cuda-12.1/lib64/libnvJitLink.so.12",
    ),
    (
        "no libcuda that could be asked",
        {"binaries": {"libcuda": None}},
        "driver-symbols",
        Level.WARN,
        "unknown",
    ),
    (
        "a damaged library",
        {
            "binaries": libs(
                {"package": "sgl_kernel", "file": "/v/x.so", "error": "/v/x.so: damaged ELF file"}
            )
        },
        "binaries",
        Level.WARN,
        "damaged",
    ),
    ("not all was read", {"binaries": {"left": 7}}, "binaries", Level.WARN, "7 libraries"),
    (
        "a torch that the kernel does not ask for",
        {
            "service": IDLE,
            "abi": {
                "torch": {"version": "2.8.0+cu128", "cuda": "12.8"},
                "dists": [
                    {"name": "torch", "version": "2.8.0+cu128", "local": "cu128", "path": "x"},
                    *DISTS[1:],
                ],
            },
        },
        "pins",
        Level.BLOCK,
        "torch==2.9.1",
    ),
    (
        "another correction of the same torch",
        {
            "service": IDLE,
            "abi": {
                "dists": [
                    {"name": "torch", "version": "2.9.0+cu128", "local": "cu128", "path": "x"},
                    *DISTS[1:],
                ]
            },
        },
        "pins",
        Level.WARN,
        "torch==2.9.1",
    ),
    (
        "half of the stack in a user's own site",
        {"service": IDLE, "python": {"user_dists": ["torch", "triton"]}},
        "user-site",
        Level.BLOCK,
        "PYTHONNOUSERSITE",
    ),
    (
        "a tool of the stack in a user's own site",
        {"python": {"user_dists": ["nvidia-ml-py"]}},
        "user-site",
        Level.WARN,
        "/root/.local",
    ),
    (
        "an engine from its sources",
        {"python": {"editable": [{"name": "sglang", "source": "/src/sglang"}]}},
        "editable",
        Level.WARN,
        "/src/sglang",
    ),
    (
        "an upgrade that nobody started",
        {"python": {"newer": ["torch"]}},
        "installed-since",
        Level.WARN,
        "torch",
    ),
    ("no compiler", {"toolchain": without("cc")}, "compiler", Level.BLOCK, "neither gcc nor clang"),
    (
        "CC that is no program",
        {"toolchain": {**without("cc"), "variables": {"CC": "gcc-99"}}},
        "compiler",
        Level.BLOCK,
        "CC=gcc-99",
    ),
    (
        "no header of Python",
        {"toolchain": {"python_h": {"found": False}}},
        "compiler",
        Level.BLOCK,
        "python3.11-dev",
    ),
    (
        "a grammar library that the engine does not ask for",
        {"python": {"versions": {"xgrammar": "0.1.19"}}},
        "pins",
        Level.WARN,
        "xgrammar==0.1.27",
    ),
    (
        "gcc without g++",
        {"service": IDLE, "toolchain": without("cxx"), "caches": COLD},
        "cxx",
        Level.BLOCK,
        "cc1plus",
    ),
    (
        "gcc newer than nvcc takes",
        {"service": IDLE, "toolchain": {"tools": {"cxx": {"version": "15.1.0"}}}, "caches": COLD},
        "cxx",
        Level.BLOCK,
        "none after 14",
    ),
    (
        "gcc 12 with nvcc 13",
        {
            "service": IDLE,
            "toolchain": {"tools": {"cxx": {"version": "12.2.0"}, "nvcc": {"version": "13.0"}}},
            "caches": COLD,
        },
        "cxx",
        Level.BLOCK,
        "jit_kernel",
    ),
    (
        "FlashAttention without the GPU",
        {
            "binaries": libs(
                binary(
                    "flash_attn_2_cuda", "/v/flash_attn_2_cuda.so", [{"cubin": ["80"], "ptx": [], "count": 9}]
                )
            )
        },
        "gpu-kernels",
        Level.WARN,
        "flash_attn_2_cuda",
    ),
    (
        "no nvcc, idle, nothing compiled",
        {"service": IDLE, "toolchain": without("nvcc"), "caches": COLD},
        "nvcc",
        Level.BLOCK,
        "nvcc is not found",
    ),
    ("no nvcc, and it serves", {"toolchain": without("nvcc")}, "nvcc", Level.WARN, "needed only where"),
    (
        "no ninja for the engine's own kernels",
        {"service": IDLE, "toolchain": {**without("ninja"), "jit": {"flashinfer": False}}, "caches": COLD},
        "ninja",
        Level.BLOCK,
        "jit_kernel",
    ),
    (
        "a toolkit of another major",
        {"service": IDLE, "toolchain": {"tools": {"nvcc": {"version": "11.8"}}}, "caches": COLD},
        "nvcc",
        Level.BLOCK,
        "CUDA 11.8",
    ),
    (
        "a GPU that nvcc does not know",
        {"service": IDLE, "toolchain": {"nvcc_archs": ["80", "86"]}, "caches": COLD},
        "nvcc",
        Level.BLOCK,
        "sm_90",
    ),
    (
        "ROCm beside CUDA",
        {"service": IDLE, "toolchain": {"hipcc": "/opt/rocm"}},
        "jit-backend",
        Level.BLOCK,
        "/opt/rocm",
    ),
    (
        "CUDA_HOME that is gone",
        {"toolchain": {"cuda_home": {"source": "CUDA_HOME", "value": "/gone", "directory": False}}},
        "cuda-home",
        Level.WARN,
        "/gone",
    ),
    (
        "TRITON_PTXAS_PATH that is gone",
        {
            "toolchain": {
                "ptxas": [
                    {"path": "/gone", "given": True, "version": None, "error": "No such file", "accepts": {}}
                ]
            }
        },
        "ptxas",
        Level.BLOCK,
        "/gone",
    ),
    (
        "a ptxas that does not answer",
        {
            "toolchain": {
                "ptxas": [
                    {"path": "/p", "given": False, "version": None, "error": None, "accepts": {"90": None}}
                ]
            }
        },
        "ptxas",
        Level.WARN,
        "unknown",
    ),
    (
        "no GPU is seen",
        {"toolchain": {"devices": None, "devices_error": "cuInit says 100"}},
        "gpu-torch",
        Level.BLOCK,
        "cuInit says 100",
    ),
    (
        "no GPU is seen, and the arguments do not say",
        {**NO_NVIDIA, "launch": {"device": None}, "toolchain": {"devices": []}},
        "gpu-kernels",
        Level.WARN,
        "unknown",
    ),
    (
        "a new major of GPU, from PTX",
        {"toolchain": {"devices": [{"name": "X", "cc": "13.0"}]}, "binaries": {"libs": [PTX_TORCH]}},
        "gpu-torch",
        Level.WARN,
        "PTX",
    ),
    (
        "an old card that few kernels lack",
        {
            "toolchain": {"devices": [{"name": "T4", "cc": "7.5"}]},
            "binaries": {
                "libs": [
                    binary(
                        "sgl_kernel",
                        "/v/sgl_kernel/sm100/common_ops.so",
                        [
                            {"cubin": ["75", "80"], "ptx": [], "count": 60},
                            {"cubin": ["80"], "ptx": [], "count": 9},
                        ],
                    )
                ]
            },
        },
        "gpu-kernels",
        Level.WARN,
        "not in each kernel",
    ),
    (
        "a file where a cache should be",
        {"caches": {"places": {"triton": {"exists": False, "file": True}}}},
        "cache-write",
        Level.BLOCK,
        "is a file",
    ),
    (
        "a link to nothing",
        {"caches": {"places": {"triton": {"exists": False, "dangling": True}}}},
        "cache-write",
        Level.BLOCK,
        "a link to nothing",
    ),
    (
        "a read-only place",
        {"caches": {"places": {"triton": {"write": False, "exec": None, "why": "Read-only file system"}}}},
        "cache-write",
        Level.BLOCK,
        "ReadWritePaths",
    ),
    (
        "a cache that the running server does not write",
        {"caches": {"places": {"flashinfer": {"write": False, "exec": None, "why": "Permission denied"}}}},
        "cache-write",
        Level.WARN,
        "flashinfer",
    ),
    (
        "/tmp without execution alone",
        {"caches": {"places": {"tmp": {"exec": False}}}},
        "cache-exec",
        Level.WARN,
        "noexec",
    ),
    (
        "a cache that is a link",
        {"caches": {"places": {"triton": {"real": "/mnt/x"}}}},
        "cache-place",
        Level.WARN,
        "/mnt/x",
    ),
    (
        "a full disk",
        {"caches": {"places": {"triton": {"bytes": 5 << 20}}}},
        "cache-room",
        Level.BLOCK,
        "5 MiB",
    ),
    ("no inodes", {"caches": {"places": {"tmp": {"inodes": 3}}}}, "cache-room", Level.BLOCK, "3 inodes"),
    (
        "little room",
        {"caches": {"places": {"triton": {"bytes": 500 << 20}}}},
        "cache-room",
        Level.WARN,
        "500 MiB",
    ),
    (
        "files that cannot be read",
        {
            "sources": {
                "unreadable": [{"path": "/v/sglang/a.py", "mode": 0o600, "owner": 0}],
                "unreadable_count": 12,
            }
        },
        "modes",
        Level.BLOCK,
        "/v/sglang/a.py (mode 0600, owner uid 0), and 11 more",
    ),
    (
        "releases out of reach",
        {
            "sources": {
                "uid": 990,
                "roots": [{"path": "/opt/ddtree/releases", "ok": False, "at": "/opt", "mode": 0o700}],
            }
        },
        "release-reach",
        Level.BLOCK,
        "/opt (mode 0700)",
    ),
]


@pytest.mark.parametrize(
    ("facts", "rule", "level", "words"), [fault[1:] for fault in FAULTS], ids=[fault[0] for fault in FAULTS]
)
def test_a_fault_is_found_and_named(facts: Facts, rule: str, level: Level, words: str) -> None:
    found = said(facts, rule)
    assert found.level is level, found
    assert words in f"{found.evidence} {found.remedy}", found
    assert found.remedy or level is Level.WARN


AB, PAB, DAB = "--attention-backend", "--prefill-attention-backend", "--decode-attention-backend"
#: (backends, compute capability, whether 0.5.11 and its kernels run them there).
BACKENDS: list[tuple[dict[str, str], str, bool]] = [
    ({AB: "fa4"}, "7.5", False),
    ({AB: "fa4"}, "12.0", True),
    ({AB: "flashmla"}, "8.0", False),
    ({AB: "flashmla"}, "12.0", False),
    ({DAB: "flashmla"}, "9.0", True),
    ({AB: "cutlass_mla"}, "9.0", False),
    ({AB: "cutlass_mla"}, "10.0", True),
    ({AB: "trtllm_mla"}, "9.0", False),
    ({AB: "trtllm_mla"}, "12.0", True),
    ({AB: "trtllm_mha"}, "9.0", False),
    ({AB: "trtllm_mha"}, "10.3", True),
    ({PAB: "trtllm_mha"}, "12.0", False),
    ({DAB: "trtllm_mha"}, "12.0", True),
    ({DAB: "trtllm_mha"}, "8.9", False),
    ({AB: "trtllm_mha", PAB: "fa3"}, "9.0", True),
    ({AB: "trtllm_mha", DAB: "fa3"}, "9.0", False),
    ({AB: "trtllm_mha", PAB: "triton", DAB: "triton"}, "8.0", True),
    ({AB: "dual_chunk_flash_attn"}, "10.0", False),
    ({AB: "dual_chunk_flash_attn"}, "8.6", True),
    ({"--speculative-draft-attention-backend": "fa3"}, "10.0", False),
    ({"--sampling-backend": "fa3"}, "10.0", True),
    ({AB: "aiter"}, "9.0", False),
    ({AB: "intel_xpu"}, "9.0", False),
    *[
        ({AB: name}, "12.0", True)
        for name in ("triton", "flashinfer", "torch_native", "flex_attention", "nsa")
    ],
]


@pytest.mark.parametrize(
    "given, cc, runs", BACKENDS, ids=[f"{'+'.join(c[0].values())}-{c[1]}" for c in BACKENDS]
)
def test_attention_backends_by_the_gpus_that_they_have_kernels_for(
    given: dict[str, str], cc: str, runs: bool
) -> None:
    found = said({"toolchain": {"devices": [{"name": "X", "cc": cc}], "backends": given}}, "gpu-backend")
    assert found.level is (Level.OK if runs else Level.BLOCK), found
    assert runs or "triton" in str(found.remedy)


NEAR: list[tuple[str, Facts, str]] = [
    (
        "a vendored runtime under a name of its own",
        {
            "binaries": libs(
                binary("torchvision", "/v/torchvision/image.so", needed=["libcudart.faf08d9a.so.12"])
            )
        },
        "library-path",
    ),
    (
        "torch's companions, loaded by path",
        {
            "binaries": libs(
                binary(
                    "torch",
                    "/v/torch/lib/libtorch_cuda.so",
                    lost=[
                        {
                            "name": "libcudnn.so.9",
                            "elsewhere": f"{SITE}/nvidia/cudnn/lib/libcudnn.so.9",
                            "preloaded": True,
                        }
                    ],
                )
            )
        },
        "library-path",
    ),
    (
        "the whole stack in a user's own site",
        {"python": {"user_dists": ["sglang", "torch"], "site_dists": []}},
        "user-site",
    ),
    (
        "a local build of the pinned torch",
        {"abi": {"dists": [{"name": "torch", "version": "2.9.1+local", "local": "local", "path": "x"}]}},
        "pins",
    ),
    (
        "CUDA 12 wheels and plain tools of NVIDIA",
        {
            "abi": {
                "dists": dists(
                    ("nvidia-cudnn-cu12", "9.10"), ("nvidia-nccl-cu12", "2.27"), ("nvidia-ml-py", "13.610")
                )
            }
        },
        "cuda-companions",
    ),
    (
        "FlashInfer compiled ahead, no nvcc, cold",
        {
            "service": IDLE,
            "toolchain": {
                "tools": {"ninja": {"path": "/n", "version": "1", "error": None}},
                "jit": {"flashinfer_aot": True, "jit_kernel": False},
            },
            "caches": COLD,
        },
        "ninja",
    ),
    (
        "Triton that finds libcuda by a variable",
        {
            "toolchain": {
                "variables": {"TRITON_LIBCUDA_PATH": "/x"},
                "ldconfig": {"which": None, "sbin": False},
            }
        },
        "ldconfig",
    ),
    (
        "ninja 1.11 elsewhere",
        {"toolchain": {"tools": {"ninja": {"path": "/usr/bin/ninja", "version": "1.11.1"}}}},
        "ninja",
    ),
    (
        "nvcc that is a wrapper, its headers elsewhere",
        {"toolchain": {"cuda_home": {"value": "/usr/local", "cuda_fp8": False, "cudart_header": False}}},
        "cuda-home",
    ),
    (
        "a cache on another disk",
        {
            "caches": {
                "places": {"triton": place("/data/triton", "TRITON_CACHE_DIR", real="/mnt/nvme/triton")}
            }
        },
        "cache-place",
    ),
    (
        "a home that is a link",
        {
            "caches": {
                "places": {
                    "home": {"real": "/data/root"},
                    **{
                        name: {"real": f"/data{SECTIONS['caches']['places'][name]['path']}"}
                        for name in ("triton", "flashinfer", "tvm-ffi")
                    },
                }
            }
        },
        "cache-place",
    ),
    ("no home, as root without User=", {"caches": {"home": None}}, "home"),
    ("two GPUs of one kind and a Hopper's kernels", {}, "gpu-kernels"),
]


@pytest.mark.parametrize(("facts", "rule"), [near[1:] for near in NEAR], ids=[near[0] for near in NEAR])
def test_what_is_near_a_fault_is_fine(facts: Facts, rule: str) -> None:
    found = said(facts, rule)
    assert found.level is Level.OK, found


@pytest.mark.parametrize("on", [HEALTHY_H200, HEALTHY_CPU], ids=["h200", "cpu"])
@pytest.mark.parametrize("answer", [{"error": "no answer in 5 s"}, {}, None, {"libs": 3}], ids=repr)
def test_what_is_unknown_is_never_ok(on: Facts, answer: Any) -> None:
    for area in AREAS:
        for rule in area.RULES:
            seen = [one for one in examine({**on, rule.section.name: answer}, WANTED) if one.rule == rule.id]
            assert [one.level for one in seen] == [Level.WARN], (rule.id, seen)


def test_on_cpus_no_gpu_is_asked_for() -> None:
    facts: Facts = {
        "service": IDLE,
        "toolchain": {"tools": {"cc": NONE, "nvcc": NONE, "ninja": NONE}},
        "caches": COLD,
    }
    facts["binaries"] = {
        "libs": [binary("sgl_kernel", "/v/x.so", missing=MISSING, lost=LOST, driver=["cuX"])]
    }
    assert [one for one in all_of(facts, HEALTHY_CPU) if one.level is Level.BLOCK] == []


def test_a_changed_header_asks_for_its_kernels_again() -> None:
    wanted = Wanted(**{**WANTED.__dict__, "patched": {"jit_kernel/csrc/x.cuh": "b" * 64}})
    found = [one for one in all_of({}, wanted=wanted) if one.rule == "jit-headers"]
    assert found[0].level is Level.WARN and "tvm-ffi" in str(found[0].remedy)
    cold = [one for one in all_of({"caches": COLD}, wanted=wanted) if one.rule == "jit-headers"]
    assert cold[0].level is Level.OK


@pytest.mark.parametrize(
    ("number", "cubin", "ptx", "how"),
    [
        (90, ("90",), (), "cubin"),
        (90, ("80",), (), None),  # machine code stays within its major
        (89, ("86",), (), "cubin"),  # and runs on a later minor
        (86, ("89",), (), None),
        (90, ("90a",), (), "cubin"),
        (103, ("100a",), (), None),  # an `a` is for that GPU alone
        (103, ("100f",), (), "cubin"),
        (90, ("80",), ("80",), "ptx"),
        (90, (), ("90a",), "ptx"),
        (100, (), ("90a",), None),
        (75, (), ("80",), None),
        (121, ("120",), (), "cubin"),
    ],
)
def test_code_runs_by_cudas_rules(
    number: int, cubin: Sequence[str], ptx: Sequence[str], how: str | None
) -> None:
    assert runs(number, Group(tuple(cubin), tuple(ptx), 1)) == how


@pytest.mark.parametrize(
    ("version", "spec", "fits"),
    [
        ("2.11.0+cu130", "==2.11.0", True),
        ("2.11.1", "==2.11.0", False),
        ("2.11", "==2.11.0", True),
        ("0.6.8.post1", "==0.6.8", False),
        ("0.6.8.post1", "==0.6.8.post1", True),
        ("2.9.1", "==2.9.*", True),
        ("2.10.0", ">=2.7.1", True),
        ("2.10.0", ">=2.7.1,<2.10", False),
        ("2.10.0", "!=2.10.0", False),
        ("2.9.5", "~=2.9.1", True),
        ("2.10.0", "~=2.9.1", False),
        ("1.5", "an unknown word", True),
    ],
)
def test_versions_against_what_is_asked(version: str, spec: str, fits: bool) -> None:
    assert satisfies(version, spec) is fits


def test_every_rule_says_why_it_is_there() -> None:
    rules = [rule for area in AREAS for rule in area.RULES]
    assert len({rule.id for rule in rules}) == len(rules)
    assert all(len(rule.why) > 20 for rule in rules)
    assert KERNEL_GROUPS and TORCH_GROUPS
