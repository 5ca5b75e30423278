"""Triton: the exact draft tree of every request of a batch, with what verify reads, in two launches.

`_pop_kernel` is the reference's heap (ddtree_utils.build_tree), one program a request. The frontier lies in
registers. Scores are float64 in the reference's order of operations, compared as sortable integers. Rank tuples
are not kept: a popped prefix makes room for its first child and its next sibling, which take its place in the
frontier's lexicographic order, so every entry carries its place in that order and ties go to the lowest.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .ddtree_utils import TreeBatch

MAX_BUDGET = 1024
MAX_RANKS = 2048
MAX_DEPTH = 64
COLUMNS = ("token", "parent", "depth", "rank", "position", "next_token", "next_sibling")
MASK_ROWS = 16

LOWEST = tl.constexpr(-(2**31))
HIGHEST = tl.constexpr(2**31 - 1)
# a frontier entry's place in lexicographic order, its level (depth - 1) and its slot, in one int32
SLOT = tl.constexpr(1023)
LEVEL = tl.constexpr(63)
LEVEL_AT = tl.constexpr(10)
ONE_PLACE = tl.constexpr(1 << 16)
PLACE = tl.constexpr(-(1 << 16))
# its elder sibling's row and its rank; the record of a pop: its parent's row, level and rank
RANK = tl.constexpr(2047)
KIN_AT = tl.constexpr(11)
RANK_AT = tl.constexpr(11)
PARENT_AT = tl.constexpr(17)


@triton.jit
def _order(score):
    """float64 -> two int32 whose lexicographic order is the order of the scores; never (LOWEST, .) if finite."""
    bits = score.to(tl.int64, bitcast=True)
    bits = bits ^ ((bits >> 63) & 0x7FFFFFFFFFFFFFFF)
    return (bits >> 32).to(tl.int32), (bits.to(tl.int32)) ^ LOWEST


@triton.jit
def _score(high, low):
    """The float64 that _order made these of."""
    bits = (high.to(tl.int64) << 32) | ((low ^ LOWEST).to(tl.int64) & 0xFFFFFFFF)
    bits = bits ^ ((bits >> 63) & 0x7FFFFFFFFFFFFFFF)
    return bits.to(tl.float64, bitcast=True)


@triton.jit
def _load(pointer, mask, other: tl.constexpr):
    """A log-probability; + 0.0 turns -0.0 into 0.0, which it equals."""
    return tl.load(pointer, mask=mask, other=other) + 0.0


@triton.jit
def _is_finite(x):
    return (x > float("-inf")) & (x < float("inf"))


@triton.jit
def _write_columns(
    token_ids,
    roots,
    prefix_lens,
    out,
    plane,
    nodes_out,
    b,
    nodes,
    rows,
    RANKS: tl.constexpr,
    ROWS: tl.constexpr,
):
    """Turn the records of the pops into the seven columns of request b."""
    row = tl.arange(0, ROWS)
    inside = row < rows
    drafted = (row > 0) & (row < nodes)
    record = tl.load(out + plane + row, mask=drafted, other=0).to(tl.int32)
    elder = tl.load(out + 2 * plane + row, mask=drafted, other=0)
    rank = record & RANK
    level = (record >> RANK_AT) & LEVEL
    parent = record >> PARENT_AT
    root = tl.load(roots + b).to(tl.int64)
    prefix = tl.load(prefix_lens + b).to(tl.int64)
    token = tl.load(token_ids + level * RANKS + rank, mask=drafted, other=0)
    depth = tl.where(drafted, level + 1, 0)
    next_token, next_sibling = out + 5 * plane, out + 6 * plane
    tl.store(next_token + row, tl.full([ROWS], -1, tl.int64), mask=inside)
    tl.store(next_sibling + row, tl.full([ROWS], -1, tl.int64), mask=inside)
    tl.debug_barrier()  # the records have been read, and the links are empty
    tl.store(out + row, tl.where(drafted, token, root), mask=inside)
    tl.store(out + plane + row, tl.where(row == 0, -1, parent).to(tl.int64), mask=inside)
    tl.store(out + 2 * plane + row, depth.to(tl.int64), mask=inside)
    tl.store(out + 3 * plane + row, tl.where(drafted, rank, -1).to(tl.int64), mask=inside)
    tl.store(out + 4 * plane + row, prefix + depth, mask=inside)
    tl.store(next_token + parent, row.to(tl.int64), mask=drafted & (rank == 0))
    tl.store(next_sibling + elder, row.to(tl.int64), mask=drafted & (rank > 0))
    tl.store(nodes_out + b, nodes.to(tl.int64))


@triton.jit
def _pop_kernel(
    log_probs,
    token_ids,
    roots,
    prefix_lens,
    columns,
    nodes_out,
    batch,
    budget,
    rows,
    DEPTH: tl.constexpr,
    RANKS: tl.constexpr,
    SLOTS: tl.constexpr,
    ROWS: tl.constexpr,
):
    """One request: pop the best prefix `budget` times, then write the seven columns of its rows.

    columns: int64 [7, batch, rows] in the order of COLUMNS. SLOTS >= budget and ROWS >= rows, powers of two.
    Slot p holds the next child of node p. What its pop will need is fetched when it comes in, so that one pop is
    three reductions and a few additions.
    """
    b = tl.program_id(0)
    log_probs += b * DEPTH * RANKS
    plane = batch.to(tl.int64) * rows
    parent_out = columns + plane + b.to(tl.int64) * rows
    popped, elders = parent_out, parent_out + plane  # kept where later columns go
    slot = tl.arange(0, SLOTS)

    # score of slot p's prefix, sortable; LOWEST: it has no more
    lone = slot == 0
    first = _load(log_probs + slot, lone, float("-inf"))
    high, low = _order(first.to(tl.float64))
    high = tl.where(_is_finite(first), high, LOWEST)
    place = slot  # place << 16 | level << LEVEL_AT | slot
    kin = tl.zeros([SLOTS], tl.int32)  # elder sibling << KIN_AT | rank
    here = first.to(tl.float64)
    beside = tl.zeros([SLOTS], tl.float64)
    below = tl.zeros([SLOTS], tl.float64)
    # fetched for the slots `parent` and node - 1, which changed last
    parent = 0
    next_here = tl.load(log_probs) + 0.0
    next_beside = _load(log_probs + 1, RANKS > 1, float("-inf"))
    child_here = next_here
    child_beside = next_beside
    child_below = _load(log_probs + RANKS, DEPTH > 1, float("-inf"))
    node = 1
    best_high = tl.max(high, 0)
    while (node <= budget) & (best_high != LOWEST):
        best_low = tl.max(tl.where(high == best_high, low, LOWEST), 0)
        fresh = slot == node - 1
        changed = slot == parent
        here = tl.where(changed, next_here.to(tl.float64), tl.where(fresh, child_here.to(tl.float64), here))
        beside = tl.where(
            changed, next_beside.to(tl.float64), tl.where(fresh, child_beside.to(tl.float64), beside)
        )
        below = tl.where(fresh, child_below.to(tl.float64), below)
        ties = (high == best_high) & (low == best_low)
        best_place = tl.min(tl.where(ties, place, HIGHEST), 0)
        hit = ties & (place == best_place)
        score = _score(best_high, best_low)
        sibling_high, sibling_low = _order(score - here + beside)
        sibling_high = tl.where(_is_finite(beside), sibling_high, LOWEST)
        child_high, child_low = _order(score + below)
        child_high = tl.where(_is_finite(below), child_high, LOWEST)
        high = tl.where(hit, sibling_high, high)
        low = tl.where(hit, sibling_low, low)
        best_high = tl.max(tl.maximum(high, tl.where(hit, child_high, LOWEST)), 0)

        # off the critical path: the child into its slot, and what the next pops will need
        parent = best_place & SLOT
        level = (best_place >> LEVEL_AT) & LEVEL
        old_kin = tl.sum(tl.where(hit, kin, 0), 0)
        rank = old_kin & RANK
        at = log_probs + level * RANKS + rank
        child_at = log_probs + (level + 1) * RANKS
        next_here = _load(at + 1, rank + 1 < RANKS, 0.0)
        next_beside = _load(at + 2, rank + 2 < RANKS, float("-inf"))
        child_here = _load(child_at, level + 1 < DEPTH, 0.0)
        child_beside = _load(child_at + 1, (level + 1 < DEPTH) & (RANKS > 1), float("-inf"))
        child_below = _load(child_at + RANKS, level + 2 < DEPTH, float("-inf"))
        new_high = tl.sum(tl.where(hit, child_high, 0), 0)
        new_low = tl.sum(tl.where(hit, child_low, 0), 0)
        tl.store(popped + node, (parent << PARENT_AT | level << RANK_AT | rank).to(tl.int64))
        tl.store(elders + node, (old_kin >> KIN_AT).to(tl.int64))
        fresh = slot == node
        # the child takes the popped place, the sibling the one behind it
        place += tl.where(place > best_place, ONE_PLACE, 0)
        place = tl.where(hit, place + ONE_PLACE, place)
        place = tl.where(fresh, (best_place & PLACE) | (level + 1) << LEVEL_AT | node, place)
        kin = tl.where(hit, node << KIN_AT | rank + 1, kin)
        high = tl.where(fresh, new_high, high)
        low = tl.where(fresh, new_low, low)
        node += 1
    tl.debug_barrier()
    _write_columns(
        token_ids + b * DEPTH * RANKS,
        roots,
        prefix_lens,
        parent_out - plane,
        plane,
        nodes_out,
        b,
        node,
        rows,
        RANKS,
        ROWS,
    )


@triton.jit
def _mask_kernel(
    parents,
    nodes,
    prefix_lens,
    mask,
    batch,
    rows,
    DEPTH: tl.constexpr,
    BATCH: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """BLOCK rows of one request's mask: their last `rows` columns, a row sees itself and its ancestors."""
    b = tl.program_id(0)
    row = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    other = tl.arange(0, BATCH)
    before = tl.load(prefix_lens + other, mask=other < b, other=0).to(tl.int64)
    start = rows * (tl.sum(before, 0) + rows * b.to(tl.int64))
    prefix = tl.load(prefix_lens + b).to(tl.int64)
    tail = mask + start + row.to(tl.int64) * (prefix + rows) + prefix
    column = tl.arange(0, ROWS)
    inside = (row < rows)[:, None] & (column < rows)[None, :]
    tl.store(tail[:, None] + column[None, :], tl.zeros([BLOCK, ROWS], tl.int8), mask=inside)
    tl.debug_barrier()
    sees = row.to(tl.int64)
    parents += b.to(tl.int64) * rows
    in_use = row < tl.load(nodes + b)
    active = row < rows
    for _ in range(DEPTH + 1):
        tl.store(tail + sees, tl.full([BLOCK], 1, tl.int8), mask=active)
        sees = tl.load(parents + sees, mask=active & in_use, other=-1)
        active = active & (sees >= 0)


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
    _pop_kernel[(batch,)](
        log_probs,
        token_ids,
        roots,
        prefix_lens,
        columns,
        nodes,
        batch,
        budget,
        rows,
        DEPTH=depth,
        RANKS=ranks,
        SLOTS=max(32, triton.next_power_of_2(budget)),
        ROWS=padded,
        num_warps=1,
    )
    _mask_kernel[(batch, triton.cdiv(rows, MASK_ROWS))](
        columns[1],
        nodes,
        prefix_lens,
        mask.view(torch.int8),
        batch,
        rows,
        DEPTH=depth,
        BATCH=triton.next_power_of_2(batch),
        ROWS=padded,
        BLOCK=MASK_ROWS,
        num_warps=4,
    )
    return TreeBatch(**dict(zip(COLUMNS, columns)), nodes=nodes, mask=mask)


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
