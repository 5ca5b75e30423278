"""Penalties inside a path: what a request's own output so far, down to the visited row, does to the next logits.

SGLang's penalizers count a request's tokens once a step; under speculation they never do. Here the counts
come from the tokens themselves, so a visited row is penalised by its own path and by nothing else.
"""

from __future__ import annotations

from typing import Any

import torch


class Penalties:
    """Frequency, presence and repetition penalties and min_new_tokens of a batch, in SGLang's order.

    Additive ones first, then the repetition penalty: positive logits are divided by it, negative ones
    multiplied. Only output tokens count, as in SGLang's penaltylib.
    """

    def __init__(self, reqs: list[Any], vocabulary: int, device: torch.device) -> None:
        params = [req.sampling_params for req in reqs]

        def column(name: str) -> torch.Tensor:
            return torch.tensor([[getattr(p, name)] for p in params], dtype=torch.float32, device=device)

        self._frequency, self._presence = column("frequency_penalty"), column("presence_penalty")
        self._repetition, self._shortest = column("repetition_penalty"), column("min_new_tokens")
        self._length = torch.tensor([[float(len(req.output_ids))] for req in reqs], device=device)
        # a request of the batch that asks for nothing has nothing to count
        self._counts = torch.zeros(len(reqs), vocabulary, device=device)
        where = [(row, token) for row, req in enumerate(reqs) if penalised(req) for token in req.output_ids]
        if where:
            rows, tokens = torch.tensor(where, dtype=torch.int64, device=device).T
            ones = torch.ones(len(where), device=device)
            self._counts.index_put_((rows, tokens), ones, accumulate=True)
        self._ends = torch.zeros(len(reqs), vocabulary, dtype=torch.bool, device=device)
        for row, req in enumerate(reqs):
            if req.sampling_params.min_new_tokens > 0:
                self._ends[row, sorted(end_tokens(req, vocabulary))] = True

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        """The penalised logits of one row a request. logits: float32 [batch, vocabulary]."""
        seen = self._counts > 0
        logits = logits - self._frequency * self._counts - self._presence * seen
        logits = logits.masked_fill(self._ends & (self._length < self._shortest), -torch.inf)
        scale = torch.where(seen, self._repetition, 1.0)
        return torch.where(logits < 0, logits * scale, logits / scale)

    def add(self, tokens: torch.Tensor, active: torch.Tensor) -> None:
        """Count the tokens chosen where active; int64 and bool [batch]."""
        self._counts.scatter_add_(1, tokens[:, None], active[:, None].float())
        self._length += active[:, None]


def penalised(req: Any) -> bool:
    """Whether a request asks for any of these."""
    params = req.sampling_params
    return bool(
        params.frequency_penalty != 0
        or params.presence_penalty != 0
        or params.repetition_penalty != 1
        or params.min_new_tokens > 0
    )


def end_tokens(req: Any, vocabulary: int) -> set[int]:
    """Tokens that would end a request: its own and its tokenizer's."""
    ends = set(req.sampling_params.stop_token_ids or ())
    if req.tokenizer is not None:
        ends |= set(req.tokenizer.additional_stop_token_ids or ())
        ends.add(req.tokenizer.eos_token_id)
    return {token for token in ends if token is not None and token < vocabulary}
