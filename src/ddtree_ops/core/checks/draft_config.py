"""Rules about a DFlash draft's own config: what it was trained with is what this engine will do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ddtree_ops.core.checks.checkpoint_facts import CHECKPOINTS, Checkpoints
from ddtree_ops.core.checks.draft import pair
from ddtree_ops.core.checks.rule import Rule
from ddtree_ops.core.finding import Finding, block, ok, warn

if TYPE_CHECKING:
    from ddtree_ops.core.facts_live import Live
    from ddtree_ops.core.wanted import Wanted

WINDOW = "--speculative-dflash-draft-window-size"
MASK = "<|MASK|>"
#: A block that a tree can be made of (the series' own limits).
BLOCKS = range(2, 66)


def windows(found: Checkpoints, live: Live, wanted: Wanted) -> Sequence[Finding]:
    """A draft trained with sliding-window layers accepts less under full attention, and silently."""
    seen = pair(found, live, wanted)
    if seen is None:
        return []
    args, _, draft, _ = seen
    windowed, total = draft.windowed_layers, sum(draft.layer_types.values())
    window, given = draft.sliding_window, args.number(WINDOW)
    if not windowed and draft.use_sliding_window and window:
        windowed = total = draft.num_hidden_layers or 1
    if not windowed:
        if given is not None:
            text = f"{WINDOW} {given}, and {draft.path} has no sliding-window layers: it would see too little"
            return [warn("draft-window", text, f"remove {WINDOW} from the unit")]
        return [ok("draft-window", f"{draft.path} has no sliding-window layers")]
    if args.engine.draft_layer_types:
        return [
            ok(
                "draft-window",
                f"the engine reads the draft's layer_types: {windowed} of {total} are windowed",
            )
        ]
    text = f"{draft.path} has {windowed} sliding-window layers of {total} (window {window or 'not named'}), "
    if windowed == total and given is not None and window in (None, given):
        return [ok("draft-window", f"{text}and {WINDOW} {given} honours them")]
    if args.engine.draft_layer_types is None:
        return [
            warn(
                "draft-window",
                f"{text}whether the engine honours them is unknown",
                f"{WINDOW} {window or 'N'}",
            )
        ]
    text += "which this engine runs with full attention: fewer tokens are accepted, with no error"
    if windowed == total:
        return [
            block(
                "draft-window", text, f"{WINDOW} {window or 'its window'} in the unit, then ddtree-ops adopt"
            )
        ]
    remedy = (
        f"a series for SGLang 0.5.16 or newer, which reads layer_types; no flag of {wanted.series} does this"
    )
    return [block("draft-window", text, remedy)]


def keys(found: Checkpoints, live: Live, wanted: Wanted) -> Sequence[Finding]:
    """The draft's config has what the engine's loader reads, under the names that it reads."""
    seen = pair(found, live, wanted)
    if seen is None:
        return []
    args, _, draft, _ = seen
    lacking = [
        name
        for name in ("num_hidden_layers", "hidden_size", "num_attention_heads")
        if not getattr(draft, name)
    ]
    where = f"ssh {wanted.host} less {draft.path}/config.json"
    if lacking:
        return [
            block(
                "draft-keys",
                f"{draft.path}/config.json lacks {', '.join(lacking)}, which the loader reads",
                where,
            )
        ]
    theta = draft.rope_theta if draft.rope_theta is not None else draft.rope_parameters_theta
    reads = args.engine.draft_rope_parameters
    if theta is None or reads:
        return [ok("draft-keys", f"{draft.path}/config.json has what the loader reads")]
    default = args.engine.draft_rope_default
    modern = _major(found.transformers) >= 5
    if (draft.rope_theta is not None and not modern) or (default is not None and theta == default):
        return [ok("draft-keys", f"{draft.path}: rope_theta {theta:g} is what the loader takes")]
    if reads is None or default is None:
        return [
            warn("draft-keys", f"{draft.path}: whether the loader reads its rope_theta is unknown", where)
        ]
    text = f"{draft.path} was trained with rope_theta {theta:g}; the engine's loader reads a top-level rope_theta, "
    loss = f"and would take {default:g}: fewer tokens accepted, with no error"
    remedy = "a series whose loader reads rope_parameters, or another draft"
    if draft.rope_theta is None:
        return [
            block("draft-keys", f"{text}which this config has only inside rope_parameters, {loss}", remedy)
        ]
    return [warn("draft-keys", f"{text}which transformers {found.transformers} moves away, {loss}", remedy)]


def _major(version: str | None) -> int:
    head = (version or "0").split(".")[0]
    return int(head) if head.isdigit() else 0


def mask(found: Checkpoints, live: Live, wanted: Wanted) -> Sequence[Finding]:
    """The draft's mask token is a token of the target."""
    seen = pair(found, live, wanted)
    if seen is None:
        return []
    _, target, draft, own = seen
    remedy = f"ssh {wanted.host} grep -n mask_token {draft.path}/config.json, and the draft's model card"
    if own.mask_token_id is not None:
        if target.vocab_size and not 0 <= own.mask_token_id < target.vocab_size:
            there = f"the target's vocabulary of {target.vocab_size}"
            text = f"{draft.path}: mask_token_id {own.mask_token_id} is outside {there}"
            return [block("mask-token", text, remedy)]
        return [ok("mask-token", f"mask_token_id {own.mask_token_id}")]
    name = own.mask_token or MASK
    if draft.mask_token_in_target is False:
        text = f"{draft.path} names no mask_token_id, and the target's tokenizer does not know {name}"
        return [block("mask-token", text, remedy)]
    if draft.mask_token_in_target is None:
        return [warn("mask-token", f"whether the target's tokenizer knows {name} is unknown", remedy)]
    return [ok("mask-token", f"the target's tokenizer knows {name}")]


def blocks(found: Checkpoints, live: Live, wanted: Wanted) -> Sequence[Finding]:
    """The block that is asked for is one that the draft was trained for, and the tree is not narrower."""
    seen = pair(found, live, wanted)
    if seen is None:
        return []
    args, _, draft, own = seen
    flag, rows = args.number("--speculative-dflash-block-size"), args.number("--speculative-num-draft-tokens")
    size = flag or rows or own.block_size or 16
    window, budget = args.number(WINDOW), args.number("--speculative-ddtree-budget")
    if flag is not None and rows is not None and flag != rows and args.algorithm == "DFLASH":
        text = f"--speculative-num-draft-tokens {rows} and --speculative-dflash-block-size {flag} differ"
        return [block("block-size", text, "remove one of the two from the unit")]
    if (flag is not None and flag <= 0) or (args.tree and size not in BLOCKS):
        text = f"a block of {size if flag is None else flag} tokens: a tree needs 2 to {BLOCKS.stop - 1}"
        return [block("block-size", text, "remove --speculative-dflash-block-size from the unit")]
    if window is not None and window < size:
        return [
            block(
                "block-size",
                f"{WINDOW} {window} is smaller than the block of {size}",
                f"{WINDOW} of {size} or more",
            )
        ]
    if own.block_size and size != own.block_size:
        text = f"a block of {size}, and {draft.path} was trained with {own.block_size}"
        return [
            warn(
                "block-size",
                text,
                "remove --speculative-dflash-block-size, or compare acceptance before traffic",
            )
        ]
    if own.block_size is None and flag is None and rows is None:
        return [
            warn(
                "block-size",
                f"{draft.path} names no block_size: the engine takes 16",
                "--speculative-dflash-block-size",
            )
        ]
    if args.tree and budget is not None and budget < size - 1:
        text = f"a tree of {budget} nodes cannot hold the draft's own chain of {size - 1}"
        return [warn("block-size", text, f"hosts.yaml: ddtree: budget: {size - 1} or more")]
    return [ok("block-size", f"blocks of {size}")]


RULES: tuple[Rule[Any], ...] = (
    Rule(
        "draft-window",
        CHECKPOINTS,
        windows,
        "Sliding-window layers run as full attention cost acceptance beyond the window, silently.",
    ),
    Rule(
        "draft-keys",
        CHECKPOINTS,
        keys,
        "A config in another transformers release's shape passes every check that files exist; then the loader reads "
        "defaults, or fails.",
        ("F115",),
    ),
    Rule(
        "mask-token",
        CHECKPOINTS,
        mask,
        "Without its mask token the draft predicts from noise, or the start fails.",
    ),
    Rule(
        "block-size",
        CHECKPOINTS,
        blocks,
        "A block that the draft was not trained for, or a tree narrower than its own chain, costs more than it gives.",
    ),
)
