"""A second look at the host before a release is blamed: GPUs, device nodes, Xid events and disk, against before."""

import glob
import shutil
from typing import Dict, List, NamedTuple, Optional, Sequence, Tuple

from . import kernel_log
from .core import xid
from .systemd import run

_LEAST_FREE = 64 << 20
_NODES = "/dev/nvidia*"


class HostState(NamedTuple):
    """GPUs by UUID as nvidia-smi lists them (None: it has no answer), device nodes, kernel lines of Xid events that
    are the host's own (none where this container may not read them), free bytes by path."""

    gpus: Optional[Tuple[str, ...]]
    nodes: Tuple[str, ...]
    xids: Tuple[str, ...]
    free: Dict[str, int]


def look(paths: Sequence[str] = ("/", "/dev/shm", "/var/lib")) -> HostState:
    """The host as it is now. Never raises: what cannot be read is absent."""
    free = {}
    for path in paths:
        try:
            free[path] = shutil.disk_usage(path).free
        except OSError:
            continue
    return HostState(_gpus(), tuple(sorted(glob.glob(_NODES))), _xids(), free)


def faults(before: HostState, after: HostState) -> List[str]:
    """What broke on the host between two looks, in words; [] where nothing did."""
    found: List[str] = []
    if before.gpus is not None and after.gpus is None:
        found.append("nvidia-smi answered before and does not any more")
    elif before.gpus is not None and after.gpus is not None:
        found += [f"{gpu} is gone" for gpu in before.gpus if gpu not in after.gpus]
    found += [f"device node {node} is gone" for node in before.nodes if node not in after.nodes]
    found += [line for line in after.xids if line not in before.xids]
    found += [
        f"{path} is full ({free >> 20} MiB free)"
        for path, free in after.free.items()
        if free < _LEAST_FREE <= before.free.get(path, _LEAST_FREE)
    ]
    return found


def _gpus() -> Optional[Tuple[str, ...]]:
    if not shutil.which("nvidia-smi"):
        return None
    status, out, _ = run(["nvidia-smi", "-L"], 15)
    return (
        tuple(line.strip() for line in out.splitlines() if line.startswith("GPU ")) if status == 0 else None
    )


def _xids() -> Tuple[str, ...]:
    status, out, _ = run(["dmesg"], 5)
    lines = [(kernel_log.xid_of(line), line.strip()) for line in out.splitlines()] if status == 0 else []
    return tuple(line for code, line in lines if code is not None and xid.clears_release(code))
