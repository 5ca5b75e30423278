"""A hold on a service: no deploy begins while it stands. Rollbacks, guards and running rollouts never look at it."""

import math
import os
import time
from typing import Any, Dict, Optional

from .layout import Layout, read_json, remove_file, write_json
from .wire import AgentError


def path(layout: Layout) -> str:
    """Where the hold of a service lies."""
    return os.path.join(layout.state, "hold")


def put(layout: Layout, request: Dict[str, Any]) -> Dict[str, Any]:
    """Hold the service. request: {who, why, for_s: seconds | null, until: unix | null}; neither: until `unhold`.

    Returns {"hold", "replaced": the hold that stood before | None}. Raises AgentError(usage) for a time that has
    passed on this host's clock, which is the one that decides.
    """
    now = time.time()
    until = request.get("until")
    if request.get("for_s") is not None:
        until = now + float(request["for_s"])
    if until is not None and float(until) <= now:
        raise AgentError(
            "usage",
            f"{_utc(float(until))} has passed on this host, where it is {_utc(now)}",
            meaning="nothing is held",
            next="ddtree-ops hold with a later --until",
        )
    if until is not None and not _moment(float(until)):
        raise AgentError(
            "usage",
            "--until is no time of a calendar",
            meaning="nothing is held",
            next="ddtree-ops hold without --until, which holds until somebody lifts it",
        )
    before = standing(layout)
    write_json(path(layout), {"who": request["who"], "why": request["why"], "since": now, "until": until})
    return {"hold": standing(layout), "replaced": before}


def lift(layout: Layout) -> Optional[Dict[str, Any]]:
    """Take the hold away, damaged or not; what stood, None where nothing was held (any more)."""
    before = standing(layout)
    try:
        remove_file(path(layout))
    except OSError as error:
        raise AgentError("precondition", f"{path(layout)} cannot be removed: {error.strerror}") from None
    return before


def standing(layout: Layout) -> Optional[Dict[str, Any]]:
    """The hold that stands now, {who, why, since, until, text: all of it in words}; None where there is none.

    A file that cannot be read holds: it may say "never touch this host".
    """
    try:
        found = read_json(path(layout))
    except (AgentError, OSError) as error:
        return _damaged(layout, error.fields["what"] if isinstance(error, AgentError) else str(error))
    if found is None and not os.path.lexists(path(layout)):
        return None
    if not _whole(found):
        return _damaged(layout, f"{path(layout)} is damaged: it is no hold of ours")
    until = found["until"]
    if until is not None and until <= time.time():
        return None
    text = f"by {found['who']} since {_utc(found['since'])}, " + (
        f"until {_utc(until)}" if until is not None else "until somebody lifts it"
    )
    return {
        **{key: found[key] for key in ("who", "why", "since", "until")},
        "text": f"{text}: {found['why']}",
    }


def refuse(layout: Layout) -> None:
    """Raise AgentError(locked) while a hold stands: for whatever begins a deploy."""
    found = standing(layout)
    if found is not None:
        raise AgentError(
            "locked",
            f"{layout.service} is on hold {found['text']}",
            meaning="nothing was touched; a rollback is not held",
            next="ddtree-ops unhold",
        )


def _whole(found: Any) -> bool:
    if not isinstance(found, dict) or not all(isinstance(found.get(key), str) for key in ("who", "why")):
        return False
    return (
        _moment(found.get("since"))
        and "until" in found
        and (found["until"] is None or _moment(found["until"]))
    )


def _moment(value: Any) -> bool:
    # seconds since 1970 that a calendar has
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return number and math.isfinite(value) and 0 <= value < 1e11


def _damaged(layout: Layout, what: str) -> Dict[str, Any]:
    text = f"by someone unknown ({what}), until somebody lifts it"
    return {"who": None, "why": None, "since": None, "until": None, "damaged": True, "text": text}


def _utc(t: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(t))
