"""What the trees looked like and what was accepted of them: counters that /get_server_info and Prometheus show."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from .ddtree_utils import TreeBatch, Walk


@dataclass
class TreeStats:
    """Counters since the start.

    spine: the chain of best candidates (rank 0 all the way). In shadow mode spine_nodes are the spines'
    nodes and spine_agree those that carry the token of DFLASH's chain. In full mode spine_nodes are the
    accepted nodes and spine_agree those on the spine: the rest is what branching gained.
    accepted_by_depth[d - 1]: trees of which a node at depth d was accepted (full mode).
    tree_seconds: from the draft's hidden states to the finished trees, of timed_steps steps.
    """

    verify_steps: int = 0
    shadow_steps: int = 0
    shadow_errors: int = 0
    trees: int = 0
    short_trees: int = 0
    nodes: int = 0
    nodes_by_depth: list[int] = field(default_factory=list)
    accepted: int = 0
    accepted_by_depth: list[int] = field(default_factory=list)
    spine_nodes: int = 0
    spine_agree: int = 0
    tree_seconds: float = 0.0
    timed_steps: int = 0
    last_error: str | None = None

    @property
    def spine_agreement(self) -> float | None:
        """spine_agree / spine_nodes; None before the first."""
        return self.spine_agree / self.spine_nodes if self.spine_nodes else None

    @property
    def accept_length(self) -> float | None:
        """Tokens a tree gave, the target's own one included; None before the first tree of full mode."""
        return 1 + self.accepted / self.trees if self.trees and self.accepted_by_depth else None

    def line(self) -> str:
        """One line for the log."""
        milliseconds = 1000 * self.tree_seconds / self.timed_steps if self.timed_steps else 0.0
        nodes = self.nodes / self.trees if self.trees else 0.0
        return (
            f"verify_steps={self.verify_steps}, shadow_steps={self.shadow_steps}, trees={self.trees}, "
            f"nodes_per_tree={nodes:.1f}, nodes_by_depth={self.nodes_by_depth}, "
            f"accept_length={self.accept_length}, accepted_by_depth={self.accepted_by_depth}, "
            f"spine_agreement={self.spine_agreement}, tree_ms={milliseconds:.3f}, "
            f"shadow_errors={self.shadow_errors}"
        )

    def count_trees(self, depth: torch.Tensor, nodes: torch.Tensor, budget: int) -> None:
        """Add a batch of trees. depth: int64 [batch, N]; nodes: int64 [batch]; both on the CPU."""
        drafted = nodes - 1
        self.trees += len(drafted)
        self.nodes += int(drafted.sum())
        self.short_trees += int((drafted < budget).sum())
        in_use = torch.arange(depth.shape[1]) < nodes[:, None]
        _add(self.nodes_by_depth, torch.bincount(depth[in_use])[1:].tolist())

    def count_chain(self, batch: TreeBatch, chain: torch.Tensor) -> None:
        """Compare each spine with the chain that DFLASH verifies. chain: int64 [batch, L]; all on the CPU."""
        for b, tokens in enumerate(chain.tolist()):
            best = spine(batch, b)
            self.spine_nodes += len(best)
            self.spine_agree += sum(a == c for a, c in zip(best, tokens))

    def count_walk(self, walk: Walk, rank: torch.Tensor, committed: list[int]) -> None:
        """Add what one verify accepted. rank: int64 [batch, N]; committed: rows kept of each path, all on the CPU."""
        deepest = int(walk.path.shape[1]) - 1
        kept = torch.tensor(committed) - 1
        reached = torch.arange(1, deepest + 1) <= kept[:, None]
        best = rank.gather(1, walk.path.clamp(min=0))[:, 1:] == 0
        self.accepted += int(kept.clamp(min=0).sum())
        _add(self.accepted_by_depth, reached.sum(dim=0).tolist())
        self.spine_nodes += int(reached.sum())
        self.spine_agree += int((reached & best.cumprod(dim=1).bool()).sum())


def spine(batch: TreeBatch, b: int) -> list[int]:
    """Tokens of the chain of best candidates of tree b from depth 1, as deep as the tree has it."""
    tokens: list[int] = []
    child = int(batch.next_token[b, 0])
    while child >= 0:
        tokens.append(int(batch.token[b, child]))
        child = int(batch.next_token[b, child])
    return tokens


def _add(totals: list[int], more: list[int]) -> None:
    totals.extend([0] * (len(more) - len(totals)))
    for i, value in enumerate(more):
        totals[i] += value
