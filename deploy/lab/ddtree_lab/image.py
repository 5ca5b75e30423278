"""The base image, built once for each version of the build script and read-only from then on."""

from __future__ import annotations

import fcntl
import hashlib
import shutil
from collections.abc import Callable
from pathlib import Path

from .problem import LabProblem
from .proc import capture, last_line
from .state import SOURCES, cache_dir, own_directory

SCRIPT = SOURCES / "build_base.sh"


def image_path() -> Path:
    """Where the image that this build script makes lies, or will lie."""
    return cache_dir() / ("base-" + hashlib.sha256(SCRIPT.read_bytes()).hexdigest()[:16])


def ensure_image(say: Callable[[str], None]) -> Path:
    """Return the root tree of the base image; builds it (about 30 s, 210 MB) where the cache has none."""
    image = image_path()
    own_directory(image.parent.parent)
    image.parent.mkdir(exist_ok=True)
    with open(image.parent / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not image.is_dir():
            say("building the base image (once, about 30 s) ...")
            _build(image)
    return image


def _build(image: Path) -> None:
    part = image.with_name(image.name + ".part")
    shutil.rmtree(part, ignore_errors=True)
    # Its own mount namespace, so that an interrupted build leaves no mounted /proc below `part` for rmtree to enter.
    command = ["unshare", "--mount", "--propagation", "private", "bash", str(SCRIPT), str(part)]
    status, said = capture(command)
    if status:
        telling = [line for line in said.splitlines() if line.startswith("E:")] or [last_line(said)]
        raise LabProblem(f"the base image was not built: {telling[0]}", next=f"bash -x {SCRIPT} {part}")
    part.rename(image)
