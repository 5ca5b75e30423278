"""The sampler's imports. Sampling runs on `--sampling-backend pytorch`, renormalising on sgl_kernel's kernels."""

from typing import Any

import torch


def _absent(*_: Any, **__: Any) -> None:
    raise NotImplementedError("flashinfer is a stub on the benchmark machine: use --sampling-backend pytorch")


min_p_sampling_from_probs = _absent
top_k_top_p_sampling_from_probs = _absent
top_k_top_p_sampling_from_logits = _absent
top_k_sampling_from_probs = _absent
top_p_sampling_from_probs = _absent


def _renormalised(kernel: str, probs: torch.Tensor, limit: Any) -> torch.Tensor:
    # sgl_kernel prefers flashinfer once it can be imported, so go past its public names
    from sgl_kernel import sampling

    return getattr(sampling, kernel)(probs, *sampling._to_tensor_scalar_tuple(limit))


def top_k_renorm_probs(probs: torch.Tensor, top_k: Any) -> torch.Tensor:
    return _renormalised("_top_k_renorm_probs_internal", probs, top_k)


def top_p_renorm_probs(probs: torch.Tensor, top_p: Any) -> torch.Tensor:
    return _renormalised("_top_p_renorm_probs_internal", probs, top_p)


top_k_renorm_prob = top_k_renorm_probs
top_p_renorm_prob = top_p_renorm_probs
