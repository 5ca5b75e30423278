"""The effects of a rollout on a host, as values: each says what it does and what undoes it."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Step:
    """One remote effect. `state`: the transaction's state once it is done (core.txn); `down`: whether nobody
    serves while it runs."""

    state: str
    does: str
    undo: str
    down: bool = False


def deploy_steps(
    service: str,
    release: str,
    files: int,
    size: int,
    stop_s: float,
    drain: Sequence[str] = (),
    undrain: Sequence[str] = (),
) -> list[Step]:
    """The steps of a deploy, in order. `files` and `size` (bytes): what travels; `drain` and `undrain`: the operator's
    own commands around the stop, if any."""
    trial = f"/run/systemd/system/{service}.d/60-ddtree-trial.conf"
    kept = f"/etc/systemd/system/{service}.d/50-ddtree.conf"
    return [
        Step(
            "PREPARED",
            f"push {files} patched files ({size} bytes), copy the rest on the host",
            "delete staging",
        ),
        Step(
            "STAGED",
            f"seal release {release}, import smoke and argument parse of the new tree",
            "retire the release",
        ),
        Step("ARMED", "arm the guard timer; the rollout runs as a unit of its own", "stop the timer"),
        *([Step("DRAINED", f"run {shlex.join(drain)}", f"run {shlex.join(undrain)}")] if drain else []),
        Step(
            "STOPPED", f"stop {service}, at most {stop_s:.0f} s, then SIGKILL", f"start {service}", down=True
        ),
        Step("SWITCHED", f"write {trial}, daemon-reload, read the unit back", f"rm {trial}", down=True),
        Step("STARTING", f"start {service} and watch it to its verdict", "the confirmed release", down=True),
        Step("GATED", "wait for the confirm over a fresh connection", "the confirmed release"),
        Step("CONFIRMED", f"write {kept}, remove {trial}", "ddtree-ops rollback"),
    ]
