"""Triton: the exact draft tree of every request of a batch, with what verify reads, in two or three launches.

Most requests are done by ddtree_kernels_list. `_pop_kernel` does what that leaves: it is the reference's heap
(ddtree_utils.build_tree), one program a request. The frontier lies in registers. Scores are float64 in the
reference's order of operations, compared as sortable integers. Rank tuples are not kept: a popped prefix makes room
for its first child and its next sibling, which take its place in the frontier's lexicographic order, so every entry
carries its place in that order and ties go to the lowest.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import triton
import triton.language as tl

from .ddtree_args import MAX_BLOCK, MAX_BUDGET
from .ddtree_kernels_list import DEPTH_BITS, MOST_DEEP, list_kernel
from .ddtree_kernels_mask import clear_tail, list_mask_kernel, mark_ancestors, mask_tail
from .ddtree_utils import TreeBatch

MAX_RANKS = 2048
MAX_DEPTH = MAX_BLOCK - 1
COLUMNS = ("token", "parent", "depth", "rank", "position", "next_token", "next_sibling")
# up to this budget the mask is written with the tree
SMALL = 128
MASK_TILE = 32
# larger trees are left to the heap
MOST_LISTED = 511
MOST_LISTED_RANKS = 128

LOWEST = tl.constexpr(-(2**31))
# what an entry is, in one int32: parent row << 17 | depth - 1 << 11 | rank
RANK = tl.constexpr(2047)
LEVEL = tl.constexpr(63)
LEVEL_AT = tl.constexpr(11)
PARENT_AT = tl.constexpr(17)


@triton.jit
def _order(score):
    """float64 -> two int32 whose lexicographic order is the order of the scores; never (LOWEST, .) if finite."""
    bits = (score + 0.0).to(tl.int64, bitcast=True)  # + 0.0: -0.0 equals 0.0
    bits = bits ^ ((bits >> 63) & 0x7FFFFFFFFFFFFFFF)
    return (bits >> 32).to(tl.int32), (bits.to(tl.int32)) ^ LOWEST


@triton.jit
def _score(high, low):
    """The float64 that _order made these of."""
    bits = (high.to(tl.int64) << 32) | ((low ^ LOWEST).to(tl.int64) & 0xFFFFFFFF)
    bits = bits ^ ((bits >> 63) & 0x7FFFFFFFFFFFFFFF)
    return bits.to(tl.float64, bitcast=True)


@triton.jit
def _is_finite(x):
    return (x > float("-inf")) & (x < float("inf"))


@triton.jit
def _pop_kernel(
    log_probs,
    token_ids,
    roots,
    prefix_lens,
    columns,
    nodes,
    mask,
    batch,
    budget,
    rows,
    DEPTH: tl.constexpr,
    RANKS: tl.constexpr,
    SLOTS: tl.constexpr,
    ROWS: tl.constexpr,
    BATCH: tl.constexpr,
    MASK_ROWS: tl.constexpr,
    LEFT: tl.constexpr,
):
    """One request: pop the best prefix `budget` times, then write its columns and mask.

    columns: int64 [7, batch, rows] in the order of COLUMNS. SLOTS >= budget and ROWS >= rows, powers of two.
    LEFT: only if nodes[b] is 0.
    """
    b = tl.program_id(0)
    if LEFT:  # noqa: SIM102, a compile-time condition
        if tl.load(nodes + b) != 0:
            return
    log_probs += b * DEPTH * RANKS
    token_ids += b * DEPTH * RANKS
    plane = tl.cast(batch, tl.int64) * rows
    token_out = columns + tl.cast(b, tl.int64) * rows
    parent_out = token_out + plane
    depth_out = parent_out + plane
    rank_out = depth_out + plane
    position_out = rank_out + plane
    next_token_out = position_out + plane
    next_sibling_out = next_token_out + plane
    slot = tl.arange(0, SLOTS)
    # the popped prefixes, kept where later columns go: parent | depth - 1 | rank in one, elder sibling in the other
    popped, elder_of = parent_out, depth_out

    first = tl.load(log_probs + slot, mask=slot == 0, other=float("-inf"))
    high, low = _order(first.to(tl.float64))
    high = tl.where(_is_finite(first), high, LOWEST)
    place = tl.zeros([SLOTS], tl.int32)
    what = tl.zeros([SLOTS], tl.int32)
    elder = tl.zeros([SLOTS], tl.int32)
    node = 1
    best_high = tl.max(high, 0)
    while (node <= budget) & (best_high != LOWEST):
        best_low = tl.max(tl.where(high == best_high, low, LOWEST), 0)
        ties = (high == best_high) & (low == best_low)
        best_place = tl.min(tl.where(ties, place, 2147483647), 0)
        hit = ties & (place == best_place)
        chosen = tl.sum(tl.where(hit, what, 0), 0)
        chosen_elder = tl.sum(tl.where(hit, elder, 0), 0)
        tl.store(popped + node, chosen.to(tl.int64))
        tl.store(elder_of + node, chosen_elder.to(tl.int64))
        rank = chosen & RANK
        level = (chosen >> LEVEL_AT) & LEVEL
        score = _score(best_high, best_low)
        at = log_probs + level * RANKS + rank
        here = tl.load(at)
        beside = tl.load(at + 1, mask=rank + 1 < RANKS, other=float("-inf"))
        below = tl.load(at - rank + RANKS, mask=level + 1 < DEPTH, other=float("-inf"))
        sibling_high, sibling_low = _order(score - here.to(tl.float64) + beside.to(tl.float64))
        child_high, child_low = _order(score + below.to(tl.float64))
        sibling_high = tl.where(_is_finite(beside), sibling_high, LOWEST)
        child_high = tl.where(_is_finite(below), child_high, LOWEST)
        # the child takes the popped place, the sibling the one behind it
        fresh = slot == node
        place += (place > best_place).to(tl.int32)
        place = tl.where(hit, best_place + 1, tl.where(fresh, best_place, place))
        high = tl.where(hit, sibling_high, tl.where(fresh, child_high, high))
        low = tl.where(hit, sibling_low, tl.where(fresh, child_low, low))
        child = (node << PARENT_AT) | ((level + 1) << LEVEL_AT)
        what = tl.where(hit, what + 1, tl.where(fresh, child, what))
        elder = tl.where(hit, node, tl.where(fresh, 0, elder))
        node += 1
        best_high = tl.max(high, 0)

    tl.debug_barrier()
    row = tl.arange(0, ROWS)
    inside = row < rows
    drafted = (row > 0) & (row < node)
    record = tl.load(popped + row, mask=drafted, other=0).to(tl.int32)
    elder_row = tl.load(elder_of + row, mask=drafted, other=0)
    rank = record & RANK
    level = (record >> LEVEL_AT) & LEVEL
    parent = record >> PARENT_AT
    root = tl.load(roots + b).to(tl.int64)
    prefix = tl.load(prefix_lens + b).to(tl.int64)
    token = tl.load(token_ids + level * RANKS + rank, mask=drafted, other=0)
    depth = tl.where(drafted, level + 1, 0)
    tl.store(next_token_out + row, tl.full([ROWS], -1, tl.int64), mask=inside)
    tl.store(next_sibling_out + row, tl.full([ROWS], -1, tl.int64), mask=inside)
    tl.debug_barrier()
    tl.store(token_out + row, tl.where(drafted, token, root), mask=inside)
    tl.store(parent_out + row, tl.where(row == 0, -1, parent).to(tl.int64), mask=inside)
    tl.store(depth_out + row, depth.to(tl.int64), mask=inside)
    tl.store(rank_out + row, tl.where(drafted, rank, -1).to(tl.int64), mask=inside)
    tl.store(position_out + row, prefix + depth, mask=inside)
    tl.store(next_token_out + parent, row.to(tl.int64), mask=drafted & (rank == 0))
    tl.store(next_sibling_out + elder_row, row.to(tl.int64), mask=drafted & (rank > 0))
    tl.store(nodes + b, tl.cast(node, tl.int64))

    tail = mask_tail(mask, prefix_lens, b, rows, BATCH)
    clear_tail(tail, prefix + rows, rows, ROWS, MASK_ROWS)
    tl.debug_barrier()
    mark_ancestors(tail, prefix + rows, parent_out, rows, node, DEPTH, ROWS)


def build_trees(
    log_probs: torch.Tensor,
    token_ids: torch.Tensor,
    roots: torch.Tensor,
    prefix_lens: torch.Tensor,
    budget: int,
    rows: int,
    mask_elements: int,
) -> TreeBatch:
    """`ddtree_utils.build_batch` on the device, equal bit by bit; nothing waits, nothing depends on the data's shape.

    log_probs float32 and token_ids int64 [batch, L, K], each row descending (not checked); roots and prefix_lens
    integers [batch]. mask_elements: sum over requests of rows * (prefix + rows), known to the host.
    Raises: ValueError when shapes or types do not fit.
    """
    _check(log_probs, token_ids, budget, rows)
    batch, depth, ranks = log_probs.shape
    device = log_probs.device
    columns = torch.empty((len(COLUMNS), batch, rows), dtype=torch.int64, device=device)
    nodes = torch.empty(batch, dtype=torch.int64, device=device)
    mask = torch.empty(mask_elements, dtype=torch.bool, device=device)
    log_probs, token_ids = log_probs.contiguous(), token_ids.contiguous()
    padded = triton.next_power_of_2(rows)
    bytes_of_mask = mask.view(torch.int8)
    common = {
        "DEPTH": depth,
        "RANKS": ranks,
        "ROWS": padded,
        "BATCH": triton.next_power_of_2(batch),
    }
    arguments = (log_probs, token_ids, roots, prefix_lens, columns, nodes, bytes_of_mask)
    listed = depth <= MOST_DEEP and ranks <= MOST_LISTED_RANKS and budget <= MOST_LISTED
    mask_left = _launch_list(arguments, batch, budget, rows, common) if listed else None
    _pop_kernel[(batch,)](
        *arguments,
        batch,
        budget,
        rows,
        SLOTS=max(32, triton.next_power_of_2(budget)),
        MASK_ROWS=max(1, 4096 // padded),
        LEFT=listed,
        num_warps=1,
        **common,
    )
    if mask_left is not None:
        mask_left()
    return TreeBatch(**dict(zip(COLUMNS, columns)), nodes=nodes, mask=mask)


def _launch_list(
    arguments: tuple[torch.Tensor, ...], batch: int, budget: int, rows: int, common: dict[str, int]
) -> Callable[[], object] | None:
    """List the trees. Returns what is still to be launched for the mask of a large tree."""
    ranks, small = common["RANKS"], budget <= SMALL
    code_bits = common["DEPTH"] + 2 * (budget.bit_length() - 1)
    most = min(27, 62 - DEPTH_BITS - code_bits)
    capacity = 4 * max(32, triton.next_power_of_2(budget))
    device = arguments[0].device
    scratch = torch.empty((batch, 7, capacity), dtype=torch.int32, device=device)
    keys = torch.empty((batch, capacity), dtype=torch.int64, device=device)
    for_mask = {"CODE_BITS": code_bits, "CAPACITY": capacity}
    list_kernel[(batch,)](
        *arguments,
        scratch,
        keys,
        batch,
        budget,
        rows,
        K=max(16, triton.next_power_of_2(ranks)),
        WIDE=16 if ranks <= 16 else 64,
        MOST=1 << most,
        MOST_BITS=(127 + most) << 23,
        PARENTS=16 if ranks <= 16 else 32,
        SPAN=16 if ranks <= 16 else 8,
        LISTED=128 if small else 256,
        AGAINST=32,
        MASK_ROWS=16,
        MASK=small,
        num_warps=8,
        **for_mask,
        **common,
    )
    if small:
        return None
    _, _, _, prefix_lens, _, _, mask = arguments
    tiles = triton.cdiv(rows, MASK_TILE)
    return lambda: list_mask_kernel[(batch, tiles, tiles)](
        prefix_lens,
        mask,
        scratch,
        budget,
        rows,
        TILE=MASK_TILE,
        BATCH=common["BATCH"],
        num_warps=4,
        **for_mask,
    )


def _check(log_probs: torch.Tensor, token_ids: torch.Tensor, budget: int, rows: int) -> None:
    if log_probs.ndim != 3 or log_probs.shape != token_ids.shape or 0 in log_probs.shape:
        raise ValueError(
            "log_probs and token_ids must both be [batch, L, K], "
            f"got {tuple(log_probs.shape)} and {tuple(token_ids.shape)}"
        )
    if log_probs.dtype != torch.float32 or token_ids.dtype != torch.int64:
        raise ValueError(f"expected float32 and int64, got {log_probs.dtype} and {token_ids.dtype}")
    if not 1 <= budget <= min(MAX_BUDGET, rows - 1):
        raise ValueError(
            f"the node budget must be 1..{min(MAX_BUDGET, rows - 1)} for {rows} rows, got {budget}"
        )
    if log_probs.shape[1] > MAX_DEPTH or log_probs.shape[2] > MAX_RANKS:
        raise ValueError(
            f"at most {MAX_DEPTH} positions of {MAX_RANKS} candidates, got {tuple(log_probs.shape)}"
        )
