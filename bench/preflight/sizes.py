"""Configs of the sizes that people run, with drafts: a dense 32B, a 27B hybrid. Configs alone; weights are dummies."""

from __future__ import annotations

from typing import Any

DENSE: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 5120, "intermediate_size": 17408,
    "num_hidden_layers": 64, "num_attention_heads": 40, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936,
    "hidden_act": "silu", "rms_norm_eps": 1e-6, "rope_theta": 1000000.0, "max_position_embeddings": 40960,
    "attention_bias": False, "tie_word_embeddings": False, "torch_dtype": "bfloat16", "eos_token_id": 510,
    "bos_token_id": 510,
}  # fmt: skip
#: As Qwen3.5-27B: 48 layers with a recurrent state of 48 heads, 16 of full attention. Qwen3-Next's class knows no dense
#: MLP, so its 17408 columns are eight experts of 2176.
HYBRID: dict[str, Any] = {
    **DENSE, "architectures": ["Qwen3NextForCausalLM"], "model_type": "qwen3_next", "num_attention_heads": 24,
    "num_key_value_heads": 4, "head_dim": 256, "vocab_size": 248320, "full_attention_interval": 4,
    "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128, "linear_num_key_heads": 16, "linear_num_value_heads": 48,
    "linear_value_head_dim": 128, "partial_rotary_factor": 0.25, "num_experts": 8, "num_experts_per_tok": 2,
    "moe_intermediate_size": 2176, "shared_expert_intermediate_size": 512, "decoder_sparse_step": 1,
    "norm_topk_prob": True, "mlp_only_layers": [], "output_router_logits": False, "router_aux_loss_coef": 0.001,
}  # fmt: skip


def draft_of(target: dict[str, Any]) -> dict[str, Any]:
    """A DFlash draft of five layers and blocks of 16 for this target."""
    return {
        **DENSE, "architectures": ["DFlashDraftModel"], "hidden_size": target["hidden_size"], "num_attention_heads": 32,
        "vocab_size": target["vocab_size"], "num_hidden_layers": 5, "num_target_layers": 64, "block_size": 16,
        "dflash_config": {"mask_token_id": 511, "mask_token": "<|mask|>", "target_layer_ids": [1, 16, 31, 46, 61]},
    }  # fmt: skip


MODELS = {"dense": (DENSE, draft_of(DENSE)), "hybrid": (HYBRID, draft_of(HYBRID))}
_TREE = [
    "--speculative-algorithm",
    "DDTREE",
    "--attention-backend",
    "triton",
    "--speculative-ddtree-topk-cap",
    "4",
]
_WIDE = [*_TREE, "--speculative-ddtree-budget", "64"]
_SHADOW = [
    *_TREE,
    "--speculative-ddtree-budget",
    "16",
    "--speculative-ddtree-shadow-linear",
    "--disable-radix-cache",
]
#: name: (model, flags). Two leave everything to the engine; 28 requests is what the rule names; 40 is beyond it.
CASES: dict[str, tuple[str, list[str]]] = {
    "dense_wide": ("dense", _WIDE),
    "hybrid_default": ("hybrid", _SHADOW),
    "hybrid_28": ("hybrid", [*_SHADOW, "--max-running-requests", "28"]),
    "hybrid_40": ("hybrid", [*_SHADOW, "--max-running-requests", "40"]),
}
