"""Rules about what a model's shape allows: how many ranks share its heads, and how long a context it takes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ddtree_ops.core.checks.argument_facts import ARGUMENTS, Arguments, judged
from ddtree_ops.core.checks.checkpoint_facts import CHECKPOINTS, Checkpoints, Side
from ddtree_ops.core.checks.rule import Rule
from ddtree_ops.core.finding import Finding, block, ok, warn

if TYPE_CHECKING:
    from ddtree_ops.core.facts_live import Live
    from ddtree_ops.core.wanted import Wanted


def divides(found: Checkpoints, live: Live, wanted: Wanted) -> Sequence[Finding]:
    """The heads of target and draft can be shared out over the tensor-parallel ranks."""
    args = live.of(ARGUMENTS)
    if not isinstance(args, Arguments):
        return []
    tp, said = judged(args, wanted).tp, []
    for side in (found.target, found.draft):
        if side is None or not side.known or tp == 1:
            continue
        if wrong := _undivided(side, tp):
            fits = [n for n in range(tp - 1, 0, -1) if not _undivided(side, n)]
            text = f"{side.path}: {wrong} over tp {tp}"
            said.append(block("tp-divides", text, f"--tp-size {fits[0] if fits else 1} in the unit"))
    return said or [ok("tp-divides", f"heads divide over tp {tp}")]


def _undivided(side: Side, tp: int) -> str | None:
    heads, kv = side.num_attention_heads, side.num_key_value_heads
    if heads and heads % tp:
        return f"{heads} attention heads cannot be divided"
    if kv and kv % tp and tp % kv:
        return f"{kv} key-value heads cannot be divided"
    for name, count in (("value", side.linear_num_value_heads), ("key", side.linear_num_key_heads)):
        if count and count % tp:
            return f"{count} linear-attention {name} heads cannot be divided"
    return None


def context(found: Checkpoints, live: Live, wanted: Wanted) -> Sequence[Finding]:
    """--context-length is one that the model was made for, and its draft too, which is started with the target's."""
    args, side = live.of(ARGUMENTS), found.target
    if not isinstance(args, Arguments) or side is None or not side.known:
        return []
    seen = judged(args, wanted)
    asked, most = seen.number("--context-length"), longest(side)
    if most is None:
        return [
            warn("context-length", f"{side.path} does not say how long a context it takes", "its model card")
        ]
    said = [_longer(side, asked, most, seen)] if asked is not None and asked > most else []
    draft, used = found.draft, asked or most
    if seen.algorithm and draft is not None and draft.known and not found.same:
        limit = longest(draft)
        if limit is not None and used > limit:
            said.append(_longer(draft, used, limit, seen))
    return said or [ok("context-length", f"{used} of {most}")]


def _longer(side: Side, asked: int, most: int, args: Arguments) -> Finding:
    text = f"a context of {asked}, and {side.path} takes {most}"
    if args.on("SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN"):
        remedy = f"--context-length {most}, or a rope_scaling in config.json that was tested"
        return warn(
            "context-length", f"{text}: allowed by the unit's environment, answers may be wrong", remedy
        )
    remedy = (
        f"--context-length {most} in the unit, or Environment=SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN=1"
    )
    return block("context-length", f"{text}: the engine refuses to start", remedy)


def longest(side: Side) -> int | None:
    """The context that the engine derives from a config: positions, times the factor of a scaling that does not say
    of which length it starts."""
    most = side.max_position_embeddings
    return int(most * side.rope_factor) if most and side.rope_factor and not side.rope_original else most


RULES: tuple[Rule[Any], ...] = (
    Rule(
        "tp-divides",
        CHECKPOINTS,
        divides,
        "Heads that do not divide over the ranks end the start with an assertion while the model is built.",
    ),
    Rule(
        "context-length",
        CHECKPOINTS,
        context,
        "A context beyond the model's own, or its draft's, is refused at the start (the draft's after the target is "
        "loaded), or answers wrongly where it was allowed.",
    ),
)
