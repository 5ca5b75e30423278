"""Test-only SGLang plugin: serve the attention backend name "triton" with plain torch, for DFLASH on a CPU.

SGLang 0.5.11's torch_native backend knows no TARGET_VERIFY, and Triton's interpreter multiplies the bit
patterns of bfloat16 in `tl.dot`: tokens come out wrong without an error. Never in a release.
"""

from __future__ import annotations

from typing import Any

import torch


def verify_attention(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    scaling: float,
    allowed: torch.Tensor | None,
) -> torch.Tensor:
    """Attention of one request's verify rows over its prefix and the block itself.

    query [n, heads, dim]; keys and values [length, kv_heads, dim], the n rows of the block last;
    allowed [n, length] bool, None: every row sees everything (a non-causal draft block).
    Returns [n, heads, dim].
    """
    out = torch.nn.functional.scaled_dot_product_attention(
        query.transpose(0, 1)[None],
        keys.transpose(0, 1)[None],
        values.transpose(0, 1)[None],
        attn_mask=None if allowed is None else allowed[None, None],
        scale=scaling,
        enable_gqa=query.shape[1] != keys.shape[1],
    )
    return out[0].transpose(0, 1)


def causal_block(rows: int, length: int) -> torch.Tensor:
    """[rows, length] bool: row i sees the prefix and the block up to itself."""
    return torch.ones(rows, length, dtype=torch.bool).tril(length - rows)


def tree_block(mask: torch.Tensor, prefix: int) -> torch.Tensor:
    """[rows, length] bool: the whole prefix and, of the block, what the mask allows.

    The mask's prefix columns are not read, as Triton's extend attention does not read them.
    """
    return torch.cat([mask.new_ones(mask.shape[0], prefix), mask[:, prefix:]], dim=1)


def install() -> None:
    """Register the backend and the process group's plain all-gather; SGLang calls this in every process."""
    from sglang.srt.distributed import parallel_state
    from sglang.srt.layers.attention import attention_registry
    from sglang.srt.layers.attention.torch_native_backend import TorchNativeAttnBackend
    from sglang.srt.layers.radix_attention import AttentionType

    class LabCpuAttnBackend(TorchNativeAttnBackend):
        def forward_extend(
            self,
            q: Any,
            k: Any,
            v: Any,
            layer: Any,
            forward_batch: Any,
            save_kv_cache: bool = True,
            **kwargs: Any,
        ) -> Any:
            if not forward_batch.forward_mode.is_target_verify():
                return super().forward_extend(q, k, v, layer, forward_batch, save_kv_cache)
            pool = forward_batch.token_to_kv_pool
            if save_kv_cache:
                pool.set_kv_buffer(layer, forward_batch.out_cache_loc, k, v)
            all_keys, all_values = pool.get_key_buffer(layer.layer_id), pool.get_value_buffer(layer.layer_id)
            table = forward_batch.req_to_token_pool.req_to_token
            rows = int(forward_batch.spec_info.draft_token_num)
            mask = forward_batch.spec_info.custom_mask
            causal = layer.attn_type != AttentionType.ENCODER_ONLY
            queries = q.view(-1, layer.tp_q_head_num, layer.qk_head_dim)
            out = q.new_empty(queries.shape[0], layer.tp_q_head_num, layer.v_head_dim)
            used = 0
            prefixes = forward_batch.seq_lens.tolist()
            for i, (request, prefix) in enumerate(zip(forward_batch.req_pool_indices.tolist(), prefixes)):
                length = prefix + rows
                slots = table[request, :length]
                allowed = causal_block(rows, length) if causal else None
                if causal and mask is not None:
                    allowed = tree_block(mask[used : used + rows * length].view(rows, length), prefix)
                    used += rows * length
                block = slice(i * rows, (i + 1) * rows)
                out[block] = verify_attention(
                    queries[block], all_keys[slots], all_values[slots], layer.scaling, allowed
                )
            return out.view(queries.shape[0], -1)

    attention_registry.ATTENTION_BACKENDS["triton"] = LabCpuAttnBackend
    group = parallel_state.GroupCoordinator
    group.all_gather_into_tensor = group._all_gather_into_tensor
