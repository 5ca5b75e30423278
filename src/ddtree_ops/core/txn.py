"""The transition table of a rollout: one truth for controller, agent and tests (design section 4).

Standard library only: this file is built verbatim into the host agent.
"""

from typing import Dict, FrozenSet, Tuple

#: A deploy walks these in order; ROLLING_BACK can be entered from any of them but the last.
FORWARD: Tuple[str, ...] = (
    "PREPARED",
    "STAGED",
    "ARMED",
    "DRAINED",
    "STOPPED",
    "SWITCHED",
    "STARTING",
    "READY",
    "GATED",
    "CONFIRMING",
    "CONFIRMED",
)
TERMINAL: FrozenSet[str] = frozenset({"CONFIRMED", "ROLLED_BACK"})
#: From here on the old service may be down or replaced.
TOUCHED: FrozenSet[str] = frozenset(
    {
        "DRAINED",
        "STOPPED",
        "SWITCHED",
        "STARTING",
        "READY",
        "GATED",
        "CONFIRMING",
        "ROLLING_BACK",
        "ROLLBACK_FAILED",
    }
)

TABLE: Dict[str, FrozenSet[str]] = {
    state: frozenset({FORWARD[i + 1], "ROLLING_BACK"}) for i, state in enumerate(FORWARD[:-2])
}
# Once confirming has begun nobody takes it back. A reboot may still come before the new drop-in is in /etc: then the
# old release booted, and that is all there is to record.
TABLE["CONFIRMING"] = frozenset({"CONFIRMED", "ROLLED_BACK"})
TABLE["CONFIRMED"] = frozenset()
TABLE["ROLLING_BACK"] = frozenset({"ROLLED_BACK", "ROLLBACK_FAILED"})
# A failed rollback never stops trying the confirmed release.
TABLE["ROLLBACK_FAILED"] = frozenset({"ROLLING_BACK", "ROLLED_BACK"})
TABLE["ROLLED_BACK"] = frozenset()


def may(current: str, new: str) -> bool:
    """Whether a transaction in `current` may go to `new`. Unknown states may go nowhere."""
    return new in TABLE.get(current, frozenset())


def is_open(state: str) -> bool:
    """Whether somebody still has to finish this transaction."""
    return state not in TERMINAL
