"""What of the GPUs a rehearsal may take beside the live server, and the watch that ends it when it takes more."""

import os
import threading
from typing import Any, Callable, Dict, List, Optional

from . import nvidia_smi

GIB = 1 << 30
#: Below this much, context and libraries alone would fill it.
LEAST = 2 * GIB
#: The share for weights and pools; the rest is for graphs and activations.
STATIC = 0.7
#: Of NVIDIA's driver, and of AMD's.
DEVICES = ("/dev/nvidiactl", "/dev/kfd")
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


def look(visible: Optional[str], ask: Callable[[List[str], float], Any] = nvidia_smi.ask) -> Optional[Room]:
    """The room now. visible: CUDA_VISIBLE_DEVICES of the service. None where nvidia-smi gives no answer, or is missing
    though a GPU is."""
    tool = nvidia_smi.find()
    if tool is None:
        return None if any(os.path.exists(device) for device in DEVICES) else Room(None, None)
    status, text = ask(
        [tool, "--query-gpu=index,uuid,memory.free,memory.total", "--format=csv,noheader,nounits"], _LIMIT_S
    )
    found = _rows(text) if status == 0 else []
    shown = [row for row in found if _visible(row, visible)] or found
    if not shown:
        return None
    least = min(shown, key=lambda row: int(row["free"]))
    return Room(int(least["free"]) << 20, int(least["total"]) << 20)


class Guard:
    """Looks once a second; calls `end` when less than half of the reserve is left on a GPU. A context manager."""

    def __init__(self, room: Room, visible: Optional[str], end: Callable[[], None]) -> None:
        self.least = room.free
        self.ended = False
        self._floor, self._visible, self._end = room.reserve // 2, visible, end
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
            self.take(look(self._visible))

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


def _visible(row: Dict[str, str], visible: Optional[str]) -> bool:
    if not visible:
        return True
    return any(
        word.strip() == row["index"] or (word.strip() and row["uuid"].startswith(word.strip()))
        for word in visible.split(",")
    )
