"""The probe's look at the runtime that the next release would run on: is it here, whole, for this interpreter."""

from typing import TYPE_CHECKING, Any, Dict

from . import runtimes
from .layout import Layout
from .wire import AgentError

if TYPE_CHECKING:
    from .probe_areas import Context


def runtime(context: "Context") -> Dict[str, Any]:
    """{named: digest | null, present, problem: sentence | null, soabi, dists: ["name version"], interpreter_soabi}."""
    digest = context.request.get("runtime")
    found: Dict[str, Any] = {"named": digest, "present": False, "problem": None, "soabi": None, "dists": []}
    found["interpreter_soabi"] = context.asked.get("soabi")
    if digest is None:
        return found
    layout = Layout(context.request.get("service") or "sglang.service")
    try:
        manifest = runtimes.verify(layout, digest, quick=True)
    except AgentError as error:
        return {**found, "problem": str(error)}
    return {**found, "present": True, "soabi": manifest["soabi"], "dists": runtimes.label(manifest)}
