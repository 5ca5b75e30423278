"""Triton: follow the target's argmax down each tree, reading only the rows that the path visits."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .ddtree_utils import TreeBatch, Walk

BLOCK = 8192
WARPS = 16


@triton.jit
def _walk_kernel(
    logits,
    stride,
    vocabulary,
    tokens,
    parents,
    nodes,
    out,
    rows,
    DEPTH: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One request. out: int64 [batch, 2 * DEPTH + 3], the path, the tokens and the length."""
    b = tl.program_id(0).to(tl.int64)
    logits += b * rows * stride
    out += b * (2 * DEPTH + 3)
    level = tl.arange(0, WIDTH)
    tl.store(out + level, tl.full(level.shape, -1, tl.int64), mask=level < 2 * DEPTH + 3)
    tl.debug_barrier()
    row = tl.arange(0, ROWS)
    in_use = row < tl.load(nodes + b)
    token = tl.load(tokens + b * rows + row, mask=in_use, other=-1)
    parent = tl.load(parents + b * rows + row, mask=in_use, other=-2)
    column = tl.arange(0, BLOCK)
    here = 0
    length = 0
    while (here >= 0) & (length <= DEPTH):
        line = logits + here.to(tl.int64) * stride
        best = tl.full([BLOCK], float("-inf"), tl.float32)
        where = tl.zeros([BLOCK], tl.int32) + column
        for start in range(0, vocabulary, BLOCK):
            x = tl.load(line + start + column, mask=start + column < vocabulary, other=float("-inf")).to(
                tl.float32
            )
            better = x > best  # false for NaN
            best = tl.where(better, x, best)
            where = tl.where(better, start + column, where)
        top = tl.max(best, 0)
        chosen = tl.min(tl.where(best == top, where, 2147483647), 0)
        tl.store(out + length, here.to(tl.int64))
        tl.store(out + DEPTH + 1 + length, chosen.to(tl.int64))
        length += 1
        fits = in_use & (parent == here) & (token == chosen)
        here = tl.min(tl.where(fits, row, 2147483647), 0)
        here = tl.where(here == 2147483647, -1, here)
    tl.store(out + 2 * DEPTH + 2, length.to(tl.int64))


def walk_greedy(logits: torch.Tensor, batch: TreeBatch, depth: int) -> Walk:
    """`ddtree_utils.walk` with the argmax of each visited row: lowest id on ties, NaN counts as -inf.

    logits: [batch * N, vocabulary], columns contiguous. depth: L. One launch, nothing waits.
    """
    size, rows = batch.token.shape
    if logits.shape[0] != size * rows or logits.stride(1) != 1:
        raise ValueError(f"expected {size * rows} rows of contiguous logits, got {tuple(logits.shape)}")
    out = torch.empty((size, 2 * depth + 3), dtype=torch.int64, device=logits.device)
    _walk_kernel[(size,)](
        logits,
        logits.stride(0),
        logits.shape[1],
        batch.token,
        batch.parent,
        batch.nodes,
        out,
        rows,
        DEPTH=depth,
        WIDTH=triton.next_power_of_2(2 * depth + 3),
        ROWS=triton.next_power_of_2(rows),
        BLOCK=BLOCK,
        num_warps=WARPS,
    )
    return Walk(out[:, : depth + 1], out[:, depth + 1 : 2 * depth + 2], out[:, 2 * depth + 2])
