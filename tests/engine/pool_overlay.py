"""Imported by a copy of ddtree_worker.py in tests: tells whose each KV slot is, and counts evicted tokens.

The state's `pool`: slots in all; free ones and those that the radix cache holds, each counted whole and without
repetition; request slots in all and free ones.
"""

from __future__ import annotations

from typing import Any

import torch
from sglang.srt.mem_cache.radix_cache import RadixCache
from sglang.srt.speculative.ddtree_worker import DDTreeWorker

_state, _start, _evict = DDTreeWorker.ddtree_state, DDTreeWorker._start_verify, RadixCache.evict
_seen: dict[str, Any] = {"cache": None, "evictions": 0, "evicted": 0}


def _remember_the_cache(self: Any, batch: Any, *more: Any) -> None:
    _seen["cache"] = batch.tree_cache
    _start(self, batch, *more)


def _count_evicted(self: Any, params: Any) -> Any:
    before = self.evictable_size()
    result = _evict(self, params)
    _seen["evictions"] += self.evictable_size() < before
    _seen["evicted"] += before - self.evictable_size()
    return result


def _held(cache: Any) -> torch.Tensor:
    if cache is None or not cache.root_node.children:
        return torch.empty(0, dtype=torch.int64)
    return cache.all_values_flatten()  # type: ignore[no-any-return]


def _state_and_pool(self: Any) -> Any:
    runner = self.target_worker.model_runner
    slots, requests = runner.token_to_kv_pool_allocator, runner.req_to_token_pool
    free = torch.cat([slots.free_pages, slots.release_pages])
    held = _held(_seen["cache"])
    pool = {
        "total": slots.size,
        "free": len(free),
        "cached": len(held),
        "different": len(torch.cat([free, held]).unique()),
        "requests": requests.size,
        "free_requests": len(set(requests.free_slots)),
        "evictions": _seen["evictions"],
        "evicted": _seen["evicted"],
    }
    return {**_state(self), "pool": pool}


DDTreeWorker.ddtree_state = _state_and_pool
DDTreeWorker._start_verify = _remember_the_cache
RadixCache.evict = _count_evicted
