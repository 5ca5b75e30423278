"""DDTREE's worker. Shadow-linear: DFLASH's draft and verify untouched, trees counted on the side."""

from __future__ import annotations

import logging
from copy import deepcopy
from dataclasses import asdict
from typing import Any

import torch
from sglang.srt.distributed import get_tp_group
from sglang.srt.server_args import ServerArgs
from sglang.srt.speculative.ddtree_shadow import ShadowStats, Stopwatch, observe
from sglang.srt.speculative.ddtree_topk import top_candidates
from sglang.srt.speculative.dflash_worker import DFlashWorker

logger = logging.getLogger(__name__)

LOG_EVERY = 100


class DDTreeWorker(DFlashWorker):
    """DFlashWorker that also builds a tree from every k-th block it drafts.

    The draft runner gets a copy of the arguments that says DFLASH, so nothing in it can mistake the
    non-causal draft block for a tree.
    """

    def __init__(self, server_args: ServerArgs, **kwargs: Any) -> None:
        draft_shaped = deepcopy(server_args)
        draft_shaped.speculative_algorithm = "DFLASH"
        self.stats = ShadowStats()
        self.budget = int(server_args.speculative_ddtree_budget)
        self.topk_cap = int(server_args.speculative_ddtree_topk_cap)
        self.shadow_every = int(server_args.speculative_ddtree_shadow_every)
        super().__init__(server_args=draft_shaped, **kwargs)
        # every rank says so: a plug-in or patch that reached only some scheduler processes shows here
        logger.info(
            "Initialized DDTREE shadow-linear worker. "
            "budget=%d, topk_cap=%d, shadow_every=%d, block_size=%d, tp_rank=%d",
            self.budget,
            self.topk_cap,
            self.shadow_every,
            self.block_size,
            self.tp_rank,
        )

    def ddtree_state(self) -> dict[str, Any]:
        """What /get_server_info adds to internal_states (tensor-parallel rank 0 answers).

        The mode is a key of its own, so that a deployment can ask the worker itself what it runs.
        """
        return {
            "ddtree_mode": "shadow-linear",
            "ddtree": {
                "budget": self.budget,
                "topk_cap": self.topk_cap,
                "shadow_every": self.shadow_every,
                "block_size": self.block_size,
                "spine_agreement": self.stats.spine_agreement,
                **asdict(self.stats),
            },
        }

    def _greedy_sample_from_vocab_parallel_head(
        self, *, hidden_states: torch.Tensor, lm_head: Any, chunk_size: int = 256
    ) -> torch.Tensor:
        """DFLASH's draft tokens, returned as they are; the shadow looks at the same hidden states.

        hidden_states: [batch * (block - 1), hidden]. Returns int64 [batch * (block - 1)].
        """
        chain = super()._greedy_sample_from_vocab_parallel_head(
            hidden_states=hidden_states, lm_head=lm_head, chunk_size=chunk_size
        )
        if chain.numel():
            self.stats.verify_steps += 1
            if self.stats.verify_steps % self.shadow_every == 0:
                self._shadow_step(hidden_states, lm_head, chain)
        return chain

    def _shadow_step(self, hidden_states: torch.Tensor, lm_head: Any, chain: torch.Tensor) -> None:
        try:
            with Stopwatch(self.stats), torch.inference_mode():
                self._build_trees(hidden_states, lm_head, chain)
        except Exception as error:
            # statistics are not worth a failed request: the tokens do not depend on them
            if self.stats.shadow_errors == 0:
                logger.exception(
                    "DDTREE shadow side failed; serving goes on, further failures are only counted."
                )
            self.stats.shadow_errors += 1
            self.stats.last_error = f"{type(error).__name__}: {error}"
            return
        self.stats.shadow_steps += 1
        if self.tp_rank == 0 and (self.stats.shadow_steps == 1 or self.stats.shadow_steps % LOG_EVERY == 0):
            self._log_progress()

    def _build_trees(self, hidden_states: torch.Tensor, lm_head: Any, chain: torch.Tensor) -> None:
        depth = self.block_size - 1
        batch = chain.numel() // depth
        log_probs, ids = top_candidates(hidden_states, lm_head, self.candidates, self._gather_ranks)
        roots = self._draft_block_ids_buf[:batch, 0]
        observe(
            self.stats,
            log_probs.view(batch, depth, -1).cpu(),
            ids.view(batch, depth, -1).cpu(),
            chain.view(batch, depth).cpu(),
            roots.cpu(),
            self.budget,
        )

    @property
    def candidates(self) -> int:
        """K: no position contributes more than the budget or the vocabulary."""
        vocabulary = int(self.target_worker.model_runner.model_config.vocab_size)
        return min(self.topk_cap, self.budget, vocabulary)

    def _gather_ranks(self, packed: torch.Tensor) -> torch.Tensor:
        group = get_tp_group()
        if group.world_size == 1:
            return packed[None]
        out = packed.new_empty(group.world_size * packed.shape[0], packed.shape[1])
        group.all_gather_into_tensor(out, packed.contiguous())
        return out.view(group.world_size, *packed.shape)

    def _log_progress(self) -> None:
        s = self.stats
        logger.info(
            "DDTREE shadow: verify_steps=%d, shadow_steps=%d, trees=%d, nodes=%d, nodes_by_depth=%s, "
            "spine_agreement=%s, ms_per_step=%.2f, shadow_errors=%d",
            s.verify_steps,
            s.shadow_steps,
            s.trees,
            s.nodes,
            s.nodes_by_depth,
            s.spine_agreement,
            1000 * s.seconds / s.shadow_steps,
            s.shadow_errors,
        )
