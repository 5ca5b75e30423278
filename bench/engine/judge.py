"""Judges emitted tokens by a float32 Hugging Face run of the same model on the CPU, teacher-forced.

Two bf16 engines are not equal token for token, not even one to itself in another batch; this judge needs no second
engine and cannot be fooled by a fault that both sides share.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

# logits; bf16 noise of Hugging Face itself on such a model is 0.12, of a correct engine 0.06, a real fault 0.35 to 7
WRONG = 0.15
# any logit of any node, not just the best: bf16 noise of Hugging Face itself is 0.12
NODE_WRONG = 0.3
Z_LIMIT = 4.5
Reference = Callable[[list[list[int]]], list[torch.Tensor]]


@dataclass
class Verdict:
    """Greedy tokens of one case. worst: largest deficit; faults: first wrong ones, in words."""

    tokens: int = 0
    wrong: int = 0
    worst: float = 0.0
    faults: list[str] = field(default_factory=list)

    def add(self, deficits: torch.Tensor, name: str) -> None:
        """Count the answer `name`, whose tokens have these deficits."""
        bad = (deficits > WRONG).nonzero().flatten().tolist()
        self.tokens += int(deficits.numel())
        self.wrong += len(bad)
        self.worst = max(self.worst, float(deficits.max()) if deficits.numel() else 0.0)
        if bad and len(self.faults) < 5:
            self.faults.append(f"{name}: token {bad[0]} has deficit {float(deficits[bad[0]]):.2f}")


@dataclass(frozen=True)
class Sampled:
    """Sampled tokens of one case. other: those that are not the reference's best; z: against how many are due."""

    tokens: int
    outside: int
    other: int
    expected: float
    z: float

    @property
    def right(self) -> bool:
        return self.outside == 0 and abs(self.z) < Z_LIMIT


def deficits(logits: torch.Tensor, emitted: list[int]) -> torch.Tensor:
    """How far each emitted token lies below the best. logits: float32 [n, V]; returns [n], 0 where it is the best."""
    picked = logits.gather(1, torch.tensor(emitted)[:, None])[:, 0]
    return logits.max(dim=1).values - picked


def penalise(
    logits: torch.Tensor,
    emitted: list[int],
    frequency: float = 0.0,
    presence: float = 0.0,
    repetition: float = 1.0,
) -> torch.Tensor:
    """What penalties make of the logits at each emitted token, by the tokens emitted before it.

    logits: float32 [n, V]. As SGLang's penaltylib: additive penalties first, then positive logits are divided by
    the repetition penalty and negative ones multiplied; the prompt does not count.
    """
    counts = torch.nn.functional.one_hot(torch.tensor(emitted), logits.shape[1]).cumsum(0).roll(1, 0).float()
    counts[0] = 0
    seen = counts > 0
    logits = logits - frequency * counts - presence * seen
    scale = torch.where(seen, repetition, 1.0)
    return torch.where(logits < 0, logits * scale, logits / scale)


def judge_sampled(logits: torch.Tensor, emitted: list[int], temperature: float, top_k: int) -> Sampled:
    """Tokens drawn at this temperature from the top k: none outside it, and as many besides the best as are due.

    logits: float32 [n, V]. Given what came before, each token is a draw of its own, so the count minus its
    expectation is a martingale and z is about normal.
    """
    best = logits.topk(top_k, dim=1).values
    outside = int((deficits(logits, emitted) > best[:, 0] - best[:, -1] + WRONG).sum())
    due = 1 - (best / temperature).softmax(dim=1)[:, 0]
    other = int((logits.argmax(dim=1) != torch.tensor(emitted)).sum())
    spread = math.sqrt(max(float((due * (1 - due)).sum()), 1e-9))
    return Sampled(len(emitted), outside, other, float(due.sum()), (other - float(due.sum())) / spread)


def node_paths(parent: list[int], nodes: int) -> list[list[int]]:
    """For every row of a tree, the rows from the root to it."""
    paths = [[0]]
    for row in range(1, nodes):
        paths.append([*paths[parent[row]], row])
    return paths


def node_difference(reference: Reference, dump: dict[str, Any], text: list[int]) -> torch.Tensor:
    """Largest logit difference of every node from its root path run as a chain, [nodes].

    dump: token, parent [N], prefix, nodes, logits [N, V] of one verify step; text: the request's tokens.
    Raises: ValueError when the root is not the token that the text has there.
    """
    prefix, token, nodes = int(dump["prefix"]), dump["token"].tolist(), int(dump["nodes"])
    if text[prefix] != token[0]:
        raise ValueError(f"the root is token {token[0]}, the text has {text[prefix]} at {prefix}")
    paths = node_paths(dump["parent"].tolist(), nodes)
    inner = {path[-2] for path in paths if len(path) > 1}
    leaves = [path for path in paths if path[-1] not in inner]
    seen: dict[int, torch.Tensor] = {}
    runs = reference([[*text[:prefix], *(token[row] for row in path)] for path in leaves])
    for path, logits in zip(leaves, runs):
        for depth, row in enumerate(path):
            seen.setdefault(row, logits[prefix + depth])
    ours = dump["logits"][:nodes].float()
    return (ours - torch.stack([seen[row] for row in range(nodes)])).abs().amax(dim=1)


def hugging_face(directory: Path, threads: int) -> Reference:
    """The reference: float32 logits [length, V] of each sequence; equal sequences are run once."""
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(threads)
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    known: dict[tuple[int, ...], torch.Tensor] = {}

    def run(sequences: list[list[int]]) -> list[torch.Tensor]:
        todo = sorted({tuple(s) for s in sequences} - known.keys(), key=len)
        for start in range(0, len(todo), 16):
            part = todo[start : start + 16]
            longest = max(map(len, part))
            # causal: what is padded behind a sequence changes nothing before it
            padded = torch.tensor([[*s, *[0] * (longest - len(s))] for s in part])
            with torch.inference_mode():
                logits = model(padded).logits
            known.update({s: logits[i, : len(s)].clone() for i, s in enumerate(part)})
        return [known[tuple(s)] for s in sequences]

    return run
