"""Sampling in a tree is the target's own: chi-square on the joint of tokens 2 to 4; runs under .venv-engine's python.

A target of five tokens whose next token depends on the last two, a draft of other marginals, trees of its
candidates, and the walk of verify, step after step. The expected joint is exact. `sampling_checks.py` prints one
line a check; exit 1 where one fails.
"""

from __future__ import annotations

import os
import sys
import traceback
import types
from collections.abc import Callable
from itertools import product
from pathlib import Path

import torch

# DDTREE_PATCHES: another copy of engine_patches, for trying these checks on a broken one
sys.path.insert(
    0, os.environ.get("DDTREE_PATCHES", str(Path(__file__).resolve().parents[2] / "engine_patches"))
)

from ddtree import ddtree_sample, ddtree_utils

VOCAB, DEPTH, WIDTH, BUDGET, ROWS = 5, 3, 3, 8, 10
TEMPERATURE, BIAS = 0.7, torch.tensor([0.0, 0.6, 0.0, -0.4, 0.0])
PREFIX, FIRST = 2, 1  # the token before, and token 1: what prefill gave
DRAWS, BATCH = 6_000, 500
# A correct walk fails one run in a thousand, and these seeds are fixed; a broken one is far below REJECTED.
ACCEPTED, REJECTED = 1e-3, 1e-9
Probabilities = Callable[[torch.Tensor], torch.Tensor]
# (trees, logits [batch * N, vocabulary], draft log-probabilities [batch, vocabulary per depth], generator) -> Choose
Chooser = Callable[[ddtree_utils.TreeBatch, torch.Tensor, torch.Tensor, torch.Generator], ddtree_utils.Choose]


def table(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * 1.2


TARGET = table(11, VOCAB, VOCAB, VOCAB)  # logits by (last but one, last)
DRAFT = table(22, VOCAB, DEPTH, VOCAB)  # logits by (root, position)


def target_probabilities(before: torch.Tensor, last: torch.Tensor) -> torch.Tensor:
    """What the engine without speculation draws from: bias, then temperature."""
    return torch.softmax((TARGET[before, last] + BIAS) / TEMPERATURE, dim=-1)


def expected_joint() -> torch.Tensor:
    """P(token 2, token 3, token 4), [V, V, V]."""
    joint = torch.zeros(VOCAB, VOCAB, VOCAB, dtype=torch.float64)
    for a, b, c in product(range(VOCAB), repeat=3):
        chance = 1.0
        for before, last, following in ((PREFIX, FIRST, a), (FIRST, a, b), (a, b, c)):
            chance *= float(target_probabilities(torch.tensor(before), torch.tensor(last))[following])
        joint[a, b, c] = chance
    return joint


def sampled(
    batch: ddtree_utils.TreeBatch, logits: torch.Tensor, _draft: torch.Tensor, rng: torch.Generator
) -> ddtree_utils.Choose:
    """The code of verify."""
    size = batch.token.shape[0]
    info = types.SimpleNamespace(
        temperatures=torch.full((size, 1), TEMPERATURE), logit_bias=BIAS.expand(size, VOCAB)
    )
    return ddtree_sample.sampled_choice(
        logits, info, lambda probs: torch.multinomial(probs, 1, generator=rng)[:, 0]
    )


def children_of(batch: ddtree_utils.TreeBatch, rows: torch.Tensor) -> torch.Tensor:
    """bool [batch, V]: tokens of the children of these rows of the flattened batch."""
    width = batch.token.shape[1]
    linked = torch.arange(width) < batch.nodes[:, None]
    child = linked & (batch.parent == (rows % width)[:, None])
    return torch.zeros(len(rows), VOCAB, dtype=torch.int64).scatter_add_(1, batch.token, child.long()) > 0


def greedy_at_nodes(
    batch: ddtree_utils.TreeBatch, logits: torch.Tensor, draft: torch.Tensor, rng: torch.Generator
) -> ddtree_utils.Choose:
    """Mutant: the argmax where a node has children, a draw where it has none."""
    draw, best = sampled(batch, logits, draft, rng), ddtree_sample.greedy_choice(logits, BIAS)

    def choose(rows: torch.Tensor, active: torch.Tensor) -> torch.Tensor:
        inner = children_of(batch, rows).any(dim=1)
        return torch.where(inner, best(rows, active), draw(rows, active))

    return choose


def renormalised_draft(
    batch: ddtree_utils.TreeBatch, logits: torch.Tensor, draft: torch.Tensor, rng: torch.Generator
) -> ddtree_utils.Choose:
    """Mutant: some child is accepted as often as the target wants, but which one is the draft's choice among them."""
    draw = sampled(batch, logits, draft, rng)

    def choose(rows: torch.Tensor, active: torch.Tensor) -> torch.Tensor:
        token = draw(rows, active)
        child = children_of(batch, rows)
        hit = child.gather(1, token[:, None])[:, 0]
        depth = batch.depth.flatten()[rows].clamp(max=DEPTH - 1)
        among = draft[torch.arange(len(rows)), depth].exp() * child + 1e-30
        return torch.where(hit, torch.multinomial(among, 1, generator=rng)[:, 0], token)

    return choose


def generate(chooser: Chooser, seed: int) -> tuple[torch.Tensor, float]:
    """Tokens 2 to 4 of many requests, [draws, 3], and how many drafts a step accepted."""
    rng = torch.Generator().manual_seed(seed)
    steps = accepted = 0
    every = []
    for _ in range(DRAWS // BATCH):
        texts = [[PREFIX, FIRST] for _ in range(BATCH)]
        while min(len(text) for text in texts) < 5:
            # requests that have enough go on: a batch keeps its shape
            before, root = (torch.tensor([text[i] for text in texts]) for i in (-2, -1))
            draft = DRAFT[root].log_softmax(dim=-1)
            values, ids = draft.sort(dim=-1, descending=True)
            prefixes = torch.tensor([len(text) - 1 for text in texts])
            batch = ddtree_utils.build_batch(
                values[..., :WIDTH].contiguous(), ids[..., :WIDTH].contiguous(), root, prefixes, BUDGET, ROWS
            )
            above = batch.token.gather(1, batch.parent.clamp(min=0))
            above[:, 0] = before
            logits = TARGET[above, batch.token]
            logits[torch.arange(ROWS) >= batch.nodes[:, None]] = torch.nan  # padding is never read
            found = ddtree_utils.walk(batch, chooser(batch, logits.flatten(0, 1), draft, rng), DEPTH)
            for text, tokens, length in zip(texts, found.token.tolist(), found.length.tolist()):
                text += tokens[:length]
            steps += BATCH
            accepted += int(found.length.sum()) - BATCH
        every.append(torch.tensor([text[2:5] for text in texts]))
    return torch.cat(every), accepted / steps


def p_value(seen: torch.Tensor, expected: torch.Tensor) -> float:
    """Pearson's chi-square of counts against probabilities, both flat; cells below 5 expected are one cell."""
    wanted = expected * seen.sum()
    small = wanted < 5
    if bool(small.any()):
        seen = torch.cat([seen[~small], seen[small].sum()[None]])
        wanted = torch.cat([wanted[~small], wanted[small].sum()[None]])
    statistic = ((seen - wanted) ** 2 / wanted).sum()
    degrees = torch.tensor((len(wanted) - 1) / 2, dtype=torch.float64)
    return float(torch.special.gammaincc(degrees, statistic / 2))


def judged(chooser: Chooser, seed: int) -> tuple[float, float]:
    """The p-value of a chooser's tokens, and its accepted drafts a step."""
    tokens, accepted = generate(chooser, seed)
    seen = torch.zeros(VOCAB**3, dtype=torch.float64)
    flat = (tokens * torch.tensor([VOCAB * VOCAB, VOCAB, 1])).sum(dim=1)
    seen += torch.bincount(flat, minlength=VOCAB**3)
    return p_value(seen, expected_joint().flatten()), accepted


def check_sampled_walk_draws_from_the_target() -> None:
    found = {seed: judged(sampled, seed) for seed in (1, 2)}
    print(f"   p and accepted drafts a step by seed: {found}")
    assert all(p > ACCEPTED and accepted > 0.5 for p, accepted in found.values())


def check_greedy_at_nodes_is_rejected() -> None:
    p, _ = judged(greedy_at_nodes, 1)
    assert p < REJECTED, p


def check_renormalised_draft_is_rejected() -> None:
    p, _ = judged(renormalised_draft, 1)
    assert p < REJECTED, p


def check_the_test_itself() -> None:
    """The p-value is uniform for draws from the joint, and tiny for a joint that is off by a tenth."""
    joint = expected_joint().flatten()
    assert abs(float(joint.sum()) - 1) < 1e-6
    rng = torch.Generator().manual_seed(5)
    values = []
    for _ in range(200):
        drawn = torch.multinomial(joint, DRAWS, replacement=True, generator=rng)
        values.append(p_value(torch.bincount(drawn, minlength=VOCAB**3).double(), joint))
    assert 0.4 < sum(values) / len(values) < 0.6
    assert 0.02 < sum(v < 0.1 for v in values) / len(values) < 0.2
    off = joint * torch.tensor([1.1, 0.9]).repeat(VOCAB**3)[: VOCAB**3]
    drawn = torch.multinomial(off, DRAWS, replacement=True, generator=rng)
    assert p_value(torch.bincount(drawn, minlength=VOCAB**3).double(), joint) < 1e-6


CHECKS: dict[str, Callable[[], None]] = {
    name.removeprefix("check_"): call for name, call in list(globals().items()) if name.startswith("check_")
}

if __name__ == "__main__":
    failed = False
    for check, call in CHECKS.items():
        try:
            call()
        except Exception:
            failed = True
            print(f"FAILED {check}\n{traceback.format_exc()}")
        else:
            print(f"ok {check}")
    sys.exit(failed)
