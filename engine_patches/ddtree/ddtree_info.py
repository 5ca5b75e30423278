"""DDTREE's verify input: a tree a request instead of a block, and the commit of what was accepted of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from sglang.srt.speculative.dflash_info import DFlashVerifyInput
from sglang.srt.speculative.spec_utils import assign_req_to_token_pool_func

from .ddtree_utils import TreeBatch, Walk

Accept = Callable[[torch.Tensor, Any, TreeBatch], Walk]
Count = Callable[[Walk, torch.Tensor, torch.Tensor, torch.Tensor, list[int]], None]


@dataclass
class DDTreeVerifyInput(DFlashVerifyInput):
    """Verify rows are the trees' rows: draft_token and positions int64 [batch * N], draft_token_num N.

    accept: (logits [batch * N, vocabulary], ScheduleBatch, trees) -> Walk.
    count: called with the walk, depth, rank, nodes (all on the CPU) and the committed rows of each request.
    """

    trees: TreeBatch | None = None
    accept: Accept | None = None
    count: Count | None = None

    def prepare_for_verify(self, batch: Any, page_size: int, *, build_custom_mask: bool = True) -> None:
        """Allocate N slots a request, and put the trees' mask where DFLASH would put its causal one."""
        super().prepare_for_verify(batch, page_size, build_custom_mask=False)
        assert self.trees is not None
        self.custom_mask = self.trees.mask

    def verify(
        self, *, batch: Any, logits_output: Any, page_size: int
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, list[int]]:
        """Walk the trees, append the tokens, keep the KV slots of root and accepted nodes, free the others.

        The target's own next token is emitted too, but its KV is not committed: it is the next root. A
        request that ends inside its path (EOS, stop, length) commits only up to there. Returns what
        DFlashVerifyInput.verify does: new current tokens int64 [batch], committed rows int32 [batch], hidden
        states of these rows [sum, features], accepted drafts a request.
        """
        assert self.trees is not None and self.accept is not None and self.count is not None
        trees, rows = self.trees, self.draft_token_num
        walk = self.accept(logits_output.next_token_logits, batch, trees)
        walk, depth, rank, nodes = _to_host(walk, trees)
        committed = _append_tokens(batch.reqs, walk, batch.model_config.think_end_id)
        self.count(walk, depth, rank, nodes, committed)

        kept = [b * rows + row for b, m in enumerate(committed) for row in walk.path[b, :m].tolist()]
        device = logits_output.next_token_logits.device
        keep = torch.tensor(kept, dtype=torch.int64, device=device)
        _free_others(batch, kept, rows * len(committed))
        _commit(batch, keep, committed)
        hidden = logits_output.hidden_states
        if hidden is None:
            raise RuntimeError("DDTREE verify needs the target's hidden states, but got none.")
        # spec v1 hands them on by the return value alone
        logits_output.hidden_states = None
        return (
            torch.tensor([_last_token(req) for req in batch.reqs], dtype=torch.int64, device=device),
            torch.tensor(committed, dtype=torch.int32, device=device),
            hidden.view(rows * len(committed), -1).index_select(0, keep),
            [max(0, m - 1) for m in committed],
        )


def _to_host(walk: Walk, trees: TreeBatch) -> tuple[Walk, torch.Tensor, torch.Tensor, torch.Tensor]:
    """The walk, and depth, rank and nodes of the trees, in one transfer: the step's only wait for the device."""
    columns = (walk.path, walk.token, walk.length[:, None], trees.nodes[:, None], trees.depth, trees.rank)
    path, token, length, nodes, depth, rank = (
        torch.cat(columns, dim=1).cpu().split([c.shape[1] for c in columns], dim=1)
    )
    return Walk(path, token, length[:, 0]), depth, rank, nodes[:, 0]


def _append_tokens(reqs: list[Any], walk: Walk, think_end: int | None) -> list[int]:
    """Append each request's tokens until it finishes; returns how many: as many rows of its path are committed."""
    committed = []
    for req, tokens, length in zip(reqs, walk.token.tolist(), walk.length.tolist()):
        appended = 0
        for token in tokens[:length]:
            req.output_ids.append(token)
            appended += 1
            if req.require_reasoning and think_end is not None:
                req.update_reasoning_tokens(token, think_end)
            req.check_finished()
            if req.finished():
                break
        committed.append(appended)
        req.spec_verify_ct += 1
        req.spec_accepted_drafts += appended - 1
        req.update_spec_acceptance_histogram(appended - 1)
    return committed


def _last_token(req: Any) -> int:
    return int(req.output_ids[-1])


def _free_others(batch: Any, kept: list[int], total: int) -> None:
    """Give back the slots of all rows of the flattened batch but these."""
    slots = batch.out_cache_loc
    unused = torch.tensor(sorted(set(range(total)) - set(kept)), dtype=torch.int64, device=slots.device)
    batch.token_to_kv_pool_allocator.free(slots.index_select(0, unused))


def _commit(batch: Any, keep: torch.Tensor, committed: list[int]) -> None:
    """KV accounting for page size 1: nothing moves, a position is given the slot of its node.

    keep: int64, committed rows of the flattened batch in the order of the paths.
    """
    batch.out_cache_loc = batch.out_cache_loc.index_select(0, keep)
    for req, m in zip(batch.reqs, committed):
        req.kv_committed_len += m
        req.kv_allocated_len = req.kv_committed_len
    lengths = torch.tensor(committed, dtype=batch.seq_lens_cpu.dtype)
    grown = lengths.to(device=batch.seq_lens.device, dtype=batch.seq_lens.dtype)
    assign_req_to_token_pool_func(
        batch.req_pool_indices,
        batch.req_to_token_pool.req_to_token,
        batch.seq_lens,
        batch.seq_lens + grown,
        batch.out_cache_loc,
        len(committed),
    )
    batch.seq_lens.add_(grown)
    batch.seq_lens_cpu.add_(lengths)
    # the attention backends size their index buffers by the sum
    batch.seq_lens_sum += sum(committed)
