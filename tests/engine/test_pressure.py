"""Full DDTREE in a KV pool that is far too small: retractions, evictions, aborts; nothing lost, nothing kept."""

from __future__ import annotations

import json
import random
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from lossless import Answer, Ask, answer, assert_same, together
from real_engine import Server, make_overlay, serving

pytestmark = [pytest.mark.tier("dense"), pytest.mark.engine]

WORKER, HOOK = "srt/speculative/ddtree_worker.py", "srt/speculative/pool_overlay.py"
SLOTS, CHUNK, AT_ONCE, TOKENS = 300, 32, 24, 40
FAMILIES, PROMPTS = 6, 40


def prompts() -> list[list[int]]:
    """Families with a common beginning, so that the radix cache is hit; some longer than a prefill chunk."""
    rng = random.Random(8)
    starts = [[rng.randrange(500) for _ in range(n)] for n in (1, 6, 11, 20, 38, 70)]
    return [
        starts[i % FAMILIES] + [rng.randrange(500) for _ in range(rng.choice((1, 4, 9)))]
        for i in range(PROMPTS)
    ]


@dataclass
class Outcome:
    """What became of all requests: (ask, its prompt's number, answer) of those that finished, and how many were cut."""

    finished: list[tuple[int, Answer]] = field(default_factory=list)
    dropped: int = 0
    aborted: int = 0
    pool: dict[str, Any] = field(default_factory=dict)
    after_flush: dict[str, Any] = field(default_factory=dict)
    log: str = ""


def drop(server: Server, body: dict[str, Any]) -> None:
    """Read one event of a stream and close the connection."""
    with server.post("/generate", body | {"stream": True}) as reply:
        reply.readline()
        reply.fp.raw._sock.shutdown(socket.SHUT_RDWR)


def abort(server: Server, body: dict[str, Any], name: str) -> Answer | None:
    """Abort a request after its first event; its answer where it was faster."""
    last: dict[str, Any] = {}
    with server.post("/generate", body | {"stream": True, "rid": name}) as reply:
        for i, line in enumerate(line for line in reply if line.startswith(b"data: {")):
            last = json.loads(line[6:])
            if i == 0:
                server.post("/abort_request", {"rid": name}).close()
    assert last["meta_info"]["finish_reason"], f"the stream of {name} broke off"
    return None if last["meta_info"]["finish_reason"]["type"] == "abort" else answer(last)


def one(server: Server, number: int, rng: random.Random) -> tuple[str, int, Answer | None]:
    """A request of a random prompt and length, one in sixteen of them left by its client, one in sixteen aborted."""
    which, tokens = rng.randrange(PROMPTS), rng.randint(1, TOKENS)
    body = {
        "input_ids": prompts()[which],
        "sampling_params": {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True},
    }
    fate = rng.randrange(16)
    if fate == 0:
        drop(server, body)
        return "dropped", which, None
    if fate == 1:
        given = abort(server, body, f"request-{number}")
        return ("finished" if given else "aborted"), which, given
    with server.post("/generate", body) as reply:
        return "finished", which, answer(json.load(reply))


def settled(server: Server) -> dict[str, Any]:
    """The pool once nothing runs: what was dropped last may take a moment."""
    for _ in range(100):
        pool: dict[str, Any] = server.state()["pool"]
        if pool["free_requests"] == pool["requests"]:
            return pool
        time.sleep(0.2)
    raise AssertionError(f"requests are still held: {pool}")


def press(server: Server, requests: int) -> Outcome:
    rng = random.Random(9)
    seeds = [rng.randrange(2**32) for _ in range(requests)]
    outcome = Outcome()
    with ThreadPoolExecutor(AT_ONCE) as clients:
        for fate, which, given in clients.map(
            lambda i: one(server, i, random.Random(seeds[i])), range(requests)
        ):
            if given is not None:
                outcome.finished.append((which, given))
            outcome.dropped += fate == "dropped"
            outcome.aborted += fate == "aborted"
    outcome.pool = settled(server)
    server.post("/flush_cache", {}).close()
    outcome.after_flush = server.state()["pool"]
    outcome.log = server.log
    return outcome


@pytest.fixture(scope="module")
def expected(models: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Answer]:
    """The target's own longest answer to each prompt."""
    work = tmp_path_factory.mktemp("target")
    with serving("target", work, models / "ctx_target", "--dtype", "float32") as server:
        return together(server, [Ask(prompt, TOKENS) for prompt in prompts()], target=True)


@pytest.fixture
def server(models: Path, overlay: Path, patched_files: dict[str, bytes], tmp_path: Path) -> Iterator[Server]:
    hook = b"\n\nimport sglang.srt.speculative.pool_overlay\n"
    own = Path(__file__).with_name("pool_overlay.py").read_bytes()
    files = {WORKER: patched_files[WORKER] + hook, HOOK: own}
    watched = make_overlay(tmp_path / "overlay", overlay / "sglang", files)
    flags = [
        *("--dtype", "float32", "--max-total-tokens", str(SLOTS), "--chunked-prefill-size", str(CHUNK)),
        *("--max-running-requests", "8", "--schedule-conservativeness", "0.01"),
        *("--speculative-algorithm", "DDTREE", "--speculative-draft-model-path", str(models / "ctx_draft")),
        *("--speculative-ddtree-budget", "12", "--speculative-ddtree-topk-cap", "6"),
    ]
    variables = {
        # SGLang's own check of the pool after every step, which it skips by default
        "SGLANG_ENABLE_STRICT_MEM_CHECK_DURING_BUSY": "1",
        # admit as if answers were short, and forget at once that they were not
        "SGLANG_INIT_NEW_TOKEN_RATIO": "0.01",
        "SGLANG_NEW_TOKEN_RATIO_DECAY_STEPS": "1",
        "SGLANG_RETRACT_DECODE_STEPS": "0",
    }
    with serving("pressed", tmp_path, models / "ctx_target", *flags, overlay=watched, **variables) as running:
        yield running


def judge(outcome: Outcome, expected: list[Answer]) -> None:
    """Lossless, and every slot free or cached, once."""
    for which, given in outcome.finished:
        whole = expected[which]
        n = len(given.tokens)
        assert given.finish == {"type": "length", "length": n}, given.finish
        start = Answer(whole.tokens[:n], given.text, given.finish, whole.meta, whole.gaps[:n])
        assert_same([given], [start], f"prompt {which}")
    pool = outcome.pool
    assert pool["free"] + pool["cached"] == pool["different"] == pool["total"] == SLOTS, pool
    assert outcome.after_flush["free"] == outcome.after_flush["different"] == SLOTS, outcome.after_flush
    assert "leak" not in outcome.log.lower()
    assert "hit an exception" not in outcome.log


@pytest.mark.parametrize("requests", [200, pytest.param(1000, marks=pytest.mark.full)])
def test_nothing_is_lost_and_nothing_kept(requests: int, server: Server, expected: list[Answer]) -> None:
    outcome = press(server, requests)
    retractions = sum(given.meta["total_retractions"] for _, given in outcome.finished)
    print(requests, retractions, outcome.pool, outcome.dropped, outcome.aborted)
    judge(outcome, expected)
    assert len(outcome.finished) + outcome.dropped + outcome.aborted == requests
    assert outcome.dropped > requests // 40 and outcome.aborted > requests // 40
    assert retractions > requests // 10 and outcome.pool["evictions"] > requests // 10
    assert outcome.log.count("#new-token: 32, ") > requests // 20, "no prefill came in chunks"
