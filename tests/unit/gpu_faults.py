"""GPU hosts that are broken, each with the rule that must say so, and hosts that only look broken."""

from __future__ import annotations

from typing import Any

import healthy_gpu

ONE, TWO = healthy_gpu.BUSES
Facts = dict[str, Any]


def event(kind: str, code: int | None = None, bus: str | None = TWO, **more: Any) -> Facts:
    text = more.pop("text", f"NVRM: {kind} {code} at {bus}")
    one = {
        "kind": kind,
        "code": code,
        "bus": bus,
        "detail": "",
        "count": 1,
        "age_s": 60,
        "text": text,
        **more,
    }
    return {"kernel_log": {"events": [one]}}


def card(bus: str = TWO, **fields: Any) -> Facts:
    return {"gpus": {"cards": {bus: fields}}}


def infiniband(memlock: int, env: Facts | None = None, cards: tuple[str, ...] = ("mlx5_0",)) -> Facts:
    """A host with InfiniBand whose service may lock so many bytes."""
    return {
        "nccl": {"infiniband": [*cards], "env": env or {}},
        "sandbox": {"rlimits": {"memlock": [memlock, memlock]}},
    }


def smi(said: str, status: int = 1) -> Facts:
    return {"gpus": {"cards": {ONE: None, TWO: None}, "said": [said], "status": status}}


def holders(*processes: Facts, **more: Any) -> Facts:
    return {"gpu_processes": {"processes": list(processes), **more}}


def stranger(**change: Any) -> Facts:
    return healthy_gpu.process(
        900,
        **{
            "engine": False,
            "ours": False,
            "name": "python3",
            "cgroup": "/system.slice/other.service",
            **change,
        },
    )


OURS = [healthy_gpu.process(101 + i, used={healthy_gpu.UUIDS[i]: 60000}) for i in range(2)]
NO_CUDA = {"init": 999, "count": None, "devices": []}
PRESENT = {"0-1": {"access": True, "ok": True, "code": 0}}

#: (rule, level, facts, words that evidence and remedy hold).
FAULTS: list[tuple[str, str, Facts, list[str]]] = [
    # which GPUs answer
    (
        "gpu-visible", "BLOCK",
        smi("Failed to initialize NVML: Driver/library version mismatch", 18),
        ["reboot", "versions"],
    ),
    ("gpu-visible", "BLOCK", smi("Failed to initialize NVML: Unknown Error", 255), ["daemon-reload", "dev-char"]),
    ("gpu-visible", "BLOCK", smi("Failed to initialize NVML: Insufficient Permissions", 4), ["c 195:* rwm"]),
    (
        "gpu-visible", "BLOCK",
        smi("NVIDIA-SMI couldn't find libnvidia-ml.so library in your system.", 12),
        ["user-space"],
    ),
    ("gpu-visible", "BLOCK", smi("No devices were found", 6), ["dmesg"]),
    (
        "gpu-visible", "BLOCK",
        {
            "gpus": {
                **smi("No devices were found", 6)["gpus"],
                "pci": [{"bus": ONE, "driver": "nouveau", "dead": False}],
            }
        },
        ["nouveau", "blacklist"],
    ),
    ("gpu-visible", "BLOCK", smi("Segmentation fault", 139), ["no GPU is visible"]),
    ("gpu-visible", "BLOCK", smi("nvidia-smi -L: no answer in 45 s", 124), ["unknown", "do not restart"]),
    (
        "gpu-visible", "BLOCK",
        {"gpus": {"tool": None, "cards": {ONE: None, TWO: None}, "status": 127}},
        ["not installed"],
    ),
    (
        "gpu-lost", "BLOCK",
        {
            "gpus": {
                "cards": {TWO: None},
                "said": [f"Unable to determine the device handle for GPU{TWO}: Unknown Error"],
                "status": 15,
            }
        },
        [TWO, "power-cycle"],
    ),
    ("gpu-lost", "BLOCK", card(uuid="ERR!", **{"memory.total": "ERR!"}), ["cannot read", "memory.total"]),
    ("gpu-lost", "WARN", card(**{"fabric.health.summary": "ERR!"}), ["fabric.health.summary"]),
    ("gpu-lost", "BLOCK", {"gpus": {"pci": [{"bus": TWO, "driver": None, "dead": True}]}}, [TWO, "PCI bus"]),
    (
        "gpu-lost", "WARN",
        {"gpus": {"pci": [{"bus": "0000:99:00.0", "driver": "nvidia", "dead": False}]}},
        ["0000:99:00.0", "does not list"],
    ),
    ("gpu-count", "BLOCK", {"gpus": {"cards": {TWO: None}}}, ["takes 2 GPUs", "there are 1"]),
    ("gpu-count", "BLOCK", {"gpus": {"visible": "0,7"}}, ["names 7", "no GPU"]),
    ("gpu-count", "BLOCK", {"gpus": {"visible": "1"}}, ["takes 2", "leaves 1"]),
    ("gpu-count", "BLOCK", {"gpus": {"visible": ""}}, ["leaves 0"]),
    ("gpu-count", "BLOCK", {"gpus": {"visible": "-1"}}, ["-1"]),
    ("gpu-count", "BLOCK", {"gpus": {"base": 1}}, ["from number 1 on"]),
    ("gpu-count", "BLOCK", {"gpus": {"need": None}, "launch": {"tp": 4}}, ["takes 4"]),
    ("gpu-names", "BLOCK", {"gpus": {"visible": "MIG-377e0049-1", "need": 1}}, ["MIG", "numbers only"]),
    ("gpu-names", "BLOCK", {"gpus": {"visible": ",".join(healthy_gpu.UUIDS)}}, ["UUID", "CUDA_VISIBLE_DEVICES=0,1"]),
    (
        "gpu-names", "WARN",
        {"gpus": {"visible": "0,1", "cards": {TWO: {"name": "NVIDIA GeForce RTX 3080"}}}},
        ["CUDA_DEVICE_ORDER=PCI_BUS_ID"],
    ),
    (
        "gpu-mixed", "BLOCK",
        card(name="NVIDIA GeForce RTX 3080", compute_cap="8.6"),
        ["compute capability", "8.6", "9.0"],
    ),
    ("gpu-mixed", "BLOCK", card(**{"memory.total": "81559"}), ["81559", "unbalanced"]),
    ("gpu-mixed", "WARN", card(name="NVIDIA H200 NVL", **{"memory.total": "143000"}), ["different kinds"]),
    ("gpu-mixed", "WARN", card(compute_cap=None), ["unknown"]),
    ("gpu-compute-mode", "BLOCK", card(compute_mode="Prohibited"), ["Prohibited", "-c DEFAULT"]),
    ("gpu-compute-mode", "WARN", card(compute_mode="Exclusive_Process"), ["second process"]),
    # health
    (
        "gpu-ecc", "BLOCK",
        card(**{"ecc.errors.uncorrected.volatile.total": "1"}),
        ["uncorrectable", "--gpu-reset -i 1"],
    ),
    (
        "gpu-ecc", "BLOCK",
        card(**{"ecc.errors.uncorrected.aggregate.sram.thresholdExceeded": "Yes"}),
        ["threshold", "replace"],
    ),
    ("gpu-ecc", "WARN", card(**{"ecc.mode.current": "Disabled"}), ["ECC is Disabled"]),
    ("gpu-ecc", "WARN", card(**{"ecc.errors.uncorrected.volatile.total": None}), ["unknown"]),
    ("gpu-ecc", "WARN", card(**{"ecc.mode.current": None}), ["unknown"]),
    ("gpu-rows", "BLOCK", card(**{"retired_pages.pending": "Yes"}), ["retired memory pages"]),
    ("gpu-rows", "BLOCK", card(**{"remapped_rows.pending": "Yes"}), ["pending", "reset"]),
    ("gpu-rows", "BLOCK", card(**{"remapped_rows.failure": "Yes"}), ["spare rows", "replace"]),
    ("gpu-rows", "WARN", card(**{"remapped_rows.failure": None}), ["unknown"]),
    ("gpu-recovery", "BLOCK", card(gpu_recovery_action="Reboot"), ["Reboot", "reboot ct129"]),
    ("gpu-recovery", "BLOCK", card(gpu_recovery_action="Drain P2P"), ["Drain P2P"]),
    ("gpu-recovery", "WARN", card(gpu_recovery_action=None), ["unknown"]),
    ("gpu-mig", "BLOCK", card(**{"mig.mode.current": "Enabled"}), ["one slice", "-mig 0"]),
    ("gpu-mig", "WARN", {"gpus": {"need": 1, "cards": {ONE: {"mig.mode.current": "Enabled"}}}}, ["MIG mode is on"]),
    ("gpu-mig", "WARN", card(**{"mig.mode.pending": "Enabled"}), ["pending"]),
    ("gpu-fabric", "BLOCK", {**card(**{"fabric.state": "In Progress"}), "cuda": NO_CUDA}, ["802", "120 s"]),
    (
        "gpu-fabric", "BLOCK",
        {**card(**{"fabric.state": "Not Started"}), "cuda": NO_CUDA},
        ["start nvidia-fabricmanager"],
    ),
    (
        "gpu-fabric", "BLOCK",
        {**card(**{"fabric.state": "Completed", "fabric.status": "Insufficient Resources"}), "cuda": NO_CUDA},
        ["Insufficient Resources"],
    ),
    ("gpu-fabric", "BLOCK", {"gpus": {"nvswitches": 4}, "cuda": NO_CUDA}, ["4 NVSwitches", "not installed"]),
    (
        "gpu-fabric", "BLOCK",
        {"gpus": {"nvswitches": 4, "fabric_manager": {"active": "inactive", "version": None}}, "cuda": NO_CUDA},
        ["inactive"],
    ),
    ("gpu-fabric", "WARN", card(**{"fabric.state": "In Progress"}), ["CUDA works, and yet"]),
    ("gpu-persistence", "WARN", card(persistence_mode="Disabled"), ["nvidia-persistenced"]),
    ("gpu-persistence", "WARN", {"gpus": {"first_ms": 31000}}, ["31 s"]),
    ("gpu-slowdown", "WARN", card(**{"clocks_event_reasons.hw_thermal_slowdown": "Active"}), ["hw_thermal_slowdown"]),
    # CUDA as the service
    *[
        ("cuda-smoke", "BLOCK", {"cuda": {**NO_CUDA, "init": code}}, [f"error {code}", *words])
        for code, words in {
            3: ["not initialised"], 34: ["stub"], 35: ["too old"], 100: ["no device", "CUDA_VISIBLE_DEVICES"],
            304: ["DeviceAllow="], 802: ["fabric"], 803: ["reboot"], 804: ["compat"], 999: ["nvidia-uvm"],
            5: ["cuda.h"],
        }.items()
    ],
    ("cuda-smoke", "BLOCK", {"cuda": {"count": 0, "devices": []}}, ["no device"]),
    (
        "cuda-smoke", "BLOCK",
        {"cuda": {"count": 1, "devices": [healthy_gpu.device(0)]}},
        ["shows the service 1 GPUs, it takes 2"],
    ),
    (
        "cuda-smoke", "BLOCK",
        {"cuda": {"devices": [healthy_gpu.device(0), healthy_gpu.device(1, step="cuMemsetD8", code=719)]}},
        ["cuMemsetD8", "device 1", "Xid"],
    ),
    ("cuda-smoke", "BLOCK", {"cuda": {"devices": [healthy_gpu.device(0, step="cuMemAlloc", code=214)]}}, ["ECC"]),
    ("cuda-smoke", "WARN", {"cuda": {"devices": [healthy_gpu.device(0, step="cuMemAlloc", code=2)]}}, ["full"]),
    (
        "cuda-smoke", "BLOCK",
        {"cuda": {**NO_CUDA, "nodes": {"/dev/nvidia-uvm": "EPERM"}}},
        ["/dev/nvidia-uvm (EPERM)"],
    ),
    ("libcuda-compat", "BLOCK", {"cuda": {"compat": "/opt/cuda/compat", **NO_CUDA}}, ["/opt/cuda/compat", "804"]),
    ("libcuda-compat", "WARN", {"cuda": {"compat": "/opt/cuda/compat"}}, ["CUDA works"]),
    (
        "libcuda-compat", "BLOCK",
        {"cuda": {"compat": "/opt/cuda/compat", "devices": [healthy_gpu.device(0, name="NVIDIA GeForce RTX 3090")]}},
        ["RTX 3090", "804"],
    ),
    (
        "libcuda-compat", "BLOCK",
        {"cuda": {"libcuda": {"path": "/usr/local/cuda/lib64/stubs/libcuda.so"}, **NO_CUDA}},
        ["stub"],
    ),
    ("driver-cuda", "BLOCK", {"cuda": {"driver_cuda": "11.8"}}, ["too old", "525.60.13"]),
    ("driver-cuda", "WARN", {"cuda": {"driver_cuda": None}}, ["unknown"]),
    ("driver-cuda", "WARN", {"abi": {"error": "no interpreter"}}, ["unknown"]),
    ("cpu-fallback", "BLOCK", {"launch": {"device": None}, "cuda": NO_CUDA}, ["--device cuda", "CPU"]),
    # driver
    ("driver-module", "BLOCK", {"driver": {"module": None, "module_sysfs": None}}, ["not loaded", "modprobe nvidia"]),
    (
        "driver-module", "BLOCK",
        {"driver": {"module": None, "module_sysfs": None, "virt": "lxc"}},
        ["container's host"],
    ),
    ("driver-module", "WARN", {"driver": {"modules": ["nvidia"]}, "cuda": NO_CUDA}, ["nvidia_uvm"]),
    (
        "driver-libraries", "BLOCK",
        {"cuda": {"libnvml": {"path": None, "version": None, "error": "cannot open"}}},
        ["libnvidia-ml.so.1", "is there", "LD_LIBRARY_PATH"],
    ),
    (
        "driver-versions", "BLOCK",
        {"cuda": {"libnvml": {"path": "/usr/lib/libnvidia-ml.so.580.95.05", "version": "580.95.05"}}},
        ["libnvidia-ml.so.580.95.05", "580.159.04", "do not stop"],
    ),
    (
        "driver-versions", "BLOCK",
        {"cuda": {"error": "no sandbox"},
         "driver": {"files": [{"path": "/usr/lib/libcuda.so.570.1", "version": "570.1"}]}},
        ["570.1"],
    ),
    ("driver-versions", "WARN", {"cuda": {"error": "x"}, "driver": {"files": []}}, ["unknown"]),
    ("driver-versions", "WARN", {"driver": {"module_on_disk": "585.1.2"}}, ["585.1.2", "reboot"]),
    (
        "driver-versions", "WARN",
        {"driver": {"files": [{"path": "/usr/lib/libcuda.so.535.1", "version": "535.1"}]}},
        ["535.1", "lie beside"],
    ),
    # nodes
    (
        "device-nodes", "BLOCK",
        {"devices": {"nodes": {"/dev/nvidia-uvm": None}}},
        ["/dev/nvidia-uvm is missing", "nvidia-smi"],
    ),
    ("device-nodes", "BLOCK", {"devices": {"nodes": {"/dev/nvidiactl": None}}}, ["/dev/nvidiactl is missing"]),
    (
        "device-nodes", "BLOCK",
        {"devices": {"nodes": {"/dev/nvidia0": None, "/dev/nvidia1": None}}},
        ["no /dev/nvidia0"],
    ),
    ("device-nodes", "WARN", {"devices": {"nodes": {"/dev/nvidia1": None}}}, ["/dev/nvidia1 is missing"]),
    ("device-nodes", "WARN", {"devices": {"nodes": {"/dev/nvidia-uvm-tools": None}}}, ["uvm-tools"]),
    (
        "device-nodes", "BLOCK",
        {"devices": {"nodes": {"/dev/nvidia-uvm": {"char": False, "major": None}}}},
        ["no character device"],
    ),
    ("device-nodes", "BLOCK", {"devices": {"nodes": {"/dev/nvidia0": {"major": 194}}}}, ["major 194", "195"]),
    (
        "device-access", "BLOCK",
        {"cuda": {"nodes": {"/dev/nvidiactl": "EPERM"}}},
        ["EPERM", "lxc.cgroup2.devices.allow"],
    ),
    ("device-access", "BLOCK", {"cuda": {"nodes": {"/dev/nvidia-uvm": "ENXIO"}}}, ["driver behind the node"]),
    ("device-access", "BLOCK", {"cuda": {"nodes": {"/dev/nvidia0": "EIO"}}}, ["dmesg"]),
    (
        "device-access", "BLOCK",
        {"cuda": {"nodes": {"/dev/nvidia0": "EPERM"}}, "devices": {"device_policy": "closed"}},
        ["DeviceAllow=char-nvidia*"],
    ),
    ("device-access", "WARN", {"cuda": {"nodes": {"/dev/nvidia-uvm-tools": "EACCES"}}}, ["uvm-tools"]),
    ("device-sandbox", "BLOCK", {"devices": {"private_devices": True}, "cuda": NO_CUDA}, ["PrivateDevices=yes"]),
    ("device-sandbox", "BLOCK", {"devices": {"device_policy": "strict"}, "cuda": NO_CUDA}, ["DevicePolicy=strict"]),
    ("device-sandbox", "WARN", {"devices": {"private_devices": None}}, ["unknown"]),
    (
        "device-reload", "WARN",
        {"devices": {"engines": ["podman"], "nodes": {"/dev/nvidia0": {"link": False}}}},
        ["podman"],
    ),
    (
        "device-nested", "WARN",
        {"driver": {"virt": "lxc"}, "devices": {"engines": ["docker"], "runtime": True, "no_cgroups": False}},
        ["no-cgroups = true"],
    ),
    # the kernel's log
    *[
        ("gpu-xid", "BLOCK", {**event("xid", code), **card(gpu_recovery_action="Reset")}, [TWO, f"Xid {code}", *words])
        for code, words in {
            48: ["memory error", "reset"], 62: ["halted"], 63: ["remap"], 64: ["RMA"], 74: ["NVLink"],
            79: ["power-cycle"],
            94: ["contained"], 95: ["uncontained"], 119: ["GSP"], 120: ["GSP"], 171: ["DRAM"],
        }.items()
    ],
    ("gpu-xid", "BLOCK", event("xid", 64), ["could not be remapped"]),
    ("gpu-xid", "BLOCK", event("xid", 79), ["fell off the bus"]),
    (
        "gpu-xid", "BLOCK",
        {**event("xid", 154, detail="Node Reboot Required"), **card(gpu_recovery_action="Reboot")},
        ["Node Reboot Required", "reboot ct129"],
    ),
    *[("gpu-xid", "WARN", event("xid", code), [f"Xid {code}", "a program"]) for code in (13, 31, 43, 45)],
    ("gpu-xid", "WARN", {**event("xid", 92), **card(gpu_recovery_action=None)}, ["single-bit"]),
    ("gpu-xid", "BLOCK", {**event("xid", 149), **card(gpu_recovery_action="Drain P2P")}, ["NVLink"]),
    ("gpu-xid", "WARN", {**event("xid", 109)}, ["well now"]),
    ("gpu-xid", "WARN", event("xid", 999), ["Xid 999", "list of Xid"]),
    ("gpu-xid", "WARN", event("xid", 94), ["well now"]),
    ("gpu-xid", "WARN", {**event("xid", 63), **card(gpu_recovery_action=None)}, ["well now"]),
    ("gpu-xid", "BLOCK", {**event("xid", 119), **card(gpu_recovery_action=None)}, ["GSP"]),
    (
        "gpu-xid", "WARN",
        {**event("xid", 62, bus="0000:99:00.0"), **card("0000:99:00.0", index="2")},
        ["does not take it"],
    ),
    ("gpu-xid", "BLOCK", event("sxid", 20034, "0000:c1:00.0", detail="fatal"), ["SXid 20034"]),
    (
        "gpu-kernel", "BLOCK",
        event("bus", None, "0000:99:00.0", text="NVRM: GPU 0000:99:00.0 fallen off"),
        ["power-cycle"],
    ),
    (
        "gpu-kernel", "BLOCK",
        {**event("gsp", None, text="NVRM: GSP timeout"), **card(gpu_recovery_action="Reset")},
        ["GSP"],
    ),
    (
        "gpu-kernel", "BLOCK",
        {**event("mismatch", None, None), "gpus": {"cards": {ONE: None, TWO: None}}},
        ["--no-kernel-modules"],
    ),
    ("gpu-kernel", "WARN", event("mismatch", None, None), ["answer now"]),
    ("gpu-kernel", "BLOCK", {**event("probe", None, None), "gpus": {"cards": {TWO: None}}}, ["dmesg"]),
    (
        "gpu-kernel", "BLOCK",
        {**event("flavour", None, "0000:99:00.0"), "gpus": {"cards": {TWO: None}}},
        ["open kernel modules", "nvidia-driver"],
    ),
    ("gpu-kernel", "WARN", event("flavour", None, "0000:99:00.0"), ["the server's own GPUs answer"]),
    (
        "gpu-kernel", "BLOCK",
        {**event("unsigned", None, None), "gpus": {"cards": {ONE: None, TWO: None}}},
        ["Secure Boot", "mokutil"],
    ),
    ("gpu-kernel", "WARN", event("probe", None, None), ["the server's own GPUs answer"]),
    ("gpu-kernel", "WARN", event("aer", None, None), ["PCIe"]),
    ("kernel-log", "WARN", {"kernel_log": {"readable": False, "why": "closed"}}, ["unknown", "closed"]),
    ("oom-kills", "WARN", event("oom", None, None, detail="sglang::schedul"), ["sglang::schedul", "MemoryMax="]),
    (
        "disk-errors", "BLOCK",
        event("disk", None, None, text="EXT4-fs (sda1): Remounting filesystem read-only"),
        ["read-only"],
    ),
    ("disk-errors", "WARN", event("disk", None, None, text="I/O error, dev sdb, sector 1"), ["smartctl"]),
    # who holds them
    (
        "leftovers", "BLOCK",
        holders(stranger(engine=True, name="sglang::schedul", ppid=1, cgroup="/user.slice/user-0.slice/session-3.scope",
                         used={healthy_gpu.UUIDS[0]: 118000})),
        ["outside of any unit", "118000 MiB", "parent died", "kill -KILL 900"],
    ),
    ("leftovers", "BLOCK", holders(*OURS, unit_active=False), ["not running", "systemctl kill"]),
    ("leftovers", "BLOCK", holders(stranger(state="Z", engine=True, nodes=[])), ["not reaped"]),
    ("leftovers", "BLOCK", holders(stranger(state="D")), ["state D", "reboot"]),
    (
        "gpu-strangers", "BLOCK",
        holders(*OURS, stranger(used={healthy_gpu.UUIDS[1]: 90000})),
        ["other.service", "63%"],
    ),
    ("gpu-strangers", "WARN", holders(*OURS, stranger(used=dict.fromkeys(healthy_gpu.UUIDS, 20000))), ["14%"]),
    ("gpu-strangers", "BLOCK", holders(*OURS, stranger(used={healthy_gpu.UUIDS[1]: 20000})), ["unbalanced"]),
    ("gpu-strangers", "WARN", holders(*OURS, stranger(), apps_known=False), ["unknown"]),
    ("gpu-memory", "BLOCK", holders(unit_active=False), ["nobody who is seen", "83%"]),
    ("gpu-memory", "WARN", card(**{"memory.used": None}), ["unknown"]),
    # several GPUs
    ("shm-size", "BLOCK", {"nccl": {"shm": None}}, ["no /dev/shm"]),
    ("shm-size", "BLOCK", {"nccl": {"shm": {"writable": False}}}, ["chmod 1777"]),
    ("shm-size", "BLOCK", {"nccl": {"shm": {"size": 64 << 20, "free": 64 << 20}}}, ["64 MiB"]),
    ("shm-size", "WARN", {"nccl": {"shm": {"size": (2 << 30) - 1, "free": (2 << 30) - 1}}}, ["1 GiB a rank"]),
    (
        "shm-size", "BLOCK",
        {"gpus": {"need": 8}, "nccl": {"shm": {"size": 1 << 30, "free": 1 << 30}}},
        ["tp 8", "2048 MiB"],
    ),
    ("limit-memlock", "BLOCK", infiniband(65536), ["mlx5_0", "64 KiB", "ibv_reg_mr", "LimitMEMLOCK=infinity"]),
    ("limit-memlock", "WARN", infiniband(65536, cards=()), ["64 KiB", "mlock"]),
    ("limit-memlock", "WARN", infiniband(65536, {"NCCL_IB_DISABLE": "1"}), ["64 KiB", "mlock"]),
    ("nccl-interface", "BLOCK", {"nccl": {"env": {"NCCL_SOCKET_IFNAME": "ens3"}}}, ["ens3", "eth0"]),
    ("nccl-interface", "BLOCK", {"nccl": {"env": {"GLOO_SOCKET_IFNAME": "eth"}}}, ["GLOO_SOCKET_IFNAME"]),
    ("nccl-interface", "WARN", {"nccl": {"env": {"NCCL_SOCKET_IFNAME": "lo"}, "interfaces": None}}, ["unknown"]),
    ("peer-write", "BLOCK", {"nccl": {"pairs": {"0-1": {"ok": False, "code": 719}}}}, ["error 719"]),
    (
        "all-reduce-memory", "WARN",
        {"nccl": {"env": {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}}},
        ["PYTORCH_ALLOC_CONF", "--disable-custom-all-reduce"],
    ),
    ("peer-write", "WARN", {"nccl": {"pairs": {"0-1": {"ok": False, "code": 2}}}}, ["unknown"]),
    (
        "peer-write", "WARN",
        {"nccl": {"pairs": {"0-1": {"ok": False}}, "env": {"NCCL_P2P_DISABLE": "1"}}},
        ["keeps NCCL off"],
    ),
    ("gpu-topology", "WARN", {"topology": {"links": None, "p2p": None}}, ["unknown"]),
    ("gpu-topology", "WARN", {"topology": {"links": {"0-1": "PIX"}, "iommu": "on"}}, ["iommu=pt"]),
    (
        "gpu-topology", "WARN",
        {"topology": {"links": {"0-1": "PIX"}, "redirecting": ["0000:00:01.0"]}},
        ["0000:00:01.0"],
    ),
    (
        "gpu-topology", "WARN",
        {"topology": {"links": {"0-1": "PIX"}, "iommu": None, "redirecting": None}},
        ["unknown"],
    ),
]  # fmt: skip


#: (rule, facts that look like a fault and are none).
NEAR: list[tuple[str, Facts]] = [
    ("gpu-lost", {"gpus": {"virt": "lxc", "pci": [{"bus": "0000:99:00.0", "driver": "nvidia", "dead": False}]}}),
    ("gpu-lost", {"gpus": {"pci": [{"bus": "0000:99:00.0", "driver": "vfio-pci", "dead": False}]}}),
    ("gpu-count", {"gpus": {"visible": "1,0"}}),
    ("gpu-count", {"gpus": {"visible": "GPU-22222222,GPU-11111111"}}),
    ("gpu-count", {"gpus": {"need": 1, "base": 1}}),
    ("gpu-count", {"gpus": {"need": 1}}),
    ("gpu-names", {"gpus": {"visible": "GPU-22222222", "need": 1}}),
    ("gpu-names", {"gpus": {"visible": "0,1", "order": "PCI_BUS_ID", "cards": {TWO: {"name": "NVIDIA H100"}}}}),
    ("gpu-mixed", card(**{"memory.total": "140000"})),
    ("gpu-compute-mode", {"gpus": {"need": 1, "cards": {TWO: {"compute_mode": "Prohibited"}}}}),
    ("gpu-ecc", card(**{"ecc.mode.current": "N/A", "ecc.errors.uncorrected.volatile.total": "N/A"})),
    ("gpu-ecc", card(**{"ecc.errors.uncorrected.aggregate.total": "2", "ecc.errors.corrected.volatile.total": "12"})),
    (
        "gpu-rows",
        card(**{"remapped_rows.pending": "N/A", "remapped_rows.failure": "N/A", "retired_pages.pending": "No"}),
    ),
    ("gpu-recovery", card(gpu_recovery_action="N/A")),
    ("gpu-mig", card(**{"mig.mode.current": "N/A", "mig.mode.pending": "N/A"})),
    ("gpu-fabric", {**card(**{"fabric.state": "Completed", "fabric.status": "Success"}), "cuda": NO_CUDA}),
    (
        "gpu-fabric",
        {"gpus": {"nvswitches": 4, "fabric_manager": {"active": "active", "version": "580.159.04"}}, "cuda": NO_CUDA},
    ),
    ("gpu-fabric", {"gpus": {"fabric_manager": {"active": "inactive", "version": "570.1"}}, "cuda": NO_CUDA}),
    ("gpu-persistence", card(persistence_mode="N/A")),
    ("driver-cuda", {"cuda": {"driver_cuda": "12.2"}}),
    ("driver-cuda", {"cuda": {"driver_cuda": "13.1"}}),
    ("cpu-fallback", {"launch": {"device": None}}),
    ("driver-module", {"driver": {"module": None, "module_sysfs": None, "wsl": True}}),
    ("driver-module", {"driver": {"modules": ["nvidia"]}}),
    ("driver-versions", {"driver": {"module_on_disk": "585.1.2", "virt": "lxc"}}),
    ("driver-versions", {"driver": {"files": []}}),
    ("device-nodes", {"driver": {"virt": "lxc"}, "devices": {"minors": [0, 1, 2, 3]}}),
    ("device-nodes", {"devices": {"majors": {"nvidia-frontend": 195, "nvidia-uvm": 511}}}),
    ("device-nodes", {"devices": {"nodes": {"/dev/nvidia-modeset": healthy_gpu.node(196, 254)}}}),
    ("device-access", {"cuda": {"nodes": {"/dev/nvidia7": "ENOENT"}}}),
    ("device-sandbox", {"devices": {"device_policy": "closed", "device_allow": ["/dev/nvidia0 rw"]}}),
    ("device-reload", {"devices": {"engines": ["docker"]}}),
    ("gpu-xid", event("xid", 154, detail="None")),
    ("gpu-kernel", {"kernel_log": {"events": []}}),
    ("leftovers", holders(*OURS)),
    ("leftovers", holders(*OURS, dict(OURS[0], pid=120, state="Z", nodes=[], used={}))),
    ("leftovers", holders(*OURS, stranger(engine=True, name="sglang::schedul"))),
    ("leftovers", holders(*OURS, stranger(engine=True, name="python3", cgroup="/system.slice/docker-1.scope"))),
    ("gpu-strangers", holders(*OURS, stranger(used={healthy_gpu.UUIDS[0]: 600}))),
    ("gpu-strangers", {"gpus": {"need": 1}, **holders(*OURS, stranger(used={healthy_gpu.UUIDS[1]: 90000}))}),
    ("gpu-memory", {**holders(*[dict(one, used={}) for one in OURS])}),
    ("gpu-memory", {**holders(), "gpus": {"cards": {ONE: {"memory.used": "600"}, TWO: {"memory.used": "0"}}}}),
    ("limit-memlock", infiniband(64 << 30)),
    ("limit-memlock", infiniband(1 << 30)),
    ("limit-memlock", infiniband(512 << 20, {"NCCL_IB_DISABLE": "1"})),
    ("nccl-interface", {"nccl": {"env": {"NCCL_SOCKET_IFNAME": "eth"}}}),
    ("nccl-interface", {"nccl": {"env": {"NCCL_SOCKET_IFNAME": "^docker0,lo"}}}),
    ("nccl-interface", {"nccl": {"env": {"NCCL_SOCKET_IFNAME": "=lo", "GLOO_SOCKET_IFNAME": "lo,eth0"}}}),
    ("peer-write", {"nccl": {"pairs": {"0-1": {"access": False, "ok": None, "code": 0}}}}),
    ("all-reduce-memory", {"nccl": {"env": {"PYTORCH_ALLOC_CONF": "expandable_segments:False"}}}),
    (
        "all-reduce-memory",
        {"nccl": {"env": {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}}, "gpus": {"custom_all_reduce": False}},
    ),
    ("gpu-topology", {"topology": {"links": {"0-1": "PIX"}, "p2p": {"0-1": "NS"}, "iommu": "on"}}),
    (
        "gpu-topology",
        {"topology": {"links": {"0-1": "PIX"}, "iommu": "on"}, "nccl": {"env": {"NCCL_P2P_DISABLE": "1"}}},
    ),
]  # fmt: skip
