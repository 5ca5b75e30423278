"""The GPUs' device nodes: there, of the right kind and major, allowed by the unit, and linked under /dev/char."""

import glob
import os
import re
import shutil
import stat
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Tuple

from . import systemd

if TYPE_CHECKING:
    from .probe_areas import Context

_RUNTIME_CONFIG = "/etc/nvidia-container-runtime/config.toml"
_ENGINES = ("/var/run/docker.sock", "/run/podman/podman.sock", "/run/containerd/containerd.sock")


def devices(context: "Context") -> Dict[str, Any]:
    """{nodes: {path: {char, major, minor, mode, owner, group, link}}, majors: {name: int}, minors: [int], wsl,
    private_devices, device_policy, device_allow: [text], engines: [name], runtime, no_cgroups, container_unit}.

    minors: of the GPUs that the driver has, as /proc/driver/nvidia tells; null where it does not. link: whether
    /dev/char has the node's link. container_unit: the unit itself starts a container.
    """
    show = dict(context.show)
    asked = (
        systemd.show(show.get("Id") or "", ["PrivateDevices", "DevicePolicy", "DeviceAllow"])
        if show.get("Id")
        else {}
    )
    no_cgroups = _no_cgroups()
    return {
        "nodes": {path: node(path) for path in paths()},
        "majors": majors(_read("/proc/devices")),
        "minors": minors(),
        "wsl": os.path.exists("/dev/dxg"),
        "private_devices": asked.get("PrivateDevices") == "yes" if asked else None,
        "device_policy": asked.get("DevicePolicy") if asked else None,
        "device_allow": [line for line in asked.get("DeviceAllow", "").splitlines() if line],
        "engines": [os.path.basename(path).partition(".")[0] for path in _ENGINES if os.path.exists(path)],
        "runtime": shutil.which("nvidia-container-runtime") is not None,
        "no_cgroups": no_cgroups,
        "container_unit": bool(re.search(r"path=\S*/(docker|podman|nerdctl) ", show.get("ExecStart", ""))),
    }  # fmt: skip


def paths() -> List[str]:
    """What bears NVIDIA's name under /dev, directories left out."""
    return [path for path in sorted(glob.glob("/dev/nvidia*")) if not os.path.isdir(path)]


def node(path: str) -> Dict[str, Any]:
    """A node by stat(2)."""
    found = os.stat(path)
    char = stat.S_ISCHR(found.st_mode)
    major, minor = (os.major(found.st_rdev), os.minor(found.st_rdev)) if char else (None, None)
    return {
        "char": char,
        "major": major,
        "minor": minor,
        "mode": f"{stat.S_IMODE(found.st_mode):04o}",
        "owner": found.st_uid,
        "group": found.st_gid,
        "link": os.path.exists(f"/dev/char/{major}:{minor}") if char else None,
    }


def majors(text: str) -> Dict[str, int]:
    """NVIDIA's drivers among the character devices of /proc/devices: {"nvidia": 195, "nvidia-uvm": 511}."""
    found = {}
    for line in text.partition("Block devices:")[0].splitlines():
        words = line.split()
        if len(words) == 2 and words[0].isdigit() and words[1].startswith("nvidia"):
            found[words[1]] = int(words[0])
    return found


def minors(base: str = "/proc/driver/nvidia/gpus") -> Optional[List[int]]:
    """The minor numbers of the driver's GPUs (a container may have fewer nodes than its host has GPUs)."""
    if not os.path.isdir(base):
        return None
    found: List[Tuple[str, int]] = []
    for path in glob.glob(os.path.join(base, "*", "information")):
        number = re.search(r"Device Minor:\s*(\d+)", _read(path))
        if number:
            found.append((path, int(number.group(1))))
    return [minor for _, minor in sorted(found)]


def _no_cgroups() -> Optional[bool]:
    """`no-cgroups` of NVIDIA's container runtime; None where there is no such file."""
    text = _read(_RUNTIME_CONFIG)
    if not text:
        return None
    found = re.search(r"^\s*no-cgroups\s*=\s*(true|false)", text, re.M)
    return bool(found and found.group(1) == "true")


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""
