"""Why systemd holds a run of a unit for over, and when it knows that better than the log.

Pure, standard library only: built verbatim into the host agent.
"""

from typing import Optional, Tuple

from .scanner import Evidence
from .watch_facts import UnitState

_SYSTEMD_KNOWS = ("oom-kill", "exec-failed", "watchdog", "start-timeout", "stopped")


def knows_better(reason: str, best: Evidence) -> bool:
    """Whether the unit's end says more than what the log has: mere consequences, or effects of a kill."""
    return best.rank <= 1 or (best.rank <= 2 and reason in _SYSTEMD_KNOWS)


def death(unit: UnitState, first: UnitState) -> Optional[Tuple[str, str]]:
    """Why systemd holds the run for over, as (reason, hint); None while it lives."""
    restarted = unit.invocation != first.invocation or unit.n_restarts > first.n_restarts
    gone = unit.active in ("failed", "inactive", "deactivating") or unit.sub in (
        "auto-restart",
        "exited",
        "dead",
    )
    if not gone and not restarted and unit.sub != "auto-restart-queued":
        return None
    if restarted and unit.main_pid:
        return (
            "restarted",
            "the process ended and systemd has started it again: the first failure is what counts",
        )
    if unit.sub.startswith(("stop-sig", "stop")) and unit.result == "success" and unit.main_pid:
        return "stopped", "somebody stopped the unit during the start"
    return _ending(unit)


def _ending(unit: UnitState) -> Tuple[str, str]:
    named = {
        "oom-kill": ("oom-kill", "the kernel's OOM killer ended it: checkpoint against RAM, MemoryMax="),
        "watchdog": ("watchdog", "WatchdogSec= of the unit expired"),
        "timeout": (
            "start-timeout",
            "a limit of the unit expired (TimeoutStartSec=): longer than the load needs",
        ),
    }
    if unit.result in named:
        return named[unit.result]
    if unit.exec_main_code in (2, 3):
        hint = "killed by a signal that the log does not explain: the OOM killer or a person (dmesg | tail)"
        return f"signal-{unit.exec_main_status}", hint
    if 200 <= unit.exec_main_status <= 245:  # systemd.exec(5), "Process exit codes"
        return "exec-failed", f"systemd could not execute the command (status {unit.exec_main_status})"
    if unit.exec_main_status == 0:
        return "exited-0", "exit status 0 of a server is a crash all the same, or somebody stopped it"
    return f"exit-{unit.exec_main_status}", "the process ended by itself; its last lines say why"


def says(unit: Optional[UnitState]) -> str:
    if unit is None:
        return ""
    return (
        f"systemd: {unit.active} ({unit.sub}), Result={unit.result}, ExecMainStatus={unit.exec_main_status}"
    )
