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


@triton.jit
def tile_from_codes(
    tail, stride, sorted_codes, sorted_rooms, row, column, budget, rows, CODE_BITS: tl.constexpr
):
    """These rows and columns of a request's mask: a row sees those whose code is the start of its own, no deeper."""
    code = tl.load(sorted_codes + row, mask=row <= budget, other=0)
    depth = (tl.load(sorted_rooms + row, mask=row <= budget, other=0) >> 8) & 15
    their_code = tl.load(sorted_codes + column, mask=column <= budget, other=0)
    their_room = tl.load(sorted_rooms + column, mask=column <= budget, other=0)
    rest = CODE_BITS - (their_room & 255)
    their_depth = tl.where(column <= budget, (their_room >> 8) & 15, 16)
    sees = ((code[:, None] ^ their_code[None, :]) >> rest[None, :]) == 0
    sees = sees & (their_depth[None, :] <= tl.where(row <= budget, depth, -1)[:, None])
    sees = sees | (row[:, None] == column[None, :])
    at = tail + row.to(tl.int64)[:, None] * stride + column[None, :]
    tl.store(at, sees.to(tl.int8), mask=(row < rows)[:, None] & (column < rows)[None, :])


@triton.jit
def list_mask_kernel(
    prefix_lens,
    mask,
    scratch,
    budget,
    rows,
    CODE_BITS: tl.constexpr,
    CAPACITY: tl.constexpr,
    BATCH: tl.constexpr,
    TILE: tl.constexpr,
):
    """TILE rows and columns of the mask of one request, if list_kernel did it."""
    b = tl.program_id(0)
    places = scratch + b * 7 * CAPACITY + 4 * CAPACITY
    row = tl.program_id(1) * TILE + tl.arange(0, TILE)
    column = tl.program_id(2) * TILE + tl.arange(0, TILE)
    if tl.load(places) == 0:
        tail = mask_tail(mask, prefix_lens, b, rows, BATCH)
        stride = tl.load(prefix_lens + b).to(tl.int64) + rows
        codes = places + CAPACITY
        tile_from_codes(tail, stride, codes, codes + CAPACITY, row, column, budget, rows, CODE_BITS)
