"""Test-only SGLang plugin: wraps DDTREE's tree build and walk, to break them on purpose and to record them.

DDTREE_BENCH_MUTANT=NAME breaks one thing (ddtree_bench_mutants.py); DDTREE_BENCH_PROBE=DIR writes verify steps while
DIR/label names a request; DDTREE_BENCH_HASH=DIR writes one hash a tree batch to DIR/rank<R>; DDTREE_BENCH_NOSYNC=1
ends the server when anything waits for the device from the draft's hidden states to the trees. Never in a release.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import ddtree_bench_mutants as mutants
import torch

STEPS_PER_LABEL = 12


def install() -> None:
    """Put the wrappers in place; SGLang calls this in every process, before the worker is imported."""
    from sglang.srt.speculative import ddtree_device

    build, walk = ddtree_device.build, ddtree_device.walk_greedily
    name = os.environ.get("DDTREE_BENCH_MUTANT", "")
    if name in mutants.BUILD:
        build = broken(build, name, lambda trees, *_: mutants.BUILD[name](trees))
    elif name in mutants.WALK:
        walk = broken(walk, name, lambda walked, _, trees, __: mutants.WALK[name](walked, trees.rows))
    elif name:
        raise ValueError(f"there is no mutant {name}")
    if probe := os.environ.get("DDTREE_BENCH_PROBE"):
        walk = recorded_walk(walk, Path(probe))
    if hashes := os.environ.get("DDTREE_BENCH_HASH"):
        build = hashed_build(build, Path(hashes))
    if os.environ.get("DDTREE_BENCH_NOSYNC"):
        from sglang.srt.speculative import ddtree_topk

        ddtree_topk.top_candidates = never_waiting(ddtree_topk.top_candidates)
        build, walk = never_waiting(build, then="warn"), waiting_again(walk)
    ddtree_device.build, ddtree_device.walk_greedily = build, walk


def broken(step: Any, name: str, spoil: Any) -> Any:
    """The step with one thing wrong in every batch. spoil: called with what the step gave and what it was given."""
    announced = False

    def wrapped(*args: Any) -> Any:
        nonlocal announced
        done = step(*args)
        spoil(done, *args)
        if not announced:
            print(f"DDTREE broken on purpose: {name}", flush=True)
        announced = True
        return done

    return wrapped


def recorded_walk(walk: Any, directory: Path) -> Any:
    """The walk, writing tree and verify logits of a request that runs alone while DIR/label names it."""
    label = directory / "label"

    def wrapped(logits: Any, trees: Any, depth: int) -> Any:
        if trees.token.shape[0] == 1 and label.exists() and tensor_rank() == 0:
            name = label.read_text()
            written = len(list(directory.glob(f"{name}-*.pt")))
            if written < STEPS_PER_LABEL:
                step = {key: getattr(trees, key)[0].cpu() for key in ("token", "parent", "depth", "nodes")}
                step |= {"prefix": trees.position[0, 0].cpu(), "logits": logits.float().cpu()}
                torch.save(step, directory / f"{name}-{written:03d}.pt")
        return walk(logits, trees, depth)

    return wrapped


def never_waiting(step: Any, then: str = "error") -> Any:
    """The step, in which any wait for the device raises; then: what a wait is from here to the next step."""

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        torch.cuda.set_sync_debug_mode("error")
        done = step(*args, **kwargs)
        torch.cuda.set_sync_debug_mode(then)
        return done

    return wrapped


def waiting_again(walk: Any) -> Any:
    """The walk, from which on waits are allowed."""

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        torch.cuda.set_sync_debug_mode("default")
        return walk(*args, **kwargs)

    return wrapped


def hashed_build(build: Any, directory: Path) -> Any:
    """The build, with a line a batch: batch size and sha256 of all arrays and of the mask's defined columns."""

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        trees = build(*args, **kwargs)
        digest = hashlib.sha256()
        for name in ("token", "parent", "depth", "rank", "position", "next_token", "next_sibling", "nodes"):
            digest.update(getattr(trees, name).cpu().numpy().tobytes())
        for tail in mutants.mask_tails(trees):
            digest.update(tail.cpu().contiguous().numpy().tobytes())
        with open(directory / f"rank{tensor_rank()}", "a") as out:
            out.write(f"{trees.token.shape[0]} {digest.hexdigest()}\n")
        return trees

    return wrapped


def tensor_rank() -> int:
    """Tensor-parallel rank of this process."""
    from sglang.srt.distributed import get_tensor_model_parallel_rank

    return int(get_tensor_model_parallel_rank())
