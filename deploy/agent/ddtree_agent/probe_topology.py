"""How the GPUs reach each other: nvidia-smi's matrices, the IOMMU, and switches that redirect peer traffic (ACS)."""

import glob
import os
import re
import struct
from typing import TYPE_CHECKING, Any, Dict, List, Optional

from . import nvidia_smi

if TYPE_CHECKING:
    from .probe_areas import Context

#: PCI Express extended capability of Access Control Services, and the bits of its control register that send peer
#: requests up to the root: Request Redirect, Completion Redirect (PCI Express Base Specification, ACS).
_ACS, _REDIRECT = 0x000D, 0x04 | 0x08


def topology(context: "Context") -> Dict[str, Any]:
    """{asked, links: {"0-1": "NV18"}, p2p: {"0-1": "OK"}, iommu: on | pt | off | null, redirecting: [bus]}.

    asked is False where the server takes one GPU: then nothing is measured. redirecting: PCI bridges with ACS
    redirection on; null where their configuration space cannot be read.
    """
    from .probe_gpu import asked_for, on_cpu

    need = asked_for(context.launch)["need"]
    tool = nvidia_smi.find()
    if on_cpu(context) or (need is not None and need < 2):
        return {"asked": False}
    answer: Dict[str, Any] = {"asked": True, "links": None, "p2p": None}
    if tool is not None:
        jobs = [
            lambda: {"answer": nvidia_smi.ask([tool, "topo", "-m"], 30.0)},
            lambda: {"answer": nvidia_smi.ask([tool, "topo", "-p2p", "r"], 30.0)},
        ]
        for name, got in zip(("links", "p2p"), nvidia_smi.together(jobs, 31.0)):
            if got is not None and got["answer"][0] == 0:
                answer[name] = matrix(got["answer"][1])
    return dict(
        answer,
        iommu=iommu(_read("/proc/cmdline"), bool(glob.glob("/sys/class/iommu/*"))),
        redirecting=redirecting(),
    )


def matrix(text: str) -> Dict[str, str]:
    """Pairs of GPUs in a matrix of `nvidia-smi topo`: {"0-1": "NV18"}; its header may be in terminal colours."""
    rows = [re.sub(r"\x1b\[[0-9;]*m", "", line).split("\t") for line in text.splitlines()]
    head = next(
        (row for row in rows if any(cell.strip() == "GPU0" for cell in row) and not row[0].strip()), None
    )
    if head is None:
        head = next(
            (["", *row] for row in rows if row and row[0].split()[:1] == ["GPU0"] and "X" not in row), None
        )
    found: Dict[str, str] = {}
    columns = [cell.strip() for cell in head or []]
    for row in rows:
        cells = [cell.strip() for cell in row]
        one = re.fullmatch(r"GPU(\d+)", cells[0]) if cells else None
        if one is None or row is head:
            continue
        for column, cell in zip(columns[1:], cells[1:]):
            other = re.fullmatch(r"GPU(\d+)", column)
            if other and int(one.group(1)) < int(other.group(1)):
                found[f"{one.group(1)}-{other.group(1)}"] = cell
    return found


def iommu(cmdline: str, active: bool) -> Optional[str]:
    """ "pt" for pass-through, "on" where it translates (which breaks or slows direct peer access), "off"."""
    words = cmdline.split()
    if not words and not active:
        return None
    if not active:
        return "off"
    return "pt" if "iommu=pt" in words or "iommu.passthrough=1" in words else "on"


def redirecting(base: str = "/sys/bus/pci/devices") -> Optional[List[str]]:
    """PCI bridges whose ACS control redirects peer requests; None where no configuration space could be read whole."""
    found, read = [], 0
    for path in sorted(glob.glob(os.path.join(base, "*"))):
        if not _read(os.path.join(path, "class")).startswith("0x0604"):
            continue
        try:
            with open(os.path.join(path, "config"), "rb") as file:
                space = file.read(4096)
        except OSError:
            continue
        read += len(space) > 256
        control = acs_control(space)
        if control is not None and control & _REDIRECT:
            found.append(os.path.basename(path))
    return found if read or not glob.glob(os.path.join(base, "*")) else None


def acs_control(space: bytes) -> Optional[int]:
    """The ACS control register in a device's configuration space; None where it has no such capability."""
    at = 0x100
    for _ in range(96):
        if at < 0x100 or at + 8 > len(space):
            return None
        head = struct.unpack_from("<I", space, at)[0]
        if head in (0, 0xFFFFFFFF):
            return None
        if head & 0xFFFF == _ACS:
            return int(struct.unpack_from("<H", space, at + 6)[0])
        at = head >> 20
    return None


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(4096).strip()
    except OSError:
        return ""
