"""Rules about memory: whether weights, KV pool, graphs and recurrent states fit the GPUs, and a load the host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ddtree_ops.core import memory
from ddtree_ops.core.checks.argument_facts import Arguments, GpuRoom, gpus
from ddtree_ops.core.checks.checkpoint import arguments
from ddtree_ops.core.checks.checkpoint_facts import (
    CHECKPOINTS,
    WEIGHTS,
    Checkpoints,
    Side,
    WeightFiles,
    Weights,
)
from ddtree_ops.core.checks.ranks import longest
from ddtree_ops.core.checks.rule import Rule, Section
from ddtree_ops.core.facts_live import Service
from ddtree_ops.core.finding import Finding, block, ok, warn

if TYPE_CHECKING:
    from ddtree_ops.core.facts_live import Live
    from ddtree_ops.core.wanted import Wanted

GB = 10**9
#: The pre-image of the triton backend: a series that patches it keeps indices for each request, not for each row.
_TRITON = "srt/layers/attention/triton_backend.py"
#: Bytes that a backend's graphs keep for each row and position of the context.
_INDEX = {"triton": 8, "flashinfer": 4}
#: Requests that the engine runs at most where it speculates and nobody says.
_RUNNING = 48
#: What a rank needs of the host's memory beside the file that it reads.
_RANK = 3 * GB


@dataclass(frozen=True)
class HostMemory:
    """Bytes. limit: the unit's MemoryMax, None for none."""

    total: int
    available: int
    limit: int | None


def _read(raw: Mapping[str, Any]) -> HostMemory:
    return HostMemory(int(raw["total"]), int(raw["available"]), raw["limit"])


MEMORY = Section("memory", HostMemory, _read)


def gpu(found: Weights, live: Live, wanted: Wanted) -> Sequence[Finding]:
    """Whether the server fits the GPUs, with the flag that would make it fit."""
    if live.cuda is False:
        return []
    args, models, rooms = arguments(live, wanted), live.of(CHECKPOINTS), gpus(live)
    if (
        args is None
        or not isinstance(models, Checkpoints)
        or models.target is None
        or not models.target.known
    ):
        return [_unknown("the arguments or the target's config are", wanted)]
    if rooms is None:
        return [_unknown("the GPUs' memory is", wanted)]
    need = needed(args, models, found, rooms, wanted)
    if isinstance(need, str):
        return [_unknown(need, wanted)]
    fit, plan = memory.judge(need)
    text = _say(need, plan)
    if fit is memory.Fit.YES:
        return [_held(need, plan, rooms, live, wanted) or ok("memory-fit", text)]
    flags = memory.remedies(need)
    remedy = (
        f"{' or '.join(flags)}, in the unit"
        if flags
        else "fewer requests and a shorter context, or more GPUs"
    )
    if not any(flag.startswith("--mem-fraction-static") for flag in flags):
        text += "; no value of --mem-fraction-static makes it fit"
    if fit is memory.Fit.NO:
        return [block("memory-fit", f"does not fit: {text}", remedy)]
    return [warn("memory-fit", f"hardly fits: {text}", remedy)]


def _unknown(what: str, wanted: Wanted) -> Finding:
    return warn(
        "memory-fit",
        f"{what} unknown: whether it fits cannot be told",
        f"ddtree-ops doctor --host {wanted.host}",
    )


def _held(
    need: memory.Need, plan: memory.Budget, rooms: Sequence[GpuRoom], live: Live, wanted: Wanted
) -> Finding | None:
    """Memory that others hold while the service is stopped: it will still be held when it starts."""
    if not isinstance(live.service, Service) or live.service.active_state != "inactive":
        return None
    most = max(rooms, key=lambda room: room.used)
    if most.used < memory.GIB:
        return None
    text = (
        f"{most.used / GB:.1f} of {most.total / GB:.1f} GB of a GPU are held, and {wanted.service} is stopped"
    )
    remedy = f"ssh {wanted.host} nvidia-smi --query-compute-apps=pid,used_memory --format=csv, then end that process"
    if most.total - most.used < plan.weights + plan.outside:
        return block("memory-fit", f"{text}: what is free cannot hold the weights", remedy)
    return warn("memory-fit", f"{text}: the KV pool shrinks by it, without an error", remedy)


def needed(
    args: Arguments, models: Checkpoints, files: Weights, rooms: Sequence[GpuRoom], wanted: Wanted
) -> memory.Need | str:
    """The arithmetic's input; or, in words, what of it is not known."""
    target, draft = models.target, models.draft
    if target is None or files.target is None or not files.target.bytes:
        return "the weights' size is"
    layers, hidden = target.num_hidden_layers, target.hidden_size
    heads = target.num_key_value_heads or target.num_attention_heads
    if not (layers and hidden and heads and target.vocab_size):
        return "the target's shape (layers, heads, vocabulary) is"
    if args.has("--json-model-override-args"):
        return "the model's shape after --json-model-override-args is"
    speculative = args.algorithm is not None
    total, width = min(room.total for room in rooms), _width(args, draft)
    graphs = 0 if args.has("--disable-cuda-graph") else _graphs(args, total)
    running = args.number("--max-running-requests") or (_RUNNING if speculative else max(graphs, 1))
    given = args.fraction("--mem-fraction-static")
    chunk = args.number("--chunked-prefill-size")
    share = memory.default_fraction(total, args.tp, args.pp, speculative, graphs or None, chunk)
    backend = args.text("--decode-attention-backend", "--attention-backend") or (
        "triton" if args.tree else ""
    )
    state = _recurrent(target, args)
    if target.hybrid and state is None:
        return "the recurrent layers' shape is"
    head = target.head_dim or hidden // (target.num_attention_heads or heads)
    latent = (target.kv_lora_rank or 0) + (target.qk_rope_head_dim or 0)
    offload = int((args.fraction("--cpu-offload-gb") or 0) * GB) * args.tp
    slots = args.number("--max-mamba-cache-size")
    if slots is None and args.has("--disable-radix-cache"):
        slots = running
    return memory.Need(
        total=total,
        fraction=given or share,
        fraction_given=given is not None,
        target=max(0, _loaded(files.target, target, args) - offload),
        draft=_loaded(files.draft, draft, args) if draft and files.draft and speculative else 0,
        attention_layers=layers - (state.layers if state else 0),
        draft_layers=(draft.num_hidden_layers or 0) if draft and speculative else 0,
        kv=latent if target.kv_lora_rank else 2 * heads * head,
        kv_heads=0 if target.kv_lora_rank else heads,
        kv_bytes=1 if (args.text("--kv-cache-dtype") or "").startswith("fp8") else 2,
        vocab=target.vocab_size,
        context=args.number("--context-length") or longest(target) or 4096,
        width=width,
        running=running,
        graphs=min(graphs, running),
        tp=args.tp,
        pp=args.pp,
        index=_INDEX.get(backend, 0),
        index_rows=not (args.algorithm == "DDTREE" and _TRITON in wanted.base),
        mask=backend == "triton",
        recurrent=state,
        state_slots=slots if state else None,
        pool_limit=args.number("--max-total-tokens"),
    )


def _width(args: Arguments, draft: Side | None) -> int:
    """Rows verified for one request: the block, or the tree and its root."""
    if args.algorithm is None:
        return 1
    own = draft.dflash.block_size if draft and draft.dflash else None
    block_size = args.number("--speculative-dflash-block-size", "--speculative-num-draft-tokens") or own
    if args.tree:
        return max(block_size or 16, (args.number("--speculative-ddtree-budget") or 16) + 1)
    return block_size or {"NGRAM": 12, "EAGLE": 4, "EAGLE3": 4, "STANDALONE": 4}.get(args.algorithm, 16)


def _graphs(args: Arguments, total: int) -> int:
    sizes = [int(word) for word in (args.text("--cuda-graph-bs") or "").split() if word.isdigit()]
    return (
        max(sizes) if sizes else args.number("--cuda-graph-max-bs") or memory.default_graphs(total, args.tp)
    )


def _recurrent(side: Side, args: Arguments) -> memory.Recurrent | None:
    heads, key, value = side.linear_num_value_heads, side.linear_key_head_dim, side.linear_value_head_dim
    if not (side.hybrid and heads and key and value):
        return None
    short = (args.text("--mamba-ssm-dtype") or side.mamba_ssm_dtype or "float32") in ("bfloat16", "float16")
    return memory.Recurrent(
        layers=side.recurrent_layers,
        heads=heads,
        key=key,
        value=value,
        conv=2 * (side.linear_num_key_heads or heads) * key + heads * value,
        kernel=side.linear_conv_kernel_dim or 4,
        state_bytes=2 if short else 4,
    )


def _loaded(files: WeightFiles, side: Side, args: Arguments) -> int:
    """Bytes after loading, at least: float32 is halved on the way, --quantization may leave a quarter."""
    size = files.bytes
    if args.text("--dtype") not in ("float", "float32"):
        size -= files.by_dtype.get("F32", 0) // 2
    made = args.has("--quantization", "--torchao-config")
    return size // 4 if made and not side.quantization else size


def _say(need: memory.Need, plan: memory.Budget) -> str:
    states = plan.states + plan.slots
    parts = [f"weights {plan.weights / GB:.1f}"]
    if states:
        parts.append(f"recurrent states {states / GB:.1f} ({need.running} requests x {need.width} rows)")
    inside = " + ".join(parts)
    pool = (
        f"{plan.tokens} KV tokens of {plan.per_token / 1024:.0f} KiB left"
        if plan.tokens > 0
        else "nothing left for KV"
    )
    outside = [
        ("draft", plan.draft),
        ("logits", plan.logits),
        ("graph indices", plan.indices),
        ("masks", plan.masks),
    ]
    rest = " + ".join(f"{name} {size / GB:.1f}" for name, size in outside if size >= GB // 10) or "little"
    share = f"{plan.static / GB:.1f} GB static ({need.fraction:g}{'' if need.fraction_given else ', the default'})"
    return (
        f"a GPU of {need.total / GB:.1f} GB, {share}: {inside}, {pool} for a context of {need.context}; "
        f"outside it {rest} of {plan.room / GB:.1f} GB (batch {need.graphs} x {need.width} rows)"
    )


def host(found: HostMemory, live: Live, wanted: Wanted) -> Sequence[Finding]:
    """Host memory for a load: each rank reads the largest file, and keeps its own processes."""
    files, args = live.of(WEIGHTS), arguments(live, wanted)
    if not isinstance(files, Weights) or files.target is None or args is None:
        remedy = f"ddtree-ops doctor --host {wanted.host}"
        return [warn("load-memory", "what a load needs of the host's memory is unknown", remedy)]
    ranks = args.tp * args.pp
    least, need = (ranks * (files.target.largest + each) for each in (GB, _RANK))
    cache = args.number("--hicache-size") if args.has("--enable-hierarchical-cache") else 0
    # What is offloaded is pinned: it cannot be swapped or dropped.
    pinned = min(args.number("--cpu-offload-gb") or 0, files.target.bytes / ranks / GB)
    least, need = (size + int(ranks * ((cache or 0) + pinned) * GB) for size in (least, need))
    if live.cuda is False:
        whole = files.target.bytes + (files.draft.bytes if files.draft else 0)
        least, need = max(least, whole), max(need, whole)
    shares = f"{ranks} ranks x largest file and process"
    shares += f", --hicache-size {cache} each" if cache else ""
    shares += f", --cpu-offload-gb {pinned:.0f} each, pinned" if pinned else ""
    text = f"a load takes up to {need / GB:.1f} GB of host memory ({shares})"
    rooms = [
        ("the unit's MemoryMax is", found.limit),
        ("the host has", found.total),
        ("available are", found.available),
    ]
    active = isinstance(live.service, Service) and live.service.active_state == "active"
    firm = [
        room for room in (found.limit, found.total, None if active else found.available) if room is not None
    ]
    name, room = min(((name, room) for name, room in rooms if room is not None), key=lambda one: one[1])
    if room >= need:
        return [ok("load-memory", f"{text}, {name} {room / GB:.1f} GB")]
    remedy = f"ssh {wanted.host} free -g, then end what holds it, or lower --hicache-size or --cpu-offload-gb"
    if room == found.limit:
        remedy = (
            f"MemoryMax={need // GB + 4}G or more in a drop-in of {wanted.service}, then ddtree-ops adopt"
        )
    said = f"{text}, {name} {room / GB:.1f} GB: the OOM killer would end it, exit -9"
    return [(block if min(firm) < least else warn)("load-memory", said, remedy)]


RULES: tuple[Rule[Any], ...] = (
    Rule(
        "memory-fit",
        WEIGHTS,
        gpu,
        "Weights, graphs and a tree's recurrent states that do not fit fail minutes into the start, with advice that "
        "points both ways.",
        ("F095", "F099"),
    ),
    Rule(
        "load-memory",
        MEMORY,
        host,
        "A load that the host's OOM killer ends looks like a scheduler that died without a word: exit code -9.",
        ("F100", "F103"),
    ),
)
