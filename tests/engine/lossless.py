"""Compares answers with those of the target alone: equal, or first different where the target nearly ties."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from real_engine import Server

# Two float32 runs that sum in different orders may part where the two best log-probabilities are closer.
NEAR_TIE = 1e-4
MOST_EXCUSED = 3


@dataclass(frozen=True)
class Ask:
    """One greedy request. sampling: what differs from plain greedy."""

    prompt: list[int]
    tokens: int
    sampling: dict[str, Any] = field(default_factory=dict)


@dataclass
class Answer:
    """What came back. gaps: of each token, the target's best log-probability minus its second (target only)."""

    tokens: list[int]
    text: str
    finish: dict[str, Any]
    meta: dict[str, Any]
    gaps: list[float]


def answer(raw: dict[str, Any]) -> Answer:
    """An Answer from the JSON of /generate."""
    meta = raw["meta_info"]
    top = meta.pop("output_top_logprobs", None) or []
    return Answer(
        tokens=raw["output_ids"],
        text=raw["text"],
        finish=meta["finish_reason"],
        meta=meta,
        gaps=[pair[0][0] - pair[1][0] for pair in top],
    )


def alone(server: Server, asks: list[Ask], *, target: bool = False) -> list[Answer]:
    """One after the other, each in a batch of its own. target: has no speculation, and so can tell its gaps."""
    return [a for ask in asks for a in together(server, [ask], target=target)]


def together(server: Server, asks: list[Ask], *, target: bool = False) -> list[Answer]:
    """All in one batch, as far as the server takes them."""
    body: dict[str, Any] = {
        "input_ids": [a.prompt for a in asks],
        "sampling_params": [
            {"temperature": 0, "max_new_tokens": a.tokens, "ignore_eos": True, **a.sampling} for a in asks
        ],
    }
    if target:
        body |= {"return_logprob": [True] * len(asks), "top_logprobs_num": [2] * len(asks)}
    with server.post("/generate", body) as reply:
        return [answer(raw) for raw in json.load(reply)]


def steps(server: Server, ask: Ask) -> list[int]:
    """How many tokens a request had after prefill and after each verify step, by the events of its stream."""
    sampling = {"temperature": 0, "max_new_tokens": ask.tokens, "ignore_eos": True, **ask.sampling}
    body = {"input_ids": ask.prompt, "sampling_params": sampling, "stream": True}
    for _ in range(10):
        with server.post("/generate", body) as reply:
            metas = [json.loads(line[6:])["meta_info"] for line in reply if line.startswith(b"data: {")]
        if len(metas) == 1 + metas[-1].get("spec_verify_ct", 0):
            return [meta["completion_tokens"] for meta in metas]
    raise AssertionError("in ten streams, two steps came in one event each time")


def assert_same(given: list[Answer], expected: list[Answer], what: str) -> None:
    """Every answer is the target's; what differs first at a near-tie of the target is excused, a few times."""
    excused = 0
    assert len(given) == len(expected)
    for i, (mine, its) in enumerate(zip(given, expected)):
        if (mine.tokens, mine.text, mine.finish) == (its.tokens, its.text, its.finish):
            continue
        first = next((j for j, (a, b) in enumerate(zip(mine.tokens, its.tokens)) if a != b), None)
        assert first is not None, f"{what} {i}: same tokens, but {mine} is not {its}"
        gap = its.gaps[first]
        assert gap < NEAR_TIE, (
            f"{what} {i}: token {first} of {mine.tokens} is not the target's {its.tokens} ({gap=})"
        )
        excused += 1
    assert excused <= MOST_EXCUSED, f"{what}: {excused} of {len(given)} answers part at a near-tie"
