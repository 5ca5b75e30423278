"""Preflight rules about the GPUs' device nodes, for the service's user, in its sandbox, and beside other containers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ddtree_ops.core.checks.cuda_facts import CUDA, Cuda, works
from ddtree_ops.core.checks.driver import DRIVER, Driver, inside
from ddtree_ops.core.checks.gpu_processes import HOLDERS, Holders
from ddtree_ops.core.checks.rule import Rule, Section
from ddtree_ops.core.facts_live import Live
from ddtree_ops.core.finding import Finding, block, ok, warn
from ddtree_ops.core.wanted import Wanted

#: Node -> the name under which /proc/devices lists its driver; the first that is there. Drivers since 2023 call the
#: cards "nvidia" or "nvidia-frontend".
DRIVERS = {"nvidiactl": ("nvidia-frontend", "nvidiactl", "nvidia"), "nvidia-uvm": ("nvidia-uvm",)}


@dataclass(frozen=True)
class Node:
    """char: a character device. link: whether /dev/char/MAJOR:MINOR is there."""

    path: str
    char: bool
    major: int | None
    minor: int | None
    mode: str
    owner: int
    group: int
    link: bool | None

    def __str__(self) -> str:
        return f"{self.path} ({self.major}:{self.minor}, mode {self.mode}, {self.owner}:{self.group})"


@dataclass(frozen=True)
class Devices:
    """minors: minor numbers of the driver's GPUs, None where the driver tells none. engines: container engines whose
    sockets are here. no_cgroups: of NVIDIA's container runtime, None without its configuration. container_unit: the
    unit itself starts a container."""

    nodes: tuple[Node, ...]
    majors: Mapping[str, int]
    minors: tuple[int, ...] | None
    wsl: bool
    private_devices: bool | None
    device_policy: str | None
    device_allow: tuple[str, ...]
    engines: tuple[str, ...]
    runtime: bool
    no_cgroups: bool | None
    container_unit: bool


def read(raw: Mapping[str, Any]) -> Devices:
    """The section `devices` of the probe (probe_devices.devices)."""
    names = ("char", "major", "minor", "mode", "owner", "group", "link")
    return Devices(
        nodes=tuple(
            Node(path=path, **{name: item[name] for name in names})
            for path, item in sorted(raw["nodes"].items())
            if item
        ),
        majors=dict(raw["majors"]),
        minors=None if raw["minors"] is None else tuple(raw["minors"]),
        wsl=bool(raw["wsl"]),
        private_devices=raw["private_devices"],
        device_policy=raw["device_policy"],
        device_allow=tuple(raw["device_allow"]),
        engines=tuple(raw["engines"]),
        runtime=bool(raw["runtime"]),
        no_cgroups=raw["no_cgroups"],
        container_unit=bool(raw["container_unit"]),
    )


DEVICES = Section("devices", Devices, read, gpu=True)


def nodes(devices: Devices, live: Live, wanted: Wanted) -> list[Finding]:
    """Each node there, a character device, of the major that the driver has now."""
    if devices.wsl and not devices.nodes:
        return [ok("device-nodes", "/dev/dxg (WSL)")]
    driver = live.of(DRIVER)
    boxed = isinstance(driver, Driver) and inside(driver)
    host = f"the host of {wanted.host}" if boxed else wanted.host
    again = f", then restart the container {wanted.host}" if boxed else ""
    uvm = f"nvidia-modprobe -c 0 -u on {host}, at boot before its containers start{again}"
    found, names = [], {node.path.rpartition("/")[2]: node for node in devices.nodes}
    control = (
        "pass /dev/nvidiactl into the container (c 195:* rwm)" if boxed else f"nvidia-modprobe -c 0 on {host}"
    )
    for name, remedy in (("nvidiactl", control), ("nvidia-uvm", uvm)):
        if name not in names:
            said = f"/dev/{name} is missing"
            if name == "nvidia-uvm":
                said += ": CUDA cannot start, though nvidia-smi, which does not use it, is content"
            found.append(block("device-nodes", said, remedy))
    if "nvidia-uvm-tools" not in names and "nvidia-uvm" in names:
        found.append(
            warn("device-nodes", "/dev/nvidia-uvm-tools is missing: profilers and some runtimes need it", uvm)
        )
    cards = [name for name in names if name[6:].isdigit()]
    if not cards:
        found.append(
            block("device-nodes", "no /dev/nvidia0: no GPU's node is here", f"nvidia-smi on {host}{again}")
        )
    elif devices.minors is not None and not boxed:
        gone = [f"/dev/nvidia{minor}" for minor in devices.minors if f"nvidia{minor}" not in names]
        if gone:
            said = f"{', '.join(gone)} is missing, though the driver has that GPU"
            found.append(warn("device-nodes", said, f"nvidia-modprobe -c {gone[0][11:]} on {host}"))
    for node in devices.nodes:
        found += _kind(node, devices, host, again)
    return found or [ok("device-nodes", f"{len(devices.nodes)} nodes, majors as the driver has them")]


def _kind(node: Node, devices: Devices, host: str, again: str) -> list[Finding]:
    if not node.char:
        remedy = f"rm {node.path}, nvidia-modprobe -c 0 -u on {host}{again}"
        return [
            block("device-nodes", f"{node.path} is no character device: something wrote a file there", remedy)
        ]
    name = node.path.rpartition("/")[2]
    kinds = DRIVERS["nvidia-uvm"] if name.startswith("nvidia-uvm") else DRIVERS["nvidiactl"]
    if not (name.startswith("nvidia-uvm") or name == "nvidiactl" or name[6:].isdigit()):
        return []  # nvidia-modeset, nvidia-nvswitch*: not what CUDA opens
    majors = [devices.majors[kind] for kind in kinds if kind in devices.majors]
    if majors and node.major not in majors:
        said = f"{node.path} has major {node.major}, the driver's is {majors[0]}: a stale node of an earlier boot"
        return [
            block(
                "device-nodes",
                said,
                f"the container's device rule by name (c {majors[0]}:* rwm), rm {node.path}{again}",
            )
        ]
    return []


def access(devices: Devices, live: Live, wanted: Wanted) -> list[Finding]:
    """The service's user opens each node for reading and writing, inside its sandbox."""
    if devices.wsl and not devices.nodes:
        return []
    cuda = live.of(CUDA)
    if not isinstance(cuda, Cuda):
        return [warn("device-access", f"unknown: {cuda.why}", f"ddtree-ops doctor --host {wanted.host}")]
    there = {node.path: node for node in devices.nodes}
    closed = {path: why for path, why in cuda.nodes.items() if why and (path in there or why != "ENOENT")}
    if not closed:
        return [
            ok(
                "device-access",
                f"the service opens {len([1 for why in cuda.nodes.values() if why is None])} nodes",
            )
        ]
    path, why = next(iter(closed.items()))
    more = f" and {len(closed) - 1} more" if len(closed) > 1 else ""
    node = there.get(path)
    said = f"the service cannot open {node or path}{more}: {why}"
    if path.endswith("-uvm-tools") and len(closed) == 1:
        return [warn("device-access", said, f"ls -l {path}, on {wanted.host}")]
    return [block("device-access", said, _way_in(why, node, devices, wanted))]


def _way_in(why: str, node: Node | None, devices: Devices, wanted: Wanted) -> str:
    if devices.private_devices:
        return f"PrivateDevices=no in a drop-in of {wanted.service} on {wanted.host}"
    if why == "ENOENT":
        return f"PrivateDevices= or BindPaths= of {wanted.service} hide it: systemctl cat {wanted.service}"
    if devices.device_policy in ("closed", "strict"):
        return (
            f"DeviceAllow=char-nvidia* rw and DeviceAllow=char-nvidia-uvm rw in a drop-in of {wanted.service}"
        )
    if why == "EACCES" and node is not None and node.mode[-1] not in "67":
        return (
            f"options nvidia NVreg_DeviceFileMode=0666 in /etc/modprobe.d (a chmod is lost at reboot), or "
            f"SupplementaryGroups= of {wanted.service} with group {node.group} (in LXC: on the host, and mapped)"
        )
    if why in ("EACCES", "EPERM"):
        return "the container's device rules: lxc.cgroup2.devices.allow = c 195:* rwm, and the major of nvidia-uvm"
    if why in ("ENXIO", "ENODEV"):
        return f"the driver behind the node is gone: lsmod | grep nvidia, dmesg | grep NVRM, on {wanted.host}"
    return f"dmesg | grep NVRM, on {wanted.host}"


def sandbox(devices: Devices, live: Live, wanted: Wanted) -> list[Finding]:
    """PrivateDevices= and DevicePolicy= of the unit hide or close the nodes."""
    allowed = any("nvidia" in line for line in devices.device_allow)
    if devices.private_devices is None or devices.wsl:
        show = f"systemctl show -p DevicePolicy -p PrivateDevices {wanted.service}"
        said = "unknown: the unit's DevicePolicy= was not read"
        return [] if devices.wsl else [warn("device-sandbox", said, show)]
    cuda = live.of(CUDA)
    opens = isinstance(cuda, Cuda) and works(cuda) and cuda.nodes.get("/dev/nvidiactl", "") is None
    if devices.private_devices and not opens:
        said = f"{wanted.service} has PrivateDevices=yes: it sees no GPU"
        return [block("device-sandbox", said, f"PrivateDevices=no in a drop-in of {wanted.service}")]
    if devices.device_policy in ("closed", "strict") and not allowed and not opens:
        said = f"{wanted.service} has DevicePolicy={devices.device_policy} and no DeviceAllow= for GPUs"
        return [
            block(
                "device-sandbox",
                said,
                "DeviceAllow=char-nvidia* rw and DeviceAllow=char-nvidia-uvm rw in a drop-in",
            )
        ]
    return [ok("device-sandbox", f"DevicePolicy={devices.device_policy or 'auto'}")]


def reload(devices: Devices, live: Live, wanted: Wanted) -> list[Finding]:
    """Our daemon-reload sets device rules anew: containers whose nodes have no /dev/char link lose their GPUs."""
    bare = [node.path for node in devices.nodes if node.char and node.link is False]
    if not devices.engines or not bare:
        return (
            [ok("device-reload", "no container here can lose its GPUs by a daemon-reload")]
            if devices.nodes
            else []
        )
    remedy = f"nvidia-ctk system create-dev-char-symlinks --create-all, on {wanted.host} (and a udev rule, for reboots)"
    said = f"{', '.join(devices.engines)} runs here and {bare[0]} has no link in /dev/char"
    holders = live.of(HOLDERS)
    boxed = (
        [one for one in holders.processes if one.boxed and one.nodes] if isinstance(holders, Holders) else []
    )
    if boxed:
        who = f"pid {boxed[0].pid} ({boxed[0].name})"
        return [
            block(
                "device-reload",
                f"{said}: our daemon-reload would take the GPUs from the container of {who}",
                remedy,
            )
        ]
    return [warn("device-reload", f"{said}: a daemon-reload takes the GPUs from every GPU container", remedy)]


def nested(devices: Devices, live: Live, wanted: Wanted) -> list[Finding]:
    """A container engine inside a container may not write device rules."""
    driver = live.of(DRIVER)
    if not (isinstance(driver, Driver) and inside(driver) and devices.engines and devices.runtime):
        return []
    if devices.no_cgroups:
        return [
            ok(
                "device-nested",
                "the container runtime in this container leaves device rules alone (no-cgroups)",
            )
        ]
    said = f"{devices.engines[0]} inside {driver.virt}: NVIDIA's runtime may not write devices.allow here"
    file = "/etc/nvidia-container-runtime/config.toml"
    remedy = f"no-cgroups = true in {file} on {wanted.host}, and pass the nodes by --device"
    judge = block if devices.container_unit else warn
    return [judge("device-nested", said, remedy)]


RULES: tuple[Rule[Devices], ...] = (
    Rule(
        "device-nodes", DEVICES, nodes,
        "nvidia-smi works without nvidia-uvm, CUDA does not; nodes that a container got before its host made them, or "
        "of another boot's major, look right and lead nowhere.",
        ("F076", "F077", "F078", "F085"),
    ),
    Rule(
        "device-access", DEVICES, access,
        "Nodes that root may open and the service's user may not.",
        ("F080",),
    ),
    Rule("device-sandbox", DEVICES, sandbox, "A hardened unit hides the GPUs from the server, not from a login shell."),
    Rule(
        "device-reload", DEVICES, reload,
        "A deploy runs daemon-reload: on a host with GPU containers whose nodes lack /dev/char links it takes their "
        "GPUs away, and they fail with an NVML error later.",
        ("F082",),
    ),
    Rule(
        "device-nested", DEVICES, nested,
        "Inside an unprivileged container NVIDIA's runtime fails on the device cgroup.",
        ("F081",),
    ),
)  # fmt: skip
