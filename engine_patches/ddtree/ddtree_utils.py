"""The reference tree: what every DDTree kernel must reproduce, in plain torch and Python.

Terms: a drafted block gives, for each of L positions, K candidate tokens with their log-probabilities. A
node is a prefix of ranks (r1..rd); its score is the sum of its log-probabilities. Node 0 is the root, the
current token.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass

import torch

NO_NODE = -1


@dataclass(frozen=True)
class Tree:
    """A draft tree; parents come before their children.

    token, parent, depth, rank: int64 [rows]. Row 0 is the root: parent -1, depth 0, rank -1. The first
    `nodes` rows are the root and the drafted nodes; rows behind them are padding, which nothing links to.
    """

    token: torch.Tensor
    parent: torch.Tensor
    depth: torch.Tensor
    rank: torch.Tensor
    nodes: int

    @property
    def rows(self) -> int:
        """Root, drafted nodes and padding."""
        return int(self.token.numel())


@dataclass(frozen=True)
class Links:
    """The arrays that SGLang's tree kernels walk, int64 [batch, rows] each, -1 where there is nothing.

    index: row of the node in the flattened batch. next_token: first child. next_sibling: next child of the
    same parent, in ascending row order (the causal-convolution kernel sets a sibling's parent at its
    predecessor).
    """

    index: torch.Tensor
    next_token: torch.Tensor
    next_sibling: torch.Tensor


def build_tree(
    log_probs: torch.Tensor, token_ids: torch.Tensor, budget: int, root_token: int = NO_NODE
) -> Tree:
    """The `budget` most probable prefixes, best first, as the DDTree paper's heap finds them (section 4).

    log_probs: float32 [L, K], each row descending; a candidate that is not finite ends its row. token_ids:
    int64 [L, K]. Scores are float64, taken incrementally (subtract a sibling's log-probability, then add
    the next one's): a kernel that claims the identical tree must keep this order. Equal scores: the smaller
    rank tuple first, a prefix before its extension. Fewer nodes than `budget` come out when the lattice is
    smaller.
    Raises: ValueError on shapes, types or an order that break this.
    """
    check_candidates(log_probs, token_ids, budget)
    scores: list[list[float]] = log_probs.to(torch.float64).tolist()
    widths = [finite_prefix(row) for row in scores]
    ids: list[list[int]] = token_ids.tolist()
    token, parent, depth, rank = [root_token], [NO_NODE], [0], [NO_NODE]
    # (-score, ranks, parent, depth index, rank, score): Python's tuple order is the tie rule
    frontier: list[tuple[float, tuple[int, ...], int, int, int, float]] = []
    if widths and widths[0]:
        frontier.append((-scores[0][0], (0,), 0, 0, 0, scores[0][0]))
    while frontier and len(token) <= budget:
        _, ranks, above, level, r, score = heapq.heappop(frontier)
        node = len(token)
        token.append(ids[level][r])
        parent.append(above)
        depth.append(level + 1)
        rank.append(r)
        if r + 1 < widths[level]:
            sibling = score - scores[level][r] + scores[level][r + 1]
            heapq.heappush(frontier, (-sibling, (*ranks[:-1], r + 1), above, level, r + 1, sibling))
        if level + 1 < len(widths) and widths[level + 1]:
            child = score + scores[level + 1][0]
            heapq.heappush(frontier, (-child, (*ranks, 0), node, level + 1, 0, child))
    columns = [torch.tensor(c, dtype=torch.int64) for c in (token, parent, depth, rank)]
    return Tree(*columns, nodes=len(token))


def check_candidates(log_probs: torch.Tensor, token_ids: torch.Tensor, budget: int) -> None:
    """Refuse what `build_tree` cannot take. Raises: ValueError."""
    if budget < 1:
        raise ValueError(f"the node budget must be at least 1, got {budget}")
    if log_probs.ndim != 2 or log_probs.shape != token_ids.shape:
        raise ValueError(
            "log_probs and token_ids must both be [L, K], "
            f"got {tuple(log_probs.shape)} and {tuple(token_ids.shape)}"
        )
    if log_probs.dtype != torch.float32 or token_ids.dtype != torch.int64:
        raise ValueError(f"expected float32 and int64, got {log_probs.dtype} and {token_ids.dtype}")
    if bool((log_probs[:, 1:] > log_probs[:, :-1]).any()):
        raise ValueError("every row of log_probs must be sorted in descending order")


def finite_prefix(row: list[float]) -> int:
    """How many candidates of a position can be drafted: those before the first one that is not finite."""
    return next((i for i, value in enumerate(row) if not math.isfinite(value)), len(row))


def pad_tree(tree: Tree, rows: int) -> Tree:
    """The tree with exactly `rows` rows, for graphs of a fixed shape.

    A padding row carries the root's token at the root's position; links never reach it.
    Raises: ValueError when the tree has more rows than that.
    """
    missing = rows - tree.rows
    if missing < 0:
        raise ValueError(f"a tree of {tree.rows} rows does not fit into {rows}")

    def filled(column: torch.Tensor, value: int) -> torch.Tensor:
        return torch.cat([column, column.new_full((missing,), value)])

    return Tree(
        token=filled(tree.token, int(tree.token[0])),
        parent=filled(tree.parent, 0),
        depth=filled(tree.depth, 0),
        rank=filled(tree.rank, NO_NODE),
        nodes=tree.nodes,
    )


def ancestor_mask(tree: Tree) -> torch.Tensor:
    """bool [rows, rows]: row c sees column p if p is c or its ancestor. A padding row sees itself."""
    mask = torch.eye(tree.rows, dtype=torch.bool)
    parents = tree.parent.tolist()
    for node in range(1, tree.nodes):
        mask[node] |= mask[parents[node]]
    return mask


def full_mask(tree: Tree, prefix: int) -> torch.Tensor:
    """bool [rows, prefix + rows]: the ancestor mask behind the committed tokens, which every row sees."""
    return torch.cat([torch.ones(tree.rows, prefix, dtype=torch.bool), ancestor_mask(tree)], dim=1)


def positions(tree: Tree, prefix: int) -> torch.Tensor:
    """int64 [rows]: rotary positions. A node stands at prefix + depth, never at prefix + row."""
    return tree.depth + prefix


def link(trees: list[Tree]) -> Links:
    """Link arrays of a batch of trees of the same number of rows. Raises: ValueError when they differ."""
    if len({tree.rows for tree in trees}) != 1:
        raise ValueError(f"trees of one batch need one number of rows, got {[tree.rows for tree in trees]}")
    shape = (len(trees), trees[0].rows)
    index = torch.arange(shape[0] * shape[1], dtype=torch.int64).view(shape)
    next_token = torch.full(shape, NO_NODE, dtype=torch.int64)
    next_sibling = torch.full(shape, NO_NODE, dtype=torch.int64)
    for b, tree in enumerate(trees):
        last_child: dict[int, int] = {}
        for node, above in enumerate(tree.parent.tolist()[: tree.nodes]):
            if above == NO_NODE:
                continue
            if above in last_child:
                next_sibling[b, last_child[above]] = node
            else:
                next_token[b, above] = node
            last_child[above] = node
    return Links(index, next_token, next_sibling)


def spine(tree: Tree) -> list[int]:
    """Tokens of the chain of best candidates (rank 0 all the way) from depth 1, as deep as the tree has it."""
    tokens: list[int] = []
    tip = 0
    rows = zip(tree.token.tolist(), tree.parent.tolist(), tree.rank.tolist())
    for node, (token, parent, rank) in enumerate(rows):
        if node < tree.nodes and rank == 0 and parent == tip:
            tokens.append(token)
            tip = node
    return tokens
