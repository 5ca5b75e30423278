"""The loaded kernel module against the driver's files on disk: what a start would find, not what runs."""

import glob
import os
import re
import shutil
from typing import TYPE_CHECKING, Any, Dict, List, Optional

from . import systemd
from .probe_gpu import virt

if TYPE_CHECKING:
    from .probe_areas import Context

_DIRS = (
    "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib", "/lib", "/usr/local/lib",
    "/usr/local/nvidia/lib64", "/usr/local/nvidia/lib", "/usr/lib64/nvidia", "/usr/lib/wsl/lib",
    "/run/opengl-driver/lib",
)  # fmt: skip
_LIBRARY = re.compile(r"lib(?:cuda|nvidia-ml)\.so\.(\d{3,}(?:\.\d+)+)$")


def driver(context: "Context") -> Dict[str, Any]:
    """{module, module_sysfs, module_on_disk, files: [{path, version}], modules: [name], virt, wsl}.

    module: the loaded kernel module's version (a container sees its host's), null where none is loaded.
    """
    return {
        "module": module_version(_read("/proc/driver/nvidia/version")),
        "module_sysfs": _read("/sys/module/nvidia/version").strip() or None,
        "module_on_disk": _modinfo(),
        "files": files(),
        "modules": loaded(_read("/proc/modules")),
        "virt": virt(),
        "wsl": os.path.exists("/dev/dxg"),
    }


def module_version(text: str) -> Optional[str]:
    """The version in /proc/driver/nvidia/version, of the open and of the proprietary module."""
    found = re.search(r"NVRM version:.*?\s(\d+\.\d+(?:\.\d+)*)\s", text)
    return found.group(1) if found else None


def loaded(text: str) -> List[str]:
    """NVIDIA's modules in /proc/modules."""
    return [line.split()[0] for line in text.splitlines() if line.startswith("nvidia")]


def files(places: "tuple[str, ...]" = _DIRS) -> List[Dict[str, str]]:
    """Every libcuda and libnvidia-ml in the usual places, by the version in the name of its real file."""
    found: Dict[str, Dict[str, str]] = {}
    for place in places:
        for name in ("libcuda.so.*", "libnvidia-ml.so.*"):
            for path in glob.glob(os.path.join(place, name)):
                real = os.path.realpath(path)
                version = _LIBRARY.search(os.path.basename(real))
                if version and os.path.exists(real):
                    found[real] = {"path": real, "version": version.group(1)}
    return [found[path] for path in sorted(found)]


def _modinfo() -> Optional[str]:
    if not shutil.which("modinfo"):
        return None
    status, out, _ = systemd.run(["modinfo", "-F", "version", "nvidia"], 5)
    return out.strip().splitlines()[0] if status == 0 and out.strip() else None


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(1 << 20)
    except OSError:
        return ""
