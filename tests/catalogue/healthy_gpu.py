"""The GPU sections of the probe on a healthy machine with two H200s at tp 2, the service running; and without GPUs."""

from __future__ import annotations

from typing import Any

DRIVER, UUIDS = (
    "580.159.04",
    ("GPU-11111111-0000-0000-0000-000000000000", "GPU-22222222-0000-0000-0000-000000000000"),
)
BUSES = ("0000:18:00.0", "0000:2a:00.0")
USED = 120000


def card(index: int, **change: Any) -> dict[str, Any]:
    """A row as nvidia-smi 580 answers for an H200 (shared/h200/fixtures), with the server's memory in use."""
    return {
        "index": str(index), "name": "NVIDIA H200", "uuid": UUIDS[index % 2], "driver_version": DRIVER,
        "compute_cap": "9.0", "memory.total": "143771", "memory.used": str(USED), "memory.free": "23155",
        "compute_mode": "Default", "persistence_mode": "Enabled", "ecc.mode.current": "Enabled",
        "ecc.errors.corrected.volatile.total": "0", "ecc.errors.uncorrected.volatile.total": "0",
        "ecc.errors.uncorrected.aggregate.total": "0", "retired_pages.pending": "N/A",
        "remapped_rows.uncorrectable": "0", "remapped_rows.pending": "No", "remapped_rows.failure": "No",
        "gpu_recovery_action": "None", "ecc.errors.uncorrected.aggregate.sram.thresholdExceeded": "No",
        "mig.mode.current": "Disabled", "mig.mode.pending": "Disabled", "fabric.state": "N/A", "fabric.status": "N/A",
        "fabric.health.summary": "N/A", "clocks_event_reasons.hw_slowdown": "Not Active",
        "clocks_event_reasons.hw_thermal_slowdown": "Not Active",
        "clocks_event_reasons.hw_power_brake_slowdown": "Not Active", **change,
    }  # fmt: skip


def node(major: int, minor: int, **change: Any) -> dict[str, Any]:
    return {
        "char": True, "major": major, "minor": minor, "mode": "0666", "owner": 0, "group": 0, "link": True, **change
    }  # fmt: skip


def process(pid: int, **change: Any) -> dict[str, Any]:
    return {
        "pid": pid, "ppid": 77, "state": "S", "name": "sglang::schedul", "engine": True,
        "cgroup": "/system.slice/sglang.service", "ours": True, "age_s": 90000, "nodes": ["/dev/nvidia-uvm"],
        "used": {}, **change,
    }  # fmt: skip


def device(index: int, **change: Any) -> dict[str, Any]:
    return {
        "index": index, "cc": "9.0", "name": "NVIDIA H200", "step": None, "code": 0, "total": 150754820096, **change
    }  # fmt: skip


NODES = {
    "/dev/nvidia0": node(195, 0), "/dev/nvidia1": node(195, 1), "/dev/nvidiactl": node(195, 255),
    "/dev/nvidia-uvm": node(511, 0), "/dev/nvidia-uvm-tools": node(511, 1),
}  # fmt: skip
SECTIONS: dict[str, Any] = {
    "gpus": {
        "tool": "/usr/bin/nvidia-smi", "cards": {BUSES[0]: card(0), BUSES[1]: card(1)}, "said": [], "status": 0,
        "first_ms": 24, "visible": None, "order": None, "base": 0, "need": 2, "custom_all_reduce": True,
        "pci": [{"bus": bus, "driver": "nvidia", "dead": False} for bus in BUSES], "nvswitches": 0,
        "fabric_manager": None, "wsl": False, "virt": "none",
    },
    "cuda": {
        "libcuda": {"path": f"/usr/lib/x86_64-linux-gnu/libcuda.so.{DRIVER}", "version": DRIVER, "error": None},
        "libnvml": {"path": f"/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.{DRIVER}", "version": DRIVER, "error": None},
        "compat": None, "nodes": dict.fromkeys(NODES), "init": 0,
        "driver_cuda": "13.0", "count": 2, "devices": [device(0), device(1)], "visible": None,
    },
    "driver": {
        "module": DRIVER, "module_sysfs": DRIVER, "module_on_disk": DRIVER, "virt": "none", "wsl": False,
        "files": [
            {"path": f"/usr/lib/x86_64-linux-gnu/lib{name}.so.{DRIVER}", "version": DRIVER}
            for name in ("cuda", "nvidia-ml")
        ],
        "modules": ["nvidia_uvm", "nvidia_modeset", "nvidia"],
    },
    "kernel_log": {"readable": True, "source": "journal", "why": None, "lines": 1400, "events": []},
    "devices": {
        "nodes": NODES, "majors": {"nvidia": 195, "nvidiactl": 195, "nvidia-uvm": 511}, "minors": [0, 1], "wsl": False,
        "private_devices": False, "device_policy": "auto", "device_allow": [], "engines": [], "runtime": False,
        "no_cgroups": None, "container_unit": False,
    },
    "gpu_processes": {
        "processes": [process(101 + i, used={UUIDS[i]: USED}) for i in range(2)], "apps_known": True,
        "unit_active": True,
    },
    "nccl": {
        "shm": {"size": 64 << 30, "free": 60 << 30, "writable": True, "entries": 8, "leftovers": 2},
        "infiniband": [], "interfaces": ["eth0", "lo"], "env": {},
        "pairs": {"0-1": {"access": True, "ok": True, "code": 0}}, "peer_error": None,
    },
    "topology": {
        "asked": True, "links": {"0-1": "NV18"}, "p2p": {"0-1": "OK"}, "iommu": "pt", "redirecting": [],
    },
}  # fmt: skip
_ASIDE = {"error": "not asked: --device cpu"}
SECTIONS_CPU: dict[str, Any] = {
    "gpus": _ASIDE,
    "cuda": _ASIDE,
    "driver": {
        "module": None, "module_sysfs": None, "module_on_disk": None, "virt": "none", "wsl": False, "files": [],
        "modules": [],
    },
    "devices": {**SECTIONS["devices"], "nodes": {}, "majors": {}, "minors": None},
    "gpu_processes": {"processes": [], "apps_known": False, "unit_active": True},
    "topology": {"asked": False},
}  # fmt: skip
#: Laid over a healthy document: nothing of NVIDIA's is to be seen.
NO_NVIDIA = {
    "gpu": {"present": False, "count": 0, "driver": None},
    "gpus": {"cards": dict.fromkeys(BUSES), "pci": []},
    "driver": {"module": None},
    "devices": {"nodes": dict.fromkeys(NODES)},
}
