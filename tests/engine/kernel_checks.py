"""Every Triton kernel against its reference on random and adversarial inputs; runs under .venv-engine's python.

`kernel_checks.py [NAME…]` runs the checks in Triton's interpreter on the CPU and prints one line each; exit 1 where
one fails. bench/engine/kernels.py runs the same comparisons, larger, on a GPU.
"""

from __future__ import annotations

import os
import sys
import traceback
import types
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

if __name__ == "__main__":
    os.environ["TRITON_INTERPRET"] = "1"

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "engine_patches"))

from ddtree import ddtree_kernels, ddtree_kernels_tree, ddtree_kernels_walk, ddtree_topk, ddtree_utils

CPU = torch.device("cpu")
INF = torch.inf


@dataclass
class Case:
    """Input of one batch of trees. log_probs: float32 [batch, L, K], ids: int64 alike."""

    name: str
    log_probs: torch.Tensor
    ids: torch.Tensor
    budget: int
    rows: int


def candidates(kind: str, shape: tuple[int, int, int], g: torch.Generator) -> torch.Tensor:
    """Descending log-probabilities [batch, L, K] of one kind."""
    batch, depth, ranks = shape
    wide = torch.randn(batch, depth, 4 * ranks + 8, generator=g)
    if kind == "bf16":  # logits of real size: a coarse grid, so equal scores everywhere
        wide = (wide * 3 + 20).to(torch.bfloat16).float()
    elif kind == "peaked":
        wide = wide * 5
    elif kind == "equal":  # one value a position
        wide = torch.zeros_like(wide)
    values = wide.topk(ranks, dim=-1).values - wide.logsumexp(dim=-1, keepdim=True)
    if kind == "certain":  # log-probability 0: a child scores as its parent
        values = torch.zeros_like(values)
    elif kind == "one-hot":
        values = torch.full_like(values, -INF)
        values[..., 0] = 0.0
    elif kind == "almost one-hot":
        values = torch.full_like(values, -100.0)
        values[..., 0] = -0.0
    elif kind == "holes":  # what is not finite ends its position
        cut = torch.randint(0, ranks + 2, (batch, depth, 1), generator=g)
        cut[0, 0] = 0
        end = torch.where(torch.rand(batch, depth, 1, generator=g) < 0.5, -INF, torch.nan)
        values = torch.where(torch.arange(ranks) < cut, values, end)
    elif kind == "rounded":  # exponents far apart: float64 sums round, a sibling may even score higher
        exponent = torch.randint(-40, 3, (batch, depth, 1), generator=g).float()
        values = (values * exponent.exp2()).sort(dim=-1, descending=True).values
        values[..., 1::2] = values[..., 0::2][..., : values[..., 1::2].shape[-1]]
    elif kind == "twins":  # all positions alike: two orders of the same steps differ by their rounding alone
        exponent = torch.randint(-60, 7, (batch, 1, ranks), generator=g).float().exp2()
        values = (-torch.rand(batch, 1, ranks, generator=g) * exponent).sort(dim=-1, descending=True).values
        values = values.expand(shape).clone()
    elif kind == "plus":  # not log-probabilities, but finite floats
        values = values + 4.0
    return values


KINDS = (
    "gaussian",
    "bf16",
    "peaked",
    "equal",
    "certain",
    "one-hot",
    "almost one-hot",
    "holes",
    "rounded",
    "plus",
)


def tree_cases(sizes: list[tuple[int, int, int, int, int]], seed: int) -> Iterator[Case]:
    """One case of every kind at each size. sizes: (batch, L, K, budget, rows)."""
    g = torch.Generator().manual_seed(seed)
    for batch, depth, ranks, budget, rows in sizes:
        for kind in KINDS:
            values = candidates(kind, (batch, depth, ranks), g)
            order = torch.rand(batch, depth, ranks + 3, generator=g).argsort(dim=-1)[..., :ranks]
            name = f"{kind}, L={depth}, K={ranks}, B={budget}"
            yield Case(name, values, order, budget, rows)  # ids from 0 on: 0 is a token


def compare_trees(case: Case, device: torch.device) -> ddtree_utils.TreeBatch:
    """The kernel's trees; asserts that they equal the reference. Prefixes are unequal, one is 0."""
    size = case.log_probs.shape[0]
    roots, prefixes = torch.arange(size) + 70, (torch.arange(size) * 37) % 101
    expected = ddtree_utils.build_batch(case.log_probs, case.ids, roots, prefixes, case.budget, case.rows)
    there = [tensor.to(device) for tensor in (case.log_probs, case.ids, roots, prefixes)]
    got = ddtree_kernels.build_trees(*there, case.budget, case.rows, expected.mask.numel())
    assert ddtree_kernels.tree_difference(got, expected) is None, (
        case.name,
        ddtree_kernels.tree_difference(got, expected),
    )
    return expected


def logits_of(kind: str, rows: int, columns: int, dtype: torch.dtype, g: torch.Generator) -> torch.Tensor:
    """Logits of one kind, [rows, columns], not contiguous between rows."""
    x = torch.randn(rows, columns + 8, generator=g) * 3
    if kind == "ties":
        x = x.round().clamp(max=4)
    elif kind == "equal":
        x = torch.full_like(x, 2.0)
    elif kind == "signs":  # only 0.0 and -0.0
        x = torch.where(x > 0, 0.0, -0.0)
    elif kind == "holes":
        x[:, ::3] = -INF
        x[:, 1::3] = torch.nan
        x[0] = torch.nan
        x[-1] = -INF
    elif kind == "lonely":
        x = torch.full_like(x, -INF)
        x[:, -9] = 1.0
    elif kind == "infinite":
        x[:, columns // 2] = INF
    return x.to(dtype)[:, :columns]


LOGITS = ("gaussian", "ties", "equal", "signs", "holes", "lonely", "infinite")


def compare_top(logits: torch.Tensor, first_id: int, k: int, name: str) -> None:
    """Values and ids bit by bit; the log-sum-exp to float32's accuracy."""
    columns = logits.shape[1]
    clean = torch.where(logits.isnan(), -INF, logits.float()).cpu()
    values, ids = ddtree_topk.canonical_top(clean, torch.arange(columns) + first_id, k)
    partition = clean.double().logsumexp(dim=1)
    got = ddtree_kernels.top_k_lse(logits, first_id, k)
    assert torch.equal(got[0].cpu(), values), name
    assert torch.equal(got[1].cpu(), ids), name
    close = torch.isclose(got[2].cpu().double(), partition, rtol=2e-6, atol=2e-6)
    assert bool(close.all()), (name, got[2], partition)


def compare_walk(
    trees: ddtree_utils.TreeBatch, depth: int, device: torch.device, vocabulary: int, g: torch.Generator
) -> None:
    """Targets that follow the tree for a while, with ties and NaN in their rows."""
    size, rows = trees.token.shape
    target = (torch.randn(size * rows, vocabulary, generator=g) * 2).round()
    follow = torch.rand(size, rows, generator=g) < 0.8
    liked = torch.where(follow, ddtree_kernels.some_child(trees), 1).reshape(-1, 1)
    target.scatter_(1, liked, 30.0)
    second = target[:, ddtree_kernels_walk.BLOCK :]  # a block later the same again: ties
    second.copy_(target[:, : second.shape[1]].clone())
    target[torch.rand(target.shape, generator=g) < 0.01] = torch.nan
    target[rows * (size - 1) :][: size > 1] = torch.nan  # the last root's row, if it is not the only one
    target = target.to(torch.bfloat16)
    clean = torch.where(target.isnan(), -INF, target.float())
    expected = ddtree_utils.walk(trees, lambda at, _: clean[at].argmax(dim=1), depth)
    there = ddtree_utils.TreeBatch(**{name: tensor.to(device) for name, tensor in vars(trees).items()})
    got = ddtree_kernels.walk_greedy(target.to(device), there, depth)
    for name, tensor in vars(expected).items():
        assert torch.equal(getattr(got, name).cpu(), tensor), name


def check_trees_of_every_kind() -> None:
    for case in tree_cases([(2, 4, 4, 18, 19), (1, 15, 7, 24, 25)], seed=1):
        compare_trees(case, CPU)


def check_trees_smaller_and_larger_than_their_rows() -> None:
    """K = 1; fewer nodes than positions; more than the lattice has; more rows than nodes; one request."""
    sizes = [(1, 6, 1, 9, 16), (1, 8, 5, 3, 16), (1, 2, 3, 20, 24), (1, 1, 9, 5, 6), (1, 3, 2, 1, 2)]
    for case in tree_cases(sizes, seed=2):
        compare_trees(case, CPU)


def check_trees_of_a_large_budget() -> None:
    """Masks of more than one tile, ranks in more than one span."""
    for case in tree_cases([(1, 6, 20, 130, 131)], seed=3):
        if case.name.startswith(("bf16", "equal")):
            compare_trees(case, CPU)


def check_trees_hypothesis_thinks_of() -> None:
    """Candidates on a grid of quarters: ties within positions, across them and across depths, and early ends."""
    from hypothesis import Phase, given, settings
    from hypothesis import strategies as st

    # no shrinking: in the interpreter it takes minutes
    @settings(max_examples=40, deadline=None, derandomize=True, database=None, phases=[Phase.generate])
    @given(st.integers(1, 6), st.integers(1, 5), st.integers(1, 20), st.integers(0, 3), st.data())
    def equal(depth: int, ranks: int, budget: int, spare: int, data: st.DataObject) -> None:
        steps = st.lists(st.integers(0, 2), min_size=ranks, max_size=ranks)
        drops = torch.tensor(data.draw(st.lists(steps, min_size=depth, max_size=depth)))
        values = -drops.float().cumsum(dim=-1) / 4
        ends = torch.tensor(data.draw(st.lists(st.integers(0, 9), min_size=depth, max_size=depth)))
        values[torch.arange(ranks) >= ends[:, None]] = data.draw(st.sampled_from([-INF, torch.nan]))
        ids = torch.arange(depth * ranks).view(1, depth, ranks)
        compare_trees(Case("hypothesis", values[None], ids, budget, budget + 1 + spare), CPU)

    equal()


def check_scores_round_in_the_order_of_the_reference() -> None:
    """Trees that differ when a sibling's score is s + (b - a) and not s - a + b."""
    for row, depth in (
        ([-8.928959116938176e-20, -1.0232140112975685e-07, -0.6189117431640625, -8.481025695800781], 3),
        ([-1.677451255156781e-12, -3.1284673202708335e-12, -0.37181252241134644], 2),
        ([-1.8764639364912683e-13, -0.0018583338242024183, -0.11813069134950638], 3),
    ):
        values = torch.tensor(row).expand(1, depth, len(row)).contiguous()
        ids = torch.arange(values.numel()).view(values.shape)
        for budget in (8, 15, 24):
            compare_trees(Case(str(row), values, ids, budget, budget + 1), CPU)


def check_most_trees_are_listed_and_the_rest_popped() -> None:
    """Which kernel does what: else one of the two would be checked by nothing."""
    g = torch.Generator().manual_seed(9)
    popped = ddtree_kernels_tree._pop_kernel
    for kind, listed in (
        ("bf16", True),
        ("equal", True),
        ("holes", False),
        ("plus", False),
        ("rounded", False),
    ):
        values = candidates(kind, (2, 6, 5), g)
        ids = torch.arange(60).view(2, 6, 5)
        zeros = torch.zeros(2, dtype=torch.int64)
        ddtree_kernels_tree._pop_kernel = NoKernel()
        try:
            got = ddtree_kernels.build_trees(values, ids, zeros, zeros, 30, 31, 2 * 31 * 31)
        finally:
            ddtree_kernels_tree._pop_kernel = popped
        assert got.nodes.tolist() == [31 * listed] * 2, kind


class NoKernel:
    """A kernel that does nothing."""

    def __getitem__(self, _: object) -> Callable[..., None]:
        return lambda *_, **__: None


def check_top_k_and_partition() -> None:
    g = torch.Generator().manual_seed(4)
    for dtype, columns, k in (
        (torch.bfloat16, 5000, 16),
        (torch.bfloat16, 300, 40),
        (torch.float16, 300, 5),
        (torch.float32, 2100, 9),
        (torch.float32, 7, 9),
        (torch.bfloat16, 1, 1),
    ):
        for kind in LOGITS:
            compare_top(logits_of(kind, 2, columns, dtype, g), 1000, k, f"{kind} {dtype} {columns} {k}")


def check_top_k_at_its_largest() -> None:
    g = torch.Generator().manual_seed(5)
    for kind in ("gaussian", "ties", "holes"):
        for k in (128, 130):
            compare_top(logits_of(kind, 1, 9000, torch.bfloat16, g), 0, k, f"{kind} {k}")


def check_walk_reads_what_it_visits() -> None:
    g = torch.Generator().manual_seed(6)
    for case in tree_cases([(3, 5, 4, 14, 17)], seed=6):
        if case.name.startswith(("gaussian", "holes", "certain")):
            compare_walk(compare_trees(case, CPU), 8, CPU, 90, g)
    for case in tree_cases([(1, 3, 3, 6, 7)], seed=7):
        if case.name.startswith("bf16"):
            compare_walk(compare_trees(case, CPU), 3, CPU, ddtree_kernels_walk.BLOCK + 500, g)


def check_self_check_is_silent_and_names_a_broken_kernel() -> None:
    ddtree_kernels.self_check(CPU)
    kernels = vars(ddtree_kernels)
    for name in ("top_k_lse", "build_trees", "walk_greedy"):
        sound = kernels[name]
        kernels[name] = broken(sound)
        try:
            ddtree_kernels.self_check(CPU)
        except RuntimeError as error:
            assert f"kernel {name} " in str(error), error
        else:
            raise AssertionError(f"self_check did not see that {name} is broken")
        finally:
            kernels[name] = sound


def broken(kernel: Callable[..., object]) -> Callable[..., object]:
    """The kernel with one element of its second result changed: an id, a parent, a token."""

    def run(*arguments: object) -> object:
        result = kernel(*arguments)
        parts = result if isinstance(result, tuple) else tuple(vars(result).values())
        parts[1][0, 0] += 1
        return result

    return run


def main(names: list[str]) -> int:
    warnings.simplefilter("ignore")  # numpy's, about infinities
    checks = {
        name.removeprefix("check_"): value
        for name, value in globals().items()
        if name.startswith("check_") and isinstance(value, types.FunctionType)
    }
    failed = 0
    for name in names or list(checks):
        try:
            checks[name]()
            print(f"ok {name}", flush=True)
        except Exception:
            failed += 1
            print(f"FAILED {name}\n{traceback.format_exc()}", flush=True)
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
