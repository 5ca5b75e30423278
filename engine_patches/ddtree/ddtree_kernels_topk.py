"""Triton: canonical top-k and log-sum-exp of every row over the vocabulary, reading the logits once.

The scan keeps of each group of neighbouring columns only its maximum. Every one of the k best columns lies in one of
the k groups with the best maxima, ties to the lower group (else k better columns would lie in k other groups), so
the pick reads just those groups again.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .ddtree_topk import canonical_top

GROUP = 64
SCAN_BLOCK = 4096
SCAN_WARPS = 4
PICK_WARPS = 4
MOST_PICKED = 128

LOWEST = tl.constexpr(-(2**31))


@triton.jit
def _key(x):
    """float32 -> int32 in the order of the values, -0.0 equal to 0.0, above LOWEST."""
    bits = (x + 0.0).to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def _value(key):
    return (key ^ ((key >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def _without_nan(x):
    return tl.where(x == x, x, float("-inf"))


@triton.jit
def _best_places(key, count):
    """(chosen, place) of the `count` largest keys, ties to the lower index; place: how many chosen come before."""
    low = tl.full([], LOWEST, tl.int32)  # at least `count` keys reach low, fewer reach high
    high = tl.max(key, 0) + 1
    reach = count + 1
    while (reach != count) & (low + 1 < high):
        middle = (low & high) + ((low ^ high) >> 1)
        reach = tl.sum((key >= middle).to(tl.int32), 0)
        low = tl.where(reach >= count, middle, low)
        high = tl.where(reach >= count, high, middle)
    above = (key > low).to(tl.int32)
    level = (key == low).to(tl.int32)
    spare = count - tl.sum(above, 0)
    before = tl.cumsum((above << 16) | level, 0)  # both running counts in one scan
    levels = before & 0xFFFF
    chosen = (above == 1) | ((level == 1) & (levels <= spare))
    place = (before >> 16) + tl.minimum(levels, spare) - 1
    return chosen, place


@triton.jit
def _scan_kernel(
    logits, stride, vocabulary, maxima, partials, groups, chunks, GROUP: tl.constexpr, BLOCK: tl.constexpr
):
    """One chunk of one row. maxima: float32 [rows, groups]; partials: float32 [rows, chunks, 2], maximum and sum."""
    chunk = tl.program_id(0)
    row = tl.program_id(1).to(tl.int64)
    group = tl.arange(0, BLOCK // GROUP)
    column = chunk * BLOCK + group[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    x = tl.load(logits + row * stride + column, mask=column < vocabulary, other=float("-inf")).to(tl.float32)
    x = _without_nan(x)
    best = tl.max(x, 1)
    group = chunk * (BLOCK // GROUP) + group
    tl.store(maxima + row * groups + group, best, mask=group < groups)
    top = tl.max(best, 0)
    top = tl.where(tl.abs(top) == float("inf"), 0.0, top)
    total = tl.sum(tl.sum(tl.exp(x - top), 1), 0)
    out = partials + (row * chunks + chunk) * 2
    tl.store(out, top)
    tl.store(out + 1, total)


@triton.jit
def _pick_kernel(
    logits,
    stride,
    vocabulary,
    maxima,
    partials,
    scratch,
    values,
    ids,
    lse,
    groups,
    chunks,
    first_id,
    k,
    GROUP: tl.constexpr,
    GROUPS: tl.constexpr,
    CHUNKS: tl.constexpr,
    K: tl.constexpr,
):
    """One row. scratch: int32 [rows, 2, K]. GROUPS, CHUNKS, K: powers of two at least as large."""
    row = tl.program_id(0).to(tl.int64)
    chunk = tl.arange(0, CHUNKS)
    part = partials + (row * chunks + chunk) * 2
    top = tl.load(part, mask=chunk < chunks, other=float("-inf"))
    total = tl.load(part + 1, mask=chunk < chunks, other=0.0)
    best = tl.max(tl.where(total > 0, top, float("-inf")), 0)
    best = tl.where(best == float("-inf"), 0.0, best)
    tl.store(lse + row, best + tl.log(tl.sum(tl.where(total > 0, total * tl.exp(top - best), 0.0), 0)))

    group = tl.arange(0, GROUPS)
    key = _key(tl.load(maxima + row * groups + group, mask=group < groups, other=0.0))
    chosen, place = _best_places(tl.where(group < groups, key, LOWEST), k)
    list_of = scratch + row * 2 * K
    tl.store(list_of + place, group, mask=chosen)
    tl.debug_barrier()

    index = tl.arange(0, K)
    group = tl.load(list_of + index, mask=index < k, other=groups)
    column = group[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    real = (column < vocabulary) & (group < groups)[:, None]
    x = tl.load(logits + row * stride + column, mask=real, other=0.0).to(tl.float32)
    key = tl.where(real, _key(_without_nan(x)), LOWEST)
    key = tl.reshape(key, [K * GROUP])
    column = tl.reshape(column, [K * GROUP])
    chosen, place = _best_places(key, k)
    tl.debug_barrier()
    tl.store(list_of + place, key, mask=chosen)
    tl.store(list_of + K + place, column, mask=chosen)
    tl.debug_barrier()

    key = tl.load(list_of + index, mask=index < k, other=LOWEST)
    column = tl.load(list_of + K + index, mask=index < k, other=0)
    other = tl.load(list_of + index, mask=index < k, other=LOWEST)
    # chosen columns lie in ascending order of ids, so the index breaks ties
    ahead = (other[None, :] > key[:, None]) | (
        (other[None, :] == key[:, None]) & (index[None, :] < index[:, None])
    )
    rank = tl.sum(ahead.to(tl.int32), 1)
    missing = key == LOWEST
    tl.store(values + row * k + rank, tl.where(missing, float("-inf"), _value(key)), mask=index < k)
    tl.store(ids + row * k + rank, tl.where(missing, 0, first_id + column.to(tl.int64)), mask=index < k)


def top_k_lse(logits: torch.Tensor, first_id: int, k: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The k best columns of each row by (logit descending, id ascending) and the log-sum-exp of the row.

    logits: bfloat16, float16 or float32 [rows, columns], columns contiguous; a column's id is first_id + its index.
    NaN counts as -inf; columns that are missing (k > columns) come back as -inf with id 0. Returns float32
    [rows, k], int64 [rows, k] and float32 [rows].
    Raises: ValueError when the columns are not contiguous.
    """
    rows, vocabulary = logits.shape
    if logits.stride(1) != 1 and vocabulary > 1:
        raise ValueError("the logits of a row must be contiguous")
    if k > MOST_PICKED:
        return _with_torch(logits, first_id, k)
    device = logits.device
    groups, chunks = triton.cdiv(vocabulary, GROUP), triton.cdiv(vocabulary, SCAN_BLOCK)
    floats = torch.empty(rows * (groups + 2 * chunks + 1 + k), dtype=torch.float32, device=device)
    maxima, partials, lse, values = floats.split([rows * groups, rows * 2 * chunks, rows, rows * k])
    ids = torch.empty((rows, k), dtype=torch.int64, device=device)
    padded = max(16, triton.next_power_of_2(k))
    scratch = torch.empty((rows, 2, padded), dtype=torch.int32, device=device)
    _scan_kernel[(chunks, rows)](
        logits,
        logits.stride(0),
        vocabulary,
        maxima,
        partials,
        groups,
        chunks,
        GROUP=GROUP,
        BLOCK=SCAN_BLOCK,
        num_warps=SCAN_WARPS,
    )
    _pick_kernel[(rows,)](
        logits,
        logits.stride(0),
        vocabulary,
        maxima,
        partials,
        scratch,
        values,
        ids,
        lse,
        groups,
        chunks,
        first_id,
        k,
        GROUP=GROUP,
        GROUPS=max(padded, triton.next_power_of_2(groups)),
        CHUNKS=triton.next_power_of_2(chunks),
        K=padded,
        num_warps=PICK_WARPS,
    )
    return values.view(rows, k), ids, lse


def _with_torch(
    logits: torch.Tensor, first_id: int, k: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    part = torch.where(logits.isnan(), -torch.inf, logits.float())
    values, ids = canonical_top(part, torch.arange(logits.shape[1], device=logits.device) + first_id, k)
    missing = torch.arange(k, device=logits.device) >= logits.shape[1]
    return values, torch.where(missing, 0, ids), part.logsumexp(dim=1)
