"""The preflight rule about what the engine's own all-reduce can share between the ranks."""

from __future__ import annotations

import re

from ddtree_ops.core.checks.gpu import ALL_REDUCE
from ddtree_ops.core.checks.gpu_facts import GPUS, Gpus, needed
from ddtree_ops.core.checks.nccl import NCCL, Nccl
from ddtree_ops.core.checks.rule import Rule
from ddtree_ops.core.facts_live import Live
from ddtree_ops.core.finding import Finding, ok, warn
from ddtree_ops.core.wanted import Wanted

_ALLOCATOR = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
_EXPANDABLE = re.compile(r"\bexpandable_segments\s*:\s*True\b", re.IGNORECASE)


def shareable(nccl: Nccl, live: Live, wanted: Wanted) -> list[Finding]:
    """CUDA's inter-process handles exist for plain allocations only, not for memory that torch maps piece by piece."""
    gpus = live.of(GPUS)
    if live.cuda is False or not isinstance(gpus, Gpus) or needed(gpus, live) not in ALL_REDUCE:
        return []
    name = next((one for one in _ALLOCATOR if _EXPANDABLE.search(nccl.env.get(one, ""))), None)
    direct = any(pair.access for pair in nccl.pairs.values())
    if name is None or not gpus.custom_all_reduce or not direct:
        return [ok("all-reduce-memory", "the ranks can share what the engine's all-reduce needs")]
    said = (
        f"{name}={nccl.env[name]}: the engine's own all-reduce cannot share such memory between ranks, and its graph "
        "capture ends with 'invalid argument' in custom_all_reduce"
    )
    remedy = f"take expandable_segments out of {name} in {wanted.service}, or add --disable-custom-all-reduce"
    return [warn("all-reduce-memory", said, remedy)]


RULES: tuple[Rule[Nccl], ...] = (
    Rule(
        "all-reduce-memory",
        NCCL,
        shareable,
        "Expandable segments and the engine's own all-reduce do not go together: seen only after the weights are "
        "loaded, as an 'invalid argument' without a cause.",
    ),
)
