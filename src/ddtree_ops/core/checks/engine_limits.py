"""Rules about what this engine refuses of this model on these GPUs, as its own text or its assertions say."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ddtree_ops.core.checks.argument_facts import ARGUMENTS, BLOCK_DRAFTERS, DP, Arguments, judged
from ddtree_ops.core.checks.checkpoint import arguments
from ddtree_ops.core.checks.checkpoint_facts import CHECKPOINTS, Checkpoints, Side
from ddtree_ops.core.checks.rule import Rule
from ddtree_ops.core.checks.toolchain_facts import SECTION as TOOLCHAIN
from ddtree_ops.core.checks.toolchain_facts import Device
from ddtree_ops.core.finding import Finding, block, ok, warn

if TYPE_CHECKING:
    from ddtree_ops.core.facts_live import Live
    from ddtree_ops.core.wanted import Wanted

#: The least compute capability of a method (get_min_capability of SGLang 0.5.11), where that is above torch's own.
LEAST = {
    "fp8": 80, "awq_marlin": 80, "gptq_marlin": 80, "qoq": 80, "mxfp4": 80, "blockwise_int8": 80, "w8a8_fp8": 89,
    "modelopt_fp8": 89, "w4afp8": 90, "petit_nvfp4": 90, "modelopt_fp4": 100, "mxfp8": 100,
}  # fmt: skip
#: Methods whose kernels compute in float16 alone.
HALF = ("awq", "gptq")
EP = ("--ep-size", "--expert-parallel-size", "--ep")
#: Widths that FlashInfer's attention is compiled for.
WIDTHS = (64, 128, 256, 512)
_EAGLES = ("EAGLE", "EAGLE3", "STANDALONE")


def _devices(live: Live) -> tuple[Device, ...]:
    return getattr(live.of(TOOLCHAIN), "devices", None) or ()


def refused(found: Arguments, live: Live, wanted: Wanted) -> Sequence[Finding]:
    """What the engine asserts of every speculative algorithm before it loads anything."""
    args = judged(found, wanted)
    if args.algorithm is None:
        return []
    id, said = "speculation-refused", []
    where = f"{args.algorithm} and"
    if args.pp > 1 and args.algorithm not in BLOCK_DRAFTERS:  # theirs is the rule `ddtree`
        said.append(
            block(id, f"{where} pipeline stages (--pp-size {args.pp}) exclude each other", "--pp-size 1")
        )
    refuses = [name for name in args.engine.dp_refused or () if name not in BLOCK_DRAFTERS]
    if args.has("--enable-dp-attention") and args.algorithm in refuses:
        text = f"{where} --enable-dp-attention: this engine refuses the pair at start"
        said.append(block(id, text, "remove --enable-dp-attention from the unit, or the algorithm"))
    if args.has("--enable-mixed-chunk") and args.engine.mixed_chunk_off is False:
        text = f"{where} --enable-mixed-chunk: an assertion of the engine ends the start"
        said.append(block(id, text, "remove --enable-mixed-chunk from the unit"))
    topk, rows = args.number("--speculative-eagle-topk"), args.number("--speculative-num-draft-tokens")
    lacks = "--speculative-eagle-topk" if topk is None else "--speculative-num-draft-tokens"
    partly = topk is None or (rows is None and topk > 1)
    if args.algorithm in _EAGLES and args.number("--speculative-num-steps") is not None and partly:
        text = f"--speculative-num-steps without {lacks}: the engine fills in all three numbers or none"
        said.append(block(id, text, f"{lacks} in the unit too, or none of the three"))
    return said or [ok(id, f"the engine takes {args.algorithm} with these arguments")]


def asserted(found: Arguments, live: Live, wanted: Wanted) -> Sequence[Finding]:
    """What the engine asserts of any arguments (check_server_args of SGLang 0.5.11)."""
    args = judged(found, wanted)
    id, said = "arguments-refused", []
    chunk, page = args.number("--chunked-prefill-size"), args.number("--page-size") or 1
    if chunk and chunk > 0 and chunk % page and args.text("--disaggregation-mode") != "decode":
        text = f"--chunked-prefill-size {chunk} is no multiple of --page-size {page}"
        said.append(block(id, text, f"--chunked-prefill-size {chunk - chunk % page or page} in the unit"))
    data = args.number(*DP) or 1
    if args.has("--enable-dp-attention") and data > 1 and args.tp % data:
        text = f"--enable-dp-attention shares the {args.tp} ranks of --tp-size out over --dp-size {data}: unevenly"
        said.append(block(id, text, f"--dp-size {args.tp} in the unit, or another divisor of --tp-size"))
    if args.has("--enable-dp-lm-head") and data > 1 and not args.has("--enable-dp-attention"):
        text = "--enable-dp-lm-head needs --enable-dp-attention"
        said.append(block(id, text, "--enable-dp-attention in the unit too, or remove --enable-dp-lm-head"))
    said += _nodes(args)
    both = args.has("--max-lora-rank") and args.has("--lora-target-modules")
    if args.has("--enable-lora") and not args.has("--lora-paths") and not both:
        text = "--enable-lora without --lora-paths wants --max-lora-rank and --lora-target-modules, both"
        said.append(
            block(id, text, "--lora-paths, or --max-lora-rank and --lora-target-modules, in the unit")
        )
    name = args.text("--served-model-name") or ""
    if ":" in name:
        text = f"--served-model-name {name} has a colon, which is kept for model:adapter"
        said.append(block(id, text, f"--served-model-name {name.replace(':', '-')} in the unit"))
    share = args.fraction("--mem-fraction-static")
    if share is not None and 0.95 < share <= 0.99 and live.cuda is not False:
        text = f"--mem-fraction-static {share:g} leaves {1 - share:.0%} of a GPU for activations, graphs and CUDA"
        said.append(warn(id, f"{text}: out of memory under load", "--mem-fraction-static 0.9 in the unit"))
    return said or [ok(id, "none of the engine's assertions on arguments fails")]


def _nodes(args: Arguments) -> list[Finding]:
    """A server over several hosts meets at one address, and each host knows which one it is."""
    id, nodes, said = "arguments-refused", args.number("--nnodes") or 1, []
    if nodes < 2:
        return []
    if args.tp * args.pp % nodes:
        text = f"--tp-size {args.tp} x --pp-size {args.pp} ranks do not divide over --nnodes {nodes}"
        said.append(block(id, text, "another --tp-size in the unit of every node"))
    if not args.has("--dist-init-addr", "--nccl-init-addr"):
        text = f"--nnodes {nodes} without --dist-init-addr: the nodes have no address to meet at, and wait for ever"
        said.append(
            block(id, text, "--dist-init-addr HOST:PORT of the first node, in the unit of every node")
        )
    elif not args.has("--node-rank"):
        text = f"--nnodes {nodes} without --node-rank: this host takes itself for the first node (0)"
        said.append(warn(id, text, "--node-rank 0 in the unit of the first node, 1 in that of the next"))
    return said


def quantized(found: Checkpoints, live: Live, wanted: Wanted) -> Sequence[Finding]:
    """The GPUs and the dtype have the kernels of the weights' quantisation."""
    side, args = found.target, arguments(live, wanted)
    if side is None or not side.known or args is None or live.cuda is False:
        return []
    asked = args.text("--quantization")
    method = (asked or side.quantization or "").lower().replace("-", "_")
    id, least = "quantization-gpu", LEAST.get(method, 0)
    for i, device in enumerate(_devices(live)):
        where = f"{side.path} is {method}, and GPU {i} ({device.name}) has compute capability {device.cc}"
        if device.number < least:
            text = f"{where}: the engine takes that method from {least // 10}.{least % 10} up"
            return [
                block(id, text, f"hosts.yaml: model: a checkpoint that is not {method}, for {wanted.host}")
            ]
        if method == "fp8" and device.number < 89:
            if args.engine.fp8_marlin:
                text = f"{where}: no FP8 there (8.9 up), Marlin computes it in 16 bits: slower"
                return [warn(id, text, f"hosts.yaml: model: an AWQ or GPTQ checkpoint, for {wanted.host}")]
            text = f"{where}: FP8 arithmetic begins at 8.9, and this engine has no way around it (fp8e4nv)"
            return [
                block(id, text, f"hosts.yaml: model: an AWQ, GPTQ or bfloat16 checkpoint, for {wanted.host}")
            ]
    cache, backend = (
        args.text("--kv-cache-dtype"),
        args.text("--decode-attention-backend", "--attention-backend"),
    )
    old = next((device for device in _devices(live) if device.number < 89), None)
    if old and cache == "fp8_e4m3" and (backend or ("triton" if args.tree else "")) == "triton":
        text = f"--kv-cache-dtype fp8_e4m3 under the triton backend: {old.name} ({old.cc}) has no such type (fp8e4nv)"
        return [block(id, text, "--kv-cache-dtype fp8_e5m2, or auto, in the unit")]
    dtype = args.text("--dtype") if args.text("--dtype") not in (None, "auto") else side.dtype
    # Below 8.0 the engine computes in float16 by itself.
    if asked in HALF and dtype == "bfloat16" and any(device.number >= 80 for device in _devices(live)):
        text = f"--quantization {asked} computes in float16 only, and the weights of {side.path} are bfloat16"
        return [block(id, text, f"--quantization {asked}_marlin, or --dtype float16, in the unit")]
    return [ok(id, f"{side.path}: {method or 'not quantised'}, {dtype or 'no dtype'}")]


def experts(found: Checkpoints, live: Live, wanted: Wanted) -> Sequence[Finding]:
    """Experts are dealt evenly, to ranks that exist."""
    side, args = found.target, arguments(live, wanted)
    parts = (args.number(*EP) or 1) if args else 1
    if side is None or not side.known or args is None or parts < 2:
        return []
    count = side.num_experts or side.n_routed_experts or side.num_local_experts
    spare = args.number("--ep-num-redundant-experts") or 0
    if args.tp % parts:
        text = f"--ep-size {parts} does not divide --tp-size {args.tp}: the experts' ranks are those of tp"
        return [block("experts-divide", text, f"--ep-size {args.tp} in the unit")]
    if count and (count + spare) % parts:
        text = f"{side.path}: {count + spare} experts cannot be dealt to {parts} ranks"
        return [
            block("experts-divide", text, "another --ep-size, or --ep-num-redundant-experts, in the unit")
        ]
    return [ok("experts-divide", f"{count or 'no'} experts on {parts} ranks")]


def width(found: Checkpoints, live: Live, wanted: Wanted) -> Sequence[Finding]:
    """FlashInfer, where it is named, has kernels for the width of the heads."""
    args = arguments(live, wanted)
    if args is None:
        return []
    named = "--attention-backend", "--decode-attention-backend", "--prefill-attention-backend"
    flags = [flag for flag in named if args.text(flag) == "flashinfer"]
    sides = [(found.target, flags)]
    if args.algorithm:
        own = "--speculative-draft-attention-backend"
        sides.append(
            (found.draft, ([own] if args.text(own) == "flashinfer" else []) if args.has(own) else flags)
        )
    for side, by in sides:
        size = _width(side)
        if side is None or not by or size is None or side.kv_lora_rank or size in WIDTHS:
            continue
        text = f"{side.path} has heads of {size} (head_dim), and {by[0]} flashinfer takes {WIDTHS[0]} to {WIDTHS[-1]} "
        return [block("head-dim", text + "by powers of two only", f"{by[0]} triton in the unit")]
    return [ok("head-dim", "the attention backend takes the heads' width")] if flags else []


def _width(side: Side | None) -> int | None:
    if side is None or not side.known:
        return None
    if side.head_dim or not (side.hidden_size and side.num_attention_heads):
        return side.head_dim
    return side.hidden_size // side.num_attention_heads


def hybrid(found: Checkpoints, live: Live, wanted: Wanted) -> Sequence[Finding]:
    """A hybrid model's own limits: the attention backends on Blackwell, and a recurrent state for each request."""
    side, args = found.target, arguments(live, wanted)
    if side is None or not side.known or not side.hybrid or args is None:
        return []
    given, takes = args.text("--attention-backend"), args.engine.blackwell_hybrid
    blackwell = next((one for one in _devices(live) if one.number // 10 in (10, 11, 12)), None)
    if given and takes and blackwell and given not in takes:
        text = f"--attention-backend {given} for the hybrid model {side.path} on {blackwell.name}: this engine takes "
        remedy = f"--attention-backend {takes[-1]} in the unit"
        return [block("hybrid-limits", f"{text}{', '.join(takes)} there", remedy)]
    slots, running = args.number("--max-mamba-cache-size"), args.number("--max-running-requests")
    if slots is not None and running is not None and slots < running:
        text = f"--max-mamba-cache-size {slots} has no state for {running} requests (--max-running-requests): the "
        text += "scheduler lets fewer run at once and says so in one line only"
        return [warn("hybrid-limits", text, f"--max-mamba-cache-size {running} or more in the unit")]
    return [
        ok("hybrid-limits", "the attention backend is one for hybrid models, with a state for each request")
    ]


RULES: tuple[Rule[Any], ...] = (
    Rule("arguments-refused", ARGUMENTS, asserted, "The engine asserts these at once: the start ends there."),
    Rule(
        "speculation-refused", ARGUMENTS, refused,
        "Assertions on the arguments end the start at once, after the old server is gone.",
    ),
    Rule(
        "quantization-gpu", CHECKPOINTS, quantized,
        "A method without kernels for the GPU or the dtype is refused when the model is built, or by Triton.",
    ),
    Rule("experts-divide", CHECKPOINTS, experts, "Experts that cannot be dealt evenly end the load with an assertion."),
    Rule("head-dim", CHECKPOINTS, width, "FlashInfer raises at the first call for a width it was not compiled for."),
    Rule(
        "hybrid-limits", CHECKPOINTS, hybrid,
        "The assertion comes with the attention backend, after the weights are loaded; too few states make it slow.",
    ),
)  # fmt: skip
