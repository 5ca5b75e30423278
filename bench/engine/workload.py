"""What every case is asked: greedy requests alone, in batches, with shared prefixes and joining late; sampled ones."""

from __future__ import annotations

import concurrent.futures
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

TOP_K, TEMPERATURE = 4, 1.0
LETTERS = range(4, 250)
PENALTIES: list[dict[str, float]] = [
    {"frequency_penalty": 0.03, "presence_penalty": 0.2, "repetition_penalty": 1.05},
    {"repetition_penalty": 1.3},
]


@dataclass(frozen=True)
class Request:
    """A prompt of token ids and how many tokens to answer."""

    prompt: list[int]
    tokens: int


@dataclass(frozen=True)
class Answer:
    """What came back. accepted: mean tokens a verify step emitted, None without speculation."""

    request: Request
    tokens: list[int]
    verify_steps: int
    error: str | None = None


Post = Callable[[dict[str, Any]], Any]
Workload = dict[str, list[Request]]


def greedy_workload() -> Workload:
    """Suites of greedy requests, the same for every case; about 3,000 tokens."""
    rand = random.Random(20261129)

    def prompt(length: int) -> list[int]:
        return [rand.choice(LETTERS) for _ in range(length)]

    shared = prompt(150)
    return {
        "alone": [Request(prompt(n), 96) for n in (9, 40, 1, 2, 3, 17, 130, 300)],
        "batch": [Request(prompt(n), 96) for n in (1, 1, 5, 12, 33, 90, 200, 417)],
        "shared_prefix": [Request(shared + prompt(n), 64) for n in (1, 2, 3, 8, 20, 50, 100, 200)],
        "joining": [
            Request(prompt(n), 24 + 9 * (n % 8)) for n in (1, 3, 6, 10, 15, 21, 28, 36, 45, 55, 66, 78)
        ],
    }


def sampled_workload() -> list[Request]:
    """One batch for temperature > 0."""
    rand = random.Random(7)
    return [Request([rand.choice(LETTERS) for _ in range(n)], 96) for n in (1, 4, 9, 16, 25, 36, 49, 64)]


def penalised_workload() -> list[Request]:
    """One batch, asked once for each of PENALTIES."""
    rand = random.Random(11)
    return [Request([rand.choice(LETTERS) for _ in range(n)], 64) for n in (1, 2, 7, 14, 30, 60, 120, 240)]


def shorter(workload: Workload, share: int) -> Workload:
    """Every suite with a share-th of its requests and tokens, for a dry run."""
    return {
        name: [
            Request(r.prompt, max(8, r.tokens // share)) for r in requests[: max(2, len(requests) // share)]
        ]
        for name, requests in workload.items()
    }


def ask(post: Post, requests: list[Request], **sampling: Any) -> list[Answer]:
    """One HTTP request; several prompts of it run as one batch. All must ask for the same number of tokens."""
    (tokens,) = {request.tokens for request in requests}
    parameters = {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True, **sampling}
    prompts = [request.prompt for request in requests]
    reply = post({"input_ids": prompts if len(prompts) > 1 else prompts[0], "sampling_params": parameters})
    if isinstance(reply, str):
        return [Answer(request, [], 0, reply) for request in requests]
    replies = reply if isinstance(reply, list) else [reply]
    return [
        Answer(request, r["output_ids"], int(r["meta_info"].get("spec_verify_ct", 0)))
        for request, r in zip(requests, replies)
    ]


def run_greedy(
    post: Post, workload: Workload, watch: Callable[[str | None], None]
) -> dict[str, list[Answer]]:
    """Ask all suites. watch(label) is called around the first requests alone, for a probe."""
    answers: dict[str, list[Answer]] = {"alone": []}
    for i, request in enumerate(workload["alone"]):
        watch(f"alone-{i}" if i < 2 else None)
        answers["alone"] += ask(post, [request])
    watch(None)
    for name in ("batch", "shared_prefix"):
        answers[name] = ask(post, workload[name])
    with concurrent.futures.ThreadPoolExecutor(len(workload["joining"])) as pool:
        answers["joining"] = [
            a for got in pool.map(lambda r: ask(post, [r]), workload["joining"]) for a in got
        ]
    # what the cache holds by now is answered again
    answers["again"] = ask(post, workload["shared_prefix"])
    return answers


def run_sampled(post: Post, requests: list[Request]) -> list[Answer]:
    """Ask the sampled batch."""
    return ask(post, requests, temperature=TEMPERATURE, top_k=TOP_K, top_p=1.0)


def run_penalised(post: Post, requests: list[Request]) -> list[list[Answer]]:
    """Ask the greedy batch once for each of PENALTIES."""
    return [ask(post, requests, **sampling) for sampling in PENALTIES]
