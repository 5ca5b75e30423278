"""Full DDTREE on the real SGLang 0.5.11 in float32: the target's own tokens; DFLASH where the tree is its chain."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from lossless import Answer, Ask, alone, assert_same, steps, together
from real_engine import serving

pytestmark = [pytest.mark.tier("dense"), pytest.mark.engine]

TOKENS = 24
# One token, one token more than a block, odd lengths, longer than all the rest together.
LENGTHS = [1, 1, 2, 5, 9, 17, 33, 90]
CUT = (4, 6)
BUDGET, TOPK = 40, 6
DEPTH = 3  # the pair's block has 4 rows


def prompts() -> list[list[int]]:
    rng = random.Random(3)
    return [[rng.randrange(500) for _ in range(length)] for length in LENGTHS]


PLAIN = [Ask(prompt, TOKENS) for prompt in prompts()]


@dataclass
class Seen:
    """What one server answered. more: to the asks made of the target's answers; steps: of each plain ask."""

    plain: list[Answer]
    batch: list[Answer]
    more: dict[str, list[Answer]] = field(default_factory=dict)
    steps: list[list[int]] = field(default_factory=list)
    state: dict[str, Any] = field(default_factory=dict)
    log: str = ""


def follow_ups(given: list[Answer]) -> list[Ask]:
    """Prompts that go on where an answer was at some token: what the radix cache holds of paths is read here."""
    return [Ask(a.prompt + g.tokens[: 7 + i], 12) for i, (a, g) in enumerate(zip(PLAIN, given))]


def firsts(given: list[Answer]) -> list[tuple[int, int, int]]:
    """(request, place, token) of tokens at their first place in an answer, from the third on; two an answer."""
    return [
        (i, j, token)
        for i, g in enumerate(given)
        for j, token in [(j, t) for j, t in enumerate(g.tokens) if j > 1 and t not in g.tokens[:j]][:2]
    ]


def stops(given: list[Answer]) -> list[Ask]:
    """Each first place of a token as an end of text: some lie inside an accepted path."""
    return [
        Ask(PLAIN[i].prompt, TOKENS, {"stop_token_ids": [token], "ignore_eos": False})
        for i, _, token in firsts(given)
    ]


def stop_strings(given: list[Answer]) -> list[Ask]:
    """The same places as the end of a string of two tokens."""
    return [
        Ask(PLAIN[i].prompt, TOKENS, {"stop": [given[i].text[j - 1 : j + 1]]}) for i, j, _ in firsts(given)
    ]


def cuts(_given: list[Answer]) -> list[Ask]:
    """Every length up to two steps of the longest path, of two prompts."""
    return [Ask(PLAIN[i].prompt, n) for i in CUT for n in range(1, 2 * (DEPTH + 1))]


MORE: dict[str, Callable[[list[Answer]], list[Ask]]] = {
    "follow_ups": follow_ups,
    "stops": stops,
    "stop_strings": stop_strings,
    "cuts": cuts,
}


def ddtree(models: Path, budget: int, topk: int, *more: str, pair: str = "ctx") -> list[str]:
    return [
        *("--speculative-algorithm", "DDTREE"),
        *("--speculative-draft-model-path", str(models / f"{pair}_draft")),
        *("--speculative-ddtree-budget", str(budget), "--speculative-ddtree-topk-cap", str(topk), *more),
    ]


def observe(start: Callable[[], Any], reference: Future[Seen] | None) -> Seen:
    """Start a server and ask all; reference: the target's answers, None where this is the target."""
    with start() as server:
        seen = Seen(alone(server, PLAIN, target=reference is None), together(server, PLAIN))
        basis = seen.plain if reference is None else reference.result().plain
        for name, asks in MORE.items():
            seen.more[name] = together(server, asks(basis), target=reference is None)
        if reference is not None:
            seen.steps = [steps(server, ask) for ask in PLAIN]
            seen.state, seen.log = server.state(), server.log
        return seen


@pytest.fixture(scope="module")
def runs(
    models: Path, overlay: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Future[Seen]]]:
    """All servers, two at a time; a test waits for those that it compares."""
    work = tmp_path_factory.mktemp("full")
    target = models / "ctx_target"
    dflash = [
        "--speculative-algorithm",
        "DFLASH",
        "--speculative-draft-model-path",
        str(models / "ctx_draft"),
    ]
    flags = {
        "radix": ddtree(models, BUDGET, TOPK),
        "no_radix": ddtree(models, BUDGET, TOPK, "--disable-radix-cache"),
        "tp_2": ddtree(models, BUDGET, TOPK, "--tp", "2"),
        "dflash": dflash,
        "chain": ddtree(models, DEPTH, 1),
    }
    float32 = ["--dtype", "float32"]
    with ThreadPoolExecutor(2) as pool:
        found = {"target": pool.submit(observe, partial(serving, "target", work, target, *float32), None)}
        for name, given in flags.items():
            start = partial(serving, name, work, target, *float32, *given, overlay=overlay)
            found[name] = pool.submit(observe, start, found["target"])
        yield found


@pytest.fixture(scope="module")
def target(runs: dict[str, Future[Seen]]) -> Seen:
    return runs["target"].result()


@pytest.mark.parametrize("name", ["radix", "no_radix", "tp_2"])
def test_greedy_tokens_are_the_targets(name: str, runs: dict[str, Future[Seen]], target: Seen) -> None:
    """Alone, in a batch of 8, behind a cached prefix, ended by a token, by a string, by a length."""
    seen = runs[name].result()
    assert_same(seen.plain, target.plain, f"{name}, batch 1, prompt")
    assert_same(seen.batch, target.plain, f"{name}, batch 8, prompt")
    for kind in MORE:
        assert_same(seen.more[kind], target.more[kind], f"{name}, {kind}")
    cached = sum(a.meta["cached_tokens"] for a in seen.more["follow_ups"])
    assert (cached == 0) == (name == "no_radix")


def test_the_target_answers_by_context(target: Seen) -> None:
    """What the comparison rests on: answers differ, and the same last token is followed by different ones."""
    assert len({tuple(a.tokens) for a in target.plain}) == len(PLAIN)
    after: dict[int, set[int]] = {}
    for a in target.plain:
        for this, following in zip(a.tokens, a.tokens[1:]):
            after.setdefault(this, set()).add(following)
    assert sum(len(following) > 2 for following in after.values()) >= 4


def test_paths_branch_and_ends_lie_inside_them(runs: dict[str, Future[Seen]], target: Seen) -> None:
    """The answers above came through trees: more is accepted than a chain accepts, and ends cut paths."""
    tree, chain = runs["radix"].result(), runs["dflash"].result()
    state = tree.state["ddtree"]
    assert tree.state["ddtree_mode"] == "full"
    assert state["spine_agree"] < 0.9 * state["spine_nodes"]
    assert len(state["accepted_by_depth"]) == DEPTH and state["accepted_by_depth"][-1] > 10
    mean = [
        sum(a.meta["spec_accepted_drafts"] for a in seen.plain + seen.batch)
        / sum(a.meta["spec_verify_ct"] for a in seen.plain + seen.batch)
        for seen in (tree, chain)
    ]
    assert mean[0] > 1.3 * mean[1]
    inside = [j for i, j, _ in firsts(target.plain) if j + 1 not in tree.steps[i]]
    assert len(inside) >= 3, "no stop inside a path"
    cut = [n for i in CUT for n in range(1, 2 * (DEPTH + 1)) if n not in tree.steps[i]]
    assert len(cut) >= 3, "no length inside a path"


def test_a_tree_of_one_candidate_is_dflash(runs: dict[str, Future[Seen]], target: Seen) -> None:
    """topk_cap 1, budget block - 1: the same tokens in the same steps, request by request."""
    dflash, chain = runs["dflash"].result(), runs["chain"].result()
    counted = ("spec_verify_ct", "spec_accepted_drafts", "spec_accept_length")
    for kind in ("plain", "batch", *MORE):
        theirs, ours = (getattr(s, kind, None) or s.more[kind] for s in (dflash, chain))
        assert [a.tokens for a in ours] == [a.tokens for a in theirs], kind
        for a, b in zip(ours, theirs):
            assert [a.meta.get(name) for name in counted] == [b.meta.get(name) for name in counted], kind
    assert sum(a.meta["spec_accepted_drafts"] for a in chain.plain) > 10
    assert chain.state["ddtree"]["spine_agreement"] == 1.0
    assert_same(chain.plain, target.plain, "chain, prompt")


def test_the_whole_binary_tree_of_the_cycle_pair_accepts_four(
    models: Path, overlay: Path, tmp_path: Path
) -> None:
    """By hand in mkmodels.py; budget 6 and top-k 3 give 3.0 (test_full_refusals)."""
    flags = ddtree(models, 14, 2, pair="cyc")
    with serving("cycle", tmp_path, models / "cyc_target", *flags, overlay=overlay) as server:
        answer: Any = server.generate([65, 66, 65], 24)
        trees = server.state()["ddtree"]
    assert answer["output_ids"] == [66, 65] * 12
    assert answer["meta_info"]["spec_accept_length"] == 4.0
    assert answer["meta_info"]["spec_verify_ct"] == 6
    assert trees["nodes_by_depth"] == [2 * trees["trees"], 4 * trees["trees"], 8 * trees["trees"]]
    # the last step's path is cut by the length: 1 token of the prefill, 5 steps of 4, 3 more
    assert trees["accepted_by_depth"] == [6, 6, 5]


def test_a_server_names_the_mode_it_runs(runs: dict[str, Future[Seen]]) -> None:
    for rank in range(2):
        assert (
            f"budget={BUDGET}, topk_cap={TOPK}, shadow_every=8, block_size=4, tp_rank={rank}"
            in runs["tp_2"].result().log
        )
