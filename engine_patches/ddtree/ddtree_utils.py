"""The reference tree: what every DDTree kernel must reproduce, in plain torch and Python.

Terms: a drafted block gives, for each of L positions, K candidate tokens with their log-probabilities. A
node is a prefix of ranks (r1..rd); its score is the sum of its log-probabilities. Node 0 is the root, the
current token.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
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


@dataclass
class TreeBatch:
    """The trees of a batch as verify reads them: N rows a request, row 0 the root, padding behind `nodes`.

    token, parent, depth, rank, position, next_token, next_sibling: int64 [batch, N], see `Tree` and `Links`.
    nodes: int64 [batch], rows in use. mask: bool, flat; request after request [N, prefix + N] row-major, of
    which only the last N columns are defined: everybody sees the whole prefix, and SGLang's triton backend
    does not read it.
    """

    token: torch.Tensor
    parent: torch.Tensor
    depth: torch.Tensor
    rank: torch.Tensor
    position: torch.Tensor
    next_token: torch.Tensor
    next_sibling: torch.Tensor
    nodes: torch.Tensor
    mask: torch.Tensor

    @property
    def rows(self) -> int:
        """N: root, drafted nodes and padding of one request."""
        return int(self.token.shape[1])


@dataclass
class Walk:
    """What verify accepted, int64.

    path: [batch, L + 1], rows within the request, the root first, -1 behind the end. token: [batch, L + 1],
    the tokens to emit: those of the accepted nodes and then the target's own next one, -1 behind.
    length: [batch], rows of the path = tokens to emit.
    """

    path: torch.Tensor
    token: torch.Tensor
    length: torch.Tensor


Choose = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


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


def mask_elements(prefix_lens: list[int], rows: int) -> int:
    """Length of `TreeBatch.mask` for these committed prefixes."""
    return rows * (sum(prefix_lens) + rows * len(prefix_lens))


def build_batch(
    log_probs: torch.Tensor,
    token_ids: torch.Tensor,
    roots: torch.Tensor,
    prefix_lens: torch.Tensor,
    budget: int,
    rows: int,
) -> TreeBatch:
    """One tree a request, padded to `rows`, with what verify needs; the kernels reproduce it bit by bit.

    log_probs float32 and token_ids int64 [batch, L, K]; roots and prefix_lens integers [batch]; all on the CPU.
    Raises: ValueError as `build_tree`, or when budget + 1 rows do not fit into `rows`.
    """
    trees = [
        build_tree(log_probs[b], token_ids[b], budget, root_token=root)
        for b, root in enumerate(roots.tolist())
    ]
    nodes = torch.tensor([tree.nodes for tree in trees])
    trees = [pad_tree(tree, rows) for tree in trees]
    prefixes = prefix_lens.tolist()
    links = link(trees)
    return TreeBatch(
        token=torch.stack([tree.token for tree in trees]),
        parent=torch.stack([tree.parent for tree in trees]),
        depth=torch.stack([tree.depth for tree in trees]),
        rank=torch.stack([tree.rank for tree in trees]),
        position=torch.stack([positions(tree, prefix) for tree, prefix in zip(trees, prefixes)]),
        next_token=links.next_token,
        next_sibling=links.next_sibling,
        nodes=nodes,
        mask=torch.cat([full_mask(tree, prefix).flatten() for tree, prefix in zip(trees, prefixes)]),
    )


def walk(batch: TreeBatch, choose: Choose, depth: int) -> Walk:
    """Follow the target's tokens down each tree; a row is read only when the path reaches it.

    choose(rows, active) -> int64 [batch]: the target's token after each of these rows of the flattened batch
    (int64 [batch]); what it says where active (bool [batch]) is False is not used. depth: L, the deepest a
    tree can be. Each level waits for the device once: a choice over a whole vocabulary costs more than that,
    and most walks end early.
    """
    size, rows = batch.token.shape
    device = batch.token.device
    first = torch.arange(size, device=device) * rows
    linked = torch.arange(rows, device=device) < batch.nodes[:, None]
    path = torch.full((size, depth + 1), NO_NODE, dtype=torch.int64, device=device)
    token = torch.full_like(path, NO_NODE)
    length = torch.zeros(size, dtype=torch.int64, device=device)
    row = torch.zeros(size, dtype=torch.int64, device=device)
    active = torch.ones(size, dtype=torch.bool, device=device)
    for level in range(depth + 1):
        chosen = choose(first + row, active)
        path[:, level] = torch.where(active, row, NO_NODE)
        token[:, level] = torch.where(active, chosen, NO_NODE)
        length += active
        # children of one node have distinct tokens, so at most one fits
        fits = linked & (batch.parent == row[:, None]) & (batch.token == chosen[:, None])
        active = active & fits.any(dim=1)
        if level == depth or not bool(active.any()):
            break
        row = torch.where(active, fits.to(torch.int8).argmax(dim=1), row)
    return Walk(path, token, length)
