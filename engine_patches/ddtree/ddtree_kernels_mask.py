"""Triton: the columns of the verify mask in which the rows of one tree see each other."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def mask_tail(mask, prefix_lens, b, rows, BATCH: tl.constexpr):
    """Where request b's first row has its column of row 0. mask: bool as int8, see TreeBatch."""
    other = tl.arange(0, BATCH)
    before = tl.load(prefix_lens + other, mask=other < b, other=0).to(tl.int64)
    prefix = tl.load(prefix_lens + b).to(tl.int64)
    return mask + rows * (tl.sum(before, 0) + rows * tl.cast(b, tl.int64)) + prefix


@triton.jit
def clear_tail(tail, stride, rows, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """No row sees a row. stride: from row to row; ROWS >= rows, a power of two."""
    column = tl.arange(0, ROWS)
    for first in range(0, rows, BLOCK):
        row = first + tl.arange(0, BLOCK)
        at = tail + row.to(tl.int64)[:, None] * stride + column[None, :]
        tl.store(at, tl.zeros([BLOCK, ROWS], tl.int8), mask=(row < rows)[:, None] & (column < rows)[None, :])


@triton.jit
def mark_ancestors(tail, stride, parents, rows, nodes, DEPTH: tl.constexpr, ROWS: tl.constexpr):
    """Every row sees itself, and a row under `nodes` its ancestors. parents: int64 [rows], -1 at the root."""
    row = tl.arange(0, ROWS)
    at = tail + row.to(tl.int64) * stride
    sees = row.to(tl.int64)
    active = row < rows
    for _ in range(DEPTH + 1):
        tl.store(at + sees, tl.full([ROWS], 1, tl.int8), mask=active)
        sees = tl.load(parents + sees, mask=active & (row < nodes), other=-1)
        active = active & (sees >= 0)
