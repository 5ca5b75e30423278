"""Shadow-linear statistics: build the trees beside linear verify and count what they look like."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import torch

from .ddtree_utils import Tree, ancestor_mask, build_tree, link, pad_tree, spine


@dataclass
class ShadowStats:
    """Counters since the start. Seconds are wall time of the shadow side alone, device waits included."""

    verify_steps: int = 0
    shadow_steps: int = 0
    shadow_errors: int = 0
    trees: int = 0
    short_trees: int = 0
    nodes: int = 0
    nodes_by_depth: list[int] = field(default_factory=list)
    spine_nodes: int = 0
    spine_agree: int = 0
    seconds: float = 0.0
    last_error: str | None = None

    @property
    def spine_agreement(self) -> float | None:
        """Share of spine nodes that carry the chain's token; None before the first."""
        return self.spine_agree / self.spine_nodes if self.spine_nodes else None

    def count(self, tree: Tree, budget: int, chain: list[int]) -> None:
        """Add one tree. chain: the argmax tokens of the block, from its first drafted position on."""
        self.trees += 1
        self.nodes += tree.nodes - 1
        self.short_trees += tree.nodes - 1 < budget
        for depth in tree.depth.tolist()[1 : tree.nodes]:
            self.nodes_by_depth.extend([0] * (depth - len(self.nodes_by_depth)))
            self.nodes_by_depth[depth - 1] += 1
        best = spine(tree)
        self.spine_nodes += len(best)
        self.spine_agree += sum(a == b for a, b in zip(best, chain))


def observe(
    stats: ShadowStats,
    log_probs: torch.Tensor,
    token_ids: torch.Tensor,
    chains: torch.Tensor,
    roots: torch.Tensor,
    budget: int,
) -> None:
    """Build one tree a request with its mask and link arrays, as full DDTree would, and count it.

    log_probs float32 and token_ids int64 [batch, L, K]; chains int64 [batch, L]; roots int64 [batch]; all
    on the CPU.
    """
    trees = []
    for i, root in enumerate(roots.tolist()):
        tree = build_tree(log_probs[i], token_ids[i], budget, root_token=root)
        stats.count(tree, budget, chains[i].tolist())
        trees.append(pad_tree(tree, budget + 1))
    for tree in trees:
        ancestor_mask(tree)
    link(trees)


class Stopwatch:
    """Adds the wall time of a `with` block to the statistics."""

    def __init__(self, stats: ShadowStats) -> None:
        self._stats = stats

    def __enter__(self) -> None:
        self._start = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self._stats.seconds += time.perf_counter() - self._start
