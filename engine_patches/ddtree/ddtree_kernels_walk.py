"""Triton: follow the target's argmax down each tree, reading only the rows that the path visits."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .ddtree_utils import TreeBatch, Walk

BLOCK = 8192
WARPS = 16
MOST_SPLITS = 8


@triton.jit
def _argmax(line, first, stop, BLOCK: tl.constexpr):
    """The best of columns first..stop as one int64 that grows with the logit and shrinks with the column; over 0."""
    column = tl.arange(0, BLOCK)
    best = tl.full([BLOCK], float("-inf"), tl.float32)
    where = first + column
    for start in range(first, stop, BLOCK):
        x = tl.load(line + start + column, mask=start + column < stop, other=float("-inf")).to(tl.float32)
        better = x > best  # false for NaN
        best = tl.where(better, x, best)
        where = tl.where(better, start + column, where)
    top = tl.max(best, 0)
    chosen = tl.min(tl.where(best == top, where, 2147483647), 0)
    bits = (top + 0.0).to(tl.int32, bitcast=True)
    ascending = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    return ((ascending.to(tl.int64) + 2147483648) << 31) | (2147483647 - chosen)


@triton.jit
def _walk_kernel(
    logits,
    stride,
    vocabulary,
    tokens,
    parents,
    nodes,
    board,
    out,
    rows,
    DEPTH: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    SPLITS: tl.constexpr,
):
    """One part of the vocabulary of one request. out: int64 [batch, 2 * DEPTH + 3]: path, tokens, length.

    The SPLITS programs of a request meet at every level. board: int64 [batch, DEPTH + 1, 2], zero: the best so far
    and how many have come. They are neighbours in the grid, so they are on the device at the same time.
    """
    part = tl.program_id(0)
    b = tl.program_id(1).to(tl.int64)
    logits += b * rows * stride
    out += b * (2 * DEPTH + 3)
    board += b * (DEPTH + 1) * 2
    level = tl.arange(0, WIDTH)
    tl.store(out + level, tl.full(level.shape, -1, tl.int64), mask=(level < 2 * DEPTH + 3) & (part == 0))
    tl.debug_barrier()
    row = tl.arange(0, ROWS)
    in_use = row < tl.load(nodes + b)
    token = tl.load(tokens + b * rows + row, mask=in_use, other=-1)
    parent = tl.load(parents + b * rows + row, mask=in_use, other=-2)
    share = tl.cdiv(tl.cdiv(vocabulary, SPLITS), 8) * 8
    first = part * share
    stop = tl.minimum(first + share, vocabulary)
    here = 0
    length = 0
    while (here >= 0) & (length <= DEPTH):
        best = _argmax(logits + tl.cast(here, tl.int64) * stride, first, stop, BLOCK)
        if SPLITS > 1:
            tl.atomic_max(board + 2 * length, best)
            tl.atomic_add(board + 2 * length + 1, 1)
            while tl.atomic_add(board + 2 * length + 1, 0) < SPLITS:
                pass
            best = tl.atomic_max(board + 2 * length, 0)
        chosen = 2147483647 - (best & 2147483647)
        tl.store(out + length, tl.cast(here, tl.int64), mask=part == 0)
        tl.store(out + DEPTH + 1 + length, chosen, mask=part == 0)
        length += 1
        fits = in_use & (parent == here) & (token == chosen)
        here = tl.min(tl.where(fits, row, 2147483647), 0)
        here = tl.where(here == 2147483647, -1, here)
    tl.store(out + 2 * DEPTH + 2, tl.cast(length, tl.int64), mask=part == 0)


def walk_greedy(logits: torch.Tensor, batch: TreeBatch, depth: int) -> Walk:
    """`ddtree_utils.walk` with the argmax of each visited row: lowest id on ties, NaN counts as -inf.

    logits: [batch * N, vocabulary], columns contiguous. depth: L. One launch, nothing waits.
    Raises: ValueError when logits and trees do not fit.
    """
    size, rows = batch.token.shape
    if logits.shape[0] != size * rows or (logits.stride(1) != 1 and logits.shape[1] > 1):
        raise ValueError(f"expected {size * rows} rows of contiguous logits, got {tuple(logits.shape)}")
    out = torch.empty((size, 2 * depth + 3), dtype=torch.int64, device=logits.device)
    board = torch.zeros((size, depth + 1, 2), dtype=torch.int64, device=logits.device)
    splits = _splits(size, logits.device)
    _walk_kernel[(splits, size)](
        logits,
        logits.stride(0),
        logits.shape[1],
        batch.token,
        batch.parent,
        batch.nodes,
        board,
        out,
        rows,
        DEPTH=depth,
        WIDTH=triton.next_power_of_2(2 * depth + 3),
        ROWS=triton.next_power_of_2(rows),
        BLOCK=BLOCK,
        SPLITS=splits,
        num_warps=WARPS,
    )
    return Walk(out[:, : depth + 1], out[:, depth + 1 : 2 * depth + 2], out[:, 2 * depth + 2])


def _splits(size: int, device: torch.device) -> int:
    """Programs a request: all of the grid fits on the device at once."""
    if device.type != "cuda":
        return 1  # Triton's interpreter runs one program after the other
    most = torch.cuda.get_device_properties(device).multi_processor_count // size
    return min(MOST_SPLITS, 1 << max(0, most.bit_length() - 1))
