"""Preflight rules about a GPU's health: memory errors, remapped rows, reset wanted, MIG, fabric, persistence, heat."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ddtree_ops.core.checks.cuda_facts import cuda_works
from ddtree_ops.core.checks.gpu_facts import GPUS, NA, Card, Gpus, chosen, needed
from ddtree_ops.core.checks.rule import Rule
from ddtree_ops.core.facts_live import Live
from ddtree_ops.core.finding import Finding, Level, ok, warn
from ddtree_ops.core.wanted import Wanted

#: Corrected errors are harmless one by one; this many since the driver loaded are a card that wears out.
MANY_CORRECTED = 1000
#: Answers slower than this mean that the driver first had to wake (failures.md F073: 2 s against 30 s).
SLOW_MS = 5000
NONE = ("None", NA)

Judge = Callable[[Card], Sequence[tuple[Level, str, str]]]


def each(rule: str, gpus: Gpus, live: Live, judge: Judge, well: str) -> list[Finding]:
    """Judge every card. A fault of one that the server does not take is a WARN: say so, but let the others serve."""
    taken = chosen(gpus, live).cards
    found = []
    for card in gpus.cards:
        for level, said, remedy in judge(card):
            if level is Level.BLOCK and taken and card not in taken:
                found.append(
                    Finding(rule, Level.WARN, f"{card}: {said}; the server does not take it", remedy)
                )
            else:
                found.append(Finding(rule, level, f"{card}: {said}", remedy))
    return found or ([ok(rule, well)] if gpus.cards else [])


def ecc(gpus: Gpus, live: Live, wanted: Wanted) -> list[Finding]:
    """Memory errors since the driver loaded, and the record of the card's SRAM."""

    def judge(card: Card) -> list[tuple[Level, str, str]]:
        replace = f"replace {card} of {wanted.host}; until then leave it out of CUDA_VISIBLE_DEVICES"
        if card.ecc == NA:
            return []
        if card.ecc is None:
            return [(Level.WARN, "whether ECC is on is unknown", f"nvidia-smi -q -d ECC -i {card.id}")]
        found = []
        if card.sram_exceeded == "Yes":
            found.append((Level.BLOCK, "uncorrectable SRAM errors exceed the threshold", replace))
        if card.ecc != "Enabled":
            return [
                *found,
                (Level.WARN, f"ECC is {card.ecc}: memory errors go unseen", f"nvidia-smi -i {card.id} -e 1"),
            ]
        reset = f"stop what uses it, nvidia-smi --gpu-reset -i {card.id} on {wanted.host}; replace it if they return"
        if card.uncorrected is None:
            found.append(
                (Level.WARN, "uncorrectable ECC errors are unknown", f"nvidia-smi -q -d ECC -i {card.id}")
            )
        elif card.uncorrected:
            found.append(
                (Level.BLOCK, f"{card.uncorrected} uncorrectable ECC errors since the driver loaded", reset)
            )
        if card.corrected is not None and card.corrected >= MANY_CORRECTED:
            said = (
                f"{card.corrected} corrected (single-bit) ECC errors since the driver loaded: a marginal card"
            )
            found.append((Level.WARN, f"{said}; look at it before blaming a hang on software", replace))
        return found

    return each("gpu-ecc", gpus, live, judge, "no uncorrectable memory error since the driver loaded")


def rows(gpus: Gpus, live: Live, wanted: Wanted) -> list[Finding]:
    """Rows that wait for their remap, and rows that can be remapped no more."""

    def judge(card: Card) -> list[tuple[Level, str, str]]:
        found = []
        reset = f"stop what uses it, nvidia-smi --gpu-reset -i {card.id} on {wanted.host}, then doctor again"
        if card.rows_failure == "Yes":
            said = "a memory row could not be remapped: its spare rows are used up, no reset repairs that"
            found.append(
                (
                    Level.BLOCK,
                    said,
                    f"replace the card (RMA); until then leave {card.uuid} out of the service",
                )
            )
        if card.rows_pending == "Yes":
            said = f"remapped rows are pending ({card.rows_uncorrectable} uncorrectable so far): they need a reset"
            found.append((Level.BLOCK, said, f"{reset}; if their number grows, replace the card"))
        if card.retired_pending == "Yes":
            found.append((Level.BLOCK, "retired memory pages are pending: they need a reset", reset))
        if None in (card.rows_pending, card.rows_failure):
            found.append(
                (Level.WARN, "remapped rows are unknown", f"nvidia-smi -q -d ROW_REMAPPER -i {card.id}")
            )
        return found

    return each("gpu-rows", gpus, live, judge, "no row or page waits for a reset")


def recovery(gpus: Gpus, live: Live, wanted: Wanted) -> list[Finding]:
    """What the driver itself says must be done to the GPU first."""

    def judge(card: Card) -> list[tuple[Level, str, str]]:
        action = card.recovery
        if action is None:
            said = "whether it needs a reset is unknown: this driver does not tell"
            return [
                (
                    Level.WARN,
                    said,
                    f"nvidia-smi -q -i {card.id} on {wanted.host}; newer drivers tell gpu_recovery_action",
                )
            ]
        if action in NONE:
            return []
        how = (
            f"reboot {wanted.host}"
            if "boot" in action
            else f"nvidia-smi --gpu-reset -i {card.id} on {wanted.host}"
        )
        return [
            (Level.BLOCK, f"the driver asks for recovery action {action}", f"stop what uses it, then {how}")
        ]

    return each("gpu-recovery", gpus, live, judge, "the driver asks for no reset")


def mig(gpus: Gpus, live: Live, wanted: Wanted) -> list[Finding]:
    """A GPU cut into slices: a process sees one slice at most, and none where none was made."""

    def judge(card: Card) -> list[tuple[Level, str, str]]:
        remedy = (
            f"nvidia-smi -i {card.id} -mig 0 on {wanted.host} (with nothing running there), or another GPU"
        )
        if card.mig == "Enabled":
            if needed(gpus, live) > 1:
                said = f"MIG mode is on: a process sees one slice, the server takes {needed(gpus, live)} GPUs"
                return [(Level.BLOCK, said, remedy)]
            return [
                (
                    Level.WARN,
                    "MIG mode is on: the server gets one slice's memory, if a slice was made",
                    remedy,
                )
            ]
        if card.mig is None:
            return [(Level.WARN, "MIG mode is unknown", f"nvidia-smi -q -d MIG -i {card.id}")]
        if card.mig_pending == "Enabled":
            return [(Level.WARN, "MIG mode is pending: the next reset cuts it into slices", remedy)]
        return []

    return each("gpu-mig", gpus, live, judge, "no GPU is cut into slices")


def fabric(gpus: Gpus, live: Live, wanted: Wanted) -> list[Finding]:
    """On NVSwitch machines CUDA starts only after the fabric manager registered each GPU (else error 802)."""
    manager, host = gpus.fabric_manager, wanted.host
    same = f"apt install nvidia-fabricmanager of exactly the driver's version on {host}, then systemctl restart it"
    driver = next((card.driver for card in gpus.cards if card.driver), None)
    states = {card.fabric_state for card in gpus.cards}
    wants = gpus.nvswitches > 0 or bool(states - {NA, None})
    found: list[Finding] = []
    if manager and manager.version and driver and manager.version != driver and wants:
        said = f"nvidia-fabricmanager is {manager.version}, the driver {driver}: they must match to the last digit"
        found.append(Finding("gpu-fabric", Level.BLOCK, said, same))

    def judge(card: Card) -> list[tuple[Level, str, str]]:
        state, status = card.fabric_state, card.fabric_status
        again = f"ddtree-ops doctor --host {host} in two minutes; then systemctl status nvidia-fabricmanager there"
        if state == "In Progress":
            said = "its fabric registration is in progress: CUDA says 802 (system not yet initialized) until it is done"
            return [(Level.BLOCK, said, f"wait up to 120 s: {again}")]
        if state not in (None, NA, "Completed"):
            said = f"its fabric state is {state}: CUDA says 802 (system not yet initialized)"
            return [
                (Level.BLOCK, said, f"systemctl start nvidia-fabricmanager (the driver's version) on {host}")
            ]
        if state == "Completed" and status not in (None, NA, "Success"):
            return [(Level.BLOCK, f"its fabric registration ended with {status}", same)]
        if card.fabric_health not in (None, NA, "Healthy"):
            return [
                (Level.WARN, f"its fabric's health is {card.fabric_health}", f"nvidia-smi -q -i {card.id}")
            ]
        return []

    found += each("gpu-fabric", gpus, live, judge, "")
    found = [finding for finding in found if finding.level is not Level.OK]
    if cuda_works(live):  # the state is told wrongly, or this machine does not need it
        return [warn("gpu-fabric", f"CUDA works, and yet: {one.evidence}", one.remedy) for one in found] or [
            ok("gpu-fabric", "CUDA starts, so the fabric is ready or not needed")
        ]
    if not found and gpus.nvswitches and not states & {"Completed"}:
        # The manager of a guest or container runs on its host: only a registered GPU proves it.
        if manager is None or manager.active != "active":
            how = "not installed" if manager is None else manager.active or "unknown"
            said = f"{gpus.nvswitches} NVSwitches are here and nvidia-fabricmanager is {how}"
            remedy = f"systemctl enable --now nvidia-fabricmanager on {host} (the driver's version)"
            return [Finding("gpu-fabric", Level.BLOCK, f"{said}: CUDA says 802", remedy)]
        if states - {NA}:
            return [
                warn("gpu-fabric", "the fabric's state is unknown", "nvidia-smi -q | grep -A2 Fabric, there")
            ]
    if found or not gpus.cards:
        return found
    return [ok("gpu-fabric", "registered" if "Completed" in states else "no fabric to wait for")]


def persistence(gpus: Gpus, live: Live, wanted: Wanted) -> list[Finding]:
    """Without the persistence daemon the driver forgets its state whenever nobody looks, and each look is slow."""
    remedy = f"systemctl enable --now nvidia-persistenced on {wanted.host}"
    first = gpus.first_ms or 0
    slow = f"; its first answer took {first / 1000:.0f} s" if first > SLOW_MS else ""

    def judge(card: Card) -> list[tuple[Level, str, str]]:
        if card.persistence == "Disabled":
            return [(Level.WARN, f"persistence is off{slow}: a slow nvidia-smi is no dead GPU", remedy)]
        if card.persistence is None:
            return [(Level.WARN, "persistence is unknown", f"nvidia-smi -q -i {card.id}")]
        return []

    found = each("gpu-persistence", gpus, live, judge, "")
    bad = [finding for finding in found if finding.level is not Level.OK]
    if bad or not gpus.cards:
        return bad[:1]  # the daemon is the host's: one line says it for all
    if slow:
        return [
            warn(
                "gpu-persistence",
                f"persistence is on, yet nvidia-smi is slow{slow}",
                f"dmesg, on {wanted.host}",
            )
        ]
    return [ok("gpu-persistence", "on")]


def slowdown(gpus: Gpus, live: Live, wanted: Wanted) -> list[Finding]:
    """A GPU that brakes itself for heat or power answers correctly and slowly: any speed gate would lie."""

    def judge(card: Card) -> list[tuple[Level, str, str]]:
        if not card.slow:
            return []
        remedy = f"nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER -i {card.id}, on {wanted.host}"
        return [(Level.WARN, f"it is slowed down by hardware: {', '.join(card.slow)}", remedy)]

    return each("gpu-slowdown", gpus, live, judge, "none is slowed down by hardware")


RULES: tuple[Rule[Gpus], ...] = (
    Rule(
        "gpu-ecc", GPUS, ecc,
        "Memory errors kill a server in mid-answer or make it hang, and look like faults of the software.",
        ("F064", "F065"),
    ),
    Rule(
        "gpu-rows", GPUS, rows,
        "A row that waits for its remap is used until the GPU is reset; one that cannot be remapped ends the card.",
        ("F065", "F068"),
    ),
    Rule(
        "gpu-recovery", GPUS, recovery,
        "The driver knows that a GPU must be reset, and every start before that fails with something else.",
        ("F067",),
    ),
    Rule(
        "gpu-mig", GPUS, mig,
        "On a GPU that is cut into slices CUDA shows one slice or none, while nvidia-smi shows the whole card.",
        ("F069",),
    ),
    Rule(
        "gpu-fabric", GPUS, fabric,
        "On NVSwitch machines nvidia-smi lists every GPU while CUDA refuses to start (802) until the fabric manager "
        "of the driver's very version has registered it.",
        ("F071", "F072"),
    ),
    Rule(
        "gpu-persistence", GPUS, persistence,
        "Without it each look at the GPUs can take half a minute: time limits fire, and health checks lie.",
        ("F073",),
    ),
    Rule("gpu-slowdown", GPUS, slowdown, "A GPU that brakes itself fails every speed gate, whatever the release."),
)  # fmt: skip
