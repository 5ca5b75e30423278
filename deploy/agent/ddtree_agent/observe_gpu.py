"""GPU memory in use on this host, read beside the watch because nvidia-smi can take seconds or hang."""

import shutil
import threading
from typing import Optional

from .systemd import run

_QUERY = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
_EVERY_S, _LIMIT_S = 3.0, 15.0


class GpuMeter:
    """`bytes` is the sum over all visible GPUs, None where there is no nvidia-smi or no answer."""

    def __init__(self) -> None:
        self.bytes: Optional[int] = None
        self._stop = threading.Event()
        if shutil.which("nvidia-smi"):
            threading.Thread(target=self._loop, name="gpu-meter", daemon=True).start()

    def close(self) -> None:
        """Read no more."""
        self._stop.set()

    def _loop(self) -> None:
        while not self._stop.is_set():
            status, out, _ = run(_QUERY, _LIMIT_S)
            self.bytes = parse(out) if status == 0 else None
            self._stop.wait(_EVERY_S)


def parse(text: str) -> Optional[int]:
    """Sum of a column of MiB, in bytes; None where no line is a number (MIG prints "[N/A]")."""
    numbers = [int(line) for line in text.splitlines() if line.strip().isdigit()]
    return sum(numbers) << 20 if numbers else None
