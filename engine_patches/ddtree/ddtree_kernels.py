"""DDTree's Triton kernels under one name, and the check that they compute right trees on this GPU."""

from __future__ import annotations

import torch

from .ddtree_kernels_topk import top_k_lse
from .ddtree_kernels_tree import COLUMNS, build_trees
from .ddtree_kernels_walk import walk_greedy
from .ddtree_topk import canonical_top
from .ddtree_utils import TreeBatch, build_batch, walk

__all__ = ["build_trees", "self_check", "some_child", "top_k_lse", "tree_difference", "walk_greedy"]

# a batch that has ties within and across depths, missing candidates, NaN, and token id 0
CHECKED = {"batch": 4, "depth": 4, "ranks": 5, "vocabulary": 5000, "budget": 24, "rows": 26}


def self_check(device: torch.device) -> None:
    """Run every kernel once on a small fixed batch and compare with the reference on the CPU.

    Raises: RuntimeError, one sentence that names the kernel whose answer differs.
    """
    batch, depth, ranks = CHECKED["batch"], CHECKED["depth"], CHECKED["ranks"]
    logits = _logits(batch * depth, CHECKED["vocabulary"])
    logits[3, 5:] = -torch.inf  # fewer candidates than ranks
    logits[2 * depth + 2, ::2] = torch.nan
    logits[3 * depth] = torch.nan  # no candidate at all: the tree is its root
    values, ids = canonical_top(_clean(logits), torch.arange(logits.shape[1]), ranks)
    partition = _clean(logits).logsumexp(dim=1)
    got = top_k_lse(logits.to(device), 0, ranks)
    same = torch.equal(got[0].cpu(), values) and torch.equal(got[1].cpu(), ids)
    if not (same and torch.allclose(got[2].cpu(), partition, rtol=0, atol=1e-4)):
        raise RuntimeError(_sentence("top_k_lse", device, ""))

    log_probs = ((values - partition[:, None]) * 4).round().div(4).view(batch, depth, ranks)
    log_probs[1] = 0.0  # equal scores at all depths
    candidates = (log_probs, ids.view(batch, depth, ranks), torch.arange(batch), torch.tensor([5, 0, 17, 2]))
    expected = build_batch(*candidates, CHECKED["budget"], CHECKED["rows"])
    here = [tensor.to(device) for tensor in candidates]
    trees = build_trees(*here, CHECKED["budget"], CHECKED["rows"], int(expected.mask.numel()))
    differs = tree_difference(trees, expected)
    if differs is not None:
        raise RuntimeError(_sentence("build_trees", device, f" in {differs}"))

    target = _logits(batch * CHECKED["rows"], CHECKED["vocabulary"])
    target.scatter_(1, some_child(expected).reshape(-1, 1), 50.0)
    accepted = walk(expected, lambda rows, _: _clean(target[rows]).argmax(dim=1), depth)
    walked = walk_greedy(target.to(device), trees, depth)
    for name, tensor in vars(accepted).items():
        if not torch.equal(getattr(walked, name).cpu(), tensor):
            raise RuntimeError(_sentence("walk_greedy", device, f" in {name}"))


def some_child(trees: TreeBatch) -> torch.Tensor:
    """Token of one child of every row, of the root's for a row without; int64 [batch, N]."""
    follow = trees.token[:, :1].repeat(1, trees.rows)
    return follow.scatter_reduce(1, trees.parent[:, 1:], trees.token[:, 1:], "amax")


def tree_difference(got: TreeBatch, expected: TreeBatch) -> str | None:
    """Name of the first field in which two batches differ, of the mask only what is defined; None if equal."""
    for name in (*COLUMNS, "nodes"):
        if not torch.equal(getattr(got, name).cpu(), getattr(expected, name).cpu()):
            return name
    if got.mask.shape != expected.mask.shape:
        return "mask"
    rows, start = got.rows, 0
    theirs, ours = expected.mask.cpu(), got.mask.cpu()
    for prefix in expected.position[:, 0].tolist():
        part = slice(start, start + rows * (prefix + rows))
        if not torch.equal(*(m[part].view(rows, -1)[:, prefix:] for m in (ours, theirs))):
            return "mask"
        start = part.stop
    return None


def _logits(rows: int, columns: int) -> torch.Tensor:
    """Fixed bfloat16 logits on a coarse grid, so that many are equal."""
    generator = torch.Generator().manual_seed(1)
    return (torch.randn(rows, columns, generator=generator) * 4).round().div(2).to(torch.bfloat16)


def _clean(logits: torch.Tensor) -> torch.Tensor:
    return torch.where(logits.isnan(), -torch.inf, logits.float())


def _sentence(kernel: str, device: torch.device, where: str) -> str:
    return f"DDTree's kernel {kernel} differs from the reference on {device}{where}; do not serve with it."
