"""What the GPUs say of themselves: nvidia-smi, the fabric manager, and the PCI bus, which a lost GPU leaves."""

import functools
import glob
import os
import shutil
import time
from typing import TYPE_CHECKING, Any, Dict, List, Optional

from . import nvidia_smi, systemd, unitenv

if TYPE_CHECKING:
    from .probe_areas import Context

_FABRIC_UNITS = ("nvidia-fabricmanager.service", "nvidia-fabricmanager-dev.service")
_NVIDIA, _DISPLAY, _BRIDGE = "0x10de", ("0x0300", "0x0302"), "0x0680"


def gpus(context: "Context") -> Dict[str, Any]:
    """{tool, cards: {PCI address: {field: value}}, said: [complaint], status, first_ms, visible, order, base, need,
    pci, nvswitches, fabric_manager: {active, version} | null, wsl, virt, custom_all_reduce}.

    A field that was not answered is absent. visible: CUDA_VISIBLE_DEVICES of the unit, null where it is not set. need:
    GPUs that the server takes on this host. first_ms: how long the first answer took.
    """
    if on_cpu(context):
        return {"error": "not asked: --device cpu"}
    found: Dict[str, Any] = {
        "visible": context.env.get("CUDA_VISIBLE_DEVICES"),
        "order": context.env.get("CUDA_DEVICE_ORDER"),
        "pci": pci(),
        "nvswitches": len(_devices(_BRIDGE)),
        "fabric_manager": fabric_manager(),
        "wsl": os.path.exists("/dev/dxg"),
        "virt": virt(),
        **asked_for(context.launch),
    }
    tool = nvidia_smi.find()
    if tool is None:
        return dict(found, tool=None, cards={}, said=[], status=127, first_ms=None)
    started = time.monotonic()
    status, text = nvidia_smi.ask([tool, "-L"], nvidia_smi.LIMIT_S)
    first = int((time.monotonic() - started) * 1000)
    answer = dict(found, tool=tool, status=status, first_ms=first)
    if status == 124:  # it would only hang again
        return dict(answer, cards={}, said=[f"nvidia-smi -L: {text}"])
    listed = [line for line in text.splitlines() if not line.startswith("GPU ") and line.strip()]
    jobs = [functools.partial(nvidia_smi.query, tool, "gpu", fields, 30.0) for fields in nvidia_smi.GROUPS]
    late: Dict[str, Any] = {"rows": [], "said": ["nvidia-smi --query-gpu gave no answer"], "status": 124}
    groups = [group or late for group in nvidia_smi.together(jobs, 32.0)]
    cards, said = nvidia_smi.join([{"rows": [], "said": listed if status else []}, *groups])
    if status == 0 and not cards:
        answer["status"] = max(group["status"] for group in groups)
    return dict(answer, cards=cards, said=(said or listed)[:8] if status else said[:8])


def asked_for(launch: Optional[unitenv.Launch]) -> Dict[str, Any]:
    """{need, base, custom_all_reduce} from the server's arguments; need is None where they are not known."""
    if launch is None:
        return {"need": None, "base": 0, "custom_all_reduce": True}

    def number(default: int, *names: str) -> int:
        text = launch.value(*names) if launch else None
        return int(text) if text and text.isdigit() else default

    tp = number(1, "--tp", "--tp-size", "--tensor-parallel-size")
    need = tp * number(1, "--pp", "--pp-size", "--pipeline-parallel-size")
    if "--enable-dp-attention" not in launch.args:
        need *= number(1, "--dp", "--dp-size", "--data-parallel-size")
    return {
        "need": max(1, need // number(1, "--nnodes")),
        "base": number(0, "--base-gpu-id"),
        "custom_all_reduce": "--disable-custom-all-reduce" not in launch.args,
    }


def on_cpu(context: "Context") -> bool:
    """Whether the server is told to leave the GPUs alone: then so do we."""
    return context.launch is not None and context.launch.value("--device") == "cpu"


def smoke_argument(context: "Context") -> Optional[Dict[str, Any]]:
    """What inner_cuda.collect takes."""
    return None if on_cpu(context) else asked_for(context.launch)


def peer_argument(context: "Context") -> Dict[str, Any]:
    """What inner_nccl.collect takes."""
    return {"need": 1, "base": 0} if on_cpu(context) else asked_for(context.launch)


def pci(base: str = "/sys/bus/pci/devices") -> List[Dict[str, Any]]:
    """NVIDIA's GPUs on the bus: [{bus, driver, dead}]. dead: its configuration space answers with ones only."""
    found = []
    for path in _devices(*_DISPLAY, base=base):
        driver = os.path.join(path, "driver")
        found.append(
            {
                "bus": os.path.basename(path),
                "driver": os.path.basename(os.path.realpath(driver)) if os.path.exists(driver) else None,
                "dead": _head(os.path.join(path, "config")) == b"\xff\xff\xff\xff",
            }
        )
    return found


def fabric_manager() -> Optional[Dict[str, Any]]:
    """{active, version} of NVIDIA's fabric manager; None where it is not installed."""
    tool = shutil.which("nv-fabricmanager")
    for unit in _FABRIC_UNITS:
        show = systemd.show(unit, ["LoadState", "ActiveState"])
        if show.get("LoadState") == "loaded" or (tool and unit == _FABRIC_UNITS[0]):
            status, out, _ = systemd.run([tool, "--version"], 5) if tool else (1, "", "")
            return {"active": show.get("ActiveState"), "version": version_in(out) if status == 0 else None}
    return None


def virt() -> Optional[str]:
    """Kind of container ("lxc", "docker", "none"); None where nobody could tell."""
    status, out, _ = systemd.run(["systemd-detect-virt", "--container"], 5)
    return out.strip() or None if status != 127 else None


def version_in(text: str) -> Optional[str]:
    """The first dotted version in a line such as "Fabric Manager version is : 550.54.15"."""
    for word in text.replace(":", " ").split():
        parts = word.split(".")
        if len(parts) > 1 and all(part.isdigit() for part in parts):
            return word
    return None


def _devices(*classes: str, base: str = "/sys/bus/pci/devices") -> List[str]:
    return [
        path
        for path in sorted(glob.glob(os.path.join(base, "*")))
        if _text(os.path.join(path, "vendor")) == _NVIDIA
        and _text(os.path.join(path, "class"))[:6] in classes
    ]


def _text(path: str) -> str:
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return ""


def _head(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(4)
    except OSError:
        return b""
