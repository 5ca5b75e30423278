"""Rules about what a speculative algorithm can be combined with, as far as arguments and configs show it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ddtree_ops.core.checks.argument_facts import ARGUMENTS, BACKENDS, BLOCK_DRAFTERS, PP, Arguments, judged
from ddtree_ops.core.checks.checkpoint import arguments
from ddtree_ops.core.checks.checkpoint_facts import CHECKPOINTS, Checkpoints, Side
from ddtree_ops.core.checks.rule import Rule
from ddtree_ops.core.finding import Finding, block, ok, warn

if TYPE_CHECKING:
    from ddtree_ops.core.facts_live import Live
    from ddtree_ops.core.wanted import Wanted

#: (flag, values that are no conflict, why): what a tree's verify cannot run with.
_TREE = (
    ("--page-size", ("1",), "an accepted path is not contiguous: only pages of one token"),
    ("--speculative-use-rejection-sampling", (), "trees are verified by sampling at each node"),
    ("--enable-deterministic-inference", (), "its kernel reads the whole mask"),
    ("--rl-on-policy-target", (), "it turns deterministic inference on"),
    ("--disaggregation-mode", ("null",), "the decode side would start without the draft's state"),
    ("--enable-two-batch-overlap", (), "a tree's mask cannot be split over two half batches"),
    ("--enable-hierarchical-cache", (), "the draft's cache would not come back with the target's"),
)
_BLOCK_DRAFT = (
    ("--enable-dp-attention", (), "it is refused at start"),
    *((name, ("1",), "it runs on one pipeline stage only") for name in PP),
)
#: Hybrids whose radix cache the engine switches off by itself.
_NO_RADIX = ("KimiLinearForCausalLM", "BailingMoeV2_5ForCausalLM")
_STATE_LOSS = {"bfloat16", "float16", "half"}


def tree(found: Arguments, live: Live, wanted: Wanted) -> Sequence[Finding]:
    """DDTREE and its kin with what they cannot run with."""
    args = judged(found, wanted)
    if args.algorithm not in BLOCK_DRAFTERS:
        return []
    said = [
        block(
            "ddtree",
            f"{args.algorithm} does not run with {_shown(args, name)}: {why}",
            f"remove {name} from the unit",
        )
        for name, allowed, why in (*_BLOCK_DRAFT, *(_TREE if args.tree else ()))
        if args.has(name) and (args.text(name) or "") not in allowed
    ]
    for name in BACKENDS if args.tree else ():
        if args.text(name) not in (None, "triton"):
            text = f"{_shown(args, name)}: only the triton backend takes a tree's mask"
            said.append(block("ddtree", text, f"remove {name} from the unit"))
    if args.algorithm == "DFLASH" and args.text("--dtype") in ("float32", "float"):
        text = (
            f"--dtype {args.text('--dtype')}: a DFlash draft computes in bfloat16 and fails in the first step"
        )
        said.append(block("ddtree", text, "--dtype bfloat16 in the unit"))
    if args.text("--dtype") in ("float16", "half"):
        text = f"--dtype {args.text('--dtype')}: the features that a DFlash draft joins overflow, acceptance falls"
        said.append(warn("ddtree", text, "--dtype bfloat16, or no --dtype, in the unit"))
    side = getattr(live.of(CHECKPOINTS), "target", None)
    if args.tree and side is not None and side.windowed_layers:
        text = f"{side.path} has {side.windowed_layers} sliding-window layers, whose window a tree breaks"
        said.append(block("ddtree", text, f"ddtree-ops deploy --host {wanted.host} --mode shadow"))
    return said or [ok("ddtree", f"nothing in the arguments speaks against {args.algorithm}")]


def _shown(args: Arguments, name: str) -> str:
    return f"{name} {args.text(name)}" if args.text(name) else name


def hybrid(found: Checkpoints, live: Live, wanted: Wanted) -> Sequence[Finding]:
    """A recurrent state has to follow what was accepted: which algorithms and settings do that."""
    args, side = arguments(live, wanted), found.target
    if side is None or not side.known or args is None:
        return []
    if not side.hybrid:
        return [ok("speculation-hybrid", f"{side.path} has no recurrent layers")] if args.algorithm else []
    if wanted.hybrid_refused:
        text = f"{side.path} is a hybrid model, and mode {wanted.mode} does not run there: {wanted.hybrid_refused}"
        return [block("speculation-hybrid", text, f"ddtree-ops deploy --host {wanted.host} --mode shadow")]
    if args.algorithm is None:
        return []
    if args.algorithm == "NGRAM":
        text = f"NGRAM on the hybrid model {side.path}: acceptance looks healthy, answers are corrupt"
        remedy = "another --speculative-algorithm, or none"
        if args.engine.ngram_state is None:
            return [warn("speculation-hybrid", f"{text}, unless this engine commits the state", remedy)]
        if not args.engine.ngram_state:
            return [
                block("speculation-hybrid", f"{text}: this engine never commits the recurrent state", remedy)
            ]
    return _state(args, side)


def _state(args: Arguments, side: Side) -> list[Finding]:
    """How the state is kept between requests and in which precision."""
    buffer = args.text("--mamba-scheduler-strategy") == "extra_buffer"
    off = args.has("--disable-radix-cache") or bool(set(_NO_RADIX) & set(side.architectures))
    radix = not off
    if buffer and not radix:
        text = "--mamba-scheduler-strategy extra_buffer and --disable-radix-cache exclude each other"
        return [block("speculation-hybrid", text, "remove one of the two from the unit")]
    if radix and not buffer:
        text = f"{args.algorithm} on the hybrid model {side.path} with the radix cache: a prefix comes back without "
        text += "its recurrent state, so the engine refuses to start, or the model forgets"
        return [block("speculation-hybrid", text, "--disable-radix-cache in the unit")]
    if radix and not args.on("SGLANG_ENABLE_SPEC_V2"):
        text = "extra_buffer with speculation needs SGLANG_ENABLE_SPEC_V2=1 in the unit's environment"
        return [
            warn("speculation-hybrid", text, "--disable-radix-cache in the unit, instead of extra_buffer")
        ]
    linear = ("--linear-attn-backend", "--linear-attn-decode-backend", "--linear-attn-prefill-backend")
    if args.tree and (name := next((n for n in linear if args.text(n) == "flashinfer"), None)):
        text = f"{name} flashinfer raises where a tree names parents"
        return [block("speculation-hybrid", text, f"{name} triton in the unit")]
    if args.text("--mamba-ssm-dtype") in _STATE_LOSS:
        text = f"--mamba-ssm-dtype {args.text('--mamba-ssm-dtype')}: every node rounds its parent's state, a tree "
        made = block if args.tree else warn
        return [
            made(
                "speculation-hybrid",
                f"{text}accepts less than a chain",
                "--mamba-ssm-dtype float32 in the unit",
            )
        ]
    if radix:
        text = f"{args.algorithm} on a hybrid model with the radix cache: test a second turn on a long prefix"
        return [warn("speculation-hybrid", text, "--disable-radix-cache is the tested way")]
    return [
        ok("speculation-hybrid", f"{args.algorithm} on the hybrid model {side.path}, without the radix cache")
    ]


def lora(found: Arguments, live: Live, wanted: Wanted) -> Sequence[Finding]:
    """LoRA beside speculation."""
    args = judged(found, wanted)
    if args.algorithm is None or not args.has("--enable-lora", "--lora-paths"):
        return []
    allowed = args.engine.lora_speculation
    if allowed is not None and args.algorithm in allowed:
        return [ok("speculation-lora", f"this engine allows LoRA beside {args.algorithm}")]
    text = f"LoRA and --speculative-algorithm {args.algorithm} cannot be combined in this engine"
    other = f", which allows LoRA beside {' and '.join(allowed)} only" if allowed else ""
    return [
        block(
            "speculation-lora",
            text + other,
            "remove --enable-lora, or the algorithm, from the unit",
        )
    ]


def grammar(found: Arguments, live: Live, wanted: Wanted) -> Sequence[Finding]:
    """Structured output beside speculation."""
    args = judged(found, wanted)
    if args.algorithm is None:
        return []
    backend = args.text("--grammar-backend")
    if backend == "outlines":
        text = f"--grammar-backend outlines does not work with speculation ({args.algorithm})"
        return [block("speculation-grammar", text, "--grammar-backend xgrammar in the unit")]
    promise = next(
        (n for n in ("--tool-call-parser", "--grammar-backend") if args.text(n) not in (None, "none")), None
    )
    if promise is None or args.algorithm not in BLOCK_DRAFTERS:
        return [
            ok("speculation-grammar", f"grammar backend {backend or 'not named'} beside {args.algorithm}")
        ]
    if args.engine.grammar_refused is None:
        return [warn("speculation-grammar", "whether the engine serves grammars beside it is unknown", None)]
    if args.engine.grammar_refused:
        text = f"{promise} promises structured output, and this engine refuses it under {args.algorithm}, HTTP 400: "
        text += "tool_choice=required, json_schema and regex; tool_choice=auto works"
        remedy = f"hosts.yaml: requires: [grammar] for {wanted.host}, if clients need it: then deploy refuses the mode"
        return [warn("speculation-grammar", text, remedy)]
    return [ok("speculation-grammar", f"this engine serves grammars under {args.algorithm}")]


def shape(found: Arguments, live: Live, wanted: Wanted) -> Sequence[Finding]:
    """The numbers of EAGLE and NGRAM fit each other, the page size and the backend."""
    args = judged(found, wanted)
    if args.algorithm is None or args.algorithm in BLOCK_DRAFTERS:
        return []
    flag = "--speculative-ngram-max-bfs-breadth" if args.algorithm == "NGRAM" else "--speculative-eagle-topk"
    topk = args.number(flag)
    steps, rows = args.number("--speculative-num-steps"), args.number("--speculative-num-draft-tokens")
    paged, backend = (args.number("--page-size") or 1) > 1, args.text("--attention-backend")
    if args.algorithm == "NGRAM" and live.cuda is False:
        return [
            block(
                "speculation-shape", "NGRAM runs on CUDA only", "remove --speculative-algorithm from the unit"
            )
        ]
    if steps is None and (topk is not None or rows is not None) and args.algorithm != "NGRAM":
        text = "--speculative-eagle-topk or --speculative-num-draft-tokens without --speculative-num-steps"
        return [block("speculation-shape", text, "all three of them in the unit, or none")]
    if topk is not None and topk > 1 and backend == "trtllm_mha":
        return [
            block(
                "speculation-shape",
                f"trtllm_mha verifies no tree (topk {topk})",
                "--attention-backend triton",
            )
        ]
    if topk is not None and topk > 1 and paged and backend not in ("flashinfer", "fa3"):
        text = f"a tree (topk {topk}) with --page-size {args.number('--page-size')} on {backend or 'the default'}"
        return [
            block(
                "speculation-shape", f"{text} is refused: answers would be wrong", "--page-size 1 in the unit"
            )
        ]
    if (
        steps is not None
        and rows is not None
        and topk is not None
        and topk > 1
        and rows > 1 + topk * steps * topk
    ):
        text = f"{rows} draft tokens, more than {steps} steps with topk {topk} can make"
        return [warn("speculation-shape", text, "fewer --speculative-num-draft-tokens in the unit")]
    return [ok("speculation-shape", f"steps {steps}, topk {topk}, draft tokens {rows}")]


RULES: tuple[Rule[Any], ...] = (
    Rule(
        "ddtree",
        ARGUMENTS,
        tree,
        "DFLASH and DDTREE refuse these at the start, or verify a tree with the wrong mask.",
        ("F122",),
    ),
    Rule(
        "speculation-hybrid",
        CHECKPOINTS,
        hybrid,
        "On a hybrid model a rejected token stays in the recurrent state unless the engine undoes it: wrong answers "
        "with a healthy acceptance.",
        ("F221", "F226"),
    ),
    Rule("speculation-lora", ARGUMENTS, lora, "LoRA beside speculation ends the start.", ("F124",)),
    Rule(
        "speculation-grammar",
        ARGUMENTS,
        grammar,
        "Structured output beside speculation: refused by the request, or a wrong answer with outlines.",
        ("F123", "F229"),
    ),
    Rule(
        "speculation-shape",
        ARGUMENTS,
        shape,
        "Numbers that do not fit each other end the start, or verify trees that a paged cache tears.",
    ),
)
