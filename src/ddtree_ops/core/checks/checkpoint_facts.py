"""Target and draft as the service's user sees them: their configs, tokenizers and weight files, typed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

from ddtree_ops.core.checks.rule import Section

T = TypeVar("T")


@dataclass(frozen=True)
class Dflash:
    """What a DFlash draft says of itself. None: it does not say."""

    target_layer_ids: tuple[int, ...] | None = None
    block_size: int | None = None
    num_target_layers: int | None = None
    mask_token: str | None = None
    mask_token_id: int | None = None


@dataclass(frozen=True)
class Side:
    """One checkpoint. hub: named by a hub id; exists: None where this user cannot tell; directory: where its files
    are, None for a hub id without a cached copy; denied: a directory that the service's user may not enter.
    layer_types: how many layers of each kind. eagle_layers: how many target layers an EAGLE3 draft
    says that it joins. type_known, class_known: to transformers, to the engine; None: not told.
    """

    path: str
    hub: bool = False
    exists: bool | None = None
    directory: str | None = None
    denied: str | None = None
    error: str | None = None
    gguf: bool = False
    architectures: tuple[str, ...] = ()
    model_type: str | None = None
    text_model_type: str | None = None
    type_known: bool | None = None
    class_known: bool | None = None
    remote_code: bool = False
    layer_types: Mapping[str, int] = field(default_factory=dict)
    hybrid: bool | None = None
    multimodal: bool = False
    dtype: str | None = None
    quantization: str | None = None
    tied: bool = False
    rope_theta: float | None = None
    rope_parameters_theta: float | None = None
    rope_factor: float | None = None
    rope_original: int | None = None
    num_hidden_layers: int | None = None
    hidden_size: int | None = None
    num_attention_heads: int | None = None
    num_key_value_heads: int | None = None
    head_dim: int | None = None
    vocab_size: int | None = None
    draft_vocab_size: int | None = None
    target_hidden_size: int | None = None
    eagle_layers: int | None = None
    sliding_window: int | None = None
    use_sliding_window: bool | None = None
    max_position_embeddings: int | None = None
    num_experts: int | None = None
    n_routed_experts: int | None = None
    num_local_experts: int | None = None
    kv_lora_rank: int | None = None
    qk_rope_head_dim: int | None = None
    linear_num_value_heads: int | None = None
    linear_num_key_heads: int | None = None
    linear_key_head_dim: int | None = None
    linear_value_head_dim: int | None = None
    linear_conv_kernel_dim: int | None = None
    full_attention_interval: int | None = None
    mamba_ssm_dtype: str | None = None
    tokenizer: tuple[str, ...] = ()
    tokenizer_faults: tuple[str, ...] = ()
    tokenizer_class: str | None = None
    tokenizer_class_known: bool | None = None
    tokenizer_needs: str | None = None
    chat_template: bool | None = None
    filesystem: str | None = None
    dflash: Dflash | None = None
    mask_token_in_target: bool | None = None

    @property
    def known(self) -> bool:
        """Whether its config was read."""
        return self.directory is not None and not self.error and not self.denied and not self.gguf

    @property
    def recurrent_layers(self) -> int:
        """Layers with a recurrent state."""
        words = ("linear", "mamba", "recurrent", "gated_delta")
        named = sum(n for kind, n in self.layer_types.items() if any(word in kind for word in words))
        if named or not self.hybrid or not self.num_hidden_layers:
            return named
        return self.num_hidden_layers - self.num_hidden_layers // (self.full_attention_interval or 4)

    @property
    def windowed_layers(self) -> int:
        return sum(n for kind, n in self.layer_types.items() if "sliding" in kind or "local" in kind)


@dataclass(frozen=True)
class Hub:
    """The hub's cache as the unit sees it. writable: None where it does not exist. variables: names only."""

    cache: str
    exists: bool
    writable: bool | None
    offline: bool
    token: bool
    variables: tuple[str, ...]


@dataclass(frozen=True)
class Checkpoints:
    """same: target and draft are one directory. transformers: the version in the unit's interpreter."""

    target: Side | None
    draft: Side | None
    same: bool
    hub: Hub
    transformers: str | None


@dataclass(frozen=True)
class WeightFiles:
    """by_dtype: bytes of the tensors by their type in the file. faulty: how many files have a fault, `faults` names
    some. unchecked: files that the time limit left out."""

    format: str | None
    files: int
    bytes: int
    largest: int
    by_dtype: Mapping[str, int]
    shapes: Mapping[str, Sequence[int]]
    faults: tuple[tuple[str, str], ...]
    faulty: int
    unchecked: int


@dataclass(frozen=True)
class Weights:
    target: WeightFiles | None
    draft: WeightFiles | None


def pick(kind: type[T], raw: Mapping[str, Any], **given: Any) -> T:
    """A dataclass from the keys that it has fields for; null stands for the field's default, lists become tuples."""
    names = {one.name for one in fields(kind)}  # type: ignore[arg-type]
    values = {
        k: tuple(v) if isinstance(v, list) else v for k, v in raw.items() if k in names and v is not None
    }
    return kind(**{**values, **given})


def _side(raw: Mapping[str, Any] | None) -> Side | None:
    if raw is None:
        return None
    own = raw.get("dflash")
    return pick(Side, raw, dflash=pick(Dflash, own) if own else None)


def _checkpoints(raw: Mapping[str, Any]) -> Checkpoints:
    hub = raw["hub"]
    return Checkpoints(
        target=_side(raw["target"]),
        draft=_side(raw["draft"]),
        same=bool(raw["same"]),
        hub=pick(Hub, hub, writable=hub["writable"]),
        transformers=raw["transformers"],
    )


def _weights(raw: Mapping[str, Any]) -> Weights:
    def one(side: Mapping[str, Any] | None) -> WeightFiles | None:
        if side is None:
            return None
        faults = tuple((str(fault["file"]), str(fault["why"])) for fault in side["faults"])
        return pick(WeightFiles, side, faults=faults, format=side["format"])

    return Weights(one(raw["target"]), one(raw["draft"]))


CHECKPOINTS = Section("checkpoints", Checkpoints, _checkpoints)
WEIGHTS = Section("weights", Weights, _weights)
