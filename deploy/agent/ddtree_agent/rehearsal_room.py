"""What of the GPUs a rehearsal may take beside the live server, and the watch that ends it when it takes more."""

import os
import threading
from typing import Any, Callable, Dict, List, NamedTuple, Optional

from . import nvidia_smi

GIB = 1 << 30
#: Below this much, context and libraries alone would fill it.
LEAST = 2 * GIB
#: The share for weights and pools; the rest is for graphs and activations.
STATIC = 0.7
#: Of NVIDIA's driver, and of AMD's.
DEVICES = ("/dev/nvidiactl", "/dev/dxg", "/dev/kfd")
_EVERY_S, _LIMIT_S = 1.0, 10.0


class Room:
    """free, total: bytes of the fullest GPU that the service sees. Both None where there is no GPU."""

    def __init__(self, free: Optional[int], total: Optional[int]) -> None:
        self.free, self.total = free, total

    @property
    def reserve(self) -> int:
        """What stays the live server's: its activations grow and shrink."""
        return max(GIB, (self.total or 0) // 50)

    @property
    def usable(self) -> int:
        return max(0, (self.free or 0) - self.reserve)

    def why_not(self) -> Optional[str]:
        """Why a rehearsal does not fit, in words; None where it may."""
        if self.free is None or self.usable >= LEAST:
            return None
        return (
            f"does not fit: {self.free / GIB:.1f} GiB of a GPU are free, {self.reserve / GIB:.1f} GiB stay the live "
            f"server's, and a rehearsal needs at least {LEAST / GIB:.0f} GiB"
        )

    def fraction(self) -> str:
        """--mem-fraction-static: a share of what is free at the start (SGLang 0.5.11), so that the static part stays
        within its share of what may be taken."""
        return "0.5" if not self.free else f"{STATIC * self.usable / self.free:.3f}"


class Takes(NamedTuple):
    """Which GPUs the server takes: CUDA_VISIBLE_DEVICES, of those the first, and how many (None: all)."""

    visible: Optional[str]
    base: int = 0
    need: Optional[int] = None


def look(takes: Takes, ask: Callable[[List[str], float], Any] = nvidia_smi.ask) -> Optional[Room]:
    """The room now on the GPUs that the server takes. None where nvidia-smi gives no
    answer, or is missing though a GPU is there."""
    tool = nvidia_smi.find()
    if tool is None:
        return None if any(os.path.exists(device) for device in DEVICES) else Room(None, None)
    status, text = ask(
        [tool, "--query-gpu=index,uuid,memory.free,memory.total", "--format=csv,noheader,nounits"], _LIMIT_S
    )
    found = _rows(text) if status == 0 else []
    if not found:
        return None
    shown = _shown(found, takes.visible)
    last = None if takes.need is None else takes.base + takes.need
    least = min(shown[takes.base : last] or shown, key=lambda row: int(row["free"]))
    return Room(int(least["free"]) << 20, int(least["total"]) << 20)


def split() -> bool:
    """Whether a GPU is in MIG mode: what `look` reads is then the whole card's, and a slice may be full."""
    tool = nvidia_smi.find()
    rows = nvidia_smi.query(tool, "gpu", ("mig.mode.current",), _LIMIT_S)["rows"] if tool else []
    return any(row.get("mig.mode.current") == "Enabled" for row in rows)


class Guard:
    """Looks once a second; calls `end` when less than half of the reserve is left on a GPU. A context manager."""

    def __init__(self, room: Room, takes: Takes, end: Callable[[], None]) -> None:
        self.least = room.free
        self.ended = False
        self._floor, self._takes, self._end = room.reserve // 2, takes, end
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="room", daemon=True)
        self._on = room.free is not None

    def __enter__(self) -> "Guard":
        if self._on:
            self._thread.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._stop.set()

    def _loop(self) -> None:
        while not self._stop.wait(_EVERY_S):
            self.take(look(self._takes))

    def take(self, room: Optional[Room]) -> None:
        """One look. No answer is no reason to end anything."""
        if room is None or room.free is None or self._stop.is_set():
            return
        self.least = min(room.free, self.least if self.least is not None else room.free)
        if room.free < self._floor:
            self.ended = True
            self._stop.set()
            self._end()


def _rows(text: str) -> List[Dict[str, str]]:
    rows = []
    for line in text.splitlines():
        words = [word.strip() for word in line.split(",")]
        if len(words) == 4 and words[2].isdigit() and words[3].isdigit():
            rows.append(dict(zip(("index", "uuid", "free", "total"), words)))
    return rows


def _shown(rows: List[Dict[str, str]], visible: Optional[str]) -> List[Dict[str, str]]:
    """The GPUs that CUDA_VISIBLE_DEVICES names, in its order; all of them where it names none that is here."""
    words = [word.strip() for word in (visible or "").split(",") if word.strip()]
    named = [row for word in words for row in rows if word == row["index"] or row["uuid"].startswith(word)]
    return named or rows
