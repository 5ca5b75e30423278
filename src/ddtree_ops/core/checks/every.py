"""The rules of all areas, in the order in which a person reads them."""

from __future__ import annotations

from typing import Any

from ddtree_ops.core.checks import (
    arguments,
    checkpoint,
    cuda,
    devices,
    draft,
    draft_config,
    driver,
    gpu,
    gpu_health,
    gpu_processes,
    kernel_log,
    last_run,
    limits,
    memory,
    nccl,
    network,
    processes,
    ranks,
    sandbox,
    speculation,
    transport,
    unit_lint,
    unit_policy,
)
from ddtree_ops.core.checks.rule import Rule

RULES: tuple[Rule[Any], ...] = (
    *transport.RULES,
    *unit_lint.RULES,
    *unit_policy.RULES,
    *sandbox.RULES,
    *limits.RULES,
    *network.RULES,
    *processes.RULES,
    *last_run.RULES,
    *gpu.RULES,
    *gpu_health.RULES,
    *cuda.RULES,
    *driver.RULES,
    *devices.RULES,
    *kernel_log.RULES,
    *gpu_processes.RULES,
    *nccl.RULES,
    *nccl.TOPOLOGY_RULES,
    *checkpoint.RULES,
    *draft.RULES,
    *draft_config.RULES,
    *arguments.RULES,
    *ranks.RULES,
    *speculation.RULES,
    *memory.RULES,
)
