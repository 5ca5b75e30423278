"""DDTREE shadow-linear on the real SGLang 0.5.11: DFLASH's tokens, trees on the side, faults seen."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from real_engine import Server, make_overlay, parsed, serving, with_config

pytestmark = [pytest.mark.tier("main"), pytest.mark.engine]

# Appended to a copy of the worker: after the first answer (13 steps), verify commits a wrong token now and then.
WRONG_TOKEN = """

import itertools

import sglang.srt.speculative.dflash_info as _info

_verify = _info.compute_dflash_accept_len_and_bonus
_calls = itertools.count(1)


def _commit_a_wrong_token(**kwargs):
    accepted, bonus = _verify(**kwargs)
    return accepted, bonus + (accepted == 1) * (next(_calls) > 13)


_info.compute_dflash_accept_len_and_bonus = _commit_a_wrong_token
"""
# Appended to a copy of the worker: the shadow side raises on every step.
BROKEN_SHADOW = """


def _fail(*_args):
    raise RuntimeError("made to fail")


DDTreeWorker._trees = _fail
"""


def ddtree(models: Path, pair: str, *more: str) -> list[str]:
    return [
        *(
            "--speculative-algorithm",
            "DDTREE",
            "--speculative-draft-model-path",
            str(models / f"{pair}_draft"),
        ),
        *("--speculative-ddtree-shadow-linear", "--speculative-ddtree-shadow-every", "2"),
        *("--speculative-ddtree-budget", "8", "--speculative-ddtree-topk-cap", "3", *more),
    ]


def answers(server: Server, models: Path) -> list[list[int]]:
    """Greedy answers to the context pair's prompts."""
    prompts: dict[str, Any] = json.loads((models / "prompts.json").read_text())
    return [server.generate(p, prompts["max_new_tokens"])["output_ids"] for p in prompts["ctx"]]


@pytest.fixture(scope="module")
def target_only(models: Path, tmp_path_factory: pytest.TempPathFactory) -> list[list[int]]:
    work = tmp_path_factory.mktemp("target")
    with serving("target", work, models / "ctx_target") as server:
        changed = list(json.loads((models / "prompts.json").read_text())["ctx"][2])
        changed[0] += 77
        given = answers(server, models)
        assert server.generate(changed, 24)["output_ids"] != given[2], "an early token must change the answer"
        return given


@pytest.fixture(scope="module")
def dflash(models: Path, tmp_path_factory: pytest.TempPathFactory) -> list[list[int]]:
    flags = ["--speculative-algorithm", "DFLASH", "--speculative-draft-model-path", str(models / "ctx_draft")]
    work = tmp_path_factory.mktemp("dflash")
    with serving("dflash", work, models / "ctx_target", *flags) as server:
        return answers(server, models)


def state_of(server: Server) -> dict[str, Any]:
    state: dict[str, Any] = server.get("/get_server_info")["internal_states"][0]
    return state


def test_context_pair_gives_the_tokens_of_dflash_and_of_the_target_alone(
    models: Path, overlay: Path, tmp_path: Path, target_only: list[list[int]], dflash: list[list[int]]
) -> None:
    flags = ddtree(models, "ctx")
    with serving("shadow", tmp_path, models / "ctx_target", *flags, overlay=overlay) as server:
        given = answers(server, models)
        state = state_of(server)
        prompts = json.loads((models / "prompts.json").read_text())
        batch = server.generate(prompts["ctx"], prompts["max_new_tokens"])
        together = state_of(server)["ddtree"]
        with pytest.raises(OSError, match="400"):
            server.generate([1, 2], 2, return_logprob=True)
    assert given == dflash
    assert given == target_only
    assert [answer["output_ids"] for answer in batch] == target_only
    assert (
        together["trees"] - state["ddtree"]["trees"]
        > together["shadow_steps"] - state["ddtree"]["shadow_steps"]
    )
    assert together["spine_agreement"] == 1.0
    assert state["avg_spec_accept_length"] > 1.3
    assert state["ddtree"]["trees"] > 10
    assert state["ddtree"]["shadow_errors"] == 0
    assert state["ddtree"]["spine_agreement"] == 1.0


@pytest.mark.parametrize("ranks", [1, 2])
def test_cycle_pair_accepts_exactly_two_and_says_what_it_runs(
    ranks: int, models: Path, overlay: Path, tmp_path: Path
) -> None:
    flags = ddtree(models, "cyc", *(["--tp", "2"] if ranks == 2 else []))
    with serving("cycle", tmp_path, models / "cyc_target", *flags, overlay=overlay) as server:
        answer = server.generate([65, 66, 65], 16)
        info, log = server.get("/get_server_info"), server.log
    assert answer["output_ids"] == [66, 65] * 8
    assert answer["meta_info"]["spec_accept_length"] == 2.0
    state = info["internal_states"][0]
    for place in (info, state):
        assert place["speculative_algorithm"] == "DDTREE"
        assert place["speculative_ddtree_shadow_linear"] is True
        assert place["speculative_ddtree_budget"] == 8
        assert place["speculative_ddtree_topk_cap"] == 3
    assert state["ddtree_mode"] == "shadow-linear"
    shadow = state["ddtree"]
    assert shadow["shadow_steps"] == (shadow["verify_steps"] + 1) // 2 > 0
    assert state["ddtree_healthy"] is True
    assert shadow["trees"] == shadow["shadow_steps"]
    assert shadow["nodes"] == 8 * shadow["trees"] == sum(shadow["nodes_by_depth"])
    assert (shadow["shadow_errors"], shadow["last_error"], shadow["spine_agreement"]) == (0, None, 1.0)
    for rank in range(ranks):
        line = "Initialized DDTREE shadow-linear worker. budget=8, topk_cap=3, shadow_every=2, block_size=4"
        assert f"{line}, tp_rank={rank}" in log


def test_a_wrong_token_turns_the_comparison_red_and_a_broken_shadow_does_not(
    models: Path,
    patched_files: dict[str, bytes],
    overlay: Path,
    tmp_path: Path,
    target_only: list[list[int]],
) -> None:
    worker = "srt/speculative/ddtree_worker.py"
    faulty = patched_files[worker] + (WRONG_TOKEN + BROKEN_SHADOW).encode()
    mutated = make_overlay(tmp_path / "mutated", overlay / "sglang", {worker: faulty})
    with serving(
        "faulty", tmp_path, models / "ctx_target", *ddtree(models, "ctx"), overlay=mutated
    ) as server:
        given = answers(server, models)
        shadow, healthy, log = state_of(server)["ddtree"], state_of(server)["ddtree_healthy"], server.log
    assert given[0] == target_only[0]
    assert given[1:] != target_only[1:]
    assert shadow["shadow_errors"] > 1
    assert healthy is False
    assert shadow["last_error"] == "RuntimeError: made to fail"
    assert log.count("DDTREE shadow side failed") == 1


def test_arguments_are_refused_in_one_sentence(models: Path, overlay: Path, tmp_path: Path) -> None:
    base = f"--model-path {models / 'ctx_target'} --device cpu --attention-backend triton"
    draft = f"--speculative-draft-model-path {models / 'ctx_draft'}"
    tree = f"--speculative-algorithm DDTREE {draft}"
    shadow = "--speculative-ddtree-shadow-linear"
    windowed = with_config(
        models / "ctx_draft",
        tmp_path / "windowed",
        layer_types=["sliding_attention", "full_attention"],
        sliding_window=64,
        use_sliding_window=True,
    )
    cases = {
        f"{tree} {shadow}": "ok",
        f"{tree} {shadow} --speculative-ddtree-allow-hybrid-unsafe": "ok",
        f"--speculative-algorithm DFLASH {draft}": "ok",
        f"--speculative-algorithm DDTREE {shadow} --speculative-draft-model-path {windowed}": (
            "1 sliding-window layers of 2 (window 64)"
        ),
        f"--speculative-algorithm DDTREE {shadow}": "--speculative-draft-model-path",
        f"{tree} {shadow} --speculative-ddtree-budget 0": "--speculative-ddtree-budget must be at least 1",
        f"{tree} {shadow} --speculative-ddtree-budget 1025": "--speculative-ddtree-budget must be at most 1024",
        f"{tree} {shadow} --speculative-ddtree-topk-cap 0": "--speculative-ddtree-topk-cap must be at least 1",
        f"{tree} {shadow} --speculative-ddtree-topk-cap 513": "at most the vocabulary of 512 tokens",
        f"{tree} {shadow} --speculative-ddtree-shadow-every 0": "--speculative-ddtree-shadow-every must be",
        f"--speculative-algorithm DFLASH {draft} {shadow}": "needs --speculative-algorithm DDTREE, got DFLASH",
    }
    said = parsed(overlay, {case: f"{base} {case}".split() for case in cases})
    for case, expected in cases.items():
        # "ok" is a part of many a sentence
        sentence = said[case].get("error", "ok").splitlines()[0]
        assert sentence == "ok" if expected == "ok" else expected in sentence, case
