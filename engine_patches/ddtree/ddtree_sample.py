"""How the target's token after a visited row is chosen: argmax, or one draw from the target's own distribution.

Lossless either way: every emitted token is the target's choice in its exact context, whatever the draft thought.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .ddtree_penalty import Penalties
from .ddtree_utils import Choose

Sample = Callable[[torch.Tensor], torch.Tensor]


def greedy_choice(
    logits: torch.Tensor, bias: torch.Tensor | None = None, penalties: Penalties | None = None
) -> Choose:
    """The argmax of the visited rows, NaN as -inf. logits: [batch * N, vocabulary]; bias: [batch, vocabulary]."""

    def best(visited: torch.Tensor) -> torch.Tensor:
        return torch.where(visited.isnan(), -torch.inf, visited).argmax(dim=1)

    return _choice(logits, bias, penalties, best)


def sampled_choice(
    logits: torch.Tensor, sampling: Any, sample: Sample, penalties: Penalties | None = None
) -> Choose:
    """One draw at each visited row.

    logits: [batch * N, vocabulary]. sampling: SGLang's SamplingBatchInfo: temperatures [batch, 1] and
    logit_bias [batch, vocabulary] or None are applied here. sample: [batch, vocabulary] probabilities ->
    token ids [batch]; it applies top-k, top-p and min-p as the engine's sampler does, where a greedy request
    of a mixed batch has top-k 1.
    """

    def draw(visited: torch.Tensor) -> torch.Tensor:
        return sample(torch.softmax(visited / sampling.temperatures, dim=-1)).to(torch.int64)

    return _choice(logits, sampling.logit_bias, penalties, draw)


def _choice(
    logits: torch.Tensor,
    bias: torch.Tensor | None,
    penalties: Penalties | None,
    pick: Callable[[torch.Tensor], torch.Tensor],
) -> Choose:
    def choose(rows: torch.Tensor, active: torch.Tensor) -> torch.Tensor:
        visited = logits.index_select(0, rows).float()
        if penalties is not None:
            visited = penalties.apply(visited)
        if bias is not None:
            visited = visited + bias
        chosen = pick(visited)
        if penalties is not None:
            penalties.add(chosen, active)
        return chosen

    return choose
