"""The one guard: a transient timer that ends a rollout whose runner does not."""

import sys
from typing import List

from .journal import Txn
from .service import facts
from .systemd import ctl, run
from .wire import AgentError


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
            # Whatever ends the runner, SIGKILL included, the same rollback is run at once.
            "--property=ExecStopPost=" + " ".join([*command[:-1], "guard"]),
            "--property=TimeoutStopSec=infinity",
            "--",
            *command,
        ],
        30,
    )
    if status != 0:
        raise AgentError(
            "precondition",
            "systemd-run could not start the rollout",
            evidence=(err or out).strip(),
            meaning="nothing was stopped",
        )


def at_work(txn: Txn) -> bool:
    """Whether the transaction's runner lives, or is about to."""
    return facts(runner_unit(txn.id)).get("ActiveState") in ("active", "activating", "deactivating")


def arm(txn: Txn, archive: str, seconds: float) -> None:
    """(Re)arm the timer: in `seconds` the guard takes over. Called again while progress shows."""
    disarm(txn)
    status, out, err = run(
        [
            "systemd-run",
            "--quiet",
            "--collect",
            f"--unit=ddtree-guard-{txn.id}",
            f"--on-active={seconds:.0f}s",
            "--timer-property=AccuracySec=100ms",
            "--",
            *_command(archive, txn)[:-1],
            "guard",
        ],
        30,
    )
    if status != 0:
        raise AgentError("precondition", "the guard timer could not be armed", evidence=(err or out).strip())


def kill_runner(txn: Txn) -> None:
    """SIGKILL the runner where it still lives; its ExecStopPost= is the guard as well, and the lock lets one act."""
    ctl("kill", "--kill-whom=main", "--signal=SIGKILL", runner_unit(txn.id))


def disarm(txn: Txn) -> None:
    """Take the timer away; nothing happens where there is none."""
    ctl("stop", f"ddtree-guard-{txn.id}.timer")


def _command(archive: str, txn: Txn) -> List[str]:
    return [sys.executable, "-I", archive, "--service", txn.layout.service, "--txn", txn.id, "run"]
