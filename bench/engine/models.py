"""Makes the GPU benchmarks' random pair, `models.py OUTDIR`: a Qwen3 target and its DFlash draft, bfloat16.

OUT/target  4 layers, hidden 256, vocabulary 512; the next token depends on the whole context
OUT/draft   2 layers, block 8

A random draft is never right. So all embeddings share one direction, three rows of the LM head lie along it, and
target and draft both choose among these three tokens, each by its own reading of the context: a chain is right now
and then, a tree of width three nearly always holds the target's choice. No download, seconds.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

HIDDEN, INTER, LAYERS, HEADS, KV_HEADS, HEAD_DIM, VOCAB = 256, 512, 4, 4, 2, 64, 512
DRAFT_LAYERS, TARGET_LAYER_IDS, BLOCK = 2, [0, 2], 8
CHOICES = [300, 342, 384]
SPECIAL = ["<|endoftext|>", "<|mask|>"]
EOS, MASK = VOCAB - 2, VOCAB - 1
# how strongly: embeddings share the direction; choices lie along it; a choice leads to the next; attention is sharp
SHARED, ALONG, ONWARD, SHARP = 1.0, 0.1, 0.4, 5.0
CHOICE_SCALE, REST = 0.1, 0.02
Weights = dict[str, torch.Tensor]


class Rand:
    """Normal numbers from one seed, in the order asked for."""

    def __init__(self, seed: int) -> None:
        self._generator = torch.Generator().manual_seed(seed)

    def __call__(self, rows: int, columns: int, std: float = 1.0) -> torch.Tensor:
        return torch.randn(rows, columns, generator=self._generator) * std

    def projection(self, rows: int, columns: int, gain: float = 1.0) -> torch.Tensor:
        """A matrix that keeps the size of its input, times gain."""
        return self(rows, columns, std=gain * columns**-0.5)


def layer(rand: Rand, prefix: str, gain: float, sharp: float) -> Weights:
    """One Qwen3 layer. gain: how much it writes; sharp: scale of the query norm, large: few positions decide."""
    heads, kv = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
    return {
        f"{prefix}input_layernorm.weight": torch.ones(HIDDEN),
        f"{prefix}post_attention_layernorm.weight": torch.ones(HIDDEN),
        f"{prefix}self_attn.q_proj.weight": rand.projection(heads, HIDDEN, 2.0),
        f"{prefix}self_attn.k_proj.weight": rand.projection(kv, HIDDEN, 2.0),
        f"{prefix}self_attn.v_proj.weight": rand.projection(kv, HIDDEN),
        f"{prefix}self_attn.o_proj.weight": rand.projection(HIDDEN, heads, gain),
        f"{prefix}self_attn.q_norm.weight": torch.full((HEAD_DIM,), sharp),
        f"{prefix}self_attn.k_norm.weight": torch.ones(HEAD_DIM),
        f"{prefix}mlp.gate_proj.weight": rand.projection(INTER, HIDDEN),
        f"{prefix}mlp.up_proj.weight": rand.projection(INTER, HIDDEN),
        f"{prefix}mlp.down_proj.weight": rand.projection(HIDDEN, INTER, gain),
    }


def vocabulary(rand: Rand) -> Weights:
    """Embedding and LM head: who may follow whom."""
    shared = torch.ones(HIDDEN)
    basis = torch.linalg.qr(torch.cat([shared[:, None], rand(HIDDEN, len(CHOICES))], dim=1))[0]
    own = basis[:, 1:].T * HIDDEN**0.5

    def without_shared(rows: torch.Tensor) -> torch.Tensor:
        return rows - rows.mean(dim=1, keepdim=True)

    embed = without_shared(rand(VOCAB, HIDDEN))
    head = without_shared(rand(VOCAB, HIDDEN, std=REST))
    for i, token in enumerate(CHOICES):
        embed[token] += ONWARD * (own[(i + 1) % len(CHOICES)] - own[i])
        head[token] = ALONG * shared + CHOICE_SCALE * own[i]
    head[[EOS, MASK]] -= ALONG * shared
    return {"model.embed_tokens.weight": embed + SHARED * shared, "lm_head.weight": head}


def target() -> Weights:
    """A Qwen3ForCausalLM."""
    rand = Rand(1)
    weights = vocabulary(rand) | {"model.norm.weight": torch.ones(HIDDEN)}
    for i in range(LAYERS):
        weights |= layer(rand, f"model.layers.{i}.", gain=2.0, sharp=SHARP)
    return weights


def draft() -> Weights:
    """A DFlashDraftModel; it borrows the target's embedding and LM head."""
    rand = Rand(2)
    weights = {
        "fc.weight": rand.projection(HIDDEN, len(TARGET_LAYER_IDS) * HIDDEN),
        "hidden_norm.weight": torch.ones(HIDDEN),
        "norm.weight": torch.ones(HIDDEN),
    }
    for i in range(DRAFT_LAYERS):
        weights |= layer(rand, f"layers.{i}.", gain=0.5, sharp=3.0)
    return weights


def config(**more: object) -> dict[str, object]:
    """config.json, in Hugging Face's Qwen3 terms."""
    return {
        "model_type": "qwen3",
        "vocab_size": VOCAB,
        "hidden_size": HIDDEN,
        "intermediate_size": INTER,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "hidden_act": "silu",
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "attention_bias": False,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "bos_token_id": EOS,
        "eos_token_id": EOS,
        **more,
    }


def write(directory: Path, settings: dict[str, object], weights: Weights) -> None:
    """A loadable model directory; its tokenizer has one token a byte and fillers."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(settings, indent=1))
    tensors = {name: weight.to(torch.bfloat16).contiguous() for name, weight in weights.items()}
    save_file(tensors, str(directory / "model.safetensors"), metadata={"format": "pt"})
    tokens = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens += [f"<f{i}>" for i in range(len(tokens), VOCAB - len(SPECIAL))]
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(SPECIAL)
    tokenizer.save(str(directory / "tokenizer.json"))
    names = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": SPECIAL[0], "model_max_length": 4096}
    (directory / "tokenizer_config.json").write_text(json.dumps(names))


def main(out: Path) -> None:
    """Write both models below `out`."""
    write(out / "target", config(architectures=["Qwen3ForCausalLM"], num_hidden_layers=LAYERS), target())
    dflash = {"mask_token_id": MASK, "mask_token": SPECIAL[1], "target_layer_ids": TARGET_LAYER_IDS}
    settings = config(
        architectures=["DFlashDraftModel"],
        num_hidden_layers=DRAFT_LAYERS,
        num_target_layers=LAYERS,
        block_size=BLOCK,
        dflash_config=dflash,
    )
    write(out / "draft", settings, draft())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
