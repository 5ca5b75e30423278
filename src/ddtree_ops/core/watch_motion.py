"""How long a starting engine has stood still: which signs of work count, and for what.

Pure, standard library only: built verbatim into the host agent.
"""

import re
from typing import Optional, Pattern, Set, Tuple

from .signatures import Signature
from .watch_facts import Observation, Probe

#: A process tree that burns less than this share of one core moves nothing (watchdog threads wake up all the time).
_IDLE_SHARE = 0.02
_HZ = 100.0
_STEP_MAX = 5.0  # a longer gap between two observations is the watcher's own pause, not the engine's
_GPU_NOISE = 1 << 20
_TIME_PREFIX: "Pattern[str]" = re.compile(r"^\[[\d\-: ]+\S*\]\s*")


class Motion:
    """How long nothing has moved: `still` counts with CPU, `stuck` without it and without disk traffic."""

    def __init__(self) -> None:
        self.still = self.stuck = 0.0
        self._last: Optional[Observation] = None
        self._mark: Tuple[float, int] = (0.0, 0)
        self._lines: Set[str] = set()

    def new_line(self, raw: str, signature: Optional[Signature]) -> bool:
        """Whether a line is news: the same sentence again, or one that only explains waiting, is not."""
        text = _TIME_PREFIX.sub("", raw).strip()
        counts = signature is None or signature.role != "wait" or "done" in signature.pattern.groupindex
        if not text or text in self._lines or '" 503' in text or "HTTP/1" in text:
            return False
        if len(self._lines) > 4000:
            self._lines.clear()
        self._lines.add(text)
        return counts

    def take(self, obs: Observation, fresh: bool) -> None:
        """Account for the time since the observation before."""
        last, self._last = self._last, obs
        if last is None:
            self._mark = (obs.t, obs.cpu_ticks or 0)
            return
        step = min(max(obs.t - last.t, 0.0), _STEP_MAX)
        outer = (
            obs.compilers > 0 or _jumped(obs.gpu_bytes, last.gpu_bytes) or _answered(obs.probe, last.probe)
        )
        inner = (
            fresh
            or self._busy(obs)
            or obs.procs != last.procs
            or obs.io_bytes != last.io_bytes
            or _blind(obs)
        )
        self.stuck = 0.0 if outer else self.stuck + step
        self.still = 0.0 if outer or inner else self.still + step

    def _busy(self, obs: Observation) -> bool:
        since, ticks = self._mark
        if obs.cpu_ticks is None:
            return False
        if obs.cpu_ticks < ticks:  # a process left the tree and took its share along
            self._mark = (obs.t, obs.cpu_ticks)
            return False
        if obs.cpu_ticks - ticks < 2 + _IDLE_SHARE * _HZ * (obs.t - since):
            return False
        self._mark = (obs.t, obs.cpu_ticks)
        return True


def _blind(obs: Observation) -> bool:
    """Whether the host can say nothing about a process that lives: a silent log alone is no standstill."""
    unknown = obs.cpu_ticks is None and obs.io_bytes is None and obs.gpu_bytes is None
    return unknown and obs.unit is not None and obs.unit.main_pid > 0


def _jumped(now: Optional[int], before: Optional[int]) -> bool:
    return now is not None and before is not None and abs(now - before) >= _GPU_NOISE


def _answered(now: Optional[Probe], before: Optional[Probe]) -> bool:
    return now is not None and before is not None and now.generations > before.generations
