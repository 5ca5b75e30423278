"""Triton: the exact draft tree by listing, one program a request; see `list_kernel`.

Where scores are whole multiples of one step (they are: a logit minus a log-sum-exp in float32), float64 sums do not
round, so the heap's order is the plain order of (score, rank tuple). Then no pop has to wait for another one: list
level by level every prefix that is at least as good as a bound, and sort. A request that this does not suit (NaN,
other steps, too many ties) is left to the heap in ddtree_kernels_tree.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .ddtree_kernels_mask import clear_tail, mark_ancestors, mask_tail

# a prefix in one sortable int64: cost << COST_AT | code of its rank tuple << 4 | depth
DEPTH_BITS = 4
MOST_DEEP = 15
BOUND_RANKS = tl.constexpr(16)
TOO_DEAR = tl.constexpr(3.0e38)


@triton.jit
def _exponent(x):
    """floor(log2(x)) of positive normal float32."""
    return (x.to(tl.int32, bitcast=True) >> 23) - 127


@triton.jit
def _cost(log_prob, scale, limit: tl.constexpr):
    """Steps below 0 as float32, at most `limit`."""
    return tl.minimum(log_prob * scale, limit)


@triton.jit
def _step(log_probs, DEPTH: tl.constexpr, RANKS: tl.constexpr, K: tl.constexpr):
    """(scale, good): -1 / the largest power of two that divides every log-probability; good: none is NaN or above 0."""
    level, rank = tl.arange(0, 16)[:, None], tl.arange(0, K)[None, :]
    x = tl.load(log_probs + level * RANKS + rank, mask=(level < DEPTH) & (rank < RANKS), other=0.0)
    bits = x.to(tl.int32, bitcast=True) & 0x7FFFFFFF
    digits = (bits & 0x7FFFFF) | 0x800000
    lowest = (bits >> 23) - 150 + _exponent((digits & -digits).to(tl.float32))
    plain = (bits >= 0x800000) & (bits < 0x7F800000)
    step = tl.min(tl.min(tl.where(plain, lowest, 0), 1), 0)
    step = tl.maximum(step, -100)
    odd = (bits > 0x7F800000) | ((x > 0.0) & (bits > 0)) | ((bits > 0) & (bits < 0x800000))
    scale = ((127 - step) << 23).to(tl.float32, bitcast=True)
    return -scale, tl.max(tl.max(odd.to(tl.int32), 1), 0) == 0


@triton.jit
def _bound(
    log_probs,
    scale,
    budget,
    DEPTH: tl.constexpr,
    RANKS: tl.constexpr,
    MOST: tl.constexpr,
    MOST_BITS: tl.constexpr,
    WIDE: tl.constexpr,
):
    """A cost that at least `budget` prefixes do not exceed, if it is under MOST, whose float32 bits MOST_BITS are.

    Counted are the prefixes that leave the best chain at one position, and those of one or two positions.
    """
    deep, left, rank = tl.arange(0, 16), tl.arange(0, 16), tl.arange(0, BOUND_RANKS)
    chain = _cost(tl.load(log_probs + left * RANKS, mask=left < DEPTH, other=float("-inf")), scale, MOST)
    total = tl.cumsum(chain, 0)
    at = log_probs + left[:, None] * RANKS + rank[None, :]
    costs = _cost(
        tl.load(at, mask=(left < DEPTH)[:, None] & (rank < RANKS)[None, :], other=float("-inf")), scale, MOST
    )
    change = tl.where((rank > 0)[None, :] | (left == 0)[:, None], costs - chain[:, None], TOO_DEAR)
    fits = (deep >= 2)[:, None, None] & (left[None, :] <= deep[:, None])[:, :, None]
    ones = tl.where(fits, total[:, None, None] + change[None, :, :], TOO_DEAR)
    ones = tl.reshape(ones, [16 * 16 * BOUND_RANKS], can_reorder=True)
    wide = tl.arange(0, WIDE)
    first = _cost(tl.load(log_probs + wide, mask=wide < RANKS, other=float("-inf")), scale, MOST)
    second = tl.load(log_probs + RANKS + wide, mask=(wide < RANKS) & (DEPTH > 1), other=float("-inf"))
    twos = first[:, None] + _cost(second, scale, MOST)[None, :]
    twos = tl.where((wide[:, None] + 1) * (wide[None, :] + 1) <= budget, twos, TOO_DEAR)
    twos = tl.reshape(twos, [WIDE * WIDE], can_reorder=True)
    low = 0x3F800000  # of float32: too few reach low
    high = MOST_BITS
    while high - low > 0x80000:
        middle = low + ((high - low) >> 1)
        x = middle.to(tl.float32, bitcast=True)
        reach = tl.sum((ones <= x).to(tl.int32), 0) + tl.sum((twos <= x).to(tl.int32), 0)
        reach += tl.sum((first <= x).to(tl.int32), 0)
        low = tl.where(reach >= budget, low, middle)
        high = tl.where(reach >= budget, middle, high)
        low = tl.where((reach >= budget) & (reach <= budget + budget // 16), high, low)
    return tl.minimum((high.to(tl.float32, bitcast=True) * 1.00001).to(tl.int32) + 2, MOST - 1)


@triton.jit
def _list(
    log_probs,
    keys,
    infos,
    rooms,
    scale,
    bound,
    budget,
    DEPTH: tl.constexpr,
    RANKS: tl.constexpr,
    K: tl.constexpr,
    MOST: tl.constexpr,
    COST_AT: tl.constexpr,
    CAPACITY: tl.constexpr,
    PARENTS: tl.constexpr,
):
    """Write the root and every prefix that costs at most `bound`, level by level; returns how many there are.

    keys as above; infos: index of the parent << 16 | rank; rooms: product of (rank + 1) << 8 | bits of code used.
    A prefix is dominated by that product of prefixes, itself included, so it needs no place beyond `budget`; and the
    code of rank r, 2 * floor(log2(r + 1)) + 1 bits in the ranks' order (unary length, then offset), then fits.
    """
    rank = tl.arange(0, K)
    digits = _exponent((rank + 1).to(tl.float32))
    length = 2 * digits + 1
    word = ((((1 << digits) - 1) << (digits + 1)) | (rank + 1 - (1 << digits))).to(tl.int64)
    start, stop, level = 0, 1, 0
    while (level < DEPTH) & (start < stop) & (stop <= CAPACITY):
        end = stop
        x = tl.load(log_probs + level * RANKS + rank, mask=rank < RANKS, other=float("-inf"))
        cost = _cost(x, scale, MOST).to(tl.int32)
        for first in range(start, end, PARENTS):
            parent = first + tl.arange(0, PARENTS)
            live = parent < end
            key = tl.load(keys + parent, mask=live, other=0)
            room = tl.load(rooms + parent, mask=live, other=0)
            product = (room >> 8)[:, None] * (rank + 1)[None, :]
            total = (key >> COST_AT).to(tl.int32)[:, None] + cost[None, :]
            fits = live[:, None] & (total <= bound) & (product <= budget)
            count = tl.sum(fits.to(tl.int32), 1)
            at = (stop + tl.cumsum(count, 0) - count)[:, None] + rank[None, :]
            stop += tl.sum(count, 0)
            fits = fits & (at < CAPACITY)
            used = (room & 255)[:, None] + length[None, :]
            shift = tl.where(fits, COST_AT - used, 0)
            key = key[:, None] + (cost.to(tl.int64) << COST_AT)[None, :] + (word[None, :] << shift) + 1
            tl.store(keys + at, key, mask=fits)
            tl.store(infos + at, (parent << 16)[:, None] | rank[None, :], mask=fits)
            tl.store(rooms + at, (product << 8) | used, mask=fits)
        tl.debug_barrier()
        start = end
        level += 1
    return stop


@triton.jit
def _sort(keys, places, count, LISTED: tl.constexpr, AGAINST: tl.constexpr):
    """places[i]: how many of the `count` keys are smaller than keys[i]."""
    for first in range(0, count, LISTED):
        index = first + tl.arange(0, LISTED)
        key = tl.load(keys + index, mask=index < count, other=0)
        place = tl.zeros([LISTED], tl.int32)
        for against in range(0, count, AGAINST):
            other = against + tl.arange(0, AGAINST)
            theirs = tl.load(keys + other, mask=other < count, other=0x7FFFFFFFFFFFFFFF)
            place += tl.sum((theirs[None, :] < key[:, None]).to(tl.int32), 1)
        tl.store(places + index, place, mask=index < count)
    tl.debug_barrier()


@triton.jit
def _place(
    token_ids,
    roots,
    prefix_lens,
    out,
    plane,
    b,
    keys,
    infos,
    places,
    count,
    budget,
    rows,
    RANKS: tl.constexpr,
    LISTED: tl.constexpr,
    ROWS: tl.constexpr,
):
    """Write the seven columns: entry i becomes row places[i] if that is within the budget."""
    root = tl.load(roots + b).to(tl.int64)
    prefix = tl.load(prefix_lens + b).to(tl.int64)
    row = tl.arange(0, ROWS)
    empty = tl.full([ROWS], -1, tl.int64)
    zero = tl.zeros([ROWS], tl.int64)
    padding = (row < rows) & ((row == 0) | (row > budget))
    tl.store(out + row, zero + root, mask=padding)
    tl.store(out + plane + row, tl.where(row == 0, -1, zero), mask=padding)
    tl.store(out + 2 * plane + row, zero, mask=padding)
    tl.store(out + 3 * plane + row, empty, mask=padding)
    tl.store(out + 4 * plane + row, zero + prefix, mask=padding)
    next_token, next_sibling = out + 5 * plane, out + 6 * plane
    tl.store(next_token + row, empty, mask=row < rows)
    tl.store(next_sibling + row, empty, mask=row < rows)
    tl.debug_barrier()
    for first in range(0, count, LISTED):
        index = first + tl.arange(0, LISTED)
        listed = (index > 0) & (index < count)
        place = tl.load(places + index, mask=listed, other=0)
        kept = listed & (place <= budget)
        info = tl.load(infos + index, mask=kept, other=0)
        depth = (tl.load(keys + index, mask=kept, other=1) & 15).to(tl.int32)
        rank = info & 0xFFFF
        parent = tl.load(places + (info >> 16), mask=kept, other=0)
        elder = tl.load(places + index - 1, mask=kept & (rank > 0), other=0)  # siblings are neighbours
        token = tl.load(token_ids + (depth - 1) * RANKS + rank, mask=kept, other=0)
        tl.store(out + place, token, mask=kept)
        tl.store(out + plane + place, parent.to(tl.int64), mask=kept)
        tl.store(out + 2 * plane + place, depth.to(tl.int64), mask=kept)
        tl.store(out + 3 * plane + place, rank.to(tl.int64), mask=kept)
        tl.store(out + 4 * plane + place, prefix + depth, mask=kept)
        tl.store(next_token + parent, place.to(tl.int64), mask=kept & (rank == 0))
        tl.store(next_sibling + elder, place.to(tl.int64), mask=kept & (rank > 0))
    tl.debug_barrier()


@triton.jit
def list_kernel(
    log_probs,
    token_ids,
    roots,
    prefix_lens,
    columns,
    nodes,
    mask,
    scratch_keys,
    scratch,
    batch,
    budget,
    rows,
    DEPTH: tl.constexpr,
    RANKS: tl.constexpr,
    K: tl.constexpr,
    WIDE: tl.constexpr,
    MOST: tl.constexpr,
    MOST_BITS: tl.constexpr,
    COST_AT: tl.constexpr,
    CAPACITY: tl.constexpr,
    PARENTS: tl.constexpr,
    LISTED: tl.constexpr,
    AGAINST: tl.constexpr,
    BATCH: tl.constexpr,
    ROWS: tl.constexpr,
    MASK_ROWS: tl.constexpr,
):
    """One request's tree, or nodes[b] = 0 where listing does not suit it.

    scratch_keys: int64 [batch, CAPACITY]; scratch: int32 [batch, 3, CAPACITY].
    """
    b = tl.program_id(0)
    tail = mask_tail(mask, prefix_lens, b, rows, BATCH)
    stride = tl.load(prefix_lens + b).to(tl.int64) + rows
    clear_tail(tail, stride, rows, ROWS, MASK_ROWS)
    log_probs += b * DEPTH * RANKS
    keys = scratch_keys + b * CAPACITY
    infos = scratch + b * 3 * CAPACITY
    rooms, places = infos + CAPACITY, infos + 2 * CAPACITY
    tl.store(keys, 0)
    tl.store(infos, 0)
    tl.store(rooms, 1 << 8)
    scale, good = _step(log_probs, DEPTH, RANKS, K)
    bound = _bound(log_probs, scale, budget, DEPTH, RANKS, MOST, MOST_BITS, WIDE)
    count = _list(
        log_probs,
        keys,
        infos,
        rooms,
        scale,
        bound,
        budget,
        DEPTH,
        RANKS,
        K,
        MOST,
        COST_AT,
        CAPACITY,
        PARENTS,
    )
    suits = good & (count > budget) & (count <= CAPACITY)
    tl.store(nodes + b, tl.where(suits, budget + 1, 0).to(tl.int64))
    if suits:
        _sort(keys, places, count, LISTED, AGAINST)
        plane = tl.cast(batch, tl.int64) * rows
        out = columns + tl.cast(b, tl.int64) * rows
        _place(
            token_ids + b * DEPTH * RANKS,
            roots,
            prefix_lens,
            out,
            plane,
            b,
            keys,
            infos,
            places,
            count,
            budget,
            rows,
            RANKS,
            LISTED,
            ROWS,
        )
        mark_ancestors(tail, stride, out + plane, rows, budget + 1, DEPTH, ROWS)
