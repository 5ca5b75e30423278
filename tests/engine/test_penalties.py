"""Penalties in a tree on the real SGLang 0.5.11, float32: token for token those of the target alone.

The target runs without the overlap scheduler, which counts a token one step late.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from lossless import Answer, Ask, alone, assert_same, together
from real_engine import serving

pytestmark = [pytest.mark.tier("dense"), pytest.mark.engine]

ASKED = [
    {"frequency_penalty": 0.05},
    {"presence_penalty": 0.1},
    {"repetition_penalty": 1.3},
    {"repetition_penalty": 0.8},
    {"min_new_tokens": 9, "ignore_eos": False},
    {
        "frequency_penalty": 0.04,
        "presence_penalty": 0.03,
        "repetition_penalty": 1.1,
        "logit_bias": {"98": 0.05},
    },
]
TOKENS = 24


def asks(stop: int | None) -> list[Ask]:
    """Two prompts for each set of penalties; stop: what ends those with a least length."""
    rng = random.Random(5)
    made = []
    for sampling in ASKED:
        more = {"stop_token_ids": [stop]} if "min_new_tokens" in sampling else {}
        for length in (2, 11):
            made.append(Ask([rng.randrange(500) for _ in range(length)], TOKENS, {**sampling, **more}))
    return made


@pytest.fixture(scope="module")
def answers(
    models: Path, overlay: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, list[Answer]]]:
    """Of the target alone, with the penalties and without; of full DDTREE alone and in one batch."""
    work = tmp_path_factory.mktemp("penalties")
    tree = [
        *("--speculative-algorithm", "DDTREE", "--speculative-draft-model-path", str(models / "ctx_draft")),
        *("--speculative-ddtree-budget", "16", "--speculative-ddtree-topk-cap", "6"),
    ]
    found: dict[str, list[Answer]] = {}
    target, float32 = models / "ctx_target", ["--dtype", "float32"]
    # SGLang's own penalties are compiled at their first use, for half a minute
    eager = {"TORCHDYNAMO_DISABLE": "1"}
    with serving("target", work, target, *float32, "--disable-overlap-schedule", **eager) as server:
        found["plain"] = alone(server, [Ask(a.prompt, TOKENS) for a in asks(None)])
        stop = found["plain"][8].tokens[3]
        found["target"] = alone(server, asks(stop), target=True)
    with serving("full", work, target, *float32, *tree, overlay=overlay) as server:
        found["alone"], found["batch"] = alone(server, asks(stop)), together(server, asks(stop))
    yield found


def test_penalised_tokens_are_the_targets(answers: dict[str, list[Answer]]) -> None:
    assert_same(answers["alone"], answers["target"], "alone, ask")
    assert_same(answers["batch"], answers["target"], "in a batch, ask")


def test_each_penalty_changes_answers_and_paths_are_accepted(answers: dict[str, list[Answer]]) -> None:
    """What the comparison rests on."""
    for i in range(0, len(answers["plain"]), 2):
        pairs = zip(answers["plain"][i : i + 2], answers["target"][i : i + 2])
        assert any(plain.tokens != penalised.tokens for plain, penalised in pairs), ASKED[i // 2]
    accepted = [a.meta["spec_accepted_drafts"] for a in answers["alone"]]
    assert sum(a > 3 for a in accepted) > len(accepted) // 2
    assert all(len(a.tokens) >= 9 for a in answers["alone"][8:10])
