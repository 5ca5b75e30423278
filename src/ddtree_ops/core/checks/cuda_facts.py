"""CUDA as the service itself gets it: the libraries, the nodes it may open, what a context on each GPU said."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ddtree_ops.core.checks.rule import Section
from ddtree_ops.core.facts_live import Live

#: An answer that says "full" or "taken", not "broken": the running server holds the GPU.
TAKEN = (2, 46)


@dataclass(frozen=True)
class Library:
    """path: the file that the loader mapped. version: in its real file's name. error: why it did not load."""

    path: str | None
    version: str | None
    error: str | None


@dataclass(frozen=True)
class Device:
    """code: CUresult of the first step that failed, 0 where all worked. total: bytes."""

    index: int
    cc: str | None
    name: str | None
    step: str | None
    code: int
    total: int | None


@dataclass(frozen=True)
class Cuda:
    """init: cuInit's code, None where libcuda did not load. compat: a forward-compatibility directory on the library
    path. nodes: device nodes by the errno of opening them as the service's user, None where that works."""

    libcuda: Library
    libnvml: Library
    compat: str | None
    nodes: Mapping[str, str | None]
    init: int | None
    driver_cuda: str | None
    count: int | None
    devices: tuple[Device, ...]
    visible: str | None


def read(raw: Mapping[str, Any]) -> Cuda:
    """The section `cuda` of the probe (inner_cuda.collect)."""
    return Cuda(
        libcuda=_library(raw["libcuda"]),
        libnvml=_library(raw["libnvml"]),
        compat=raw["compat"],
        nodes=dict(raw["nodes"]),
        init=raw["init"],
        driver_cuda=raw["driver_cuda"],
        count=raw["count"],
        devices=tuple(
            Device(one["index"], one["cc"], one["name"], one["step"], int(one["code"]), one["total"])
            for one in raw["devices"]
        ),
        visible=raw["visible"],
    )


def _library(raw: Mapping[str, Any]) -> Library:
    return Library(raw["path"], raw["version"], raw["error"])


def works(cuda: Cuda) -> bool:
    """Whether CUDA started and every GPU that was tried answered (or is merely full, by the server that runs)."""
    if cuda.init != 0 or not cuda.count:
        return False
    return all(device.code in (0, *TAKEN) for device in cuda.devices)


CUDA = Section("cuda", Cuda, read, gpu=True)


def cuda_works(live: Live) -> bool:
    """The same, False where nobody knows."""
    cuda = live.of(CUDA)
    return isinstance(cuda, Cuda) and works(cuda)
