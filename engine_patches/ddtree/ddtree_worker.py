"""DDTREE's worker: drafts DFLASH's block; full mode verifies a tree of it, shadow mode only counts the trees."""

from __future__ import annotations

import logging
from copy import deepcopy
from dataclasses import asdict
from typing import Any

import torch
from sglang.srt.distributed import get_tp_group
from sglang.srt.model_executor.forward_batch_info import ForwardMode
from sglang.srt.server_args import ServerArgs
from sglang.srt.speculative.ddtree_args import check_loaded_target
from sglang.srt.speculative.ddtree_device import TreeTimer, build, self_check, walk_greedily, warm_up
from sglang.srt.speculative.ddtree_info import DDTreeVerifyInput
from sglang.srt.speculative.ddtree_metrics import TreeMetrics
from sglang.srt.speculative.ddtree_penalty import Penalties, penalised
from sglang.srt.speculative.ddtree_sample import greedy_choice, sampled_choice
from sglang.srt.speculative.ddtree_stats import TreeStats
from sglang.srt.speculative.ddtree_topk import top_candidates
from sglang.srt.speculative.ddtree_utils import TreeBatch, Walk, walk
from sglang.srt.speculative.dflash_worker import DFlashWorker

logger = logging.getLogger(__name__)

LOG_EVERY = 100


class DDTreeWorker(DFlashWorker):
    """DFlashWorker whose block becomes a tree a request.

    The draft runner gets a copy of the arguments that says DFLASH and the block's width, so nothing in it
    can mistake the non-causal draft block for a tree.
    """

    def __init__(self, server_args: ServerArgs, **kwargs: Any) -> None:
        self.shadow = bool(server_args.speculative_ddtree_shadow_linear)
        self.budget = int(server_args.speculative_ddtree_budget)
        self.topk_cap = int(server_args.speculative_ddtree_topk_cap)
        self.shadow_every = int(server_args.speculative_ddtree_shadow_every)
        draft_shaped = deepcopy(server_args)
        draft_shaped.speculative_algorithm = "DFLASH"
        if not self.shadow:
            draft_shaped.speculative_num_draft_tokens = server_args.speculative_dflash_block_size
        if not self.shadow:
            # before the draft is loaded for nothing
            check_loaded_target(kwargs["target_worker"].model_runner)
        super().__init__(server_args=draft_shaped, **kwargs)
        if not self.shadow:
            # DFLASH would say that it falls back to greedy where its kernel is missing: trees are sampled without it
            self._warned_sampling_fallback = True
        # verify's width; in shadow mode what full mode's would be
        self.rows = max(int(self.block_size), self.budget + 1)
        self.tree_device = torch.device(self.device)
        self.stats = TreeStats()
        self.metrics = TreeMetrics(server_args, self.mode) if self.tp_rank == 0 else None
        self._gathered = self._gather_buffer(int(self.model_runner.max_running_requests))
        self_check(self.tree_device)
        self._warm_up()
        # every rank says so: a plug-in or patch that reached only some scheduler processes shows here
        logger.info(
            "Initialized DDTREE %s worker. budget=%d, topk_cap=%d, shadow_every=%d, block_size=%d, tp_rank=%d",
            self.mode,
            self.budget,
            self.topk_cap,
            self.shadow_every,
            self.block_size,
            self.tp_rank,
        )

    @property
    def mode(self) -> str:
        """shadow-linear or full."""
        return "shadow-linear" if self.shadow else "full"

    @property
    def candidates(self) -> int:
        """K: no position contributes more than the budget or the vocabulary."""
        vocabulary = int(self.target_worker.model_runner.model_config.vocab_size)
        return min(self.topk_cap, self.budget, vocabulary)

    def ddtree_state(self) -> dict[str, Any]:
        """What /get_server_info adds to internal_states (tensor-parallel rank 0 answers).

        Mode and health are keys of their own, so that a deployment can ask the worker itself what it runs,
        and whether it built trees and none failed.
        """
        return {
            "ddtree_mode": self.mode,
            "ddtree_healthy": self.stats.trees > 0 and self.stats.shadow_errors == 0,
            "ddtree": {
                "budget": self.budget,
                "topk_cap": self.topk_cap,
                "shadow_every": self.shadow_every,
                "block_size": self.block_size,
                "spine_agreement": self.stats.spine_agreement,
                "accept_length": self.stats.accept_length,
                **asdict(self.stats),
            },
        }

    def _start_verify(
        self,
        batch: Any,
        block_ids: torch.Tensor,
        positions_2d: torch.Tensor,
        draft_hidden: torch.Tensor,
        lm_head: Any,
    ) -> None:
        """From the drafted block to the verify input on the batch.

        block_ids and positions_2d: int64 [batch, block]; draft_hidden: [batch, block, hidden].
        """
        self.stats.verify_steps += 1
        if not self.shadow:
            self._verify_trees(batch, block_ids[:, 0].contiguous(), draft_hidden, lm_head)
            return
        prefixes, prefix_lens = batch.seq_lens_cpu.tolist(), batch.seq_lens
        super()._start_verify(batch, block_ids, positions_2d, draft_hidden, lm_head)
        # the first step too: a shadow that has served anything has built a tree
        if (self.stats.verify_steps - 1) % self.shadow_every == 0:
            chain = self._draft_block_tokens_buf[: len(prefixes)]
            self._shadow_step(chain, draft_hidden, lm_head, prefix_lens, prefixes)

    def _trees(
        self,
        roots: torch.Tensor,
        draft_hidden: torch.Tensor,
        lm_head: Any,
        prefix_lens: torch.Tensor,
        prefixes: list[int],
    ) -> TreeBatch:
        """One tree a request, without waiting for the device. roots: [batch]; draft_hidden: [batch, block, hidden]."""
        batch, depth = len(prefixes), self.block_size - 1
        hidden = draft_hidden[:, 1:, :].reshape(batch * depth, -1)
        gather = self._gather_ranks if self._gathered is not None else None
        log_probs, ids = top_candidates(hidden, lm_head, self.candidates, gather)
        shape = (batch, depth, self.candidates)
        return build(
            log_probs.view(shape), ids.view(shape), roots, prefix_lens, prefixes, self.budget, self.rows
        )

    def _verify_trees(
        self, batch: Any, roots: torch.Tensor, draft_hidden: torch.Tensor, lm_head: Any
    ) -> None:
        timer = TreeTimer(self.tree_device)
        with torch.inference_mode():
            timer.start()
            trees = self._trees(roots, draft_hidden, lm_head, batch.seq_lens, batch.seq_lens_cpu.tolist())
            timer.stop()

        def count(
            walked: Walk, depth: torch.Tensor, rank: torch.Tensor, nodes: torch.Tensor, kept: list[int]
        ) -> None:
            self.stats.count_trees(depth, nodes, self.budget)
            self.stats.count_walk(walked, rank, kept)
            self._timed(timer)
            self._report(self.stats.verify_steps)

        verify_input = DDTreeVerifyInput(
            draft_token=trees.token.view(-1),
            positions=trees.position.view(-1),
            draft_token_num=self.rows,
            trees=trees,
            accept=self._accept,
            count=count,
        )
        verify_input.prepare_for_verify(batch, self.page_size)
        batch.forward_mode = ForwardMode.TARGET_VERIFY
        batch.spec_info = verify_input
        batch.return_hidden_states = False

    def _accept(self, logits: torch.Tensor, batch: Any, trees: TreeBatch) -> Walk:
        """Walk down the trees by the target's choice. logits: [batch * N, vocabulary]."""
        depth, sampling = self.block_size - 1, batch.sampling_info
        penalties = None
        if any(penalised(req) for req in batch.reqs):
            penalties = Penalties(batch.reqs, int(logits.shape[1]), logits.device)
        if sampling.is_all_greedy:
            if sampling.logit_bias is None and penalties is None:
                return walk_greedily(logits, trees, depth)
            return walk(trees, greedy_choice(logits, sampling.logit_bias, penalties), depth)
        simple = not (
            sampling.need_top_p_sampling or sampling.need_top_k_sampling or sampling.need_min_p_sampling
        )

        def sample(probs: torch.Tensor) -> torch.Tensor:
            return self.model_runner.sampler._sample_from_probs(probs, sampling, None, simple)

        walked = walk(trees, sampled_choice(logits, sampling, sample, penalties), depth)
        # ranks draw from generators of their own: one of them decides
        together = torch.cat([walked.path, walked.token, walked.length[:, None]], dim=1)
        path, token, length = get_tp_group().broadcast(together).split([depth + 1, depth + 1, 1], dim=1)
        return Walk(path, token, length[:, 0])

    def _shadow_step(
        self,
        chain: torch.Tensor,
        draft_hidden: torch.Tensor,
        lm_head: Any,
        prefix_lens: torch.Tensor,
        prefixes: list[int],
    ) -> None:
        """Build full mode's trees and count them. chain: int64 [batch, block], the block that DFLASH verifies."""
        timer = TreeTimer(self.tree_device)
        try:
            with torch.inference_mode():
                timer.start()
                trees = self._trees(chain[:, 0].contiguous(), draft_hidden, lm_head, prefix_lens, prefixes)
                timer.stop()
                # the mask stays: it is as long as the prefixes
                columns = {name: column.cpu() for name, column in vars(trees).items() if name != "mask"}
                on_host = TreeBatch(**columns, mask=torch.empty(0, dtype=torch.bool))
            if bool((on_host.nodes == 1).all()):
                raise RuntimeError("no tree has a node: the candidates' log-probabilities are not finite")
            self.stats.count_trees(on_host.depth, on_host.nodes, self.budget)
            self.stats.count_chain(on_host, chain[:, 1:].cpu())
            self._timed(timer)
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
        self._report(self.stats.shadow_steps)

    def _warm_up(self) -> None:
        """Compile the kernels for what will be served, so that no request waits for a compiler."""
        model = self.target_worker.model_runner.model
        head = getattr(model, "lm_head", None)
        if getattr(head, "weight", None) is None:
            return
        warm_up(
            self.tree_device,
            (self.block_size - 1, self.candidates),
            (self.budget, self.rows),
            int(self.model_runner.max_running_requests),
            int(self.target_worker.model_runner.model_config.vocab_size),
            head.weight[: int(head.shard_indices.num_org_elements)],
        )

    def _gather_buffer(self, requests: int) -> torch.Tensor | None:
        """Room for all ranks' candidates, taken once: a rank short of memory in mid-step would leave others waiting."""
        ranks = get_tp_group().world_size
        if ranks == 1:
            return None
        rows = requests * (self.block_size - 1)
        return torch.empty(
            ranks * rows, 2 * self.candidates + 1, dtype=torch.float64, device=self.tree_device
        )

    def _gather_ranks(self, packed: torch.Tensor) -> torch.Tensor:
        group = get_tp_group()
        assert self._gathered is not None
        out = self._gathered[: group.world_size * packed.shape[0]]
        group.all_gather_into_tensor(out, packed)
        return out.view(group.world_size, *packed.shape)

    def _timed(self, timer: TreeTimer) -> None:
        self.stats.tree_seconds += timer.seconds()
        self.stats.timed_steps += 1

    def _report(self, steps: int) -> None:
        """Metrics each time, a log line at the first step and then now and then; rank 0 speaks."""
        if self.metrics is not None:
            self.metrics.publish(self.stats)
        if self.tp_rank == 0 and (steps == 1 or steps % LOG_EVERY == 0):
            logger.info("DDTREE %s: %s", self.mode, self.stats.line())
