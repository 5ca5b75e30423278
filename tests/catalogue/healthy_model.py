"""What the sections of models and arguments say on a healthy host: Qwen3-8B with its DFlash draft, tp 2, DFLASH on.

The parser's flags are the real ones of the 0.5.11 wheel, as inner_arguments reads them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

PARSER: dict[str, Any] = json.loads(
    (
        Path(__file__).resolve().parent.parent / "fixtures" / "preflight" / "server_args_0.5.11.json"
    ).read_text()
)
TARGET: dict[str, Any] = {
    "path": "/m/t", "hub": False, "exists": True, "directory": "/m/t", "denied": None,
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "text_model_type": "qwen3", "type_known": True,
    "class_known": True, "remote_code": False, "layer_types": {}, "hybrid": False, "multimodal": False,
    "dtype": "bfloat16", "quantization": None, "tied": False, "rope_theta": 1000000, "rope_parameters_theta": None,
    "rope_factor": None, "rope_original": None, "num_hidden_layers": 36, "hidden_size": 4096,
    "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936,
    "sliding_window": None, "use_sliding_window": False, "max_position_embeddings": 40960,
    "tokenizer": ["tokenizer.json", "vocab.json"], "tokenizer_faults": [], "filesystem": "ext4", "dflash": None,
    "chat_template": True,
}  # fmt: skip
DRAFT: dict[str, Any] = {
    **TARGET, "path": "/m/d", "directory": "/m/d", "architectures": ["DFlashDraftModel"], "remote_code": True,
    "layer_types": {"full_attention": 5}, "num_hidden_layers": 5, "tokenizer": [],
    "dflash": {
        "target_layer_ids": [1, 9, 17, 25, 33], "block_size": 16, "num_target_layers": 36, "mask_token": None,
        "mask_token_id": 151669,
    },
    "mask_token_in_target": None, "chat_template": None,
}  # fmt: skip
SECTIONS: dict[str, Any] = {
    "checkpoints": {
        "target": TARGET,
        "draft": DRAFT,
        "same": False,
        "hub": {
            "cache": "/var/lib/llm/hub", "exists": True, "writable": True, "offline": True, "token": False,
            "variables": ["HF_HOME", "HF_HUB_OFFLINE"],
        },
        "transformers": "5.6.0",
    },
    "checkpoint_code": {
        "target": {"files": [], "missing": [], "elsewhere": [], "needs": [], "processor": []},
        "draft": {"files": [], "missing": [], "elsewhere": [], "needs": [], "processor": []},
    },
    "weights": {
        "target": {
            "format": "safetensors", "files": 5, "bytes": 16_381_516_808, "largest": 3_996_250_744,
            "by_dtype": {"BF16": 16_381_470_720}, "shapes": {}, "faults": [], "faulty": 0, "unchecked": 0,
        },
        "draft": {
            "format": "safetensors", "files": 1, "bytes": 2_097_231_000, "largest": 2_097_231_000,
            "by_dtype": {"BF16": 2_097_225_000}, "shapes": {"fc.weight": [4096, 20480]}, "faults": [], "faulty": 0,
            "unchecked": 0,
        },
    },
    "arguments": {
        "flags": {
            "--model-path": "/m/t", "--port": "30000", "--tp-size": "2", "--device": "cuda",
            "--context-length": "32768", "--mem-fraction-static": "0.85", "--cuda-graph-max-bs": "32",
            "--speculative-algorithm": "DFLASH", "--speculative-draft-model-path": "/m/d", "--trust-remote-code": True,
        },
        "repeated": [], "stray": [], "environment": {},
        **PARSER,
        "engine": {
            "package": "/v/sglang", "draft_layer_types": False, "draft_rope_parameters": False,
            "draft_rope_default": 1000000.0, "ngram_state": False, "grammar_refused": True,
            "lora_speculation": ["NGRAM"], "hybrid_radix_refused": True,
            "dp_refused": ["DFLASH", "STANDALONE", "NGRAM"], "mixed_chunk_off": True, "fp8_marlin": True,
            "blackwell_hybrid": ["fa4", "flashinfer", "triton", "trtllm_mha"],
        },
    },
    "memory": {"total": 1_080_000_000_000, "available": 900_000_000_000, "limit": None},
}  # fmt: skip
SECTIONS_CPU: dict[str, Any] = {
    "arguments": {
        **SECTIONS["arguments"],
        "flags": {
            "--model-path": "/m/t", "--port": "30000", "--device": "cpu", "--trust-remote-code": True,
            "--context-length": "4096",
        },
    },
    "checkpoints": {**SECTIONS["checkpoints"], "draft": None},
    "checkpoint_code": {**SECTIONS["checkpoint_code"], "draft": None},
    "weights": {**SECTIONS["weights"], "draft": None},
}  # fmt: skip
