"""The probe's document of a healthy H200 host and of a healthy host without GPUs: what the catalogue starts from.

Each area adds its own sections in `healthy_<area>.py` beside this file: `SECTIONS = {"name": {...}}`, and where a
host without GPUs answers otherwise, `SECTIONS_CPU` with those sections (whole, not an overlay).
"""

from __future__ import annotations

import copy
import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ddtree_ops.core.wanted import Wanted

HERE = Path(__file__).resolve().parent
Probe = dict[str, Any]
A, B, C = "a" * 64, "b" * 64, "c" * 64
ROOM = {"path": "/opt", "bytes": 1 << 40, "inodes": 1 << 20, "read_only": False, "noexec": False}
#: What the core's own sections say there.
CORE: Probe = {
    "session": {
        "uid": 0, "python": "3.11.2", "systemd": 252, "systemd_is_init": True, "pid1": "systemd", "hostname": "ct129",
        "machine_id": "m", "boot_id": "b", "time": 1.0, "ms": 3,
    },
    "service": {
        "load_state": "loaded", "active_state": "active", "sub_state": "running", "result": "success",
        "unit_file_state": "enabled", "main_pid": 77, "masked": False, "need_daemon_reload": False,
        "unread": [],
        "fragment": {"path": "/etc/systemd/system/sglang.service", "sha256": A},
        "dropins": [{"path": "/etc/systemd/system/sglang.service.d/10-limits.conf", "sha256": B}], "ours": [],
        "late_dropins": [], "environment_files": [{"path": "/etc/sglang.env", "sha256": C, "optional": True}],
    },
    "launch": {
        "interpreter": "/v/bin/python3", "exists": True, "flags": [], "path0": "cwd", "device": "cuda", "tp": 2,
    },
    "engine": {
        "name": "sglang", "interpreter": "/v/bin/python3", "python": "3.11.7", "package": "/v/sglang",
        "version": "0.5.11", "ignores_pythonpath": False, "tree": A, "bytes": 1 << 26, "count": 1882, "elsewhere": [],
        "record": {"present": True, "files": 3, "edited": [], "missing": [], "extra": [], "other": []},
        "files": {"srt/server_args.py": A},
    },
    "abi": {
        "torch": {"version": "2.9.1+cu128", "cuda": "12.8", "path": "x"},
        "dists": [
            {"name": "torch", "version": "2.9.1+cu128", "local": "cu128", "path": "x"},
            {"name": "sglang-kernel", "version": "0.4.2", "local": None, "path": "x"},
            {"name": "flashinfer-python", "version": "0.6.8", "local": None, "path": "x"},
        ],
        "kernels": [{"file": "/v/sgl_kernel/sm90/common_ops.abi3.so", "needed": ["libcudart.so.12", "libc.so.6"]}],
        "duplicates": {},
    },
    "model": {
        "target": {
            "path": "/m/t", "local": True, "exists": True, "architectures": ["Qwen3ForCausalLM"], "hybrid": False,
            "missing_shards": [], "block_size": None,
        },
        "draft": None, "target_hybrid": False, "context_length": None, "block_size": None,
    },
    "storage": {"opt": ROOM, "var": ROOM, "run": ROOM, "one_filesystem": True},
    "port": {"port": 30000, "owners": [{"pid": 77, "command": "python3", "cgroup": "/x", "ours": True}], "unknown": 0},
    "user": {"name": "root", "exists": True, "uid": 0, "home": "/root"},
    "state": {"confirmed": None, "open": None, "releases": [], "lock": None},
    "capabilities": {"systemd": 252, "load_credential": True, "nft": False, "log": "journal"},
    "gpu": {"present": True, "count": 2, "driver": "580.159.04"},
}  # fmt: skip
CORE_CPU: Probe = {
    "launch": {**CORE["launch"], "device": "cpu", "tp": 1},
    "abi": {
        "torch": {"version": "2.9.1+cpu", "cuda": None, "path": "x"},
        "dists": [{"name": "torch", "version": "2.9.1+cpu", "local": "cpu", "path": "x"}],
        "kernels": [],
        "duplicates": {},
    },
    "gpu": {"present": False, "count": 0, "driver": None},
}
#: What is recorded for that host (facts/<host>.yaml): it is as it was.
RECORDED: dict[str, Any] = {
    "recorded": "2026-11-29T15:40:00Z",
    "unit": {
        "fragment": {"path": "/etc/systemd/system/sglang.service", "sha256": A},
        "dropins": [{"path": "/etc/systemd/system/sglang.service.d/10-limits.conf", "sha256": B}],
        "environment_files": [{"path": "/etc/sglang.env", "sha256": C, "optional": True}],
        "enabled": "enabled",
    },
    "engine": {"version": "0.5.11", "interpreter": "/v/bin/python3", "package": "/v/sglang", "tree": A},
    "capabilities": {"systemd": 252, "load_credential": True, "nft": False, "log": "journal"},
}
WANTED = Wanted(
    host="ct129",
    service="sglang.service",
    version="0.5.11",
    series="sglang-0.5.11",
    base={"srt/server_args.py": A},
    recorded=RECORDED,
)


def _areas(name: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for path in sorted(HERE.glob("healthy_*.py")):
        for section, raw in getattr(importlib.import_module(path.stem), name, {}).items():
            if section in found or section in CORE:
                raise ValueError(f"{path.name}: section {section} is given twice")
            found[section] = raw
    return found


def overlaid(document: Mapping[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    """document with change laid over it: mappings are merged, everything else (lists, null) replaced. A copy."""
    found = dict(copy.deepcopy(document))
    for key, value in change.items():
        below = found.get(key)
        both = isinstance(value, Mapping) and isinstance(below, Mapping)
        found[key] = overlaid(below, value) if both else copy.deepcopy(value)
    return found


HEALTHY_H200: Probe = {**CORE, **_areas("SECTIONS")}
HEALTHY_CPU: Probe = {**HEALTHY_H200, **CORE_CPU, **_areas("SECTIONS_CPU")}
