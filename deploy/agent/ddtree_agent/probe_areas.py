"""The probe's sections beyond the core: what gives each, whether it runs as the agent or in the unit's sandbox."""

from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, Callable, Dict, List, Optional, Tuple

from . import (
    inner_arguments,
    inner_caches,
    inner_code,
    inner_cuda,
    inner_limits,
    inner_model,
    inner_nccl,
    inner_network,
    inner_sources,
    inner_toolchain,
    inner_weights,
    probe_binaries,
    probe_devices,
    probe_driver,
    probe_engines,
    probe_gpu,
    probe_host,
    probe_kernel_log,
    probe_last_run,
    probe_limits,
    probe_model,
    probe_network,
    probe_processes,
    probe_python,
    probe_runtime,
    probe_topology,
    probe_unit_lint,
    sandbox,
    unitenv,
)
from .layout import OPT


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
    ("gpus", probe_gpu.gpus, 80),
    ("driver", probe_driver.driver, 15),
    ("kernel_log", probe_kernel_log.log, 12),
    ("devices", probe_devices.devices, 15),
    ("gpu_processes", probe_processes.holders, 50),
    ("topology", probe_topology.topology, 35),
    ("python", probe_python.python, 10),
    ("binaries", probe_binaries.binaries, 15),
    ("runtime", probe_runtime.runtime, 60),
    ("unit_lint", probe_unit_lint.collect, 12),
    ("limits", probe_limits.collect, 3),
    ("network", probe_network.collect, 5),
    ("processes", probe_engines.collect, 5),
    ("last_run", probe_last_run.collect, 8),
]
#: (section, module with collect(argument), argument from the context, limit): run as the service would.
INSIDE: List[Tuple[str, ModuleType, Callable[[Context], Any], float]] = [
    ("sandbox", inner_limits, probe_limits.inside, 10),
    ("sandbox_network", inner_network, probe_network.inside, 10),
    ("toolchain", inner_toolchain, probe_python.toolchain_argument, 20),
    ("caches", inner_caches, probe_python.caches_argument, 20),
    ("sources", inner_sources, probe_python.sources_argument, 20),
    ("cuda", inner_cuda, probe_gpu.smoke_argument, 60),
    ("nccl", inner_nccl, probe_gpu.peer_argument, 60),
    ("checkpoints", inner_model, lambda c: probe_model.named(c.request, c.launch), 15),
    (
        "weights",
        inner_weights,
        lambda c: probe_model.stored(c.request, c.launch, c.env, probe_host.user(c.show).get("home")),
        15,
    ),
    (
        "checkpoint_code",
        inner_code,
        lambda c: probe_model.stored(c.request, c.launch, c.env, probe_host.user(c.show).get("home")),
        15,
    ),
    (
        "arguments",
        inner_arguments,
        lambda c: {"args": c.launch.args if c.launch else [], "skip": [OPT + "/"]},
        15,
    ),
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
