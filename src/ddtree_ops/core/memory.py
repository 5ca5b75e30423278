"""What a server with a draft tree needs of one GPU's memory, and which one flag would make it fit. Arithmetic alone.

Two budgets, as SGLang divides the GPU by --mem-fraction-static: the static part holds the target's weights, recurrent
states and the KV pool; the rest holds the draft's weights and what the captured graphs keep.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum

GIB = 1 << 30
MIB = 1 << 20
#: What a CUDA context and its libraries take before anything is loaded, and the driver's own share of the GPU: together
#: 1.27 GiB of an H200 were gone at "Load weight begin", 616 MiB of them reserved (bench/preflight/memory.py).
CONTEXT = 600 * MIB
DRIVER = 1 / 230
#: How far the fraction that the engine chooses by itself may be from ours: it knows more (multimodal models).
SLACK = 0.03
#: The share of a budget above which a start is a gamble: activations and fragmentation are not counted here.
EDGE = 0.85
#: The share of a checkpoint that is loaded at least: heads for further tokens (MTP) stay on the disk.
AT_LEAST = 0.95
BIGGEST_FRACTION = 0.95
#: The engine's own share between recurrent states and the KV pool (--mamba-full-memory-ratio).
STATE_RATIO = 0.9


class Fit(StrEnum):
    """NO only where not even the lower bounds fit."""

    YES = "yes"
    EDGE = "edge"
    NO = "no"


@dataclass(frozen=True)
class Recurrent:
    """The recurrent layers of a hybrid model. conv: channels of its convolution. state_bytes: of one number."""

    layers: int
    heads: int
    key: int
    value: int
    conv: int
    kernel: int
    state_bytes: int = 4

    def state(self, tp: int) -> int:
        """Bytes of one request's state on one rank: engine-notes 3.9, 144 MiB and the convolution for a 27B model."""
        ssm = self.layers * (self.heads // tp or 1) * self.key * self.value * self.state_bytes
        return ssm + self.layers * (self.conv // tp or 1) * (self.kernel - 1) * 2


@dataclass(frozen=True)
class Need:
    """One server. total: bytes of its smallest GPU. fraction_given: by the operator, not by the engine's own rule.

    target, draft: bytes of all their weights, as loaded. kv: numbers of one token in one attention layer (K and V,
    all heads). width: rows verified for one request and step. graphs: largest captured batch, 0 for none.
    index: bytes that the graphs keep for each request (or row, index_rows) and position of the context.
    """

    total: int
    fraction: float
    fraction_given: bool
    target: int
    draft: int
    attention_layers: int
    draft_layers: int
    kv: int
    kv_heads: int
    kv_bytes: int
    vocab: int
    context: int
    width: int
    running: int
    graphs: int
    tp: int = 1
    pp: int = 1
    index: int = 0
    index_rows: bool = False
    mask: bool = False
    recurrent: Recurrent | None = None
    state_slots: int | None = None
    pool_limit: int | None = None

    @property
    def ranks(self) -> int:
        return self.tp * self.pp


@dataclass(frozen=True)
class Budget:
    """Bytes on one rank. states: kept for each row of a verify; slots: one a request, kept between steps.

    tokens: what is left of the static part as KV tokens, negative where it is overdrawn. room: what is left for the
    draft and the graphs once the pool is filled."""

    static: int
    weights: int
    states: int
    slots: int
    tokens: int
    per_token: int
    room: int
    draft: int
    logits: int
    indices: int
    masks: int

    @property
    def outside(self) -> int:
        return self.draft + self.logits + self.indices + self.masks


def default_fraction(
    total: int, tp: int, pp: int, speculative: bool, graphs: int | None, chunk: int | None
) -> float:
    """The --mem-fraction-static that SGLang 0.5.11 chooses: the GPU less activations, graphs and the draft."""
    mib = total // MIB
    reserved = (
        512 + max(chunk or default_chunk(total), 2048) * 1.5 + (graphs or default_graphs(total, tp)) * 2
    )
    reserved += tp * pp / 8 * 1024
    if mib > 60 * 1024:
        reserved = max(reserved, 10 * 1024)
    return round((mib - reserved - (4096 if speculative else 0)) / mib, 3)


def default_graphs(total: int, tp: int) -> int:
    """The largest batch that SGLang 0.5.11 captures where nobody says, before --max-running-requests caps it."""
    mib = total // MIB
    for below, small, large in ((20, 8, 8), (35, 24, 80), (60, 32, 160), (90, 256, 512), (160, 256, 512)):
        if mib < below * 1024:
            return small if tp < 4 else large
    return 512


def default_chunk(total: int) -> int:
    """The prefill chunk that SGLang 0.5.11 takes where nobody says."""
    mib = total // MIB
    return next((c for below, c in ((35, 2048), (60, 4096), (160, 8192)) if mib < below * 1024), 16384)


def budget(need: Need, fraction: float | None = None, generous: bool = False) -> Budget:
    """The arithmetic for one rank; generous: with lower bounds, so that what does not fit there fits nowhere."""
    share = need.fraction if fraction is None else fraction
    usable = need.total if generous else need.total - CONTEXT - int(need.total * DRIVER)
    static = int(usable * share)
    weights = int(need.target * (AT_LEAST if generous else 1)) // need.ranks
    state = need.recurrent.state(need.tp) if need.recurrent else 0
    states = state * need.running * need.width if need.width > 1 else 0
    rest = static - weights - states
    slots = 0
    if need.recurrent:
        slots = state * need.state_slots if need.state_slots is not None else 0
        if need.state_slots is None and rest > 0:
            slots = int(rest * STATE_RATIO / (1 + STATE_RATIO)) // state * state
    heads = max(1, need.kv_heads // need.tp) if need.kv_heads else 1
    layer = need.kv * (heads / need.kv_heads if need.kv_heads else 1) * need.kv_bytes
    per_token = max(1, int(layer * (need.attention_layers / need.pp + need.draft_layers)))
    tokens = (rest - slots) // per_token
    if need.pool_limit is not None:
        tokens = min(tokens, need.pool_limit)
    rows = need.graphs * need.width
    # One request more than may run is allocated, and not counted when the pool is sized.
    padding = state * (need.width + 1 if need.width > 1 else 1)
    return Budget(
        static=static,
        weights=weights,
        states=states,
        slots=slots,
        tokens=tokens,
        per_token=per_token,
        room=usable - weights - states - slots - padding - max(0, tokens) * per_token,
        draft=need.draft // need.ranks,
        logits=rows * need.vocab * 4,
        indices=(rows if need.index_rows else need.graphs) * need.context * need.index,
        masks=rows * (need.context + need.width) if need.mask else 0,
    )


def judge(need: Need) -> tuple[Fit, Budget]:
    """Whether it fits, with the estimate that says so."""
    likely = budget(need)
    slack = 0.0 if need.fraction_given else SLACK
    most = budget(need, min(1.0, need.fraction + slack), generous=True)
    least = budget(need, need.fraction - 2 * slack, generous=True)
    if most.tokens <= 0 or least.outside > max(least.room, need.total - most.static):
        return Fit.NO, likely
    tight = likely.tokens < need.context or likely.outside > EDGE * likely.room
    return (Fit.EDGE if tight else Fit.YES), likely


def remedies(need: Need) -> list[str]:
    """Flags with values, each of which alone makes it fit."""
    found = []
    for name, variants in _VARIANTS:
        for value, changed in variants(need):
            if judge(changed)[0] is Fit.YES:
                found.append(f"{name} {value}")
                break
    return found


def _running(need: Need) -> Iterator[tuple[str, Need]]:
    if need.recurrent is None or need.width < 2:
        return
    for value in range(need.running - 1, 0, -1):
        slots = need.state_slots if need.state_slots is None else min(need.state_slots, value)
        yield str(value), replace(need, running=value, graphs=min(need.graphs, value), state_slots=slots)


def _graphs(need: Need) -> Iterator[tuple[str, Need]]:
    value = need.graphs // 2
    while value:
        yield str(value), replace(need, graphs=value)
        value //= 2


def _fraction(need: Need) -> Iterator[tuple[str, Need]]:
    steps = [round(BIGGEST_FRACTION - 0.01 * i, 2) for i in range(66)]
    for value in sorted(steps, key=lambda step: abs(step - need.fraction)):
        yield f"{value:g}", replace(need, fraction=value, fraction_given=True)


def _context(need: Need) -> Iterator[tuple[str, Need]]:
    value = 1 << (need.context - 1).bit_length() - 1 if need.context > 1 else 0
    while value >= 4096:
        yield str(value), replace(need, context=value)
        value //= 2


def _tp(need: Need) -> Iterator[tuple[str, Need]]:
    for factor in (2, 4, 8):
        if need.tp * factor <= 8 and need.kv_heads % (need.tp * factor) == 0:
            yield str(need.tp * factor), replace(need, tp=need.tp * factor)


_VARIANTS: tuple[tuple[str, Callable[[Need], Iterator[tuple[str, Need]]]], ...] = (
    ("--max-running-requests", _running),
    ("--cuda-graph-max-bs", _graphs),
    ("--mem-fraction-static", _fraction),
    ("--context-length", _context),
    ("--tp-size", _tp),
)
