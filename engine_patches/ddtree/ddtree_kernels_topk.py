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

SCAN_BLOCK = 2048
SCAN_WARPS = 2
PICK_WARPS = 8
MOST_PICKED = 128
# low bits of a float32 in which values of these types do not differ
SHIFTS = {torch.bfloat16: 16, torch.float16: 13, torch.float32: 0}

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
def _best_places(key, count, SHIFT: tl.constexpr):
    """(least, chosen, place) of the `count` largest keys, ties to the lower index.

    least: the smallest of them. place: how many chosen come before. Keys differ above bit SHIFT if at all.
    """
    key = key >> SHIFT
    top = tl.max(key, 0) + 1
    # at least `count` keys reach low, fewer reach high: first go down in growing steps, then halve
    low, high, step = top, top, 1 << (22 - SHIFT)
    reach = 0
    while reach < count:
        high = low
        low = tl.maximum(low, step + LOWEST) - step
        low = tl.maximum(low, LOWEST >> SHIFT)
        reach = tl.sum((key >= low).to(tl.int32), 0)
        step = tl.minimum(step, 1 << 27) * 4
    while (reach != count) & (low + 1 < high):
        middle = (low & high) + ((low ^ high) >> 1)
        now = tl.sum((key >= middle).to(tl.int32), 0)
        enough = now >= count
        reach = tl.where(enough, now, reach)
        low = tl.where(enough, middle, low)
        high = tl.where(enough, high, middle)
    above = (key > low).to(tl.int32)
    level = (key == low).to(tl.int32)
    spare = count - tl.sum(above, 0)
    before = tl.cumsum((above << 16) | level, 0)  # both running counts in one scan
    levels = before & 0xFFFF
    chosen = (above == 1) | ((level == 1) & (levels <= spare))
    place = (before >> 16) + tl.minimum(levels, spare) - 1
    return low << SHIFT, chosen, place


@triton.jit
def _group_keys(line, list_of, first, k, vocabulary, GROUP: tl.constexpr, SOME: tl.constexpr):
    """(keys, columns) of SOME listed groups from the first-th on, row-major; LOWEST where there is nothing."""
    index = first + tl.arange(0, SOME)
    group = tl.load(list_of + index, mask=index < k, other=vocabulary)
    column = group[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    real = (group < vocabulary)[:, None] & (column < vocabulary)
    x = tl.load(line + column, mask=real, other=0.0).to(tl.float32)
    key = tl.where(real, _key(_without_nan(x)), LOWEST)
    return tl.reshape(key, [SOME * GROUP]), tl.reshape(column, [SOME * GROUP])


@triton.jit
def _collect(
    line,
    list_of,
    found,
    least,
    spare,
    k,
    vocabulary,
    GROUP: tl.constexpr,
    SOME: tl.constexpr,
    MOST: tl.constexpr,
):
    """Write (key, column) of all keys above `least` and of the first `spare` equal to it, in the order of ids.

    Returns how many there are; of more than MOST the rest is not written.
    """
    total = 0
    levels = 0
    for first in range(0, k, SOME):
        key, column = _group_keys(line, list_of, first, k, vocabulary, GROUP, SOME)
        level = (key == least).to(tl.int32)
        before = tl.cumsum(((key > least).to(tl.int32) << 16) | level, 0)
        chosen = (key > least) | ((level == 1) & (levels + (before & 0xFFFF) <= spare))
        left = tl.maximum(spare - levels, 0)
        place = total + (before >> 16) + tl.minimum(before & 0xFFFF, left) - 1
        tl.store(found + place, key, mask=chosen & (place < MOST))
        tl.store(found + MOST + place, column, mask=chosen & (place < MOST))
        both = tl.max(before, 0) & 0xFFFF
        total += tl.sum((key > least).to(tl.int32), 0) + tl.minimum(both, left)
        levels += both
    return total


@triton.jit
def _reach(line, list_of, middle, k, vocabulary, GROUP: tl.constexpr, SOME: tl.constexpr):
    """How many keys of the listed groups are at least `middle`."""
    reach = 0
    for first in range(0, k, SOME):
        key, _ = _group_keys(line, list_of, first, k, vocabulary, GROUP, SOME)
        reach += tl.sum((key >= middle).to(tl.int32), 0)
    return reach


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
    MOST: tl.constexpr,
    SOME: tl.constexpr,
    SHIFT: tl.constexpr,
):
    """One row. scratch: int32 [rows, K + 2 * MOST]. GROUPS, CHUNKS, K: powers of two at least as large."""
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
    least, chosen, place = _best_places(tl.where(group < groups, key, LOWEST), k, SHIFT)
    list_of = scratch + row * (K + 2 * MOST)
    found = list_of + K
    tl.store(list_of + place, tl.where(group < groups, group, vocabulary), mask=chosen)
    tl.debug_barrier()

    line = logits + row * stride
    # no key under that of the last group's maximum is needed
    total = _collect(line, list_of, found, least, K * GROUP, k, vocabulary, GROUP, SOME, MOST)
    if total > MOST:  # very many equal logits: find the k-th key itself
        high = tl.max(key, 0) >> SHIFT
        low = least >> SHIFT
        high += 1
        while low + 1 < high:
            middle = (low & high) + ((low ^ high) >> 1)
            enough = _reach(line, list_of, middle << SHIFT, k, vocabulary, GROUP, SOME) >= k
            low = tl.where(enough, middle, low)
            high = tl.where(enough, high, middle)
        least = low << SHIFT
        least = tl.where(
            (least < 0) & (least != LOWEST), least | ((1 << SHIFT) - 1), least
        )  # as all keys there
        spare = k - _reach(line, list_of, least + 1, k, vocabulary, GROUP, SOME)
        total = _collect(line, list_of, found, least, spare, k, vocabulary, GROUP, SOME, MOST)
    tl.debug_barrier()

    index = tl.arange(0, MOST)
    key = tl.load(found + index, mask=index < total, other=LOWEST)
    column = tl.load(found + MOST + index, mask=index < total, other=0)
    rank = tl.zeros([MOST], tl.int32)
    for first in range(0, total, 32):
        other = first + tl.arange(0, 32)
        theirs = tl.load(found + other, mask=other < total, other=LOWEST)
        # found in the order of ids, so the index breaks ties
        ahead = (theirs[None, :] > key[:, None]) | (
            (theirs[None, :] == key[:, None]) & (other[None, :] < index[:, None])
        )
        rank += tl.sum(ahead.to(tl.int32), 1)
    missing = key == LOWEST
    kept = (index < total) & (rank < k)
    tl.store(values + row * k + rank, tl.where(missing, float("-inf"), _value(key)), mask=kept)
    tl.store(ids + row * k + rank, tl.where(missing, 0, first_id + column.to(tl.int64)), mask=kept)


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
    group, some = (128, 16) if k <= 32 else (64, 32)  # as measured on an H200
    groups, chunks = triton.cdiv(vocabulary, group), triton.cdiv(vocabulary, SCAN_BLOCK)
    floats = torch.empty(rows * (groups + 2 * chunks + 1 + k), dtype=torch.float32, device=device)
    maxima, partials, lse, values = floats.split([rows * groups, rows * 2 * chunks, rows, rows * k])
    ids = torch.empty((rows, k), dtype=torch.int64, device=device)
    padded = max(16, triton.next_power_of_2(k))
    scratch = torch.empty((rows, 5 * padded), dtype=torch.int32, device=device)
    _scan_kernel[(chunks, rows)](
        logits,
        logits.stride(0),
        vocabulary,
        maxima,
        partials,
        groups,
        chunks,
        GROUP=group,
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
        GROUP=group,
        GROUPS=max(padded, triton.next_power_of_2(groups)),
        CHUNKS=triton.next_power_of_2(chunks),
        K=padded,
        MOST=2 * padded,
        SOME=some,
        SHIFT=SHIFTS[logits.dtype],
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
