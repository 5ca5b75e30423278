"""What a rehearsal must leave as it was: the host and the live server, seen before it and after it."""

from typing import Any, Dict, NamedTuple

from . import observe_env, service
from .layout import Layout
from .wire import AgentError


class Before(NamedTuple):
    """The host, and the live server's state and main process, before a rehearsal."""

    host: observe_env.HostState
    live: Dict[str, str]


def look(layout: Layout) -> Before:
    """Both as they are now."""
    return Before(observe_env.look(), _live(layout))


def see_unharmed(layout: Layout, before: Before, verdict: Dict[str, Any]) -> None:
    """Raise AgentError where the host or the live server did not stand it: that is the news, whatever the verdict."""
    if verdict["verdict"] != "PASS" and service.shutting_down():
        raise AgentError(
            "unreachable",
            "the host is shutting down: the rehearsal was ended with it",
            meaning="nothing was stopped by us; the release lies there, not yet judged",
            next="deploy again when the host is back",
        )
    faults, now = observe_env.faults(before.host, observe_env.look()), _live(layout)
    said = f"; the rehearsal had said: {verdict['line']}" if verdict.get("line") else ""
    if faults:
        raise AgentError(
            "precondition",
            "the host broke during the rehearsal",
            evidence=faults[0],
            meaning=f"nothing was stopped by us; {layout.service} is {now['state']}{said}",
            next="nvidia-smi; dmesg | tail, on the host; then ddtree-ops status",
        )
    if before.live["state"] == "active" and before.live != now:
        raise AgentError(
            "precondition",
            f"{layout.service} did not outlive the rehearsal: it is {now['state']}, its main process {now['pid']}, "
            f"not {before.live['pid']}",
            meaning=f"we did not stop it, and did not switch to the release{said}",
            next="ddtree-ops logs, then ddtree-ops status",
        )


def _live(layout: Layout) -> Dict[str, str]:
    facts = service.facts(layout.service)
    return {"state": facts.get("ActiveState", "unknown"), "pid": facts.get("MainPID", "0")}
