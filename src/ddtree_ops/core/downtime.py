"""How long a change keeps the service down, judged by the last starts on the same host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from ddtree_ops.core.errors import PreconditionFailed

#: Starts that count: older ones were on other models, drivers and disks.
_LAST = 5


@dataclass(frozen=True)
class Downtime:
    """`seconds` from the stop until the service answers again, None where no start was measured; `text`: the sentence
    that `plan` prints."""

    seconds: float | None
    text: str


UNMEASURED = Downtime(None, "unknown")


def estimate(
    history: Sequence[Mapping[str, Any]],
    *,
    mode: str,
    release: str,
    linked: bool,
    stop_limit_s: float,
    runtime: str | None = None,
) -> Downtime:
    """Median of the last measured starts in `mode`, else of any on this host; twice that where the change fails.

    `history`: the host's entries, oldest first; `linked`: jit_kernel/ is the base's own directory, so that its
    compiled kernels are found again (their cache is keyed by path); `stop_limit_s`: timeouts.stop; `runtime`: of the
    release.
    """
    good = [e for e in history if e.get("outcome") == "confirmed" and (e.get("downtime_s") or 0) > 0]
    same = [e for e in good if e.get("mode") == mode]
    last = (same or good)[-_LAST:]
    caches = _caches(good, release, linked, runtime)
    if not last:
        text = (
            f"unknown: no start was measured on this host yet (the stop is bounded at {stop_limit_s:.0f} s); "
            f"twice the stop and start where it fails; {caches}"
        )
        return Downtime(None, text)
    seconds = median(float(e["downtime_s"]) for e in last)
    stops = [float(e["stop"]["seconds"]) for e in last if (e.get("stop") or {}).get("seconds") is not None]
    stop = min(median(stops), seconds) if stops else None
    parts = f"stop {stop:.0f} s, start {seconds - stop:.0f} s; " if stop is not None else ""
    starts = "the last start" if len(last) == 1 else f"median of the last {len(last)} starts"
    where = f"in {mode} here" if same else f"here, none of them in {mode}"
    text = f"about {seconds:.0f} s ({parts}{starts} {where}), {2 * seconds:.0f} s if it fails and rolls back; {caches}"
    return Downtime(seconds, text)


def over(downtime: Downtime, limit: float | None) -> str | None:
    """The sentence that refuses a deploy: the estimate is above hosts.yaml's max_downtime (seconds)."""
    if limit is None or downtime.seconds is None or downtime.seconds <= limit:
        return None
    return f"the downtime would be about {downtime.seconds:.0f} s, max_downtime is {limit:g} s"


def warnings(downtime: Downtime, limit: float | None) -> list[str]:
    """What max_downtime cannot promise: an estimate that nobody has, or a failure that takes twice as long."""
    if limit is None:
        return []
    if downtime.seconds is None:
        return [f"max_downtime {limit:g} s cannot be judged: no start was measured on this host yet"]
    if downtime.seconds <= limit < 2 * downtime.seconds:
        return [f"a deploy that fails may take {2 * downtime.seconds:.0f} s, over max_downtime {limit:g} s"]
    return []


def check(downtime: Downtime, limit: float | None, host: str) -> None:
    """Raise PreconditionFailed where the estimate is over the limit."""
    said = over(downtime, limit)
    if said:
        raise PreconditionFailed(
            said,
            host=host,
            evidence=downtime.text,
            meaning="nothing was touched",
            next=f"raise max_downtime of {host} in hosts.yaml, or choose another time with --at",
        )


def _caches(good: Sequence[Mapping[str, Any]], release: str, linked: bool, runtime: str | None) -> str:
    if any(e.get("release") == release for e in good):
        return "caches warm: this release ran here before"
    if runtime is not None and not any(e.get("runtime") == runtime for e in good):
        return (
            f"caches cold: torch, Triton and FlashInfer come from runtime {runtime}, which never ran here, and what "
            "they compile is kept by their versions and paths"
        )
    if linked:
        return "caches warm: the kernels that the engine compiled here are found again"
    return "caches cold: a new directory of kernels, which the first start compiles"
