"""What the unit's own place has of compilers and GPUs, typed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ddtree_ops.core.checks.rule import Section


@dataclass(frozen=True)
class Tool:
    """path: None where the unit's PATH has none. error: what it said instead of its version."""

    path: str | None
    version: str | None = None
    error: str | None = None


@dataclass(frozen=True)
class CudaHome:
    """Where JIT builders look for the toolkit. source: the variable that says so, or how it was found. unlinked:
    libraries that a build would not find to link."""

    value: str
    source: str
    directory: bool
    nvcc: str | None
    cuda_fp8: bool
    cudart_header: bool
    unlinked: Sequence[str] = ()

    @property
    def chosen(self) -> bool:
        """Somebody set it, in the unit."""
        return self.source.startswith("CUDA_")


@dataclass(frozen=True)
class Ptxas:
    """accepts: by architecture, None where it could not be asked. given: TRITON_PTXAS_PATH names it."""

    path: str
    given: bool
    version: str | None
    error: str | None
    accepts: Mapping[str, bool | None]


@dataclass(frozen=True)
class Jit:
    """What compiles at start: the engine's jit_kernel, FlashInfer, and whether FlashInfer brought compiled code."""

    jit_kernel: bool
    flashinfer: bool
    flashinfer_aot: bool
    triton: bool


@dataclass(frozen=True)
class Device:
    name: str
    cc: str

    @property
    def number(self) -> int:
        """9.0 as 90."""
        major, _, minor = self.cc.partition(".")
        return int(major) * 10 + int(minor)


@dataclass(frozen=True)
class Toolchain:
    """ldconfig: its place on PATH. triton_asks: the word by which Triton calls it, None where it does not. devices:
    GPUs that the unit's processes see, None where the driver does not answer. hipcc: why tvm-ffi would compile for
    AMD, in words."""

    path: str | None
    variables: Mapping[str, str]
    ninja: Tool
    ninja_module: bool
    cc: Tool
    cxx: Tool
    nvcc: Tool
    cuda_home: CudaHome
    nvcc_archs: tuple[str, ...] | None
    python_h: bool
    include: str
    python: str
    ldconfig: str | None
    sbin_ldconfig: bool
    triton_asks: str | None
    ptxas: tuple[Ptxas, ...]
    devices: tuple[Device, ...] | None
    devices_error: str | None
    jit: Jit
    hipcc: str | None
    backends: Mapping[str, str]


def read(raw: Mapping[str, Any]) -> Toolchain:
    """The probe's section `toolchain`."""
    tools = {name: Tool(**one) for name, one in raw["tools"].items()}
    archs, devices = raw["nvcc_archs"], raw["devices"]
    return Toolchain(
        path=raw["path"],
        variables=dict(raw["variables"]),
        ninja=tools["ninja"],
        ninja_module=raw["ninja_module"],
        cc=tools["cc"],
        cxx=tools["cxx"],
        nvcc=tools["nvcc"],
        cuda_home=CudaHome(**raw["cuda_home"]),
        nvcc_archs=None if archs is None else tuple(archs),
        python_h=raw["python_h"]["found"],
        include=raw["python_h"]["include"],
        python=raw["python_h"]["version"],
        ldconfig=raw["ldconfig"]["which"],
        sbin_ldconfig=raw["ldconfig"]["sbin"],
        triton_asks=raw["ldconfig"]["triton"],
        ptxas=tuple(Ptxas(**one) for one in raw["ptxas"]),
        devices=None if devices is None else tuple(Device(one["name"], one["cc"]) for one in devices),
        devices_error=raw["devices_error"],
        jit=Jit(**raw["jit"]),
        hipcc=raw.get("hipcc"),
        backends=dict(raw["backends"]),
    )


SECTION = Section("toolchain", Toolchain, read)
