"""Preflight rules about which GPUs answer, and whether they are the ones that the server asks for."""

from __future__ import annotations

import re

from ddtree_ops.core.checks.gpu_facts import GPUS, NA, Card, Gpus, chosen, needed, visible_words
from ddtree_ops.core.checks.rule import Rule
from ddtree_ops.core.facts_live import Live
from ddtree_ops.core.finding import Finding, block, ok, warn
from ddtree_ops.core.wanted import Wanted

#: (what nvidia-smi says, what that means, what helps). The first that fits.
SAID: tuple[tuple[str, str, str], ...] = (
    (
        r"version mismatch|API mismatch",
        "the driver's libraries and the loaded kernel module are of different versions",
        "reboot {host}, or install the module's version of the libraries (in LXC: the host's version, "
        "--no-kernel-modules); do not stop a server that still runs before that",
    ),
    (
        r"NVML: Unknown Error|NVML: .*not permitted",
        "this container lost its right to the device nodes (a daemon-reload on its host does that)",
        "restart the container; on its host link the nodes: nvidia-ctk system create-dev-char-symlinks --create-all",
    ),
    (
        r"(?i)insufficient permissions",
        "the device nodes may not be opened here",
        "ls -l /dev/nvidia*, there; NVreg_DeviceFileMode=0666, or the device rule c 195:* rwm of the container",
    ),
    (
        r"libnvidia-ml|NVML.*(?:not found|library)",
        "the driver's user-space libraries are missing here",
        "install the host's driver version there (in LXC: --no-kernel-modules)",
    ),
    (
        r"(?i)couldn.t communicate with the NVIDIA driver",
        "no driver is reached: /dev/nvidiactl is missing, the kernel module is not loaded or of another version",
        "lsmod | grep nvidia, ls -l /dev/nvidiactl, there; in a container: the device rule c 195:* rwm",
    ),
    (
        r"(?i)no devices were found",
        "the driver is loaded and could start no GPU",
        "dmesg | grep NVRM, there (on a guest: on its hypervisor too)",
    ),
)
LOST = re.compile(
    r"(?i)gpu is lost|determine the device handle|fallen off the bus|requires? reset|handle.*unknown error"
)
ADDRESS = re.compile(r"(?i)(?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]")
#: Sizes for which SGLang tries its own all-reduce, which reads CUDA_VISIBLE_DEVICES as numbers.
ALL_REDUCE = (2, 4, 6, 8)
FAR = 0.9  # SGLang refuses tensor parallelism where one GPU has less than 0.9 of another's free memory


def visible(gpus: Gpus, live: Live, wanted: Wanted) -> list[Finding]:
    """nvidia-smi lists GPUs: no proof that CUDA works, but without it nothing is known of their health."""
    unsure = block if live.cuda else warn
    if gpus.tool is None:
        said = "unknown: nvidia-smi is not installed, so no GPU's health can be read"
        return [
            unsure("gpu-visible", said, f"ssh {wanted.host} find / -xdev -name nvidia-smi, or install it")
        ]
    if gpus.status == 124:
        said = f"unknown: nvidia-smi gave no answer ({'; '.join(gpus.said)}): a hung driver or a lost GPU"
        remedy = f"ssh {wanted.host} 'dmesg | grep -E \"NVRM|Xid\"'; do not restart the server, it could not come back"
        return [unsure("gpu-visible", said, remedy)]
    if gpus.cards:
        names = ", ".join(sorted({card.name or "unknown" for card in gpus.cards}))
        return [ok("gpu-visible", f"{len(gpus.cards)} listed: {names}")]
    text = "; ".join(gpus.said[:3]) or f"nvidia-smi ended with {gpus.status} and lists no GPU"
    other = next((one for one in gpus.pci if one.driver not in (None, "nvidia")), None)
    if other is not None and not any(one.driver == "nvidia" for one in gpus.pci):
        said = f"{text}: the GPU at {other.bus} belongs to the driver {other.driver}, not to nvidia"
        remedy = f"blacklist {other.driver} in /etc/modprobe.d of {wanted.host} (or take it from its guest), reboot"
        return [block("gpu-visible", said, remedy)]
    for sign, meaning, remedy in SAID:
        if re.search(sign, text):
            return [block("gpu-visible", f"{text}: {meaning}", remedy.format(host=wanted.host))]
    return [
        block(
            "gpu-visible",
            f"no GPU is visible: {text}",
            f"ssh {wanted.host} nvidia-smi; dmesg | grep NVRM, there",
        )
    ]


def lost(gpus: Gpus, live: Live, wanted: Wanted) -> list[Finding]:
    """A GPU that left the bus, or that the driver cannot read any more. Whatever else it serves, NVML calls to it hang
    and the numbers of the others move."""
    remedy = f"power-cycle {wanted.host} (a restart loop cannot bring it back); if it happens again, replace the card"
    found: list[Finding] = []
    for line in gpus.said:
        if LOST.search(line):
            found.append(block("gpu-lost", f"nvidia-smi: {line}", remedy))
        elif "corrupted" in line:
            found.append(
                warn("gpu-lost", f"nvidia-smi: {line}", f"ssh {wanted.host} nvidia-smi -q; ask the vendor")
            )
    for card in gpus.cards:
        if len(card.errors) > 1 or {"uuid", "name", "memory.total"} & set(card.errors):
            found.append(
                block("gpu-lost", f"{card}: the driver cannot read {', '.join(card.errors[:4])}", remedy)
            )
        elif card.errors:
            found.append(
                warn(
                    "gpu-lost",
                    f"{card}: the driver cannot read {card.errors[0]}",
                    f"nvidia-smi -q -i {card.id}",
                )
            )
    listed = {card.bus for card in gpus.cards}
    told = " ".join(gpus.said)
    for one in gpus.pci:
        if one.dead and one.bus not in told:
            found.append(
                block("gpu-lost", f"the GPU at {one.bus} does not answer on the PCI bus any more", remedy)
            )
        elif one.bus not in listed and one.driver == "nvidia" and gpus.virt == "none" and gpus.cards:
            said = f"the GPU at {one.bus} belongs to the driver and nvidia-smi does not list it"
            found.append(warn("gpu-lost", said, f"ssh {wanted.host} 'dmesg | grep {one.bus}'"))
    if found or not gpus.cards:
        return found
    return [ok("gpu-lost", f"all {len(gpus.cards)} answer")]


def count(gpus: Gpus, live: Live, wanted: Wanted) -> list[Finding]:
    """As many GPUs as the server takes, and those that CUDA_VISIBLE_DEVICES names."""
    want, have = needed(gpus, live), chosen(gpus, live)
    if not gpus.cards:
        return []
    remedy = f"systemctl edit {wanted.service} on {wanted.host}: Environment=CUDA_VISIBLE_DEVICES=, or another --tp"
    words = visible_words(gpus)
    twice = sorted({word for word in words if words.count(word) > 1})
    if twice:
        said = f"CUDA_VISIBLE_DEVICES={gpus.visible} names {', '.join(twice)} twice: CUDA then shows no GPU at all"
        fix = f"Environment=CUDA_VISIBLE_DEVICES={','.join(dict.fromkeys(words))}"
        return [block("gpu-count", said, f"systemctl edit {wanted.service} on {wanted.host}: {fix}")]
    if gpus.visible is not None and have.missing:
        said = f"CUDA_VISIBLE_DEVICES={gpus.visible} names {', '.join(have.missing)}, which is no GPU of this host"
        return [block("gpu-count", f"{said} ({len(gpus.cards)} are there)", remedy)]
    if have.mig:
        return []
    if len(have.cards) < want:
        which = f"CUDA_VISIBLE_DEVICES={gpus.visible} leaves" if gpus.visible is not None else "there are"
        base = f" from number {gpus.base} on" if gpus.base else ""
        return [block("gpu-count", f"the server takes {want} GPUs{base}, {which} {len(have.cards)}", remedy)]
    return [ok("gpu-count", f"the server takes {want} of {len(gpus.cards)}")]


def named(gpus: Gpus, live: Live, wanted: Wanted) -> list[Finding]:
    """How CUDA_VISIBLE_DEVICES names GPUs: engines parse numbers only (SGLang's custom all-reduce, at tp > 1)."""
    have = chosen(gpus, live)
    if have.mig:
        said = f"CUDA_VISIBLE_DEVICES={gpus.visible} names a MIG slice by UUID; the engine takes numbers only"
        return [
            block(
                "gpu-names", said, "a container that has that slice alone, and there CUDA_VISIBLE_DEVICES=0"
            )
        ]
    if have.uuids and needed(gpus, live) in ALL_REDUCE and gpus.custom_all_reduce:
        numbers = ",".join(str(card.index) for card in have.cards)
        said = (
            f"CUDA_VISIBLE_DEVICES={gpus.visible} names GPUs by UUID; tensor parallelism takes numbers only"
        )
        return [block("gpu-names", said, f"CUDA_VISIBLE_DEVICES={numbers}, or --disable-custom-all-reduce")]
    kinds = {card.name for card in gpus.cards}
    if gpus.visible and len(kinds) > 1 and gpus.order != "PCI_BUS_ID" and not have.uuids:
        said = "GPUs of several kinds: CUDA numbers them fastest first, nvidia-smi by PCI address"
        return [warn("gpu-names", said, "Environment=CUDA_DEVICE_ORDER=PCI_BUS_ID in the unit")]
    return [ok("gpu-names", f"CUDA_VISIBLE_DEVICES={gpus.visible}" if gpus.visible else "all are visible")]


def mixed(gpus: Gpus, live: Live, wanted: Wanted) -> list[Finding]:
    """Under tensor parallelism each rank runs the same kernels on an equal share of the memory."""
    cards = chosen(gpus, live).cards
    if needed(gpus, live) < 2 or len(cards) < 2:
        return []
    remedy = f"CUDA_VISIBLE_DEVICES with GPUs of one kind in {wanted.service}, or --tp 1"
    kinds = sorted({f"{card.name} ({card.cc})" for card in cards if card.cc})
    if len({card.cc for card in cards if card.cc}) > 1:
        return [
            block("gpu-mixed", f"ranks on GPUs of different compute capability: {', '.join(kinds)}", remedy)
        ]
    totals = [card.total for card in cards if card.total]
    if totals and min(totals) < FAR * max(totals):
        said = f"ranks on GPUs of {min(totals)} and {max(totals)} MiB: the engine refuses unbalanced memory"
        return [block("gpu-mixed", said, remedy)]
    if len({card.name for card in cards}) > 1:
        said = f"ranks on GPUs of different kinds ({', '.join(kinds)}): the slowest sets the pace"
        return [warn("gpu-mixed", said, remedy)]
    if any(card.cc is None for card in cards):
        return [warn("gpu-mixed", "unknown: this driver does not tell compute capabilities", "nvidia-smi -L")]
    return [ok("gpu-mixed", f"{len(cards)} of one kind")]


def compute_mode(gpus: Gpus, live: Live, wanted: Wanted) -> list[Finding]:
    """Prohibited lets nobody in; an exclusive mode lets one process in, and the engine has several."""
    found = []
    for card in chosen(gpus, live).cards:
        remedy = f"nvidia-smi -i {card.id} -c DEFAULT, on {wanted.host}"
        if card.compute_mode == "Prohibited":
            found.append(block("gpu-compute-mode", f"{card}: compute mode Prohibited", remedy))
        elif card.compute_mode and card.compute_mode.startswith("Exclusive"):
            said = (
                f"{card}: compute mode {card.compute_mode}: a second process of the engine would be refused"
            )
            found.append(warn("gpu-compute-mode", said, remedy))
        elif card.compute_mode is None:
            found.append(
                warn("gpu-compute-mode", f"{card}: compute mode unknown", f"nvidia-smi -q -i {card.id}")
            )
    return found or ([ok("gpu-compute-mode", "open to several processes")] if gpus.cards else [])


def describe(cards: tuple[Card, ...], value: str) -> str:
    """One sentence for cards that are all well."""
    return f"{value} ({len(cards)} GPUs)" if value != NA else f"these {len(cards)} GPUs have no such thing"


RULES: tuple[Rule[Gpus], ...] = (
    Rule(
        "gpu-visible", GPUS, visible,
        "Without an answer from nvidia-smi nothing is known of a GPU's health, and most of its complaints mean that "
        "the server would start on no GPU at all.",
        ("F025", "F082", "F084", "F085"),
    ),
    Rule(
        "gpu-lost", GPUS, lost,
        "A GPU that fell off the bus stays lost until the power is cycled: every start fails or hangs, and calls to "
        "the driver hang with it.",
        ("F061", "F063"), waivable=False,
    ),
    Rule(
        "gpu-count", GPUS, count,
        "The server takes as many GPUs as its arguments say and dies in its first collective, or at once, when fewer "
        "are visible to it.",
    ),
    Rule(
        "gpu-names", GPUS, named,
        "Engines read CUDA_VISIBLE_DEVICES as numbers: a UUID of a slice or of a GPU ends the start in a ValueError.",
        ("F069",),
    ),
    Rule(
        "gpu-mixed", GPUS, mixed,
        "One rank without a fitting kernel or with less memory takes all ranks down, often only at the first request.",
        ("F029",),
    ),
    Rule(
        "gpu-compute-mode", GPUS, compute_mode,
        "nvidia-smi shows a GPU whose compute mode lets no process (or only one) in.",
    ),
)  # fmt: skip
