"""DDTREE's command line: its flags, what they make of SGLang's own, and what is refused before anything loads."""

from __future__ import annotations

import argparse
from typing import Any

MAX_BUDGET = 1024
MAX_BLOCK = 65
BACKEND = "triton"
FLAGS = {
    "speculative_ddtree_budget": "Nodes of the draft tree, the root not counted.",
    "speculative_ddtree_topk_cap": "Candidates a draft position may contribute to the tree.",
    "speculative_ddtree_shadow_linear": "Build trees beside linear verify: statistics only, DFLASH's tokens.",
    "speculative_ddtree_shadow_every": "Shadow mode builds trees on one verify step in this many.",
    "speculative_ddtree_allow_hybrid_unsafe": "For series that know hybrid (recurrent) targets: skip their guard.",
}


def option(name: str) -> str:
    """The field's command-line flag."""
    return "--" + name.replace("_", "-")


def add_ddtree_args(parser: argparse.ArgumentParser, defaults: Any) -> None:
    """Add DDTREE's flags. defaults: the ServerArgs class, whose fields hold them."""
    for name, text in FLAGS.items():
        default = getattr(defaults, name)
        if isinstance(default, bool):
            parser.add_argument(option(name), action="store_true", default=default, help=text)
        else:
            parser.add_argument(option(name), type=int, default=default, help=text)


def is_full(args: Any) -> bool:
    """DDTREE that verifies trees."""
    return args.speculative_algorithm == "DDTREE" and not args.speculative_ddtree_shadow_linear


def choose_backend(args: Any) -> None:
    """Full mode takes triton attention, before SGLang's defaults choose one that cannot verify a tree.

    Raises: ValueError where the command line names another.
    """
    if not is_full(args):
        return
    for name in ("attention_backend", "prefill_attention_backend", "decode_attention_backend"):
        if getattr(args, name) not in (None, BACKEND):
            raise ValueError(
                f"Full DDTREE verifies trees with the {BACKEND} attention backend only: "
                f"{option(name)} {getattr(args, name)} must go."
            )
    args.attention_backend = BACKEND


def check_ddtree_args(args: Any) -> None:
    """Validate a ServerArgs. Raises: ValueError, one sentence that names the flag."""
    if args.speculative_algorithm != "DDTREE":
        for name in FLAGS:
            if getattr(args, name) != getattr(type(args), name):
                raise ValueError(
                    f"{option(name)} needs --speculative-algorithm DDTREE, got {args.speculative_algorithm}."
                )
        return
    if args.speculative_draft_model_path is None:
        raise ValueError("DDTREE needs a DFlash draft model: set --speculative-draft-model-path.")
    _at_least_one(args, "speculative_ddtree_budget")
    _at_least_one(args, "speculative_ddtree_topk_cap")
    _at_least_one(args, "speculative_ddtree_shadow_every")
    if args.speculative_ddtree_budget > MAX_BUDGET:
        raise ValueError(
            f"--speculative-ddtree-budget must be at most {MAX_BUDGET}, got {args.speculative_ddtree_budget}."
        )
    vocabulary = int(args.get_model_config().vocab_size)
    if args.speculative_ddtree_topk_cap > vocabulary:
        raise ValueError(
            f"--speculative-ddtree-topk-cap must be at most the vocabulary of {vocabulary} tokens, "
            f"got {args.speculative_ddtree_topk_cap}."
        )
    _check_draft_windows(args)
    if is_full(args):
        _check_full(args)


def _at_least_one(args: Any, name: str) -> None:
    if getattr(args, name) < 1:
        raise ValueError(f"{option(name)} must be at least 1, got {getattr(args, name)}.")


def _check_full(args: Any) -> None:
    if set(args.get_attention_backends()) != {BACKEND}:
        raise ValueError(
            f"Full DDTREE verifies trees with the {BACKEND} attention backend only, "
            f"and SGLang chose {args.get_attention_backends()} for this model."
        )
    if args.page_size not in (None, 1):
        raise ValueError(f"Full DDTREE commits slot by slot: --page-size must be 1, got {args.page_size}.")
    # the on-policy mode turns deterministic inference on, but only after this
    if args.enable_deterministic_inference or args.rl_on_policy_target is not None:
        raise ValueError(
            "Full DDTREE supports neither --enable-deterministic-inference nor --rl-on-policy-target: "
            "their kernel reads the whole mask."
        )
    for name, is_set, reason in (
        (
            "disaggregation_mode",
            args.disaggregation_mode not in (None, "null"),
            "the decode side would start without the draft's state",
        ),
        (
            "enable_two_batch_overlap",
            args.enable_two_batch_overlap,
            "a tree's mask cannot be split over two half batches",
        ),
        (
            "enable_hierarchical_cache",
            args.enable_hierarchical_cache,
            "the draft's cache would not come back with the target's",
        ),
    ):
        if is_set:
            raise ValueError(f"Full DDTREE does not support {option(name)}: {reason}.")
    windows = _layer_types(args.get_model_config().hf_text_config).count("sliding_attention")
    if windows or args.get_model_config().is_hybrid_swa:
        raise ValueError(
            "Full DDTREE does not support targets with sliding-window layers: "
            "the window is taken by row, and a tree's rows are not its positions."
        )


def check_loaded_target(runner: Any) -> None:
    """What only the loaded target tells. runner: its ModelRunner. Raises: ValueError, one sentence."""
    if runner.mambaish_config is not None:
        raise ValueError(
            "Full DDTREE on a hybrid (recurrent) target is not part of this engine series: "
            "rejected branches would stay in its state. Shadow mode works: --speculative-ddtree-shadow-linear."
        )
    window = runner.sliding_window_size
    if window is not None and window > 0:
        raise ValueError(f"Full DDTREE does not support a target with a sliding window (here {window}).")


def set_tree_width(args: Any) -> None:
    """After DFLASH's handling: the target verifies max(block, budget + 1) rows a request, the draft its block.

    speculative_dflash_block_size keeps the block; pools, graphs and accounting go by
    speculative_num_draft_tokens. Raises: ValueError on a block that no tree can be made of.
    """
    if not is_full(args):
        return
    block = int(args.speculative_num_draft_tokens)
    if not 2 <= block <= MAX_BLOCK:
        raise ValueError(f"Full DDTREE needs a draft block of 2 to {MAX_BLOCK} tokens, got {block}.")
    args.speculative_dflash_block_size = block
    args.speculative_num_draft_tokens = max(block, int(args.speculative_ddtree_budget) + 1)


def refuse_request(req: Any, args: Any) -> str | None:
    """Why full mode cannot serve this request, or None. SGLang answers HTTP 400 with the sentence. req: a Req."""
    if not is_full(args) or req.custom_logit_processor is None:
        return None
    # SGLang still runs a refused request's first token, and would load the processor for that
    req.custom_logit_processor = None
    return (
        "DDTREE speculative decoding does not support custom_logit_processor: it may depend on the tokens "
        "so far, and all rows of a tree are computed before those are known."
    )


def _layer_types(config: Any) -> list[str]:
    return list(getattr(config, "layer_types", None) or [])


def _check_draft_windows(args: Any) -> None:
    """A draft trained with sliding-window layers accepts less when run with full attention, and silently."""
    from sglang.srt.utils.hf_transformers_utils import get_config

    config = get_config(
        args.speculative_draft_model_path,
        trust_remote_code=args.trust_remote_code,
        revision=args.speculative_draft_model_revision,
    )
    layers = _layer_types(config)
    windowed = layers.count("sliding_attention")
    if not windowed:
        return
    window = getattr(config, "sliding_window", None)
    given = args.speculative_dflash_draft_window_size
    if windowed == len(layers) and given is not None and window in (None, given):
        return
    remedy = (
        f"set --speculative-dflash-draft-window-size {window or 'to its window'}"
        if windowed == len(layers)
        else "no flag of SGLang 0.5.11 windows some layers and not others, so this draft needs a later engine"
    )
    raise ValueError(
        f"The draft model has {windowed} sliding-window layers of {len(layers)} (window {window}), which this SGLang "
        f"would run with full attention and so accept fewer tokens: {remedy}."
    )
