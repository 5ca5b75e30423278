"""The GPUs as nvidia-smi, the PCI bus and the fabric manager tell of them, and which of them the server will take."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ddtree_ops.core.checks.rule import Section
from ddtree_ops.core.facts_live import Launch, Live

#: A card that has no such thing (ECC on a GeForce, a fabric without NVSwitch): known, and nothing to judge.
NA = "N/A"
_ERROR = "ERR!"


@dataclass(frozen=True)
class Card:
    """One GPU. None: not known; NA: it has no such thing. errors: fields that the driver failed to read."""

    bus: str
    index: int | None
    name: str | None
    uuid: str | None
    driver: str | None
    cc: str | None
    total: int | None
    used: int | None
    free: int | None
    compute_mode: str | None
    persistence: str | None
    ecc: str | None
    corrected: int | None
    uncorrected: int | None
    aggregate: int | None
    retired_pending: str | None
    rows_uncorrectable: int | None
    rows_pending: str | None
    rows_failure: str | None
    recovery: str | None
    sram_exceeded: str | None
    mig: str | None
    mig_pending: str | None
    fabric_state: str | None
    fabric_status: str | None
    fabric_health: str | None
    slow: tuple[str, ...]
    errors: tuple[str, ...]

    def __str__(self) -> str:
        index = "?" if self.index is None else self.index
        return f"GPU {index} ({self.bus}{f', {self.name}' if self.name else ''})"

    @property
    def id(self) -> str:
        """What nvidia-smi takes after -i."""
        return str(self.bus if self.index is None else self.index)


@dataclass(frozen=True)
class OnBus:
    """An NVIDIA GPU on the PCI bus. dead: it does not answer there any more."""

    bus: str
    driver: str | None
    dead: bool


@dataclass(frozen=True)
class FabricManager:
    active: str | None
    version: str | None


@dataclass(frozen=True)
class Gpus:
    """said: nvidia-smi's complaints; status: 124 where it gave no answer in time, 127 where it is not there.
    visible: CUDA_VISIBLE_DEVICES. need: GPUs that the server takes on this host, base: the first of them. virt: the
    kind of container, "none" outside of one."""

    tool: str | None
    cards: tuple[Card, ...]
    said: tuple[str, ...]
    status: int
    first_ms: int | None
    visible: str | None
    order: str | None
    base: int
    need: int | None
    custom_all_reduce: bool
    pci: tuple[OnBus, ...]
    nvswitches: int
    fabric_manager: FabricManager | None
    wsl: bool
    virt: str | None


@dataclass(frozen=True)
class Chosen:
    """What the server will see. missing: words of CUDA_VISIBLE_DEVICES that name no GPU here, mig: that name slices."""

    cards: tuple[Card, ...]
    missing: tuple[str, ...] = ()
    mig: tuple[str, ...] = ()
    uuids: tuple[str, ...] = ()


def needed(gpus: Gpus, live: Live) -> int:
    """How many GPUs the server takes here."""
    if gpus.need is not None:
        return gpus.need
    return live.launch.tp if isinstance(live.launch, Launch) else 1


def visible_words(gpus: Gpus) -> list[str]:
    """What CUDA_VISIBLE_DEVICES names, in its order."""
    return [word.strip() for word in (gpus.visible or "").split(",") if word.strip()]


def chosen(gpus: Gpus, live: Live) -> Chosen:
    """The GPUs that the server will take, by CUDA_VISIBLE_DEVICES and its own arguments."""
    want = needed(gpus, live)
    if gpus.visible is None:
        return Chosen(gpus.cards[gpus.base : gpus.base + want])
    words = visible_words(gpus)
    found: list[Card] = []
    missing: list[str] = []
    for word in words:
        card = next((card for card in gpus.cards if _names(word, card)), None)
        if card is not None and card not in found:
            found.append(card)
        elif not word.startswith("MIG-"):
            missing.append(word)
    return Chosen(
        tuple(found[gpus.base : gpus.base + want]),
        tuple(missing),
        tuple(word for word in words if word.startswith("MIG-")),
        tuple(word for word in words if word.startswith("GPU-")),
    )


def _names(word: str, card: Card) -> bool:
    if word.isdigit():
        return card.index == int(word)
    return word.startswith("GPU-") and card.uuid is not None and card.uuid.startswith(word)


def read(raw: Mapping[str, Any]) -> Gpus:
    """The section `gpus` of the probe (probe_gpu.gpus)."""
    manager = raw["fabric_manager"]
    cards = [card(bus, row) for bus, row in sorted(raw["cards"].items()) if row]
    return Gpus(
        tool=raw["tool"],
        cards=tuple(sorted(cards, key=lambda one: (one.index is None, one.index or 0))),
        said=tuple(raw["said"]),
        status=int(raw["status"]),
        first_ms=raw["first_ms"],
        visible=raw["visible"],
        order=raw["order"],
        base=int(raw["base"]),
        need=raw["need"],
        custom_all_reduce=bool(raw["custom_all_reduce"]),
        pci=tuple(OnBus(item["bus"], item["driver"], bool(item["dead"])) for item in raw["pci"]),
        nvswitches=int(raw["nvswitches"]),
        fabric_manager=FabricManager(manager["active"], manager["version"]) if manager else None,
        wsl=bool(raw["wsl"]),
        virt=raw["virt"],
    )  # fmt: skip


def card(bus: str, row: Mapping[str, Any]) -> Card:
    """A row of nvidia-smi's answers as a card."""

    def text(field: str) -> str | None:
        value = row.get(field)
        return None if value in (None, _ERROR, "") else str(value)

    def number(field: str) -> int | None:
        value = text(field)
        return int(value) if value is not None and value.isdigit() else None

    slow = [
        field.rpartition(".")[2]
        for field in row
        if field.startswith("clocks_event_reasons.") and row[field] == "Active"
    ]
    return Card(
        bus=bus,
        index=number("index"),
        name=text("name"),
        uuid=text("uuid"),
        driver=text("driver_version"),
        cc=text("compute_cap"),
        total=number("memory.total"),
        used=number("memory.used"),
        free=number("memory.free"),
        compute_mode=text("compute_mode"),
        persistence=text("persistence_mode"),
        ecc=text("ecc.mode.current"),
        corrected=number("ecc.errors.corrected.volatile.total"),
        uncorrected=number("ecc.errors.uncorrected.volatile.total"),
        aggregate=number("ecc.errors.uncorrected.aggregate.total"),
        retired_pending=text("retired_pages.pending"),
        rows_uncorrectable=number("remapped_rows.uncorrectable"),
        rows_pending=text("remapped_rows.pending"),
        rows_failure=text("remapped_rows.failure"),
        recovery=text("gpu_recovery_action"),
        sram_exceeded=text("ecc.errors.uncorrected.aggregate.sram.thresholdExceeded"),
        mig=text("mig.mode.current"),
        mig_pending=text("mig.mode.pending"),
        fabric_state=text("fabric.state"),
        fabric_status=text("fabric.status"),
        fabric_health=text("fabric.health.summary"),
        slow=tuple(slow),
        errors=tuple(field for field in row if row[field] == _ERROR),
    )


GPUS = Section("gpus", Gpus, read, gpu=True)
