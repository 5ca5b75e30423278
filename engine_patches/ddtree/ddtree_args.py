"""DDTREE's command line: its flags, and what is refused before anything loads."""

from __future__ import annotations

import argparse
import logging
from typing import Any

logger = logging.getLogger(__name__)

MAX_BUDGET = 1024
FLAGS = {
    "speculative_ddtree_budget": "Nodes of the draft tree, the root not counted.",
    "speculative_ddtree_topk_cap": "Candidates a draft position may contribute to the tree.",
    "speculative_ddtree_shadow_linear": "Build trees beside linear verify: statistics only, DFLASH's tokens.",
    "speculative_ddtree_shadow_every": "Shadow mode builds trees on one verify step in this many.",
    "speculative_ddtree_allow_hybrid_unsafe": "Full mode: skip the guard for hybrid (recurrent) targets.",
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
    if not args.speculative_ddtree_shadow_linear:
        raise ValueError(
            "Full DDTREE is not part of this engine series: "
            "add --speculative-ddtree-shadow-linear, or use --speculative-algorithm DFLASH."
        )
    _warn_about_window(args)


def _at_least_one(args: Any, name: str) -> None:
    if getattr(args, name) < 1:
        raise ValueError(f"{option(name)} must be at least 1, got {getattr(args, name)}.")


def _warn_about_window(args: Any) -> None:
    if args.speculative_dflash_draft_window_size is not None:
        return
    from sglang.srt.utils.hf_transformers_utils import get_config

    config = get_config(
        args.speculative_draft_model_path,
        trust_remote_code=args.trust_remote_code,
        revision=args.speculative_draft_model_revision,
    )
    layers = list(getattr(config, "layer_types", None) or [])
    windowed = layers.count("sliding_attention")
    if windowed:
        logger.warning(
            "The draft model has %d sliding-window layers of %d (window %s), which this SGLang runs with "
            "full attention: expect a lower accept length. --speculative-dflash-draft-window-size bounds all.",
            windowed,
            len(layers),
            getattr(config, "sliding_window", None),
        )
