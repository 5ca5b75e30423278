"""The one guard: a transient timer that looks whether a rollout's runner lives and is in time, else takes over."""

import os
import sys
import time
from typing import List

from .journal import Txn, boot_id
from .layout import read_json, rewrite_json
from .service import facts
from .systemd import ctl, run
from .wire import AgentError

#: A phase may take its cap, a stop its limit; the guard waits so many seconds more before it takes over.
SLACK_S = 120.0
#: The guard looks this often (seconds); what it may find is a runner that systemd could not follow up by itself.
_LOOK_S = 20
#: Set for a guard that was started because the runner ended: its unit may still be on its way out.
RUNNER_ENDED = "DDTREE_RUNNER_ENDED"


def runner_unit(txn_id: str) -> str:
    """The transient unit in which a transaction runs."""
    return f"ddtree-txn-{txn_id}.service"


def launch(txn: Txn, archive: str) -> None:
    """Start the runner as a unit of its own: operators come and go, it does not. Raises AgentError."""
    command = _command(archive, txn)
    status, out, err = run(
        [
            "systemd-run",
            "--quiet",
            "--collect",
            f"--unit={runner_unit(txn.id)}",
            f"--description=ddtree-ops rollout of {txn.layout.service}",
            "--property=Type=exec",
            # First: on a host that goes down the next one does not return.
            *_when_stopped(archive, txn),
            # Whatever ends the runner, SIGKILL included, the guard looks at once. In a unit of its own, because a
            # shutdown waits for an ExecStopPost= and must not wait for a rollback.
            "--property=ExecStopPost=" + " ".join(_now(txn, command)),
            "--",
            *command,
            "run",
        ],
        30,
    )
    if status != 0:
        raise AgentError(
            "precondition",
            "systemd-run could not start the rollout",
            evidence=(err or out).strip(),
            meaning="nothing was stopped",
            next="systemctl status, on the host; then type the same command again",
        )


def arm(txn: Txn, archive: str, seconds: float) -> None:
    """Arm the timer; without `extend` the guard takes over in `seconds`."""
    extend(txn, seconds)
    status, out, err = run(
        [
            "systemd-run",
            "--quiet",
            "--collect",
            f"--unit=ddtree-guard-{txn.id}",
            f"--on-active={_LOOK_S}s",
            f"--timer-property=OnUnitInactiveSec={_LOOK_S}s",
            "--timer-property=AccuracySec=100ms",
            *_when_stopped(archive, txn),
            "--",
            *_command(archive, txn),
            "guard",
        ],
        30,
    )
    if status != 0:
        raise AgentError(
            "precondition",
            "the guard timer could not be armed",
            evidence=(err or out).strip(),
            meaning="nothing was stopped",
            next="systemctl list-timers, on the host; then type the same command again",
        )


def keep_armed(txn: Txn, archive: str, seconds: float) -> None:
    """As `arm`, for whoever must go on whether or not it works."""
    extend(txn, seconds)
    if not armed(txn):
        try:
            arm(txn, archive, seconds)
        except AgentError as error:
            txn.say({"ev": "note", "text": f"{error.fields['what']}: {error.fields['evidence']}"})


def armed(txn: Txn) -> bool:
    """Whether the guard's timer waits or its look is under way."""
    names = [
        f"ddtree-guard-{txn.id}.timer",
        f"ddtree-guard-{txn.id}.service",
        f"ddtree-guard-now-{txn.id}.service",
    ]
    return any(facts(name).get("ActiveState") in ("active", "activating") for name in names)


def extend(txn: Txn, seconds: float) -> None:
    """Progress was seen: the runner has `seconds` more (CLOCK_BOOTTIME, so that a suspended host loses none)."""
    try:
        rewrite_json(os.path.join(txn.dir, "deadline"), {"boottime": boottime() + seconds, "boot": boot_id()})
    except OSError:
        pass  # a read-only disk: the last deadline stands


def overdue(txn: Txn) -> bool:
    """Whether the runner is past its time."""
    found = read_json(os.path.join(txn.dir, "deadline"))
    # the clock of another boot says nothing about this one
    return isinstance(found, dict) and (
        found.get("boot") != boot_id() or boottime() > float(found["boottime"])
    )


def at_work(txn: Txn) -> bool:
    """Whether the transaction's runner lives, or is about to."""
    # a systemd that gives no answer does not say that it is dead
    state = facts(runner_unit(txn.id)).get("ActiveState")
    return state is None or state in ("active", "activating", "deactivating")


def kill_runner(txn: Txn) -> None:
    """SIGKILL the runner where it still lives; its ExecStopPost= is the guard as well, and the lock lets one act."""
    # --kill-who: the newer --kill-whom is unknown before systemd 252.
    ctl("kill", "--kill-who=main", "--signal=SIGKILL", runner_unit(txn.id))


def disarm(txn: Txn) -> None:
    """Take the timer away; nothing happens where there is none."""
    ctl("stop", f"ddtree-guard-{txn.id}.timer")


def boottime() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def _when_stopped(archive: str, txn: Txn) -> List[str]:
    """For a unit that works for a trial: its end may be the host's, see `rollout.stopped`.

    Plain words only: systemd 252 does not read back the escapes of quoted ones that it writes into the file of a
    transient unit, and a daemon-reload comes in every rollout.
    """
    return [
        f"--property=Before={txn.layout.service}",  # so it is stopped after the service
        "--property=ExecStopPost=" + " ".join([*_command(archive, txn), "stopped"]),
    ]


def _now(txn: Txn, command: List[str]) -> List[str]:
    unit = f"--unit=ddtree-guard-now-{txn.id}"
    return [
        "systemd-run",
        "--quiet",
        "--collect",
        unit,
        f"--setenv={RUNNER_ENDED}=1",
        "--",
        *command,
        "guard",
    ]


def _command(archive: str, txn: Txn) -> List[str]:
    return [sys.executable, "-I", archive, "--service", txn.layout.service, "--txn", txn.id]
