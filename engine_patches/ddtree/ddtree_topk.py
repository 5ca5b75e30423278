"""Top-k and log-partition over a vocabulary split across tensor-parallel ranks, exact in ids and order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

# Upstream's chunk: the same rows in one product give the same bits as the argmax of the chain.
ROWS_PER_PRODUCT = 256
KEYS_PER_CHUNK = 1 << 22
Gather = Callable[[torch.Tensor], torch.Tensor]


def canonical_top(logits: torch.Tensor, ids: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The k best columns of each row by (logit descending, id ascending).

    logits: float32 [rows, columns]; ids: int64, [columns] or [rows, columns], each in 0..2**32-1.
    torch.topk leaves the order of equal logits open, so the pair is packed into one integer key. NaN counts
    as -inf. Columns that are missing (k > columns) come back as -inf with id 0. Returns float32 and int64
    [rows, k].
    """
    # + 0.0 turns -0.0 into 0.0, which it equals
    logits = torch.where(logits.isnan(), -torch.inf, logits) + 0.0
    bits = logits.view(torch.int32)
    ascending = (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(torch.int64)
    keys = (ascending << 32) | (0xFFFFFFFF - ids)
    found = min(k, int(logits.shape[1]))
    columns = keys.topk(found, dim=1).indices
    values = logits.gather(1, columns)
    picked = ids.expand_as(logits).gather(1, columns)
    missing = k - found
    if missing:
        values = torch.nn.functional.pad(values, (0, missing), value=-torch.inf)
        picked = torch.nn.functional.pad(picked, (0, missing))
    return values, picked


def shard_ids(shard: Any, device: torch.device) -> torch.Tensor:
    """Token ids of this shard's real columns, int64: the base vocabulary's, then the added tokens'."""
    base = torch.arange(int(shard.num_org_elements), device=device)
    added = torch.arange(int(shard.num_added_elements), device=device)
    return torch.cat([base + int(shard.org_vocab_start_index), added + int(shard.added_vocab_start_index)])


def local_top(hidden: torch.Tensor, lm_head: Any, k: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """This rank's k best candidates of every row.

    Returns logits float32 and ids int64 [rows, k], and the log-sum-exp of the rank's logits float32 [rows].
    """
    parts = []
    for start in range(0, int(hidden.shape[0]), ROWS_PER_PRODUCT):
        block = hidden[start : start + ROWS_PER_PRODUCT].to(lm_head.weight.dtype)
        logits = vocabulary_logits(block, lm_head.weight, lm_head.shard_indices)
        parts.append(_top_of(logits, lm_head.shard_indices, k))
    values, ids, partition = zip(*parts)
    return torch.cat(values), torch.cat(ids), torch.cat(partition)


def _top_of(logits: torch.Tensor, shard: Any, k: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    if logits.is_cuda and int(shard.num_added_elements) == 0:
        from .ddtree_kernels import top_k_lse

        return top_k_lse(logits, int(shard.org_vocab_start_index), k)
    ids = shard_ids(shard, logits.device)
    parts = []
    for rows in logits.split(max(1, KEYS_PER_CHUNK // max(1, int(ids.numel())))):
        part = torch.where(rows.isnan(), -torch.inf, rows.float())
        parts.append((*canonical_top(part, ids, k), part.logsumexp(dim=1)))
    values, picked, partition = zip(*parts)
    return torch.cat(values), torch.cat(picked), torch.cat(partition)


def vocabulary_logits(block: torch.Tensor, weight: torch.Tensor, shard: Any) -> torch.Tensor:
    """Logits of this shard's real tokens in the weight's type, [rows, columns]; padding rows are left out.

    In the weight the base vocabulary comes first, and added tokens lie behind the base's padding.
    """
    logits = torch.matmul(block, weight[: int(shard.num_org_elements)].T)
    added, start = int(shard.num_added_elements), int(shard.num_org_elements_padded)
    if added == 0:
        return logits
    return torch.cat([logits, torch.matmul(block, weight[start : start + added].T)], dim=1)


def pack(values: torch.Tensor, ids: torch.Tensor, partition: torch.Tensor) -> torch.Tensor:
    """One tensor for one gather, float64 [rows, 2k + 1]: it holds a float32 logit and a token id exactly."""
    return torch.cat([values.double(), ids.double(), partition[:, None].double()], dim=1)


def merge_ranks(packed: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Global candidates from all ranks' `pack`.

    packed: float64 [ranks, rows, 2k + 1]. Returns log-probabilities float32 [rows, k], descending, and
    int64 ids. A rank that failed sent NaN: every log-probability is NaN then, on every rank.
    """
    ranks, rows, _ = packed.shape
    partition = packed[:, :, 2 * k].float()
    values = packed[:, :, :k].float().permute(1, 0, 2).reshape(rows, ranks * k)
    ids = packed[:, :, k : 2 * k].to(torch.int64).permute(1, 0, 2).reshape(rows, ranks * k)
    best, picked = canonical_top(values, ids, k)
    return best - partition.logsumexp(dim=0)[:, None], picked


def top_candidates(
    hidden: torch.Tensor, lm_head: Any, k: int, gather: Gather | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probabilities and ids of the k best tokens of each row over the whole vocabulary.

    hidden: [rows, hidden size], equal on all ranks. gather: [rows, c] -> [ranks, rows, c], a collective
    that every rank enters even when its own part failed, so that a fault on one rank cannot leave the
    others waiting. Nothing here waits for the device.
    """
    if gather is None:
        values, ids, partition = local_top(hidden, lm_head, k)
        return values - partition[:, None], ids
    failure: Exception | None = None
    try:
        packed = pack(*local_top(hidden, lm_head, k))
    except Exception as error:
        failure = error
        packed = torch.full(
            (int(hidden.shape[0]), 2 * k + 1), torch.nan, dtype=torch.float64, device=hidden.device
        )
    every = gather(packed)
    if failure is not None:
        raise failure
    return merge_ranks(every, k)
