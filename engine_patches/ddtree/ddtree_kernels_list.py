"""Triton: the exact draft tree by listing, one program a request; see `list_kernel`.

Where scores are whole multiples of one step (they are: a logit minus a log-sum-exp in float32), float64 sums do not
round, so the heap's order is the plain order of (score, rank tuple). Then no pop has to wait for another one: list
level by level every prefix that is at least as good as a bound, and sort. A request that this does not suit (NaN,
other steps, too many ties) is left to the heap in ddtree_kernels_tree.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .ddtree_kernels_mask import mask_tail, tile_from_codes

# a prefix in one sortable int64: cost << COST_AT | code of its rank tuple << 4 | depth
DEPTH_BITS = 4
MOST_DEEP = 15
TOO_DEAR = tl.constexpr(3.0e38)
NO_KEY = tl.constexpr(2**63 - 1)


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

    Counted are the prefixes that leave the best chain at one position, and those of one or two positions. It is a
    guess: what it lists is checked.
    """
    deep, left, rank = tl.arange(0, 16), tl.arange(0, 16), tl.arange(0, 16)
    chain = _cost(tl.load(log_probs + left * RANKS, mask=left < DEPTH, other=float("-inf")), scale, MOST)
    total = tl.cumsum(chain, 0)
    inside = (left < DEPTH)[:, None] & (rank < RANKS)[None, :]
    costs = tl.load(log_probs + left[:, None] * RANKS + rank[None, :], mask=inside, other=float("-inf"))
    change = _cost(costs, scale, MOST) - chain[:, None]
    change = tl.where((rank > 0)[None, :] | (left == 0)[:, None], change, TOO_DEAR)
    fits = (deep >= 2)[:, None, None] & (left[None, :] <= deep[:, None])[:, :, None]
    known = tl.where(fits, total[:, None, None] + change[None, :, :], TOO_DEAR)
    one = left[:, None] * 16 + rank[None, :]
    first = _cost(tl.load(log_probs + one, mask=one < RANKS, other=float("-inf")), scale, MOST)
    known = tl.where((deep == 0)[:, None, None], first[None, :, :], known)
    wide = tl.arange(0, WIDE)
    first = _cost(tl.load(log_probs + wide, mask=wide < RANKS, other=float("-inf")), scale, MOST)
    second = tl.load(log_probs + RANKS + wide, mask=(wide < RANKS) & (DEPTH > 1), other=float("-inf"))
    twos = first[:, None] + _cost(second, scale, MOST)[None, :]
    twos = tl.where((wide[:, None] + 1) * (wide[None, :] + 1) <= budget, twos, TOO_DEAR)
    if WIDE == 16:
        known = tl.where((deep == 1)[:, None, None], twos[None, :, :], known)
    known = tl.reshape(known, [4096], can_reorder=True)
    if WIDE == 64:
        twos = tl.reshape(twos, [4096], can_reorder=True)
    least = tl.maximum(tl.sum(tl.where(left < DEPTH, chain, 0.0), 0) / 64, 1.0)
    low = tl.minimum(least, MOST / 2).to(
        tl.int32, bitcast=True
    )  # positive floats are in the order of their bits
    high = MOST_BITS
    while high - low > 0x80000:
        middle = low + ((high - low) >> 1)
        x = middle.to(tl.float32, bitcast=True)
        reach = (known <= x).to(tl.int32)
        if WIDE == 64:
            reach += (twos <= x).to(tl.int32)
        reach = tl.sum(reach, 0)
        high = tl.where(reach >= budget, middle, high)
        enough = (reach >= budget) & (reach <= budget + budget // 8)
        low = tl.where(enough, high, tl.where(reach >= budget, low, middle))
    return tl.minimum((high.to(tl.float32, bitcast=True) * 1.00001).to(tl.int32) + 2, MOST - 1)


@triton.jit
def _list(
    log_probs,
    costs,
    codes,
    rooms,
    infos,
    widths,
    scale,
    bound,
    budget,
    DEPTH: tl.constexpr,
    RANKS: tl.constexpr,
    K: tl.constexpr,
    MOST: tl.constexpr,
    CODE_BITS: tl.constexpr,
    CAPACITY: tl.constexpr,
    PARENTS: tl.constexpr,
    SPAN: tl.constexpr,
):
    """Write every prefix that costs at most `bound`, level by level behind the root; returns how many there are.

    infos: index of the parent << 16 | rank. rooms: product of (rank + 1) << 16 | depth << 8 | bits of code used. A
    prefix is dominated by that product of prefixes, itself included, so it needs no place beyond `budget`; and the
    code of rank r, 2 * floor(log2(r + 1)) + 1 bits in the ranks' order (unary length, then offset), then fits.
    widths: int32 [16] to work with.
    """
    if RANKS > SPAN:  # how many ranks of a level fit behind the best chain, so behind any prefix
        levels, every = tl.arange(0, 16), tl.arange(0, K)
        inside = (levels < DEPTH)[:, None] & (every < RANKS)[None, :]
        x = tl.load(log_probs + levels[:, None] * RANKS + every[None, :], mask=inside, other=float("-inf"))
        best = tl.load(log_probs + levels * RANKS, mask=levels < DEPTH, other=0.0)
        best = _cost(best, scale, MOST).to(tl.int32)
        left = bound - (tl.cumsum(best, 0) - best)  # 15 costs of at most 2**27 are under 2**31
        wide = (_cost(x, scale, MOST).to(tl.int32) <= left[:, None]).to(tl.int32)
        tl.store(widths + levels, tl.sum(wide, 1))
        tl.debug_barrier()
    start, stop, level = 0, 1, 0
    while (level < DEPTH) & (start < stop) & (stop <= CAPACITY):
        end = stop
        line = log_probs + level * RANKS
        for first in range(start, end, PARENTS):
            parent = first + tl.arange(0, PARENTS)
            live = parent < end
            cost = tl.load(costs + parent, mask=live, other=MOST)
            room = tl.load(rooms + parent, mask=live, other=0)
            code = tl.load(codes + parent, mask=live, other=0)
            ranks = RANKS
            if RANKS > SPAN:
                least = tl.min(tl.where(live, room >> 16, 2147483647), 0)
                ranks = tl.minimum(tl.load(widths + level), budget // least)
            count = tl.zeros([PARENTS], tl.int32)
            for low in range(0, ranks, SPAN):
                rank = low + tl.arange(0, SPAN)
                step = _cost(tl.load(line + rank, mask=rank < RANKS, other=float("-inf")), scale, MOST).to(
                    tl.int32
                )
                product = (room >> 16)[:, None] * (rank + 1)[None, :]
                fits = (cost[:, None] + step[None, :] <= bound) & (product <= budget)
                count += tl.sum(fits.to(tl.int32), 1)
            at = stop + tl.cumsum(count, 0) - count
            stop += tl.sum(count, 0)
            kept = tl.minimum(count, CAPACITY - at)
            for low in range(0, ranks, SPAN):
                rank = low + tl.arange(0, SPAN)
                step = _cost(tl.load(line + rank, mask=rank < RANKS, other=float("-inf")), scale, MOST).to(
                    tl.int32
                )
                digits = _exponent((rank + 1).to(tl.float32))
                length = 2 * digits + 1
                word = (((1 << digits) - 1) << (digits + 1)) | (rank + 1 - (1 << digits))
                fits = rank[None, :] < kept[:, None]
                place = at[:, None] + rank[None, :]
                used = (room & 255)[:, None] + length[None, :]
                shift = tl.where(fits, CODE_BITS - used, 0)
                product = (room >> 16)[:, None] * (rank + 1)[None, :]
                tl.store(costs + place, cost[:, None] + step[None, :], mask=fits)
                tl.store(codes + place, code[:, None] | (word[None, :] << shift), mask=fits)
                tl.store(rooms + place, (product << 16) | ((level + 1) << 8) | used, mask=fits)
                tl.store(infos + place, (parent << 16)[:, None] | rank[None, :], mask=fits)
        tl.debug_barrier()
        start = end
        level += 1
    return stop


@triton.jit
def _sort(
    costs,
    codes,
    rooms,
    keys,
    places,
    count,
    COST_AT: tl.constexpr,
    LISTED: tl.constexpr,
    AGAINST: tl.constexpr,
):
    """places[i]: how many of the `count` prefixes come before prefix i. keys: int64, whole LISTED blocks."""
    for first in range(0, count, LISTED):
        index = first + tl.arange(0, LISTED)
        inside = index < count
        cost = tl.load(costs + index, mask=inside, other=0).to(tl.int64)
        code = tl.load(codes + index, mask=inside, other=0).to(tl.int64)
        depth = (tl.load(rooms + index, mask=inside, other=0) >> 8) & 15
        tl.store(keys + index, tl.where(inside, (cost << COST_AT) | (code << 4) | depth, NO_KEY))
    tl.debug_barrier()
    for first in range(0, count, LISTED):
        index = first + tl.arange(0, LISTED)
        key = tl.load(keys + index)
        before = tl.zeros([AGAINST, LISTED], tl.int32)
        for against in range(0, count, AGAINST):
            theirs = tl.load(keys + against + tl.arange(0, AGAINST))
            before += (theirs[:, None] < key[None, :]).to(tl.int32)
        tl.store(places + index, tl.sum(before, 0), mask=index < count)
    tl.debug_barrier()


@triton.jit
def _place(
    token_ids,
    roots,
    prefix_lens,
    out,
    plane,
    b,
    codes,
    rooms,
    infos,
    places,
    sorted_codes,
    sorted_rooms,
    count,
    budget,
    rows,
    RANKS: tl.constexpr,
    LISTED: tl.constexpr,
    ROWS: tl.constexpr,
):
    """Write the seven columns, and codes and rooms by row: entry i becomes row places[i] if the budget allows it."""
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
        listed = index < count
        place = tl.load(places + index, mask=listed, other=0)
        info = tl.load(infos + index, mask=listed, other=0)
        room = tl.load(rooms + index, mask=listed, other=0)
        code = tl.load(codes + index, mask=listed, other=0)
        parent = tl.load(places + (info >> 16), mask=listed, other=0)
        rank = info & 0xFFFF
        elder = tl.load(places + index - 1, mask=listed & (rank > 0), other=0)  # siblings are neighbours
        kept = listed & (place <= budget)
        tl.store(sorted_codes + place, code, mask=kept)
        tl.store(sorted_rooms + place, room, mask=kept)
        kept = kept & (index > 0)
        depth = (room >> 8) & 15
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
    scratch,
    scratch_keys,
    batch,
    budget,
    rows,
    DEPTH: tl.constexpr,
    RANKS: tl.constexpr,
    K: tl.constexpr,
    WIDE: tl.constexpr,
    MOST: tl.constexpr,
    MOST_BITS: tl.constexpr,
    CODE_BITS: tl.constexpr,
    CAPACITY: tl.constexpr,
    PARENTS: tl.constexpr,
    SPAN: tl.constexpr,
    LISTED: tl.constexpr,
    AGAINST: tl.constexpr,
    BATCH: tl.constexpr,
    ROWS: tl.constexpr,
    MASK_ROWS: tl.constexpr,
    MASK: tl.constexpr,
):
    """One request's tree, or nodes[b] = 0 where listing does not suit it.

    scratch: int32 [batch, 7, CAPACITY]; scratch_keys: int64 [batch, CAPACITY]; LISTED divides CAPACITY.
    MASK: its mask as well; else list_mask_kernel does that.
    """
    b = tl.program_id(0)
    log_probs += b * DEPTH * RANKS
    costs = scratch + b * 7 * CAPACITY
    codes, rooms, infos = costs + CAPACITY, costs + 2 * CAPACITY, costs + 3 * CAPACITY
    keys = scratch_keys + b * CAPACITY
    places, sorted_codes, sorted_rooms = costs + 4 * CAPACITY, costs + 5 * CAPACITY, costs + 6 * CAPACITY
    tl.store(costs, 0)
    tl.store(codes, 0)
    tl.store(rooms, 1 << 16)
    tl.store(infos, 0)
    tl.debug_barrier()
    tail = mask_tail(mask, prefix_lens, b, rows, BATCH)
    stride = tl.load(prefix_lens + b).to(tl.int64) + rows
    scale, good = _step(log_probs, DEPTH, RANKS, K)
    bound = _bound(log_probs, scale, budget, DEPTH, RANKS, MOST, MOST_BITS, WIDE)
    count = _list(
        log_probs,
        costs,
        codes,
        rooms,
        infos,
        places,
        scale,
        bound,
        budget,
        DEPTH,
        RANKS,
        K,
        MOST,
        CODE_BITS,
        CAPACITY,
        PARENTS,
        SPAN,
    )
    suits = good & (count > budget) & (count <= CAPACITY)
    tl.store(nodes + b, tl.where(suits, budget + 1, 0).to(tl.int64))
    tl.store(places, tl.where(suits, 0, -1))
    if suits:
        _sort(costs, codes, rooms, keys, places, count, CODE_BITS + 4, LISTED, AGAINST)
        _place(
            token_ids + b * DEPTH * RANKS,
            roots,
            prefix_lens,
            columns + tl.cast(b, tl.int64) * rows,
            tl.cast(batch, tl.int64) * rows,
            b,
            codes,
            rooms,
            infos,
            places,
            sorted_codes,
            sorted_rooms,
            count,
            budget,
            rows,
            RANKS,
            LISTED,
            ROWS,
        )
        if MASK:
            column = tl.arange(0, ROWS)
            for first in range(0, rows, MASK_ROWS):
                row = first + tl.arange(0, MASK_ROWS)
                tile_from_codes(
                    tail, stride, sorted_codes, sorted_rooms, row, column, budget, rows, CODE_BITS
                )
