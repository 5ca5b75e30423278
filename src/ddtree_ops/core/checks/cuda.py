"""Preflight rules about CUDA as the service itself gets it: the smoke, its libraries, the CPU as a silent way out."""

from __future__ import annotations

import re

from ddtree_ops.core.checks.cuda_facts import CUDA, TAKEN, Cuda, Device, works
from ddtree_ops.core.checks.gpu_facts import GPUS, Gpus, needed
from ddtree_ops.core.checks.rule import Rule
from ddtree_ops.core.facts_live import Abi, Launch, Live
from ddtree_ops.core.finding import Finding, block, ok, warn
from ddtree_ops.core.wanted import Wanted

_COMPAT = (
    "remove {place} from LD_LIBRARY_PATH in {service} (and /etc/ld.so.conf.d), or install a newer driver"
)
_UVM = (
    "nvidia-modprobe -c 0 -u on the host itself (before its containers start), or reload nvidia_uvm there; "
    "then restart the container"
)
#: CUresult -> (name, what it means, what helps): cuda.h, and what the reports say of each.
MEANS: dict[int, tuple[str, str, str]] = {
    3: (
        "not initialised",
        "the driver was not started in this process: its libraries are damaged or stubs",
        "ldconfig -p | grep libcuda, there",
    ),
    34: (
        "stub library",
        "the libcuda that loads is the toolkit's stub",
        "remove .../stubs from LD_LIBRARY_PATH of {service}",
    ),
    35: (
        "driver too old",
        "the driver is older than the CUDA runtime",
        "install a newer driver (in LXC: on the host first)",
    ),
    100: (
        "no device",
        "CUDA sees no GPU: CUDA_VISIBLE_DEVICES, MIG without a slice, or nodes that this unit may not open",
        "CUDA_VISIBLE_DEVICES and DeviceAllow= of {service}; nvidia-smi -L, there",
    ),
    101: ("invalid device", "a GPU that is listed cannot be opened", "dmesg | grep NVRM, there"),
    214: (
        "uncorrectable ECC error",
        "a GPU's memory is failing",
        "nvidia-smi -q -d ECC, then nvidia-smi --gpu-reset, there",
    ),
    304: (
        "operating system call failed",
        "a device node could not be opened or mapped",
        "ls -l /dev/nvidia*, there; DeviceAllow= of {service}",
    ),
    719: ("launch failed", "the GPU did not carry out a simple memset", "dmesg | grep Xid, there"),
    800: ("not permitted", "this process may not use CUDA here", "device rules (c 195:* rwm) and MPS, there"),
    801: ("not supported", "this GPU does not do that here (a vGPU or MIG profile)", "nvidia-smi -q, there"),
    802: (
        "system not yet initialized",
        "the NVSwitch fabric is not ready: fabric manager not running, not finished, or not of the driver's version",
        "wait up to 120 s after a boot; systemctl status nvidia-fabricmanager (exactly the driver's version), there",
    ),
    803: (
        "driver/library version mismatch",
        "libcuda and the kernel module are of different versions",
        "reboot, or install the module's version of the libraries (in LXC: the host's)",
    ),
    804: (
        "forward compatibility on unsupported hardware",
        "a compat libcuda is used: only data-centre GPUs support that",
        "remove the compat directory from LD_LIBRARY_PATH of {service}, or install a newer driver",
    ),
    999: (
        "unknown error",
        "/dev/nvidia-uvm is missing, stale since a suspend, or made after this container started",
        _UVM,
    ),
}
DATA_CENTRE = re.compile(
    r"\b([AHB][0-9]{2,3}|GB?[0-9]{3}|GH200|L4|L20|L40S?|T4|V100|P100|P40|P4|K80)\b|Tesla"
)
#: The oldest driver of each CUDA major's minor-version compatibility (CUDA Compatibility, table 2).
OLDEST_DRIVER = {11: (450, 80, 2), 12: (525, 60, 13), 13: (580, 65, 6)}


def smoke(cuda: Cuda, live: Live, wanted: Wanted) -> list[Finding]:
    """cuInit, a context on each GPU, memory, memset, as the service's user in the unit's sandbox."""
    if cuda.init is None:
        said = f"libcuda.so.1 does not load as the service: {cuda.libcuda.error}; the engine would fall back to the CPU"
        remedy = f"install the driver's user space on {wanted.host} (in LXC: the host's version, --no-kernel-modules)"
        return [block("cuda-smoke", said, remedy)]
    if cuda.init != 0:
        return [_failed("cuInit", cuda.init, cuda, wanted)]
    if not cuda.count:
        return [_failed("cuDeviceGetCount", 100, cuda, wanted)]
    found = []
    for device in cuda.devices:
        if device.code in TAKEN:
            found.append(_taken(device, live, wanted))
        elif device.code:
            found.append(
                _failed(
                    f"{device.step} on CUDA device {device.index} ({device.name})", device.code, cuda, wanted
                )
            )
    gpus = live.of(GPUS)
    need = (
        needed(gpus, live)
        if isinstance(gpus, Gpus)
        else live.launch.tp
        if isinstance(live.launch, Launch)
        else 1
    )
    if cuda.count < need:
        said = f"CUDA shows the service {cuda.count} GPUs, it takes {need}"
        found.append(
            block(
                "cuda-smoke",
                said,
                f"CUDA_VISIBLE_DEVICES and DeviceAllow= of {wanted.service}, or another --tp",
            )
        )
    tried = ", ".join(sorted({f"{one.name} ({one.cc})" for one in cuda.devices}))
    return found or [ok("cuda-smoke", f"a context works on {len(cuda.devices)} GPUs as the service: {tried}")]


def _taken(device: Device, live: Live, wanted: Wanted) -> Finding:
    gpus = live.of(GPUS)
    modes = {card.compute_mode for card in gpus.cards} if isinstance(gpus, Gpus) else set()
    if device.code == 46 and modes == {"Default"}:
        said = f"CUDA device {device.index} ({device.name}): error 46 (unavailable), and no card is in exclusive "
        remedy = f"nvidia-smi -q on {wanted.host}: License Status of a vGPU, Compute Mode; a reset, or its guest's host"
        return block("cuda-smoke", f"{said}use: a vGPU without a licence, or a card in error", remedy)
    what = "its memory is full" if device.code == 2 else "another process has it for itself"
    said = f"CUDA device {device.index} ({device.name}) could not be tried: {what}"
    return warn("cuda-smoke", said, f"nvidia-smi, on {wanted.host}: only the running server should hold it")


def _failed(step: str, code: int, cuda: Cuda, wanted: Wanted) -> Finding:
    name, means, remedy = MEANS.get(code, ("", "see CUresult in cuda.h", "dmesg | grep NVRM, there"))
    said = f"{step} as the service: error {code}{f' ({name})' if name else ''}: {means}"
    closed = [f"{path} ({why})" for path, why in cuda.nodes.items() if why]
    if closed:
        said += f"; it cannot open {', '.join(closed[:3])}"
    return block("cuda-smoke", said, f"on {wanted.host}: {remedy.format(service=wanted.service)}")


def compat(cuda: Cuda, live: Live, wanted: Wanted) -> list[Finding]:
    """A forward-compatibility or stub libcuda in front of the driver's own."""
    path = cuda.libcuda.path or ""
    place = cuda.compat or (path.rpartition("/")[0] if "compat" in path else None)
    remedy = _COMPAT.format(place=place or path.rpartition("/")[0], service=wanted.service)
    if "/stubs/" in path:
        return [block("libcuda-compat", f"the service loads the toolkit's stub {path}", remedy)]
    if place is None:
        return [ok("libcuda-compat", f"the service loads {path}")] if path else []
    said = f"the service loads libcuda from the forward-compat directory {place}"
    if not works(cuda):
        return [
            block(
                "libcuda-compat",
                f"{said}, and CUDA does not start (804 where the card does not support it)",
                remedy,
            )
        ]
    names = {device.name or "" for device in cuda.devices}
    if all(DATA_CENTRE.search(name) for name in names):
        return [warn("libcuda-compat", f"{said}; CUDA works with it on {', '.join(sorted(names))}", remedy)]
    return [block("libcuda-compat", f"{said}; {', '.join(sorted(names))} does not support it (804)", remedy)]


def runtime(cuda: Cuda, live: Live, wanted: Wanted) -> list[Finding]:
    """The driver against the CUDA that torch was built for: any driver of the same major is new enough."""
    torch = live.abi.torch if isinstance(live.abi, Abi) else None
    if cuda.init is None or (torch is not None and torch.cuda is None):
        return []  # cuda-smoke and cuda-build say what that means
    if torch is None or torch.cuda is None:
        said = "unknown: the CUDA that torch was built for is not known"
        return [warn("driver-cuda", said, f"ddtree-ops doctor --host {wanted.host}")]
    if cuda.driver_cuda is None:
        return [
            warn("driver-cuda", "unknown: cuDriverGetVersion gave no answer", f"nvidia-smi, on {wanted.host}")
        ]
    driver, build = _parts(cuda.driver_cuda), _parts(torch.cuda)
    said = f"the driver supports CUDA {cuda.driver_cuda}, torch {torch.version} is built for {torch.cuda}"
    if driver[0] < build[0]:
        need = ".".join(map(str, OLDEST_DRIVER[build[0]])) if build[0] in OLDEST_DRIVER else "a newer one"
        remedy = (
            f"install driver {need} or newer on {wanted.host} (in LXC: on its host), or torch built for CUDA "
            f"{driver[0]}; pass --device cuda, so that the engine does not fall back to the CPU"
        )
        return [block("driver-cuda", f"the driver is too old: {said}", remedy)]
    if driver[0] == build[0] and driver < build:
        return [
            ok("driver-cuda", f"{said}: minor-version compatibility (kernels compiled on the host need more)")
        ]
    return [ok("driver-cuda", said)]


def fallback(cuda: Cuda, live: Live, wanted: Wanted) -> list[Finding]:
    """Without --device the engine looks for a GPU by itself, and takes the CPU where none works."""
    if not isinstance(live.launch, Launch) or live.launch.device is not None:
        return []
    if works(cuda):
        return [ok("cpu-fallback", "no --device is given, and CUDA works")]
    said = "no --device is given and CUDA does not work: the engine would start on the CPU and seem to load for ever"
    return [
        block("cpu-fallback", said, f"--device cuda in ExecStart= of {wanted.service}, and see cuda-smoke")
    ]


def _parts(version: str) -> tuple[int, int]:
    words = [*version.split("."), "0"][:2]
    return int(words[0]), int(words[1])


RULES: tuple[Rule[Cuda], ...] = (
    Rule(
        "cuda-smoke", CUDA, smoke,
        "nvidia-smi passes while CUDA does not start: missing unified memory nodes, an unregistered fabric, a compat "
        "library, device rules of the unit. Only a context as the service itself proves it.",
        ("F022", "F071", "F076", "F077", "F078"),
    ),
    Rule(
        "libcuda-compat", CUDA, compat,
        "A forward-compat or stub libcuda in front of the driver's own makes CUDA fail on consumer cards (804).",
        ("F022", "F023"),
    ),
    Rule(
        "driver-cuda", CUDA, runtime,
        "A driver of an older CUDA major than torch's build gives no GPU; the engine then picks the CPU in silence.",
        ("F021",),
    ),
    Rule(
        "cpu-fallback", CUDA, fallback,
        "An engine that fell back to the CPU looks like one that loads for ever.",
        ("F021",),
    ),
)  # fmt: skip
