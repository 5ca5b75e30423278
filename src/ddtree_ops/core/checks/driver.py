"""Preflight rules about the driver: the loaded kernel module against the library files that a start would load."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ddtree_ops.core.checks.cuda_facts import CUDA, Cuda, cuda_works
from ddtree_ops.core.checks.rule import Rule, Section
from ddtree_ops.core.facts_live import Live
from ddtree_ops.core.finding import Finding, block, ok, warn
from ddtree_ops.core.wanted import Wanted


@dataclass(frozen=True)
class File:
    path: str
    version: str


@dataclass(frozen=True)
class Driver:
    """module: the loaded kernel module's version, None where none is loaded; module_on_disk: what a reboot would load.
    files: libcuda and libnvidia-ml in the usual places. virt: the kind of container, "none" outside of one."""

    module: str | None
    module_sysfs: str | None
    module_on_disk: str | None
    files: tuple[File, ...]
    modules: tuple[str, ...]
    virt: str | None
    wsl: bool


def read(raw: Mapping[str, Any]) -> Driver:
    """The section `driver` of the probe (probe_driver.driver)."""
    return Driver(
        module=raw["module"],
        module_sysfs=raw["module_sysfs"],
        module_on_disk=raw["module_on_disk"],
        files=tuple(File(item["path"], item["version"]) for item in raw["files"]),
        modules=tuple(raw["modules"]),
        virt=raw["virt"],
        wsl=bool(raw["wsl"]),
    )


DRIVER = Section("driver", Driver, read, gpu=True)


def inside(driver: Driver) -> bool:
    """Whether this is a container, whose kernel module is its host's."""
    return driver.virt not in (None, "none")


def module(driver: Driver, live: Live, wanted: Wanted) -> list[Finding]:
    """The kernel module must be loaded (in WSL the driver is Windows')."""
    if driver.wsl and driver.module is None:
        return [ok("driver-module", "the driver is the Windows host's (WSL)")]
    version = driver.module or driver.module_sysfs
    if version is None:
        where = "on the container's host" if inside(driver) else f"on {wanted.host}"
        said = "NVIDIA's kernel module is not loaded: /proc/driver/nvidia/version is absent"
        return [block("driver-module", said, f"modprobe nvidia {where} (dkms status, if it is not there)")]
    if "nvidia_uvm" not in driver.modules and driver.modules and not cuda_works(live):
        said = f"module {version} is loaded, nvidia_uvm is not: CUDA cannot start"
        return [
            warn(
                "driver-module",
                said,
                f"nvidia-modprobe -c 0 -u {'on its host' if inside(driver) else 'there'}",
            )
        ]
    return [ok("driver-module", f"kernel module {version}")]


def libraries(driver: Driver, live: Live, wanted: Wanted) -> list[Finding]:
    """libcuda.so.1 and libnvidia-ml.so.1 are found by the service's own loader."""
    cuda = live.of(CUDA)
    if not isinstance(cuda, Cuda):
        return []  # cuda-smoke says that it is unknown
    remedy = (
        f"install the user space of driver {driver.module or 'VERSION'} on {wanted.host}"
        f"{' with --no-kernel-modules' if inside(driver) else ''}, then ldconfig"
    )
    found = []
    for name, library in (("libcuda.so.1", cuda.libcuda), ("libnvidia-ml.so.1", cuda.libnvml)):
        if library.error is None:
            continue
        stem = name.partition(".so")[0]
        there = [file.path for file in driver.files if f"/{stem}.so" in file.path]
        said = f"{name} is not found by the service's loader"
        if there:
            said += f", though {there[0]} is there"
            found.append(
                block("driver-libraries", said, f"LD_LIBRARY_PATH of {wanted.service}, or ldconfig, there")
            )
        else:
            found.append(block("driver-libraries", said, remedy))
    return found or [ok("driver-libraries", f"{cuda.libcuda.path}, {cuda.libnvml.path}")]


def versions(driver: Driver, live: Live, wanted: Wanted) -> list[Finding]:
    """Loaded module against library *files*: kernel-side numbers always agree with each other."""
    loaded = driver.module or driver.module_sysfs
    if loaded is None:
        return []  # WSL, or driver-module says it
    cuda = live.of(CUDA)
    picked = (
        [File(one.path or "?", one.version) for one in (cuda.libcuda, cuda.libnvml) if one.version]
        if isinstance(cuda, Cuda)
        else []
    )
    used = [file for file in picked if "compat" not in file.path] or list(driver.files)
    if not used:
        return [
            warn(
                "driver-versions",
                f"unknown: no driver library tells its version; the module is {loaded}",
                f"ldconfig -p | grep libcuda, on {wanted.host}",
            )
        ]
    others = sorted({file.version for file in used if file.version != loaded})
    if others:
        which = next(file for file in used if file.version != loaded)
        if inside(driver):
            remedy = (
                f"install driver {loaded} (the host's) in {wanted.host} with --no-kernel-modules: equal to the last "
                "digit"
            )
        else:
            remedy = (
                f"reboot {wanted.host}, or load the new module; do not stop the running server before: it could not "
                "start again"
            )
        said = f"{which.path} is version {others[0]}, the loaded kernel module {loaded}"
        return [
            block("driver-versions", f"{said}: what runs keeps its old libraries, what starts fails", remedy)
        ]
    stale = sorted({file.version for file in driver.files if file.version != loaded})
    if stale:
        said = f"libraries of driver {stale[0]} lie beside those of the loaded module {loaded}"
        return [
            warn(
                "driver-versions",
                said,
                f"remove the other driver's user space on {wanted.host}, then ldconfig",
            )
        ]
    if driver.module_on_disk and driver.module_on_disk != loaded and not inside(driver):
        said = f"the module on disk is {driver.module_on_disk}, the loaded one {loaded}: a reboot changes it"
        return [warn("driver-versions", said, f"apt list --upgradable, dkms status, on {wanted.host}")]
    return [ok("driver-versions", f"module and libraries are {loaded}")]


RULES: tuple[Rule[Driver], ...] = (
    Rule(
        "driver-module", DRIVER, module,
        "Without the kernel module nothing of the GPU is there; in a container only its host can load it.",
        ("F085",),
    ),
    Rule(
        "driver-libraries", DRIVER, libraries,
        "A container often has the device nodes and no user-space driver.",
        ("F084",),
    ),
    Rule(
        "driver-versions", DRIVER, versions,
        "After an upgrade of the libraries (or of a container's host) the running server goes on and no new one "
        "starts: stopping it is an outage until the reboot.",
        ("F023", "F025", "F026", "F027"),
    ),
)  # fmt: skip
