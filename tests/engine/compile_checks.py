"""Compiles DDTREE's kernels for an H200 on a machine without one, as a server would launch them; one line a shape.

Two faults that only a GPU had shown are found here: SGLang replaces triton.next_power_of_2 by a plain function, which
no kernel may call, and Triton makes a constant, with no methods, of an integer argument that is 1.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime.driver import driver
from triton.runtime.jit import JITFunction


class NoGpu:
    """What the launcher asks of a driver before it compiles."""

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, _: int) -> int:
        return 0


def compile_only() -> list[str]:
    """From here on a launch compiles, and is told in the list that comes back."""
    compiled: list[str] = []
    run = JITFunction.run

    def warm(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        compiled.append(self.__name__)
        return run(self, *args, grid=grid, warmup=True, **kwargs)

    JITFunction.run = warm
    return compiled


def plain_power_of_2(n: int) -> int:
    """What sglang.srt.utils.common puts in the place of Triton's own."""
    return 1 << (n - 1).bit_length() if n > 0 else 1


def main() -> int:
    """Compile build, top-k and walk for several batches and trees; 1 when one does not compile."""
    driver.set_active(NoGpu())
    triton.next_power_of_2 = plain_power_of_2
    compiled = compile_only()
    from ddtree import ddtree_kernels_walk
    from ddtree.ddtree_kernels import build_trees, top_k_lse, walk_greedy

    # on a CPU tensor the launcher takes one program a request
    ddtree_kernels_walk._splits = lambda size, _: 132 // size

    failed = 0
    for batch in (1, 8):
        shapes = ((7, 1, 7, 512), (15, 16, 64, 151_936), (15, 64, 256, 151_936), (1, 1, 1, 99))
        for depth, ranks, budget, vocabulary in shapes:
            rows, name = max(depth + 1, budget + 1), f"batch {batch}, L {depth}, K {ranks}, B {budget}"
            compiled.clear()
            zeros = torch.zeros(batch, dtype=torch.int64)
            ids = torch.zeros(batch, depth, ranks, dtype=torch.int64)
            try:
                top_k_lse(torch.zeros(batch * depth, vocabulary, dtype=torch.bfloat16), 0, ranks)
                trees = build_trees(ids.float(), ids, zeros, zeros, budget, rows, batch * rows * rows)
                walk_greedy(torch.zeros(batch * rows, vocabulary), trees, depth)
            except Exception as error:
                failed = 1
                print(f"FAILED {name}: {type(error).__name__}: {error}", flush=True)
                continue
            print(f"ok {name}: {', '.join(sorted(set(compiled)))}", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main())
