"""Full DDTREE on the real SGLang 0.5.11: what is refused at start, what per request, and the widths and metrics."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from real_engine import FLAGS, Server, parsed, serving, with_config

pytestmark = [pytest.mark.tier("dense"), pytest.mark.engine]


def full(models: Path, pair: str = "cyc", *more: str) -> list[str]:
    draft = ["--speculative-draft-model-path", str(models / f"{pair}_draft")]
    return [
        *("--speculative-algorithm", "DDTREE", *draft),
        *("--speculative-ddtree-budget", "6", "--speculative-ddtree-topk-cap", "3", *more),
    ]


@pytest.fixture(scope="module")
def fates(models: Path, overlay: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What becomes of each command line, by name; all are parsed in one process."""
    work = tmp_path_factory.mktemp("args")
    target = models / "cyc_target"
    full_layer, windowed_layer = "full_attention", "sliding_attention"
    window = {"use_sliding_window": True, "sliding_window": 64}
    draft_model = models / "cyc_draft"
    mixed = with_config(draft_model, work / "mixed", layer_types=[windowed_layer, full_layer], **window)
    every = with_config(draft_model, work / "every", layer_types=[windowed_layer] * 2, **window)
    layers = [full_layer] * 2 + [windowed_layer] * 2
    windowed = with_config(target, work / "windowed", layer_types=layers, max_window_layers=2, **window)
    no_triton = [f for f in FLAGS if f not in ("--attention-backend", "triton")]
    draft = "--speculative-draft-model-path"
    lines: dict[str, list[str]] = {
        "as it is": ["--model-path", str(target), *FLAGS, *full(models)],
        "no backend named": ["--model-path", str(target), *no_triton, *full(models)],
        "wide": ["--model-path", str(target), *FLAGS, *full(models), "--speculative-ddtree-budget", "2"],
        "shadow": ["--model-path", str(target), *FLAGS, *full(models), "--speculative-ddtree-shadow-linear"],
        "fa3": ["--model-path", str(target), *FLAGS, *full(models), "--attention-backend", "fa3"],
        "flashinfer decode": [
            *("--model-path", str(target), *FLAGS, *full(models), "--decode-attention-backend", "flashinfer")
        ],
        "trtllm": ["--model-path", str(target), *FLAGS, *full(models), "--attention-backend", "trtllm_mha"],
        "page size": ["--model-path", str(target), *FLAGS, *full(models), "--page-size", "16"],
        "dp attention": [
            *("--model-path", str(target), *FLAGS, *full(models)),
            *("--tp", "2", "--dp", "2", "--enable-dp-attention"),
        ],
        "pp": ["--model-path", str(target), *FLAGS, *full(models), "--pp-size", "2"],
        "block of one": [
            *("--model-path", str(target), *FLAGS, *full(models), "--speculative-dflash-block-size", "1")
        ],
        "no draft": ["--model-path", str(target), *FLAGS, "--speculative-algorithm", "DDTREE"],
        "budget": ["--model-path", str(target), *FLAGS, *full(models), "--speculative-ddtree-budget", "0"],
        "budget above": [
            *("--model-path", str(target), *FLAGS, *full(models), "--speculative-ddtree-budget", "1025")
        ],
        "topk": ["--model-path", str(target), *FLAGS, *full(models), "--speculative-ddtree-topk-cap", "513"],
        "not ddtree": ["--model-path", str(target), *FLAGS, "--speculative-ddtree-budget", "8"],
        "deterministic": [
            *("--model-path", str(target), *FLAGS, *full(models), "--enable-deterministic-inference")
        ],
        "on policy": ["--model-path", str(target), *FLAGS, *full(models), "--rl-on-policy-target", "fsdp"],
        "disaggregation": [
            *("--model-path", str(target), *FLAGS, *full(models), "--disaggregation-mode", "decode")
        ],
        "two batches": ["--model-path", str(target), *FLAGS, *full(models), "--enable-two-batch-overlap"],
        "hierarchical cache": [
            *("--model-path", str(target), *FLAGS, *full(models), "--enable-hierarchical-cache")
        ],
        "sliding target": ["--model-path", str(windowed), *FLAGS, *full(models)],
        "sliding draft": ["--model-path", str(target), *FLAGS, *full(models), draft, str(mixed)],
        "sliding draft, all layers": ["--model-path", str(target), *FLAGS, *full(models), draft, str(every)],
        "sliding draft, another window": [
            *("--model-path", str(target), *FLAGS, *full(models), draft, str(every)),
            *("--speculative-dflash-draft-window-size", "32"),
        ],
        "sliding draft, honoured": [
            *("--model-path", str(target), *FLAGS, *full(models), draft, str(every)),
            *("--speculative-dflash-draft-window-size", "64"),
        ],
    }
    return parsed(overlay, lines)


def test_the_target_verifies_the_tree_and_the_draft_keeps_its_block(fates: dict[str, Any]) -> None:
    for name, rows in (("as it is", 7), ("wide", 4), ("no backend named", 7)):
        said = fates[name]
        assert said["speculative_num_draft_tokens"] == rows, said
        assert said["speculative_dflash_block_size"] == 4
        assert (said["speculative_eagle_topk"], said["attention_backend"]) == (1, "triton")
    assert fates["shadow"]["speculative_num_draft_tokens"] == 4


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("fa3", "triton attention backend only: --attention-backend fa3 must go"),
        ("flashinfer decode", "triton attention backend only: --decode-attention-backend flashinfer"),
        ("trtllm", "triton attention backend only: --attention-backend trtllm_mha"),
        ("page size", "--page-size must be 1, got 16"),
        ("dp attention", "does not support dp attention"),
        ("pp", "pp_size == 1"),
        ("block of one", "a draft block of 2 to 65 tokens, got 1"),
        ("no draft", "set --speculative-draft-model-path"),
        ("budget", "--speculative-ddtree-budget must be at least 1, got 0"),
        ("budget above", "--speculative-ddtree-budget must be at most 1024, got 1025"),
        ("topk", "at most the vocabulary of 512 tokens, got 513"),
        ("not ddtree", "--speculative-ddtree-budget needs --speculative-algorithm DDTREE"),
        ("deterministic", "supports neither --enable-deterministic-inference nor"),
        ("on policy", "nor --rl-on-policy-target"),
        ("disaggregation", "does not support --disaggregation-mode"),
        ("two batches", "does not support --enable-two-batch-overlap"),
        ("hierarchical cache", "does not support --enable-hierarchical-cache"),
        ("sliding target", "does not support targets with sliding-window layers"),
        ("sliding draft", "1 sliding-window layers of 2 (window 64)"),
        ("sliding draft, another window", "set --speculative-dflash-draft-window-size 64"),
        ("sliding draft, all layers", "set --speculative-dflash-draft-window-size 64"),
    ],
)
def test_refused_at_start_in_one_sentence(fates: dict[str, Any], name: str, words: str) -> None:
    assert words in fates[name].get("error", ""), fates[name]


def test_a_windowed_draft_is_taken_with_its_window(fates: dict[str, Any]) -> None:
    assert "error" not in fates["sliding draft, honoured"]


@pytest.fixture(scope="module")
def server(models: Path, overlay: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    work = tmp_path_factory.mktemp("full")
    flags = [*full(models), "--enable-metrics", "--enable-custom-logit-processor"]
    with serving("full", work, models / "cyc_target", *flags, overlay=overlay) as running:
        yield running


def refusal(server: Server, sampling: dict[str, Any], **more: Any) -> tuple[int, str]:
    """Status and sentence of a request; 200 and the text when it is served."""
    body = {"input_ids": [65, 66], "sampling_params": {"max_new_tokens": 4, **sampling}, **more}
    request = urllib.request.Request(
        server.url + "/generate", json.dumps(body).encode(), headers={"content-type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


@pytest.mark.parametrize(
    ("sampling", "more", "words"),
    [
        ({}, {"return_logprob": True}, "does not support return_logprob"),
        ({"json_schema": "{}"}, {}, "grammar-constrained decoding"),
        ({"regex": "a+"}, {}, "grammar-constrained decoding"),
        ({}, {"custom_logit_processor": "{}"}, "does not support custom_logit_processor"),
    ],
)
def test_refused_per_request_in_one_sentence(
    server: Server, sampling: dict[str, Any], more: dict[str, Any], words: str
) -> None:
    status, said = refusal(server, sampling, **more)
    assert (status, words in said) == (400, True), said


def test_served_beside_a_refusal(server: Server) -> None:
    """Temperature, top-p, min-p, penalties and logit bias are exact in a tree."""
    for sampling in (
        {"temperature": 0.7, "top_p": 0.9, "top_k": 20, "min_p": 0.05},
        {"temperature": 0, "logit_bias": {"70": 100.0}},
        {"temperature": 0.7, "repetition_penalty": 1.1, "frequency_penalty": 0.5, "min_new_tokens": 2},
    ):
        status, said = refusal(server, sampling)
        assert status == 200, said
    biased = json.loads(refusal(server, {"temperature": 0, "logit_bias": {"70": 100.0}})[1])
    assert biased["output_ids"] == [70] * 4


def test_state_metrics_and_log_tell_the_same(server: Server) -> None:
    answer = server.generate([65, 66, 65], 24)
    assert answer["output_ids"] == [66, 65] * 12
    assert answer["meta_info"]["spec_accept_length"] == 3.0
    state = server.get("/get_server_info")["internal_states"][0]
    assert (state["ddtree_mode"], state["ddtree_healthy"]) == ("full", True)
    trees = state["ddtree"]
    assert trees["nodes"] == 6 * trees["trees"] == sum(trees["nodes_by_depth"])
    assert trees["accepted"] == sum(trees["accepted_by_depth"]) == trees["spine_nodes"]
    assert trees["accept_length"] == 1 + trees["accepted"] / trees["trees"]
    assert 0 < trees["spine_agree"] < trees["spine_nodes"]
    assert trees["timed_steps"] == trees["verify_steps"] and trees["tree_seconds"] > 0
    with urllib.request.urlopen(server.url + "/metrics", timeout=60) as reply:
        page = reply.read().decode()
    seen = {
        line.split("{")[0]: float(line.rsplit(" ", 1)[1])
        for line in page.splitlines()
        if line.startswith("sglang:ddtree_") and 'mode="full"' in line and "depth=" not in line
    }
    for name in ("trees", "nodes", "accepted", "verify_steps", "spine_agree", "tree_seconds"):
        assert seen[f"sglang:ddtree_{name}_total"] == pytest.approx(trees[name]), name
    depths = [
        float(line.rsplit(" ", 1)[1])
        for line in page.splitlines()
        if "ddtree_accepted_by_depth_total{" in line
    ]
    assert depths == trees["accepted_by_depth"]
    assert "Initialized DDTREE full worker. budget=6, topk_cap=3" in server.log
    assert "DDTREE full: verify_steps=1," in server.log
