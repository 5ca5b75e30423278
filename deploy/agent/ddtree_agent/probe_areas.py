"""The probe's sections beyond the core: what gives each, whether it runs as the agent or in the unit's sandbox."""

from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, Callable, Dict, List, Optional, Tuple

from . import (
    inner_caches,
    inner_sources,
    inner_toolchain,
    probe_binaries,
    probe_python,
    sandbox,
    unitenv,
)


@dataclass
class Context:
    """What a section may start from. asked: package.query()'s answer, perhaps {"error": …}. show and env hold secrets:
    for this host only."""

    request: Dict[str, Any]
    show: Dict[str, str]
    launch: Optional[unitenv.Launch]
    asked: Dict[str, Any]
    env: Dict[str, str] = field(default_factory=dict)


#: (section, function of the context, limit in seconds): run by the agent, as root.
HERE: List[Tuple[str, Callable[[Context], Dict[str, Any]], float]] = [
    ("python", probe_python.python, 10),
    ("binaries", probe_binaries.binaries, 15),
]
#: (section, module with collect(argument), argument from the context, limit): run as the service would.
INSIDE: List[Tuple[str, ModuleType, Callable[[Context], Any], float]] = [
    ("toolchain", inner_toolchain, probe_python.toolchain_argument, 20),
    ("caches", inner_caches, probe_python.caches_argument, 20),
    ("sources", inner_sources, probe_python.sources_argument, 20),
]


def jobs(context: Context) -> "List[Any]":
    """[(names of sections, function that returns {name: facts}, limit)], to be run side by side."""
    found: List[Any] = [
        ([name], lambda name=name, work=work: {name: work(context)}, limit) for name, work, limit in HERE
    ]
    if INSIDE:
        names = [name for name, _, _, _ in INSIDE]
        found.append((names, lambda: _inside(context), max(limit for _, _, _, limit in INSIDE) + 15))
    return found


def _inside(context: Context) -> Dict[str, Dict[str, Any]]:
    if context.launch is None:
        why = "no Python interpreter found in the unit's command line"
        return {name: {"error": why} for name, _, _, _ in INSIDE}
    asked = [(name, module, argument(context), limit) for name, module, argument, limit in INSIDE]
    return sandbox.collect(context.show, context.launch, asked, max(limit for _, _, _, limit in INSIDE))
