"""What must hold before anything is booted: root, Linux, the tools, and never this machine's own root."""

from __future__ import annotations

import os
import platform
import shutil
from pathlib import Path

from .problem import LabProblem

PACKAGES = {
    "systemd-nspawn": "systemd-container",
    "mmdebstrap": "mmdebstrap",
    "ip": "iproute2",
    "nft": "nftables",
    "ssh": "openssh-client",
    "ssh-keygen": "openssh-client",
    "unshare": "util-linux",
    "nsenter": "util-linux",
}


def root_on_linux() -> None:
    """Raise LabProblem unless we may touch a lab at all."""
    if platform.system() != "Linux":
        raise LabProblem(f"the lab boots Linux containers and cannot run on {platform.system()}")
    if os.geteuid() != 0:
        raise LabProblem("the lab needs root, to create namespaces and mounts", next="sudo ddtree-ops lab up")


def tools(image_cached: bool) -> None:
    """Raise LabProblem, one sentence, unless this machine has what boots lab hosts."""
    need = [tool for tool in PACKAGES if not (image_cached and tool == "mmdebstrap")]
    missing = [tool for tool in need if not shutil.which(tool)]
    if missing:
        packages = sorted({PACKAGES[tool] for tool in missing})
        raise LabProblem(
            f"the lab needs {', '.join(missing)}, which this machine lacks",
            next=f"apt-get install -y {' '.join(packages)}",
        )


def own_roots() -> set[tuple[int, int]]:
    """(device, inode) of this machine's roots: the caller's and that of process 1, which a chroot makes differ."""
    roots = set()
    for path in ("/", "/proc/1/root/"):
        try:
            found = os.stat(path)
        except OSError:
            continue
        roots.add((found.st_dev, found.st_ino))
    return roots


def refuse_own_root(path: Path, roots: set[tuple[int, int]]) -> None:
    """Raise LabProblem where `path` is one of `roots`, under any name (`..`, symlink, bind mount).

    systemd in a container on the machine's own root would run its units and clean its /tmp.
    """
    found = os.stat(path)
    if (found.st_dev, found.st_ino) in roots:
        raise LabProblem(f"{path} is this machine's own root, and the lab boots nothing on it")
