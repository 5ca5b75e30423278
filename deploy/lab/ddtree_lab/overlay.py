"""Directories that a host may write to over a tree that all hosts share (overlayfs)."""

from __future__ import annotations

from pathlib import Path

from .problem import LabProblem
from .proc import run


def mount_overlay(lower: Path, home: Path) -> Path:
    """Mount a writable view of `lower` and return where it lies; what is written to it lies in `home`/upper.

    Raises LabProblem where the state directory's file system cannot carry an overlay (another overlay, NFS).
    """
    for name in ("upper", "work", "root"):
        (home / name).mkdir(parents=True)
    view = home / "root"
    layers = f"lowerdir={lower},upperdir={home}/upper,workdir={home}/work,index=off"
    try:
        run("mount", "-t", "overlay", "overlay", "-o", layers, view)
    except LabProblem as problem:
        raise LabProblem(
            f"no overlay could be mounted in {home} ({problem.what})",
            next="export DDTREE_LAB_STATE=/a/directory/on/ext4/or/xfs",
        ) from None
    return view


def unmount_below(top: Path) -> None:
    """Unmount everything of this namespace that lies below `top`."""
    mounts = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    for place in reversed(mounts):
        if Path(place).is_relative_to(top):
            run("umount", "--lazy", place)
