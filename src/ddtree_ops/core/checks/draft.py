"""Rules about the draft beside its target: of the right class, and made for this target."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ddtree_ops.core.checks.argument_facts import BLOCK_DRAFTERS, DRAFT, Arguments
from ddtree_ops.core.checks.checkpoint import arguments
from ddtree_ops.core.checks.checkpoint_facts import CHECKPOINTS, WEIGHTS, Checkpoints, Dflash, Side, Weights
from ddtree_ops.core.checks.rule import Rule
from ddtree_ops.core.finding import Finding, block, ok, warn

if TYPE_CHECKING:
    from ddtree_ops.core.facts_live import Live
    from ddtree_ops.core.wanted import Wanted

#: What a draft's class can be used with. A class that is none of these is a whole model.
_ALGORITHMS = {
    "dflash": BLOCK_DRAFTERS,
    "eagle3": ("EAGLE3",),
    "eagle": ("EAGLE",),
    "mtp": ("EAGLE",),
    "medusa": ("MEDUSA",),
    "whole": ("STANDALONE",),
}
#: How much the vocabularies of one family differ by padding (Qwen2.5: 151936 and 152064).
PADDING = 1024
_NEEDS_DRAFT = (*BLOCK_DRAFTERS, "EAGLE3", "STANDALONE")


def draft_kind(side: Side) -> str:
    """dflash, eagle3, eagle, mtp, medusa, or whole for a model that can serve by itself."""
    name = " ".join(side.architectures).lower()
    if "dflash" in name or "dspark" in name or "ddtree" in name:
        return "dflash"
    if "eagle3" in name or "eagle-3" in name:
        return "eagle3"
    if "eagle" in name:
        return "eagle3" if side.draft_vocab_size or side.target_hidden_size else "eagle"
    if side.draft_vocab_size:
        return "eagle3"
    if "nextn" in name or "mtp" in name:
        return "mtp"
    if "medusa" in name:
        return "medusa"
    own = side.dflash
    return (
        "dflash" if own and (own.target_layer_ids is not None or own.mask_token_id is not None) else "whole"
    )


def pair(found: Checkpoints, live: Live, wanted: Wanted) -> tuple[Arguments, Side, Side, Dflash] | None:
    """(arguments, target, draft, its own config) of a DFlash pair; None where it is none, or not known."""
    args, target, draft = arguments(live, wanted), found.target, found.draft
    if args is None or args.algorithm not in BLOCK_DRAFTERS or target is None or draft is None:
        return None
    if not draft.known or draft_kind(draft) != "dflash":
        return None
    return args, target, draft, draft.dflash or Dflash()


def roles(found: Checkpoints, live: Live, wanted: Wanted) -> Sequence[Finding]:
    """The target is a whole model, the draft is one of the algorithm's own."""
    args, target, draft = arguments(live, wanted), found.target, found.draft
    algorithm = args.algorithm if args else None
    said: list[Finding] = []
    if target is not None and target.known and (kind := draft_kind(target)) != "whole":
        text = f"--model-path {target.path} is a draft ({', '.join(target.architectures)}), not a model that can serve"
        said.append(block("draft-class", text, f"hosts.yaml: model: the target, and draft: {target.path}"))
    if args is not None and algorithm is None and args.has(*DRAFT):
        text = "a draft is given without --speculative-algorithm: it would be ignored"
        said.append(warn("draft-class", text, "--speculative-algorithm, or remove the draft from the unit"))
    if args is not None and algorithm in _NEEDS_DRAFT and draft is None:
        text = f"--speculative-algorithm {algorithm} without a draft model"
        said.append(block("draft-class", text, f"hosts.yaml: draft: for {wanted.host}"))
    if draft is None or algorithm is None or not draft.known:
        return said or ([ok("draft-class", "no draft is used")] if target else [])
    kind = draft_kind(draft)
    if found.same and kind != "mtp" and algorithm != "EAGLE":
        text = f"target and draft are the same directory, {draft.path}"
        said.append(
            block("draft-class", text, f"hosts.yaml: draft: the draft's own directory, for {wanted.host}")
        )
    elif algorithm not in _ALGORITHMS[kind] and not (kind == "whole" and algorithm == "EAGLE"):
        said.append(_wrong_class(draft, kind, algorithm, wanted))
    return said or [ok("draft-class", f"{draft.path} ({', '.join(draft.architectures)}) fits {algorithm}")]


def _wrong_class(draft: Side, kind: str, algorithm: str, wanted: Wanted) -> Finding:
    name, fits = ", ".join(draft.architectures) or "no architecture", " or ".join(_ALGORITHMS[kind])
    text = f"{draft.path} is a {name}, made for {fits}, and the arguments say --speculative-algorithm {algorithm}"
    if kind == "whole":
        text = f"{draft.path} is a whole model ({name}), no draft for {algorithm}: target and draft may be swapped"
        return block(
            "draft-class", text, f"hosts.yaml: draft: a {algorithm} draft of this target, for {wanted.host}"
        )
    if (kind, algorithm) == ("eagle3", "EAGLE"):
        text += ": it starts without an error and accepts exactly 1.0 token a step"
    return block(
        "draft-class",
        text,
        f"--speculative-algorithm {_ALGORITHMS[kind][0]}, or a draft made for {algorithm}",
    )


def fits(found: Checkpoints, live: Live, wanted: Wanted) -> Sequence[Finding]:
    """A DFlash draft uses the target's embedding and head: widths and vocabulary are the target's."""
    seen = pair(found, live, wanted)
    if seen is None:
        return _chain_draft(found, live, wanted)
    if not seen[1].known:
        return []
    _, target, draft, own = seen
    other = f"hosts.yaml: draft: the draft that was trained for {target.path}"
    for what, a, b in (
        ("hidden_size", draft.hidden_size, target.hidden_size),
        ("vocab_size", draft.vocab_size, target.vocab_size),
    ):
        if a and b and a != b:
            text = f"{draft.path} has {what} {a}, its target {target.path} has {b}: a draft of another model"
            return [block("draft-target", text, other)]
    layers = target.num_hidden_layers
    if own.num_target_layers and layers and own.num_target_layers != layers:
        text = f"{draft.path} was trained for a target of {own.num_target_layers} layers, {target.path} has {layers}"
        return [warn("draft-target", text, other)]
    if not (draft.hidden_size and target.hidden_size and draft.vocab_size and target.vocab_size):
        return [
            warn(
                "draft-target", "draft and target do not say their widths: whether they fit is unknown", other
            )
        ]
    return [
        ok("draft-target", f"{draft.path} and {target.path}: hidden size {draft.hidden_size}, one vocabulary")
    ]


def _chain_draft(found: Checkpoints, live: Live, wanted: Wanted) -> Sequence[Finding]:
    """EAGLE's drafts read the target's hidden states, a standalone draft its token ids."""
    args, target, draft, files = arguments(live, wanted), found.target, found.draft, live.of(WEIGHTS)
    if args is None or target is None or draft is None or not target.known or not draft.known or found.same:
        return []
    other = f"hosts.yaml: draft: the draft that was trained for {target.path}"
    width = target.hidden_size
    shape = _projection(files) if isinstance(files, Weights) else None
    eagle = draft_kind(draft) in ("eagle", "eagle3")
    if eagle and shape and width and shape[-1] % width:
        text = f"{draft.path} joins hidden states of {shape[-1]} numbers, those of {target.path} have {width} each"
        return [block("draft-target", text, other)]
    if eagle and shape and width and draft.eagle_layers and shape[-1] != draft.eagle_layers * width:
        joined = f"{draft.path} joins the states of {shape[-1] // width} target layers in its weights"
        text = f"{joined}, and its config.json names {draft.eagle_layers} (eagle_aux_hidden_state_layer_ids)"
        return [block("draft-target", text, other)]
    if eagle and draft.target_hidden_size and width and draft.target_hidden_size != width:
        text = f"{draft.path} was made for a hidden size of {draft.target_hidden_size}, {target.path} has {width}"
        return [block("draft-target", text, other)]
    a, b = draft.vocab_size, target.vocab_size
    if args.algorithm and a and b and a != b:
        text = f"{draft.path} has a vocabulary of {a}, its target {target.path} of {b}"
        # Sizes of one family differ by padding: the tokens are the same, so it is no reason to stop.
        made = block if args.algorithm == "STANDALONE" and abs(a - b) > PADDING else warn
        return [made("draft-target", f"{text}: token ids may not mean the same", other)]
    return (
        [ok("draft-target", f"{draft.path} and {target.path}: one vocabulary")]
        if args.algorithm and a and b
        else []
    )


def layers(found: Checkpoints, live: Live, wanted: Wanted) -> Sequence[Finding]:
    """The target layers that the draft listens to exist, and as many as its projection takes."""
    seen = pair(found, live, wanted)
    if seen is None:
        return []
    _, target, draft, own = seen
    count, ids = target.num_hidden_layers, own.target_layer_ids
    remedy = (
        f"ssh {wanted.host} grep -A12 dflash_config {draft.path}/config.json, then this target's own draft"
    )
    if ids is None:
        if count is not None and (draft.num_hidden_layers or 1) > 1 and count < 4:
            return [
                block(
                    "draft-layers",
                    f"no target_layer_ids, and a target of {count} layers is too small",
                    remedy,
                )
            ]
        return [
            warn(
                "draft-layers",
                f"{draft.path} names no target_layer_ids: the engine spreads them itself",
                remedy,
            )
        ]
    if not ids:
        return [block("draft-layers", f"{draft.path}: target_layer_ids is empty", remedy)]
    outside = [one for one in ids if count is not None and not 0 <= one < count]
    if outside:
        there = f"{target.path} has layers 0 to {(count or 0) - 1}"
        text = f"{draft.path}: target_layer_ids {outside[0]} is out of range, {there}"
        return [block("draft-layers", text, remedy)]
    files = live.of(WEIGHTS)
    shape = _projection(files) if isinstance(files, Weights) else None
    width = draft.hidden_size
    if shape and width and shape[-1] % width == 0 and shape[-1] // width != len(ids):
        text = f"{draft.path}: its weights join {shape[-1] // width} target layers (fc.weight {shape}), "
        return [block("draft-layers", text + f"target_layer_ids has {len(ids)}", remedy)]
    if count is None:
        return [warn("draft-layers", "the target's number of layers is unknown", remedy)]
    return [ok("draft-layers", f"target_layer_ids {list(ids)} of {count} layers")]


def _projection(files: Weights) -> list[int] | None:
    shapes = files.draft.shapes if files.draft else {}
    return next((list(shape) for name, shape in shapes.items() if name.endswith("fc.weight")), None)


RULES: tuple[Rule[Any], ...] = (
    Rule(
        "draft-class",
        CHECKPOINTS,
        roles,
        "A draft given as the model, or one made for another algorithm, fails late or runs with no gain and no error.",
        ("F116", "F217"),
    ),
    Rule(
        "draft-target",
        CHECKPOINTS,
        fits,
        "A draft of another model starts and is never right: acceptance near 1.",
        ("F218",),
    ),
    Rule(
        "draft-layers",
        CHECKPOINTS,
        layers,
        "target_layer_ids beyond the target's layers end the start with a traceback after the weights are loaded.",
    ),
)
