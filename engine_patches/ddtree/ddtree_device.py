"""Which implementation runs where: Triton kernels on CUDA, the reference in torch on a CPU."""

from __future__ import annotations

import time

import torch

from .ddtree_sample import greedy_choice
from .ddtree_utils import TreeBatch, Walk, build_batch, mask_elements, walk


def build(
    log_probs: torch.Tensor,
    token_ids: torch.Tensor,
    roots: torch.Tensor,
    prefix_lens: torch.Tensor,
    prefixes: list[int],
    budget: int,
    rows: int,
) -> TreeBatch:
    """`build_batch` where the tensors lie. prefixes: prefix_lens as the host knows them, so that nothing waits."""
    if not log_probs.is_cuda:
        return build_batch(log_probs, token_ids, roots, prefix_lens, budget, rows)
    from .ddtree_kernels import build_trees

    return build_trees(log_probs, token_ids, roots, prefix_lens, budget, rows, mask_elements(prefixes, rows))


def walk_greedily(logits: torch.Tensor, trees: TreeBatch, depth: int) -> Walk:
    """Follow the argmax of the visited rows. logits: [batch * N, vocabulary]; depth: L."""
    if not logits.is_cuda:
        return walk(trees, greedy_choice(logits), depth)
    from .ddtree_kernels import walk_greedy

    return walk_greedy(logits, trees, depth)


def self_check(device: torch.device) -> None:
    """Run every kernel once against the reference, which also compiles it before the first request.

    Raises: RuntimeError that names the kernel whose answer differs.
    """
    if device.type == "cuda":
        from .ddtree_kernels import self_check as check

        check(device)


def warm_up(
    device: torch.device,
    lattice: tuple[int, int],
    tree: tuple[int, int],
    requests: int,
    vocabulary: int,
    head: torch.Tensor,
) -> None:
    """Run the kernels at the shapes of serving, batch after batch, so that they are compiled.

    lattice: L and K; tree: budget and rows; requests: the largest batch; head: this rank's weight of the LM
    head [columns, hidden size].
    """
    if device.type != "cuda":
        return
    from .ddtree_kernels import build_trees, top_k_lse, walk_greedy

    (depth, ranks), (budget, rows) = lattice, tree
    columns = torch.zeros(depth, int(head.shape[0]), dtype=head.dtype, device=device)
    values, ids, partition = top_k_lse(columns, 0, ranks)
    log_probs = (values - partition[:, None]).view(1, depth, ranks)
    # rows that overlap: the walk is compiled by how the stride divides, and a real batch of logits takes gigabytes
    stride = 16 if vocabulary % 16 == 0 else 17
    for size in [*(1 << i for i in range((requests - 1).bit_length())), requests]:
        shape = (size, depth, ranks)
        zeros = torch.zeros(size, dtype=torch.int64, device=device)
        candidates = (log_probs.expand(shape), ids.view(1, depth, ranks).expand(shape))
        trees = build_trees(*candidates, zeros, zeros, budget, rows, size * rows * rows)
        logits = torch.zeros(vocabulary + stride * size * rows, device=device)
        walk_greedy(logits.as_strided((size * rows, vocabulary), (stride, 1)), trees, depth)


class TreeTimer:
    """Time from start() to stop() on the device, read later without waiting for it. Seconds."""

    def __init__(self, device: torch.device) -> None:
        self._events = (
            (torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True))
            if device.type == "cuda"
            else None
        )
        self._marks = [0.0, 0.0]

    def start(self) -> None:
        """Mark the start on the current stream."""
        self._mark(0)

    def stop(self) -> None:
        """Mark the end on the current stream."""
        self._mark(1)

    def seconds(self) -> float:
        """The time between, once something later on the same stream has been waited for."""
        if self._events is None:
            return self._marks[1] - self._marks[0]
        return self._events[0].elapsed_time(self._events[1]) / 1000

    def _mark(self, which: int) -> None:
        if self._events is None:
            self._marks[which] = time.perf_counter()
        else:
            self._events[which].record()
