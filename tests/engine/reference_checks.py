"""The reference trees against independent brute force; runs under .venv-engine's python (it needs torch).

`reference_checks.py [NAME…]` runs the checks and prints one line each; exit 1 where one fails.
"""

from __future__ import annotations

import math
import os
import sys
import traceback
import types
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

# DDTREE_PATCHES: another copy of engine_patches, for trying these checks on a broken one
sys.path.insert(
    0, os.environ.get("DDTREE_PATCHES", str(Path(__file__).resolve().parents[2] / "engine_patches"))
)

from ddtree import ddtree_sample, ddtree_stats, ddtree_topk, ddtree_utils

Ranks = tuple[int, ...]
KINDS = ("random", "coarse", "one-hot", "uniform", "cut", "peaked", "extreme")


def many(examples: int) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """The same examples on every machine, and no database."""
    return settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )


@dataclass
class Lattice:
    """log_probs float32 [L, K], rows descending; token_ids int64 [L, K], distinct in a row, id 0 among them."""

    log_probs: torch.Tensor
    token_ids: torch.Tensor
    budget: int

    @property
    def widths(self) -> list[int]:
        """Candidates of each position before the first that is not finite."""
        return [
            next((i for i, v in enumerate(row) if not math.isfinite(v)), len(row))
            for row in self.log_probs.tolist()
        ]

    @property
    def prefixes(self) -> list[Ranks]:
        """Every node that a tree could have."""
        return [
            ranks
            for depth in range(1, len(self.widths) + 1)
            for ranks in product(*(range(w) for w in self.widths[:depth]))
        ]


def row_of(draw: st.DrawFn, kind: str, width: int) -> list[float]:
    if kind == "uniform":
        return [-math.log(width)] * width
    if kind == "one-hot":
        return [0.0] + [-math.inf] * (width - 1)
    if kind == "coarse":  # exact in float64 and full of ties; 0.0 ties a child with its parent
        return [-v / 4 for v in draw(st.lists(st.integers(0, 12), min_size=width, max_size=width))]
    if kind == "peaked":  # float64 sums of these round, and by how much depends on the order
        parts = st.tuples(st.integers(2**23, 2**24 - 1), st.integers(20, 60))
        drawn = draw(st.lists(parts, min_size=width, max_size=width))
        return [-mantissa * 2.0**-exponent for mantissa, exponent in drawn]
    low = -(2.0**127) if kind == "extreme" else -20.0
    tame = st.floats(low, 0.0, width=32, allow_subnormal=kind == "extreme")
    row = draw(st.lists(tame, min_size=width, max_size=width))
    if kind == "cut":
        row[draw(st.integers(0, width - 1)) :] = []
    return row + [-math.inf] * (width - len(row))


@st.composite
def lattices(
    draw: st.DrawFn,
    kinds: tuple[str, ...] = KINDS,
    depth: int | None = None,
    width: int | None = None,
    budget: int | None = None,
) -> Lattice:
    """Small lattices of one kind, with budgets from 1 over B < L to more than the lattice has."""
    depth = depth or draw(st.integers(1, 4))
    width = width or draw(st.integers(1, 4))
    kind = draw(st.sampled_from(kinds))
    if kind == "peaked":  # one row for all positions: (0,1) and (1,0) tie but for their rounding
        rows = [sorted(row_of(draw, kind, width), reverse=True)] * depth
    else:
        rows = [sorted(row_of(draw, kind, width), reverse=True) for _ in range(depth)]
    ids = [
        draw(st.permutations([0, *draw(st.sets(st.integers(1, 9), min_size=width - 1, max_size=width - 1))]))
        for _ in rows
    ]
    budget = budget or draw(st.one_of(st.integers(1, 6), st.integers(1, 45)))
    return Lattice(torch.tensor(rows, dtype=torch.float32), torch.tensor(ids, dtype=torch.int64), budget)


def built(lattice: Lattice) -> ddtree_utils.Tree:
    return ddtree_utils.build_tree(lattice.log_probs, lattice.token_ids, lattice.budget, root_token=7)


def score(log_probs: list[list[float]], ranks: Ranks) -> float:
    """The score as its derivation makes it: first child, then sibling after sibling, in float64."""
    total = 0.0
    for level, rank in enumerate(ranks):
        total = log_probs[level][0] if level == 0 else total + log_probs[level][0]
        for r in range(rank):
            total = total - log_probs[level][r] + log_probs[level][r + 1]
    return total


def ranks_of(tree: ddtree_utils.Tree) -> list[Ranks]:
    """Rank tuple of each node, by walking up the parents."""
    found: list[Ranks] = [()]
    for node in range(1, tree.nodes):
        found.append((*found[int(tree.parent[node])], int(tree.rank[node])))
    return found


def frontier_oracle(lattice: Lattice) -> list[Ranks]:
    """Best-first by definition: of all prefixes that are ready, the best; no heap, no parents, no increments."""
    log_probs = lattice.log_probs.double().tolist()
    keys = {ranks: (-score(log_probs, ranks), ranks) for ranks in lattice.prefixes}
    done: list[Ranks] = []
    while len(done) < lattice.budget:
        ready = [
            r
            for r in keys
            if (len(r) == 1 or r[:-1] in done) and (r[-1] == 0 or (*r[:-1], r[-1] - 1) in done)
        ]
        if not ready:
            break
        done.append(min(ready, key=keys.__getitem__))
        del keys[done[-1]]
    return done


@many(250)
@given(lattices())
def check_order_is_best_first(lattice: Lattice) -> None:
    tree, expected = built(lattice), frontier_oracle(lattice)
    assert ranks_of(tree)[1:] == expected
    assert tree.nodes == tree.rows == len(expected) + 1
    for node, ranks in enumerate(expected, 1):
        assert int(tree.depth[node]) == len(ranks)
        assert int(tree.token[node]) == int(lattice.token_ids[len(ranks) - 1, ranks[-1]])
    assert (int(tree.token[0]), int(tree.parent[0]), int(tree.depth[0])) == (7, -1, 0)


@many(250)
@given(lattices(kinds=("coarse", "one-hot")))
def check_nodes_are_the_most_probable_ties_by_ranks(lattice: Lattice) -> None:
    """Where float64 sums are exact, the tree is the head of the list of all prefixes, sorted by (sum, ranks)."""
    log_probs = lattice.log_probs.double().tolist()
    totals = {ranks: sum(log_probs[i][r] for i, r in enumerate(ranks)) for ranks in lattice.prefixes}
    everything = sorted(totals, key=lambda ranks: (-totals[ranks], ranks))
    assert ranks_of(built(lattice))[1:] == everything[: lattice.budget]


@many(250)
@given(lattices(kinds=("random", "uniform", "cut")))
def check_nodes_are_the_most_probable(lattice: Lattice) -> None:
    log_probs = lattice.log_probs.double().tolist()
    best, chosen = (
        sorted((math.fsum(log_probs[i][r] for i, r in enumerate(ranks)) for ranks in some), reverse=True)
        for some in (lattice.prefixes, ranks_of(built(lattice))[1:])
    )
    assert len(chosen) == min(lattice.budget, len(best))
    assert all(abs(mine - theirs) < 1e-12 for mine, theirs in zip(chosen, best))


@many(40)
@given(lattices(width=1, depth=4))
def check_one_candidate_gives_a_chain(lattice: Lattice) -> None:
    tree = built(lattice)
    assert tree.parent.tolist() == list(range(-1, tree.nodes - 1))
    known = lattice.widths.index(0) if 0 in lattice.widths else 4
    assert tree.nodes - 1 == min(lattice.budget, known)
    assert tree.token.tolist()[1:] == lattice.token_ids[: tree.nodes - 1, 0].tolist()


def check_uniform_and_one_hot_by_hand() -> None:
    """Uniform: whole levels, in rank order. One-hot: the chain, however large the budget."""
    ids = torch.arange(6).view(3, 2)
    flat = torch.full((3, 2), -math.log(2))
    tree = ddtree_utils.build_tree(flat, ids, 7)
    assert ranks_of(tree) == [(), (0,), (1,), (0, 0), (0, 1), (1, 0), (1, 1), (0, 0, 0)]
    assert ddtree_utils.build_tree(flat, ids, 100).nodes == 1 + 2 + 4 + 8
    hot = torch.tensor([[0.0, -math.inf]] * 3)
    tree = ddtree_utils.build_tree(hot, ids, 100)
    assert ranks_of(tree) == [(), (0,), (0, 0), (0, 0, 0)]
    assert tree.token.tolist()[1:] == [0, 2, 4]  # id 0 is a token like any other


@many(200)
@given(lattices())
def check_structure(lattice: Lattice) -> None:
    """Parents first, siblings ascending in rank and row with distinct tokens, the first child is rank 0."""
    tree = built(lattice)
    children: dict[int, list[int]] = {}
    for node in range(1, tree.nodes):
        assert int(tree.parent[node]) < node
        children.setdefault(int(tree.parent[node]), []).append(node)
    for nodes in children.values():
        assert [int(tree.rank[n]) for n in nodes] == list(range(len(nodes)))
        assert len({int(tree.token[n]) for n in nodes}) == len(nodes)


def check_candidates_that_are_not_finite_end_a_row() -> None:
    values = torch.tensor([[-0.1, -math.inf], [-0.2, -3.0], [-math.inf, -math.inf]])
    tree = ddtree_utils.build_tree(values, torch.arange(6).view(3, 2), 50)
    assert ranks_of(tree) == [(), (0,), (0, 0), (0, 1)]
    dead = torch.full((2, 2), math.nan)
    assert ddtree_utils.build_tree(dead, torch.zeros(2, 2, dtype=torch.int64), 5).nodes == 1


def check_bad_input_is_refused() -> None:
    good, ids = torch.tensor([[-0.1, -0.2]]), torch.tensor([[1, 2]])
    for values, tokens, budget in (
        (good, ids, 0),
        (good.double(), ids, 4),
        (good, ids.int(), 4),
        (good.flip(1), ids, 4),
        (good, ids.T, 4),
    ):
        try:
            ddtree_utils.build_tree(values, tokens, budget)
        except ValueError:
            continue
        raise AssertionError((values, tokens, budget))


@dataclass
class Case:
    """Requests of one batch, one shape, unequal prefixes, and what build_batch makes of them."""

    lattices: list[Lattice]
    roots: list[int]
    prefixes: list[int]
    rows: int
    batch: ddtree_utils.TreeBatch


@st.composite
def cases(draw: st.DrawFn, padding: int = 5) -> Case:
    depth, width, budget = draw(st.integers(1, 4)), draw(st.integers(1, 3)), draw(st.integers(1, 14))
    shape = lattices(depth=depth, width=width, budget=budget)
    requests = draw(st.lists(shape, min_size=1, max_size=4))
    roots = [draw(st.integers(0, 9)) for _ in requests]
    prefixes = [draw(st.integers(1, 9)) for _ in requests]
    rows = budget + 1 + draw(st.integers(0, padding))
    batch = ddtree_utils.build_batch(
        torch.stack([r.log_probs for r in requests]),
        torch.stack([r.token_ids for r in requests]),
        torch.tensor(roots),
        torch.tensor(prefixes),
        budget,
        rows,
    )
    return Case(requests, roots, prefixes, rows, batch)


@many(200)
@given(cases())
def check_batch_is_the_trees_side_by_side(case: Case) -> None:
    """Each request's rows are its own tree; padding carries the root's token; masks lie one behind the other."""
    batch, at = case.batch, 0
    for b, (lattice, root, prefix) in enumerate(zip(case.lattices, case.roots, case.prefixes)):
        tree = ddtree_utils.build_tree(lattice.log_probs, lattice.token_ids, lattice.budget, root_token=root)
        spare = case.rows - tree.nodes
        assert int(batch.nodes[b]) == tree.nodes
        for column, own, filler in (
            (batch.token, tree.token, root),
            (batch.parent, tree.parent, 0),
            (batch.depth, tree.depth, 0),
            (batch.rank, tree.rank, -1),
            (batch.position, prefix + tree.depth, prefix),
        ):
            assert column.dtype == torch.int64
            assert column[b].tolist() == own.tolist() + [filler] * spare
        size = case.rows * (prefix + case.rows)
        mask = batch.mask[at : at + size].view(case.rows, prefix + case.rows)[:, prefix:]
        at += size
        for row in range(case.rows):
            sees, above = {row}, row if row < tree.nodes else 0
            while above > 0:
                above = int(tree.parent[above])
                sees.add(above)
            assert set(mask[row].nonzero().flatten().tolist()) == sees
    assert batch.mask.dtype == torch.bool
    assert batch.mask.numel() == at == ddtree_utils.mask_elements(case.prefixes, case.rows)


@many(200)
@given(cases())
def check_links_name_first_child_and_next_sibling(case: Case) -> None:
    batch = case.batch
    for b in range(len(case.roots)):
        nodes, parents = int(batch.nodes[b]), batch.parent[b].tolist()
        for row in range(case.rows):
            children = [n for n in range(1, nodes) if parents[n] == row] if row < nodes else []
            assert int(batch.next_token[b, row]) == min(children, default=-1)
            later = [n for n in range(row + 1, nodes) if row > 0 and parents[n] == parents[row]]
            assert int(batch.next_sibling[b, row]) == min(later, default=-1)


@many(200)
@given(cases(), st.integers(0, 2**32))
def check_greedy_walk_follows_the_argmax_of_visited_rows(case: Case, seed: int) -> None:
    """Against a walk by tokens and parents; rows that the path does not reach hold NaN or other tokens."""
    batch, (size, rows) = case.batch, case.batch.token.shape
    deepest = len(case.lattices[0].widths)
    logits = torch.randn(size * rows, 10, generator=torch.Generator().manual_seed(seed))
    found = ddtree_utils.walk(batch, ddtree_sample.greedy_choice(logits), deepest)
    visited = torch.zeros(size * rows, dtype=torch.bool)
    for b in range(size):
        path, emitted = [0], []
        while True:
            visited[b * rows + path[-1]] = True
            emitted.append(int(logits[b * rows + path[-1]].argmax()))
            fits = [
                n
                for n in range(1, int(batch.nodes[b]))
                if int(batch.parent[b, n]) == path[-1] and int(batch.token[b, n]) == emitted[-1]
            ]
            if not fits:
                break
            path += fits
        fill = [-1] * (deepest + 1 - len(path))
        assert found.path[b].tolist() == path + fill
        assert found.token[b].tolist() == emitted + fill
        assert int(found.length[b]) == len(path)
    logits[~visited] = math.nan
    again = ddtree_utils.walk(batch, ddtree_sample.greedy_choice(logits), deepest)
    assert torch.equal(again.path, found.path)
    assert torch.equal(again.token, found.token)


def check_a_walk_never_enters_padding() -> None:
    """The target repeats the root's token, which is the token of every padding row and of no child."""
    values, ids = torch.tensor([[[-0.1, -3.0]]]), torch.tensor([[[1, 2]]])
    batch = ddtree_utils.build_batch(values, ids, torch.tensor([5]), torch.tensor([3]), 2, 8)
    logits = torch.zeros(8, 10)
    logits[:, 5] = 1.0
    found = ddtree_utils.walk(batch, ddtree_sample.greedy_choice(logits), 1)
    assert (found.path.tolist(), found.token.tolist(), found.length.tolist()) == ([[0, -1]], [[5, -1]], [1])


def head(weight: torch.Tensor, start: int, base: int, padded: int, added: int, added_start: int) -> object:
    shard = types.SimpleNamespace(
        num_org_elements=base,
        num_org_elements_padded=padded,
        num_added_elements=added,
        org_vocab_start_index=start,
        added_vocab_start_index=added_start,
    )
    return types.SimpleNamespace(weight=weight, shard_indices=shard)


def check_topk_is_the_same_on_any_number_of_ranks() -> None:
    """80 base tokens and 5 added ones: whole, and over 4 ranks with padding rows that would win if they counted."""
    torch.manual_seed(0)
    base, extra, k = torch.randn(80, 16).bfloat16(), torch.randn(5, 16).bfloat16(), 9
    base[40:60] = base[20:40]  # exact ties, across ranks too
    hidden = torch.randn(300, 16).bfloat16()
    logits = torch.cat([hidden @ base.T, hidden @ extra.T], dim=1).float()
    order = logits.sort(dim=1, descending=True, stable=True)
    log_probs = order.values[:, :k] - logits.double().logsumexp(dim=1, keepdim=True).float()
    loud = torch.full((16, 16), 50.0).bfloat16()
    one = head(torch.cat([base, loud, extra, loud]), 0, 80, 96, 5, 80)
    cuts = [(0, 32, (0, 3)), (32, 64, (3, 5)), (64, 80, (5, 5)), (80, 80, (5, 5))]
    parts = []
    for start, stop, (first, last) in cuts:
        weight = torch.cat([base[start:stop], loud, loud[: 32 - (stop - start)], extra[first:last], loud])
        padded = (stop - start) + 16 + 32 - (stop - start)
        parts.append(
            head(weight[: padded + last - first + 16], start, stop - start, padded, last - first, 80 + first)
        )
    results = [
        ddtree_topk.top_candidates(hidden, one, k, None),
        ddtree_topk.merge_ranks(
            torch.stack([ddtree_topk.pack(*ddtree_topk.local_top(hidden, p, k)) for p in parts]), k
        ),
    ]
    for values, ids in results:
        assert torch.equal(ids, order.indices[:, :k])
        assert torch.allclose(values, log_probs, atol=1e-5)
        assert bool((values[:, 1:] <= values[:, :-1]).all())


@many(200)
@given(st.lists(st.one_of(st.integers(-3, 3).map(float), st.floats(width=32)), min_size=1, max_size=12))
def check_topk_order(row: list[float]) -> None:
    """(logit descending, id ascending), NaN as -inf, missing columns as -inf with id 0."""
    values, ids = ddtree_topk.canonical_top(torch.tensor([row]), torch.arange(len(row)), 9)
    known = [-math.inf if math.isnan(v) else v for v in row]
    order = sorted(range(len(row)), key=lambda i: (-known[i], i))[:9]
    assert values[0].tolist() == [known[i] for i in order] + [-math.inf] * (9 - len(order))
    assert ids[0].tolist() == order + [0] * (9 - len(order))


def check_topk_of_odd_numbers() -> None:
    logits = torch.tensor([[0.0, -0.0, math.nan, -math.inf, 3.0, -2.0, 3.0]])
    values, ids = ddtree_topk.canonical_top(logits, torch.arange(7), 9)
    assert ids[0, :5].tolist() == [4, 6, 0, 1, 5]
    assert values[0, 5:].tolist() == [-math.inf] * 4


def check_a_rank_that_fails_still_enters_the_gather() -> None:
    entered = []

    def gather(packed: torch.Tensor) -> torch.Tensor:
        entered.append(bool(packed.isnan().all()))
        return packed[None]

    broken = types.SimpleNamespace(weight=torch.zeros(4, 3), shard_indices=None)
    try:
        ddtree_topk.top_candidates(torch.zeros(2, 3), broken, 2, gather)
    except AttributeError:
        assert entered == [True]
    else:
        raise AssertionError("the failure was swallowed")
    packed = torch.zeros(2, 1, 5, dtype=torch.float64)
    packed[1] = torch.nan
    values, ids = ddtree_topk.merge_ranks(packed, 2)
    assert ddtree_utils.build_tree(values, ids, 5).nodes == 1, "the other ranks must draft nothing then"


def two_trees(budget: int) -> ddtree_utils.TreeBatch:
    """Twice the nodes (0), (0,0), (1), (0,1)…: tokens 1 2 at depth 1, 3 4 at depth 2."""
    values = torch.tensor([[[-0.1, -3.0], [-0.1, -3.0]]] * 2)
    ids = torch.tensor([[[1, 2], [3, 4]]] * 2)
    return ddtree_utils.build_batch(
        values, ids, torch.tensor([5, 6]), torch.tensor([1, 1]), budget, budget + 1
    )


def check_statistics_of_trees_and_chains() -> None:
    stats = ddtree_stats.TreeStats()
    few, all_six = two_trees(4), two_trees(50)
    stats.count_trees(few.depth, few.nodes, 4)
    stats.count_chain(few, torch.tensor([[1, 3], [1, 9]]))
    assert (stats.trees, stats.nodes, stats.short_trees) == (2, 8, 0)
    assert stats.nodes_by_depth == [4, 4]
    assert (stats.spine_nodes, stats.spine_agree, stats.spine_agreement) == (4, 3, 0.75)
    stats.count_trees(all_six.depth, all_six.nodes, 50)
    assert (stats.trees, stats.nodes, stats.short_trees) == (4, 20, 2)
    assert stats.nodes_by_depth == [8, 12]


def check_statistics_of_walks() -> None:
    """One path on the spine, cut after its first node; one beside the spine, by a second and a first child."""
    stats, trees = ddtree_stats.TreeStats(), two_trees(50)
    logits = torch.zeros(2, trees.rows, 10)
    for b, (first, second) in enumerate(((1, 3), (2, 3))):
        logits[b, 0, first] = 1.0
        logits[b, 1:, second] = 1.0
    found = ddtree_utils.walk(trees, ddtree_sample.greedy_choice(logits.flatten(0, 1)), 2)
    assert found.length.tolist() == [3, 3]
    stats.count_trees(trees.depth, trees.nodes, 50)
    stats.count_walk(found, trees.rank, [2, 3])
    assert (stats.accepted, stats.accepted_by_depth, stats.accept_length) == (3, [2, 1], 2.5)
    assert (stats.spine_nodes, stats.spine_agree) == (3, 1)


CHECKS: dict[str, Callable[[], None]] = {
    name.removeprefix("check_"): call for name, call in list(globals().items()) if name.startswith("check_")
}

if __name__ == "__main__":
    failed = False
    for check in sys.argv[1:] or list(CHECKS):
        try:
            CHECKS[check]()
        except Exception:
            failed = True
            print(f"FAILED {check}\n{traceback.format_exc()}")
        else:
            print(f"ok {check}")
    sys.exit(failed)
