"""Make the lab's tiny models: `mkmodels.py OUTDIR` writes four directories.

cyc_target, cyc_draft: next(C) = D, next(anything else) = C. The draft's best token is C at every position and
    its second D, so a chain accepts exactly 2.0 and a tree 3.0 or 4.0: see `cycle_pair`. The next token
    depends on the last one alone.
ctx_target, ctx_draft: random weights, every projection in use: the next token depends on earlier positions.
    A random draft is never right, so a few rows of the LM head share a direction with all embeddings: target
    and draft both choose among these rows, each by its own reading of the context, and agree now and then.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

HIDDEN, INTER, LAYERS, HEADS, KV_HEADS, HEAD_DIM, VOCAB = 64, 128, 4, 4, 2, 32, 512
DRAFT_LAYERS, TARGET_LAYER_IDS, BLOCK = 2, [0, 1, 2], 4
CYCLE_C, CYCLE_D = 65, 66
FIRST_CHOICE = 97
ANSWER_TOKENS = 24
PROMPTS = [
    [70, 111, 112],
    [71, 111, 112, 3, 4, 5, 6, 7],
    list(range(40, 54)),
    [200, 100, 50, 25, 12, 6, 3, 1, 0],
]
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|mask|>"]
BOS, EOS, MASK = VOCAB - 4, VOCAB - 2, VOCAB - 1
CHAT = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "<|im_start|>assistant\n"
)
Weights = dict[str, torch.Tensor]


class Rand:
    """Normal numbers from one seed, in the order asked for."""

    def __init__(self, seed: int) -> None:
        self._generator = torch.Generator().manual_seed(seed)

    def __call__(self, *shape: int, std: float) -> torch.Tensor:
        return torch.randn(*shape, generator=self._generator) * std


def transformer_layer(rand: Rand, prefix: str, std: float, gain: float, sharp: float) -> Weights:
    """Weights of one Qwen3 layer; `sharp` scales the query norm: large, and one position decides."""
    heads, kv = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
    shapes = {
        "self_attn.q_proj": (heads, HIDDEN, std),
        "self_attn.k_proj": (kv, HIDDEN, std),
        "self_attn.v_proj": (kv, HIDDEN, std),
        "self_attn.o_proj": (HIDDEN, heads, std * gain),
        "mlp.gate_proj": (INTER, HIDDEN, std),
        "mlp.up_proj": (INTER, HIDDEN, std),
        "mlp.down_proj": (HIDDEN, INTER, std * gain),
    }
    weights = {f"{prefix}{name}.weight": rand(rows, cols, std=s) for name, (rows, cols, s) in shapes.items()}
    weights[f"{prefix}self_attn.q_norm.weight"] = torch.full((HEAD_DIM,), sharp)
    for name, size in (
        ("self_attn.k_norm", HEAD_DIM),
        ("input_layernorm", HIDDEN),
        ("post_attention_layernorm", HIDDEN),
    ):
        weights[f"{prefix}{name}.weight"] = torch.ones(size)
    return weights


def target_weights(rand: Rand, *, std: float, gain: float, sharp: float) -> Weights:
    """A Qwen3ForCausalLM without its embedding and LM head."""
    weights = {"model.norm.weight": torch.ones(HIDDEN)}
    for i in range(LAYERS):
        weights |= transformer_layer(rand, f"model.layers.{i}.", std, gain, sharp)
    return weights


def draft_weights(rand: Rand, *, std: float, gain: float, sharp: float) -> Weights:
    """A DFlashDraftModel: it borrows the target's embedding and LM head."""
    weights = {
        "fc.weight": rand(HIDDEN, len(TARGET_LAYER_IDS) * HIDDEN, std=std),
        "hidden_norm.weight": torch.ones(HIDDEN),
        "norm.weight": torch.ones(HIDDEN),
    }
    for i in range(DRAFT_LAYERS):
        weights |= transformer_layer(rand, f"layers.{i}.", std, gain, sharp)
    return weights


def cycle_pair() -> tuple[Weights, Weights]:
    """Target and draft of the cycle: layers write nothing (output projections are 0), embeddings decide.

    The target answers D, C, D, C… Each of the draft's L = 3 positions reads MASK's embedding alone, so all
    have the same marginals: log p(C) = a = -0.52, log p(D) = b = -0.91, and the other 510 tokens share 0.5 %,
    none above -11. The accept length counts the bonus token; the root is what was emitted last.

    A chain (DFLASH, shadow) proposes C C C. Behind root D the target says C, then D: one is accepted, the
    bonus is D, and D is the next root: 2.0 for ever.

    Full, budget 6, top-k 3: scores are a (0), b (1), 2a = -1.04 (0,0), a + b = -1.43 (0,1) and (1,0),
    3a = -1.56 (0,0,0); the next are 2b = -1.82 (1,1) and 2a + b = -1.95. So the tree holds just these six.
    Behind root D the text goes C D C: (0,1) is accepted, (0,1,0) is not in the tree, and the bonus C is the
    next root. Behind root C it goes D C D: (1,0) is accepted and the bonus D is the next root: 3.0 for ever.
    Budget 8 adds (1,1) and (0,0,1), which no text takes: still 3.0.

    Full, budget 14, top-k 2: all 2 + 4 + 8 nodes of the binary tree. Behind root D, (0,1,0) is C D C, and the
    bonus is D, the next root: 4.0 for ever.

    The prompt's answer starts with one token of the prefill, then each step adds as many as it accepts. A
    request's spec_accept_length (tokens by steps) is exact when the length divides the tokens asked for.
    """
    rand = Rand(0)
    target = target_weights(rand, std=0.05, gain=0.0, sharp=1.0)
    draft = draft_weights(rand, std=0.05, gain=0.0, sharp=1.0)
    flag = torch.zeros(HIDDEN)
    flag[0] = 1.0
    embed = rand(VOCAB, HIDDEN, std=0.3)
    embed[:, 0] = 4.0
    embed[CYCLE_C] = rand(HIDDEN, std=1.0)
    embed[CYCLE_C, 0] = 0.0
    toward_d = embed[CYCLE_C] / embed[CYCLE_C].norm()
    # no text holds MASK: only the draft reads it, and finds C a little ahead of D
    embed[MASK] = 4.0 * flag + 3.86 * toward_d
    head = rand(VOCAB, HIDDEN, std=0.02)
    head[CYCLE_C] = 2.0 * flag
    head[CYCLE_D] = 2.0 * toward_d
    return target | {"model.embed_tokens.weight": embed, "lm_head.weight": head}, draft


def context_pair(seed: int = 1036, choices: int = 6) -> tuple[Weights, Weights]:
    """Target and draft that choose among `choices` tokens by what stands earlier in the text.

    The seed is one whose greedy answers to PROMPTS come without a near-tie: the two best logits are never
    closer than 0.1 in float32, so that answers can be compared for equality on the machines where this was tried.
    """
    rand = Rand(seed)
    target = target_weights(rand, std=HIDDEN**-0.5, gain=2.0, sharp=3.0)
    draft = draft_weights(rand, std=HIDDEN**-0.5, gain=0.5, sharp=3.0)
    embed = rand(VOCAB, HIDDEN, std=1.0)
    embed += 0.5 - embed.mean(dim=1, keepdim=True)
    head = rand(VOCAB, HIDDEN, std=0.02)
    for i in range(choices):
        row = rand(HIDDEN, std=0.3)
        # along the direction that all embeddings share, falling: one choice is the commonest for both models
        head[FIRST_CHOICE + i] = row - row.mean() + 0.5 * (1 - i / choices)
    return target | {"model.embed_tokens.weight": embed, "lm_head.weight": head}, draft


def base_config() -> dict[str, object]:
    """What target and draft say in common, in Hugging Face's Qwen3 terms."""
    return {
        "model_type": "qwen3",
        "hidden_size": HIDDEN,
        "intermediate_size": INTER,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "vocab_size": VOCAB,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "bos_token_id": BOS,
        "eos_token_id": EOS,
        "use_sliding_window": False,
        "use_cache": True,
    }


def target_config() -> dict[str, object]:
    """config.json of a target."""
    return base_config() | {"architectures": ["Qwen3ForCausalLM"], "num_hidden_layers": LAYERS}


def draft_config() -> dict[str, object]:
    """config.json of a DFlash draft."""
    dflash = {"target_layer_ids": TARGET_LAYER_IDS, "mask_token_id": MASK, "block_size": BLOCK}
    return base_config() | {
        "architectures": ["DFlashDraftModel"],
        "num_hidden_layers": DRAFT_LAYERS,
        "num_target_layers": LAYERS,
        "block_size": BLOCK,
        "layer_types": ["full_attention"] * DRAFT_LAYERS,
        "dflash_config": dflash,
    }


def write_tokenizer(directory: Path) -> None:
    """A byte-level tokenizer: token id = byte, filler tokens from 256 up to the special ones."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]  # these stand for themselves
    others = [byte for byte in range(256) if byte not in printable]
    vocab = {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}
    assert set(vocab) == set(pre_tokenizers.ByteLevel.alphabet())
    vocab |= {f"<f{i}>": i for i in range(len(vocab), VOCAB - len(SPECIAL))}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(SPECIAL)
    tokenizer.save(str(directory / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": SPECIAL[2],
        "pad_token": SPECIAL[0],
        "model_max_length": 4096,
        "chat_template": CHAT,
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(settings, indent=1))


def write_model(directory: Path, config: dict[str, object], weights: Weights) -> None:
    """A loadable model directory, in bfloat16."""
    directory.mkdir(parents=True, exist_ok=True)
    write_tokenizer(directory)
    (directory / "config.json").write_text(json.dumps(config, indent=1))
    tensors = {name: w.to(torch.bfloat16).contiguous() for name, w in weights.items()}
    save_file(tensors, str(directory / "model.safetensors"), metadata={"format": "pt"})


def main(out: Path) -> None:
    """Write both pairs below `out`, and in prompts.json the prompts whose answers compare exactly."""
    for name, (target, draft) in {"cyc": cycle_pair(), "ctx": context_pair()}.items():
        write_model(out / f"{name}_target", target_config(), target)
        write_model(out / f"{name}_draft", draft_config(), draft)
    prompts = {"cyc": [[CYCLE_C, CYCLE_D, CYCLE_C]], "ctx": PROMPTS, "max_new_tokens": ANSWER_TOKENS}
    (out / "prompts.json").write_text(json.dumps(prompts))


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: mkmodels.py OUTDIR")
    main(Path(sys.argv[1]))
