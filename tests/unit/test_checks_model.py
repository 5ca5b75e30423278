"""Rules on models, drafts, arguments and speculation: each has a fault that it names, and a near miss that is OK."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from healthy import HEALTHY_CPU, HEALTHY_H200, WANTED, overlaid

from ddtree_ops.core.checks import (
    arguments,
    checkpoint,
    checkpoint_code,
    draft,
    draft_config,
    memory,
    ranks,
    speculation,
)
from ddtree_ops.core.doctor import blocked, examine
from ddtree_ops.core.finding import Finding, Level
from ddtree_ops.engine.find import find_series

pytestmark = pytest.mark.tier("preflight")
Facts = dict[str, Any]
OURS = {
    rule.id
    for area in (arguments, checkpoint, checkpoint_code, draft, draft_config, memory, ranks, speculation)
    for rule in area.RULES
}
TREE = {
    "accepts": {
        "--speculative-algorithm": ("DDTREE",),
        "--speculative-ddtree-budget": (),
        "--speculative-ddtree-shadow-linear": (),
        "--attention-backend": ("triton",),
    }
}
GDN = {"hybrid": True, "layer_types": {"linear_attention": 27, "full_attention": 9}}


def said(rule: str, facts: Facts, wanted: Facts | None = None, on: Facts = HEALTHY_H200) -> list[Finding]:
    """The rule's findings on a healthy document with these facts laid over it."""
    found = examine(overlaid(on, facts), dataclasses.replace(WANTED, **(wanted or {})))
    return [finding for finding in found if finding.rule == rule]


def target(**facts: Any) -> Facts:
    return {"checkpoints": {"target": facts}}


def drafted(**facts: Any) -> Facts:
    return {"checkpoints": {"draft": facts}}


def flags(**given: Any) -> Facts:
    return {"arguments": {"flags": {f"--{name.replace('_', '-')}": value for name, value in given.items()}}}


def code(**facts: Any) -> Facts:
    return {"checkpoint_code": {"target": facts}}


def both(*parts: Facts) -> Facts:
    found: Facts = {}
    for part in parts:
        found = overlaid(found, part)
    return found


HUB = {"path": "a/b", "hub": True, "exists": None, "directory": None}
EAGLE3 = both(
    drafted(architectures=["LlamaForCausalLMEagle3"], dflash=None), flags(speculative_algorithm="EAGLE3")
)
STANDALONE = both(
    drafted(architectures=["Qwen3ForCausalLM"], dflash=None), flags(speculative_algorithm="STANDALONE")
)
SPEC = {"speculative_algorithm": "DDTREE", "speculative_ddtree_budget": "32"}
#: (rule, fault, level, words of evidence or remedy, near miss)
CASES: list[tuple[str, Facts, Level, list[str], Facts]] = [
    (
        "model-access",
        target(denied="/m", exists=None, directory=None),
        Level.BLOCK,
        ["may not enter /m", "chmod o+rx /m"],
        target(exists=True),
    ),
    (
        "model-access",
        target(exists=False, directory=None),
        Level.BLOCK,
        ["there for root", "ProtectHome"],
        target(path="/m/u", directory="/m/u"),
    ),
    (
        "model-access",
        drafted(error="config.json: Expecting value"),
        Level.BLOCK,
        ["/m/d: config.json"],
        drafted(path="/m/e"),
    ),
    (
        "hub",
        both(target(**HUB), {"checkpoints": {"hub": {"offline": True}}}),
        Level.BLOCK,
        ["no copy", "offline"],
        both(target(**{**HUB, "directory": "/c/snap"}), {"checkpoints": {"hub": {"offline": True}}}),
    ),
    (
        "hub",
        both(target(**HUB), {"checkpoints": {"hub": {"offline": False, "token": True}}}),
        Level.WARN,
        ["would be downloaded"],
        both(target(**{**HUB, "directory": "/c/snap"}), {"checkpoints": {"hub": {"offline": True}}}),
    ),
    (
        "model-code",
        code(missing=["configuration_odd.py"]),
        Level.BLOCK,
        ["configuration_odd.py", "*.py"],
        code(files=["configuration_odd.py"]),
    ),
    (
        "model-code",
        code(files=["tokenization_odd.py"], needs=["tiktoken"]),
        Level.BLOCK,
        ["tokenization_odd.py", "pip install --no-deps tiktoken"],
        code(files=["tokenization_odd.py"]),
    ),
    (
        "model-code",
        code(elsewhere=["org/odd"]),
        Level.BLOCK,
        ["org/odd", "auto_map"],
        code(elsewhere=[]),
    ),
    (
        "chat-template",
        target(chat_template=False),
        Level.WARN,
        ["chat template", "chat_template.jinja", "--chat-template"],
        both(target(chat_template=False), flags(chat_template="")),
    ),
    (
        "processor",
        target(multimodal=True),
        Level.WARN,
        ["preprocessor_config.json"],
        both(target(multimodal=True), code(processor=["preprocessor_config.json"])),
    ),
    (
        "weights",
        {
            "weights": {
                "draft": {
                    "faulty": 2,
                    "faults": [{"file": "model.safetensors", "why": "is a Git LFS pointer"}],
                }
            }
        },
        Level.BLOCK,
        ["/m/d/model.safetensors is a Git LFS pointer", "1 more"],
        {"weights": {"draft": {"files": 2}}},
    ),
    (
        "weights",
        {"weights": {"target": {"format": None, "files": 0, "bytes": 0}}},
        Level.BLOCK,
        ["no weights"],
        both({"weights": {"target": {"format": None, "files": 0}}}, flags(load_format="dummy")),
    ),
    (
        "weights",
        {"weights": {"target": {"unchecked": 3}}},
        Level.WARN,
        ["3 of 5"],
        {"weights": {"target": {"files": 9}}},
    ),
    (
        "tokenizer",
        target(tokenizer=[]),
        Level.BLOCK,
        ["no tokenizer file"],
        target(tokenizer=["tekken.json"]),
    ),
    (
        "tokenizer",
        target(tokenizer_faults=["tokenizer.json is no whole JSON"]),
        Level.BLOCK,
        ["no whole JSON"],
        target(tokenizer=["tokenizer.model"]),
    ),
    (
        "model-type",
        both(target(type_known=False, remote_code=True, model_type="odd"), flags(trust_remote_code=None)),
        Level.BLOCK,
        ["--trust-remote-code"],
        target(type_known=False, remote_code=True, model_type="odd"),
    ),
    (
        "model-type",
        target(class_known=False),
        Level.WARN,
        ["no class Qwen3ForCausalLM"],
        target(architectures=["X"]),
    ),
    ("model-type", target(type_known=None), Level.WARN, ["unknown"], target(type_known=True)),
    ("model-place", target(filesystem="fuse.s3fs"), Level.WARN, ["fuse.s3fs"], target(filesystem="xfs")),
    ("model-place", target(filesystem=None), Level.WARN, ["unknown"], target(filesystem="overlay")),
    (
        "quantization",
        both(target(quantization="gptq"), flags(quantization="awq")),
        Level.BLOCK,
        ["gptq", "--quantization awq"],
        both(
            target(quantization="gptq"),
            flags(quantization="gptq_marlin", speculative_draft_model_quantization="unquant"),
        ),
    ),
    (
        "quantization",
        flags(quantization="awq"),
        Level.BLOCK,
        ["/m/t is not quantised"],
        flags(quantization="fp8", speculative_draft_model_quantization="unquant"),
    ),
    (
        "quantization",
        both(target(quantization="awq"), flags(quantization="awq")),
        Level.BLOCK,
        ["the draft /m/d too", "unquant"],
        target(quantization="awq"),
    ),
    ("quantization", flags(quantization="fp8"), Level.WARN, ["unquant"], target(quantization="fp8")),
    (
        "tokenizer",
        {
            "checkpoints": {
                "transformers": "4.57.1",
                "target": {"tokenizer_class": "TokB", "tokenizer_class_known": False},
            }
        },
        Level.BLOCK,
        ["TokB", "4.57.1"],
        {
            "checkpoints": {
                "transformers": "4.57.1",
                "target": {"tokenizer_class": "TokB", "tokenizer_class_known": True},
            }
        },
    ),
    (
        "tokenizer",
        target(tokenizer=["tokenizer.model"], tokenizer_needs="sentencepiece"),
        Level.BLOCK,
        ["/v/bin/python3 -m pip install sentencepiece"],
        target(tokenizer=["tokenizer.model"], tokenizer_needs=None),
    ),
    (
        "draft-target",
        both(EAGLE3, {"weights": {"draft": {"shapes": {"fc.weight": [4096, 7680]}}}}),
        Level.BLOCK,
        ["7680", "4096"],
        both(EAGLE3, {"weights": {"draft": {"shapes": {"fc.weight": [4096, 12288]}}}}),
    ),
    (
        "draft-target",
        both(
            EAGLE3, drafted(eagle_layers=2), {"weights": {"draft": {"shapes": {"fc.weight": [4096, 12288]}}}}
        ),
        Level.BLOCK,
        ["3 target layers", "names 2"],
        both(
            EAGLE3, drafted(eagle_layers=3), {"weights": {"draft": {"shapes": {"fc.weight": [4096, 12288]}}}}
        ),
    ),
    (
        "flag-values",
        flags(reasoning_parser="qwen-3"),
        Level.BLOCK,
        ["qwen-3 is no choice", "--reasoning-parser qwen3"],
        flags(reasoning_parser="qwen3"),
    ),
    (
        "draft-target",
        both(EAGLE3, drafted(target_hidden_size=2560)),
        Level.BLOCK,
        ["2560"],
        both(EAGLE3, drafted(target_hidden_size=4096)),
    ),
    (
        "draft-target",
        both(STANDALONE, drafted(vocab_size=32000)),
        Level.BLOCK,
        ["vocabulary of 32000"],
        both(STANDALONE, drafted(hidden_size=1024)),
    ),
    (
        "draft-class",
        drafted(architectures=["Qwen3ForCausalLM"], dflash=None),
        Level.BLOCK,
        ["whole model", "swapped"],
        drafted(architectures=["DFlash2DraftModel"]),
    ),
    (
        "draft-class",
        flags(speculative_algorithm="EAGLE3"),
        Level.BLOCK,
        ["DFlashDraftModel", "DFLASH"],
        flags(speculative_algorithm="DFLASH"),
    ),
    (
        "draft-class",
        {"checkpoints": {"same": True}},
        Level.BLOCK,
        ["same directory"],
        {"checkpoints": {"same": False}},
    ),
    (
        "draft-class",
        {"checkpoints": {"draft": None}},
        Level.BLOCK,
        ["DFLASH without a draft"],
        both(
            {"checkpoints": {"draft": None}},
            flags(speculative_algorithm=None, speculative_draft_model_path=None),
        ),
    ),
    (
        "draft-class",
        flags(speculative_algorithm=None),
        Level.WARN,
        ["would be ignored"],
        flags(speculative_algorithm="DFLASH"),
    ),
    (
        "draft-target",
        drafted(hidden_size=2560),
        Level.BLOCK,
        ["hidden_size 2560"],
        both(drafted(hidden_size=2560), target(hidden_size=2560)),
    ),
    (
        "draft-target",
        drafted(vocab_size=248320),
        Level.BLOCK,
        ["vocab_size"],
        drafted(draft_vocab_size=32000),
    ),
    (
        "draft-target",
        drafted(dflash={"num_target_layers": 28}),
        Level.WARN,
        ["28 layers"],
        drafted(dflash={"num_target_layers": None}),
    ),
    (
        "draft-layers",
        drafted(dflash={"target_layer_ids": [1, 9, 17, 25, 36]}),
        Level.BLOCK,
        ["36 is out of range", "0 to 35"],
        drafted(dflash={"target_layer_ids": [1, 9, 17, 25, 35]}),
    ),
    (
        "draft-layers",
        drafted(dflash={"target_layer_ids": []}),
        Level.BLOCK,
        ["empty"],
        drafted(dflash={"target_layer_ids": [0, 1, 2, 3, 4]}),
    ),
    (
        "draft-layers",
        drafted(dflash={"target_layer_ids": [1, 9, 17, 25]}),
        Level.BLOCK,
        ["5 target layers", "has 4"],
        both(
            drafted(dflash={"target_layer_ids": [1, 9, 17, 25]}),
            {"weights": {"draft": {"shapes": {"fc.weight": [4096, 16384]}}}},
        ),
    ),
    (
        "draft-window",
        drafted(layer_types={"sliding_attention": 5, "full_attention": 0}, sliding_window=2048),
        Level.BLOCK,
        ["5 sliding-window layers of 5", "--speculative-dflash-draft-window-size 2048"],
        both(
            drafted(layer_types={"sliding_attention": 5, "full_attention": 0}, sliding_window=2048),
            flags(speculative_dflash_draft_window_size="2048"),
        ),
    ),
    (
        "draft-window",
        drafted(layer_types={"sliding_attention": 4, "full_attention": 1}, sliding_window=2048),
        Level.BLOCK,
        ["4 sliding-window layers of 5", "0.5.16", "no flag"],
        both(
            drafted(layer_types={"sliding_attention": 4, "full_attention": 1}, sliding_window=2048),
            {"arguments": {"engine": {"draft_layer_types": True}}},
        ),
    ),
    (
        "draft-window",
        drafted(use_sliding_window=True, sliding_window=1024, layer_types={"full_attention": 0}),
        Level.BLOCK,
        ["--speculative-dflash-draft-window-size 1024"],
        drafted(use_sliding_window=False, sliding_window=1024),
    ),
    (
        "draft-keys",
        drafted(rope_theta=10000000),
        Level.WARN,
        ["transformers 5.6.0", "1e+06"],
        both(drafted(rope_theta=10000000), {"checkpoints": {"transformers": "4.57.1"}}),
    ),
    (
        "draft-keys",
        drafted(num_attention_heads=None),
        Level.BLOCK,
        ["lacks num_attention_heads"],
        drafted(head_dim=None),
    ),
    (
        "mask-token",
        drafted(dflash={"mask_token_id": 151936}),
        Level.BLOCK,
        ["151936", "outside"],
        drafted(dflash={"mask_token_id": 151935}),
    ),
    (
        "mask-token",
        drafted(dflash={"mask_token_id": None}, mask_token_in_target=False),
        Level.BLOCK,
        ["<|MASK|>", "does not know"],
        drafted(dflash={"mask_token_id": None}, mask_token_in_target=True),
    ),
    (
        "block-size",
        flags(speculative_dflash_block_size="8"),
        Level.WARN,
        ["trained with 16"],
        flags(speculative_dflash_block_size="16"),
    ),
    (
        "block-size",
        flags(speculative_dflash_block_size="16", speculative_num_draft_tokens="8"),
        Level.BLOCK,
        ["differ"],
        flags(speculative_dflash_block_size="16", speculative_num_draft_tokens="16"),
    ),
    (
        "block-size",
        flags(speculative_dflash_draft_window_size="8"),
        Level.BLOCK,
        ["smaller than the block of 16"],
        flags(speculative_dflash_draft_window_size="16"),
    ),
    (
        "block-size",
        flags(speculative_algorithm="DDTREE", speculative_ddtree_budget="8"),
        Level.WARN,
        ["8 nodes", "chain of 15"],
        flags(speculative_algorithm="DDTREE", speculative_ddtree_budget="15"),
    ),
    (
        "flags",
        flags(mem_fraction_statik="0.8"),
        Level.BLOCK,
        ["did you mean --mem-fraction-static"],
        flags(watchdog_timeout="300"),
    ),
    (
        "flags",
        {"arguments": {"stray": ["--disable-cuda-graph"]}},
        Level.BLOCK,
        ["--disable-cuda-graph", "takes no value"],
        {"arguments": {"stray": []}},
    ),
    (
        "flags",
        {"arguments": {"stray": ["--model-path"]}},
        Level.WARN,
        ["quotes"],
        {"arguments": {"stray": []}},
    ),
    (
        "flags",
        flags(speculative_ddtree_allow_hybrid_unsafe=True),
        Level.BLOCK,
        ["needs a patched tree"],
        flags(speculative_ddtree_shadow_linear=True),
    ),
    (
        "flag-values",
        flags(speculative_algorithm="DFLAHS"),
        Level.BLOCK,
        ["DFLAHS", "--speculative-algorithm DFLASH"],
        flags(speculative_algorithm="DDTREE"),
    ),
    (
        "flag-values",
        flags(mem_fraction_static="85"),
        Level.BLOCK,
        ["out of range"],
        flags(mem_fraction_static="0.9"),
    ),
    ("flag-values", flags(port="30k"), Level.BLOCK, ["is no int"], flags(port="30001")),
    (
        "flag-values",
        flags(context_length=True),
        Level.BLOCK,
        ["has no value"],
        flags(disable_cuda_graph=True),
    ),
    (
        "flag-values",
        flags(disable_cuda_graph="false"),
        Level.BLOCK,
        ["takes no value"],
        flags(cuda_graph_bs="1 2 4"),
    ),
    (
        "flag-values",
        {"arguments": {"repeated": ["--port"]}},
        Level.WARN,
        ["twice"],
        {"arguments": {"repeated": []}},
    ),
    (
        "tp-divides",
        flags(tp_size="3"),
        Level.BLOCK,
        ["32 attention heads", "--tp-size 2"],
        flags(tp_size="4"),
    ),
    (
        "tp-divides",
        both(target(num_key_value_heads=6), flags(tp_size="4")),
        Level.BLOCK,
        ["6 key-value heads"],
        both(target(num_key_value_heads=2), flags(tp_size="4")),
    ),
    (
        "tp-divides",
        both(target(linear_num_key_heads=2), flags(tp_size="4")),
        Level.BLOCK,
        ["linear-attention key heads"],
        both(target(linear_num_key_heads=16), flags(tp_size="4")),
    ),
    (
        "context-length",
        flags(context_length="65536"),
        Level.BLOCK,
        ["40960", "refuses"],
        flags(context_length="40960"),
    ),
    (
        "context-length",
        drafted(max_position_embeddings=2048),
        Level.BLOCK,
        ["/m/d takes 2048", "--context-length 2048"],
        drafted(max_position_embeddings=32768),
    ),
    (
        "ddtree",
        flags(**SPEC, attention_backend="flashinfer"),
        Level.BLOCK,
        ["flashinfer", "triton"],
        flags(**SPEC, speculative_ddtree_shadow_linear=True, attention_backend="flashinfer"),
    ),
    (
        "ddtree",
        both(flags(**SPEC), target(layer_types={"sliding_attention": 12, "full_attention": 12})),
        Level.BLOCK,
        ["sliding-window", "--mode shadow"],
        both(
            flags(**SPEC, speculative_ddtree_shadow_linear=True),
            target(layer_types={"sliding_attention": 12}),
        ),
    ),
    ("ddtree", flags(pp_size="2"), Level.BLOCK, ["--pp-size 2", "one pipeline stage"], flags(pp_size="1")),
    (
        "ddtree",
        flags(enable_dp_attention=True),
        Level.BLOCK,
        ["--enable-dp-attention"],
        flags(enable_metrics=True),
    ),
    ("ddtree", flags(dtype="float32"), Level.BLOCK, ["bfloat16"], flags(dtype="bfloat16")),
    (
        "ddtree",
        flags(**SPEC, enable_hierarchical_cache=True),
        Level.BLOCK,
        ["--enable-hierarchical-cache"],
        flags(enable_hierarchical_cache=True),
    ),
    (
        "speculation-hybrid",
        both(target(**GDN), flags(disable_radix_cache=True, mamba_scheduler_strategy="extra_buffer")),
        Level.BLOCK,
        ["exclude each other"],
        both(target(**GDN), flags(disable_radix_cache=True, mamba_scheduler_strategy="no_buffer")),
    ),
    (
        "speculation-hybrid",
        both(target(**GDN), flags(mamba_scheduler_strategy="extra_buffer")),
        Level.WARN,
        ["SGLANG_ENABLE_SPEC_V2"],
        both(target(**GDN), flags(disable_radix_cache=True)),
    ),
    (
        "speculation-hybrid",
        both(target(**GDN), flags(**SPEC, disable_radix_cache=True, mamba_ssm_dtype="bfloat16")),
        Level.BLOCK,
        ["float32"],
        both(target(**GDN), flags(**SPEC, disable_radix_cache=True, mamba_ssm_dtype="float32")),
    ),
    (
        "speculation-hybrid",
        both(target(**GDN), flags(**SPEC, disable_radix_cache=True, linear_attn_backend="flashinfer")),
        Level.BLOCK,
        ["parents", "triton"],
        both(target(**GDN), flags(**SPEC, disable_radix_cache=True, linear_attn_backend="triton")),
    ),
    (
        "speculation-lora",
        flags(enable_lora=True),
        Level.BLOCK,
        ["DFLASH", "NGRAM only"],
        flags(enable_lora=True, speculative_algorithm="NGRAM"),
    ),
    (
        "speculation-shape",
        flags(speculative_algorithm="EAGLE3", speculative_eagle_topk="4"),
        Level.BLOCK,
        ["--speculative-num-steps"],
        flags(speculative_algorithm="EAGLE3", speculative_eagle_topk="4", speculative_num_steps="3"),
    ),
    (
        "speculation-shape",
        flags(
            speculative_algorithm="EAGLE",
            speculative_eagle_topk="4",
            speculative_num_steps="3",
            page_size="16",
        ),
        Level.BLOCK,
        ["--page-size 16", "--page-size 1"],
        flags(
            speculative_algorithm="EAGLE",
            speculative_eagle_topk="4",
            speculative_num_steps="3",
            page_size="16",
            attention_backend="fa3",
        ),
    ),
]


@pytest.mark.parametrize(
    ("rule", "fault", "level", "words", "twin"), CASES, ids=[f"{i}-{case[0]}" for i, case in enumerate(CASES)]
)
def test_a_fault_is_named_and_its_near_miss_is_ok(
    rule: str, fault: Facts, level: Level, words: list[str], twin: Facts
) -> None:
    found = [finding for finding in said(rule, fault, TREE) if finding.level is level]
    assert found, said(rule, fault, TREE)
    text = f"{found[0].evidence} {found[0].remedy}"
    assert [word for word in words if word not in text] == [], text
    assert found[0].remedy
    near = said(rule, twin, TREE)
    assert near and {finding.level for finding in near} == {Level.OK}, near


def test_every_rule_has_a_case() -> None:
    elsewhere = {"memory-fit", "load-memory", "speculation-grammar"}
    assert {case[0] for case in CASES} | elsewhere == OURS


def test_the_rendered_arguments_are_judged_and_not_the_running_ones() -> None:
    argv = (
        "/v/bin/python3",
        "-m",
        "sglang.launch_server",
        "--model-path",
        "/m/t",
        "--tp=2",
        "--no-such-flag",
        "1",
    )
    found = said("flags", {}, {"mode": "full", "argv": argv})
    assert [finding.level for finding in found] == [Level.BLOCK]
    assert "--no-such-flag" in found[0].evidence
    assert said("flags", flags(no_such_flag="1"), {"mode": "full", "argv": argv[:-2]})[0].level is Level.OK


def test_full_mode_on_a_hybrid_is_refused_by_the_live_config() -> None:
    """The recorded facts may say dense, or be older than the checkpoint."""
    wanted = {"mode": "full", "hybrid_refused": "its state follows a chain"}
    found = said("speculation-hybrid", both(target(**GDN), flags(disable_radix_cache=True)), wanted)
    assert found[0].level is Level.BLOCK and "mode full does not run there" in found[0].evidence
    assert said("speculation-hybrid", {}, wanted)[0].level is Level.OK
    carries = {"mode": "full", "hybrid_refused": None}
    fine = said("speculation-hybrid", both(target(**GDN), flags(disable_radix_cache=True)), carries)
    assert fine[0].level is Level.OK


def test_a_parser_that_is_not_whole_blocks_no_unknown_flag() -> None:
    open_parser = both(flags(patched_in_place="1"), {"arguments": {"complete": False}})
    assert [finding.level for finding in said("flags", open_parser)] == [Level.WARN]


@pytest.mark.parametrize("section", ["checkpoints", "weights", "arguments", "memory"])
@pytest.mark.parametrize("answer", [{"error": "no answer in 15 s"}, {}, None], ids=repr)
def test_what_is_unknown_is_never_ok(section: str, answer: Any) -> None:
    found = examine({**HEALTHY_H200, section: answer}, WANTED)
    names = {
        rule.id
        for area in (arguments, checkpoint, checkpoint_code, draft, draft_config, memory, ranks, speculation)
        for rule in area.RULES
        if rule.section.name == section
    }
    for name in names:
        levels = {finding.level for finding in found if finding.rule == name}
        assert levels and Level.OK not in levels, (name, levels)


def test_nothing_of_ours_blocks_a_healthy_host() -> None:
    for document in (HEALTHY_H200, HEALTHY_CPU):
        assert [finding for finding in blocked(examine(document, WANTED)) if finding.rule in OURS] == []


def test_no_value_of_an_unknown_flag_is_told() -> None:
    found = said("flags", {"arguments": {"flags": {"--api-kye": ""}}})
    assert "did you mean --api-key" in found[0].evidence


def test_the_series_own_flags_are_known_with_their_values() -> None:
    modes = find_series("sglang-0.5.11", Path.cwd()).modes
    accepts = modes.accepts()
    assert accepts["--speculative-algorithm"] == ("DFLASH", "DDTREE")
    assert accepts["--speculative-ddtree-budget"] == () and accepts["--attention-backend"] == ("triton",)
    argv = ("python3", "-m", "sglang.launch_server", "--model-path", "/m/t", "--tp", "2", "--speculative-algorithm",
            "DDTREE", "--speculative-ddtree-budget", "16", "--speculative-draft-model-path", "/m/d")  # fmt: skip
    wanted = {"mode": "full", "accepts": accepts, "argv": argv}
    assert [said(rule, {}, wanted)[0].level for rule in ("flags", "flag-values", "ddtree")] == [Level.OK] * 3
    assert said("flag-values", {}, {"mode": "full", "argv": argv})[0].level is Level.BLOCK


def test_a_switch_that_the_series_brings_needs_no_value() -> None:
    """Seen on the real engine: its parser does not know the flag yet, so nothing is known of its value."""
    argv = ("python3", "-m", "sglang.launch_server", "--model-path", "/m", "--ddtree-shadow", "--tp", "2")
    for accepts, wrong in (({"--ddtree-shadow": ()}, False), ({}, True)):
        found = [*said("flags", {}, {"argv": argv, "accepts": accepts})]
        found += said("flag-values", {}, {"argv": argv, "accepts": accepts})
        assert any("--ddtree-shadow" in finding.evidence for finding in found) is wrong


def test_code_that_nobody_trusts_is_not_read() -> None:
    untrusted = both(code(missing=["configuration_odd.py"]), flags(trust_remote_code=None))
    assert said("model-code", untrusted) == []
    online = both(code(elsewhere=["org/odd"]), {"checkpoints": {"hub": {"offline": False}}})
    assert [finding.level for finding in said("model-code", online)][:1] == [Level.WARN]


def test_a_model_that_only_the_service_sees_is_there() -> None:
    """BindReadOnlyPaths= and its kin: root's own look finds nothing at that path."""
    facts = overlaid(HEALTHY_H200, {"model": {"target": {"path": "/bound/t", "exists": False}}})
    assert [f.level for f in examine(facts, WANTED) if f.rule == "model"] == [Level.OK]
    gone = overlaid(facts, {"checkpoints": {"target": {"exists": False}}})
    assert [f.level for f in examine(gone, WANTED) if f.rule == "model"] == [Level.BLOCK]
