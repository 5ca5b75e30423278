"""Has a pushed release rehearsed on its host, beside the live server, before the rollout begins."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ddtree_ops.apply.agent import AgentClient
from ddtree_ops.core.errors import Detached, Unreachable
from ddtree_ops.core.rehearsal import Small, sentence

if TYPE_CHECKING:
    from ddtree_ops.apply.prepare import Prepared

#: The watch beats every 2 s; answers and the end of a stubborn process say nothing meanwhile.
_SILENCE_S = 180.0
_MEANING = "nothing was stopped; the host ends the rehearsal by itself"


def rehearse(
    prepared: Prepared,
    client: AgentClient,
    txn: str,
    operator: str,
    limits: dict[str, Any],
    on_event: Callable[[dict[str, Any]], None],
) -> str:
    """Rehearse the release; return what it showed, in a sentence, for operator and history.

    "Does not fit" and "cannot be rehearsed" are such sentences too: the rollout goes on without. Raises
    PreconditionFailed where the release fails, with nothing stopped.
    """
    small = prepared.rehearsal
    if not isinstance(small, Small):
        return _say(sentence({"verdict": "NOT_POSSIBLE", "why": small}), on_event)
    on_event({"ev": "note", "text": "rehearsal: starting the release with few layers beside the live server"})
    request = {
        "txn": txn,
        "who": operator,
        "release": prepared.plan.release,
        "argv": small.argv,
        "models": small.models,
        "environment": dict(prepared.environment),
        "expect": {"state": dict(prepared.expect_state)},
        "limits": limits,
        "interpreter": prepared.host.interpreter,
    }
    told = {"host": prepared.host.name, "meaning": _MEANING, "next": "type the same command again"}
    try:
        for event in client.events("rehearse", request, timeout=_SILENCE_S):
            if event["ev"] == "result":
                return _say(sentence(event["rehearsal"]), on_event)
            if event["ev"] != "beat":
                on_event(event)
    except KeyboardInterrupt:
        raise Detached("interrupted during the rehearsal", **told) from None
    except Unreachable as error:
        if error.meaning is not None:
            raise
        raise Unreachable(error.what, evidence=error.evidence, **told) from error
    raise Unreachable("the line was cut during the rehearsal", **told)


def _say(text: str, on_event: Callable[[dict[str, Any]], None]) -> str:
    on_event({"ev": "note", "text": text})
    return text
