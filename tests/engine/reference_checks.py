"""The reference tree against independent brute force; runs under .venv-engine's python (it needs torch).

`reference_checks.py [NAME…]` runs the checks and prints one line each; exit 1 where one fails.
"""

from __future__ import annotations

import math
import random
import sys
import traceback
import types
from collections.abc import Callable
from fractions import Fraction
from itertools import product
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "engine_patches"))

from ddtree import ddtree_shadow, ddtree_topk, ddtree_utils

Ranks = tuple[int, ...]


def lattice(rng: random.Random, coarse: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Sorted log-probabilities [L, K] and distinct ids; coarse: many exact ties."""
    depth, width = rng.randint(1, 5), rng.randint(1, 4)
    logits = torch.tensor([[rng.gauss(0, 2) for _ in range(width + 2)] for _ in range(depth)])
    if coarse:
        logits = (logits * 2).round() / 2
    values, ids = logits.log_softmax(dim=1).topk(width, dim=1)
    return values, ids + 100


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


def frontier_oracle(log_probs: list[list[float]], budget: int) -> list[Ranks]:
    """Best-first by definition: of all prefixes that are ready, the best; no heap, no parents, no increments."""
    depth, width = len(log_probs), len(log_probs[0])
    every = [r for d in range(1, depth + 1) for r in product(range(width), repeat=d)]
    done: list[Ranks] = []
    while len(done) < budget:
        ready = [
            r
            for r in every
            if r not in done
            and (len(r) == 1 or r[:-1] in done)
            and (r[-1] == 0 or (*r[:-1], r[-1] - 1) in done)
        ]
        if not ready:
            break
        done.append(min(ready, key=lambda r: (-score(log_probs, r), r)))
    return done


def check_order_is_best_first() -> None:
    rng = random.Random(1)
    for case in range(120):
        values, ids = lattice(rng, coarse=case % 2 == 0)
        budget = rng.randint(1, 14)
        tree = ddtree_utils.build_tree(values, ids, budget, root_token=7)
        expected = frontier_oracle(values.double().tolist(), budget)
        assert ranks_of(tree)[1:] == expected, case
        for node, ranks in enumerate(expected, 1):
            assert int(tree.depth[node]) == len(ranks)
            assert int(tree.token[node]) == int(ids[len(ranks) - 1, ranks[-1]])
        assert (int(tree.token[0]), int(tree.parent[0]), int(tree.depth[0])) == (7, -1, 0)


def check_nodes_are_the_most_probable() -> None:
    rng = random.Random(2)
    for case in range(120):
        values, ids = lattice(rng, coarse=False)
        budget = rng.randint(1, 30)
        exact = [[Fraction(v) for v in row] for row in values.double().tolist()]
        every = [r for d in range(1, len(exact) + 1) for r in product(range(len(exact[0])), repeat=d)]
        totals = sorted((sum(exact[i][r] for i, r in enumerate(ranks)) for ranks in every), reverse=True)
        tree = ddtree_utils.build_tree(values, ids, budget)
        assert tree.nodes - 1 == min(budget, len(every)), case
        chosen = sorted(
            (sum(exact[i][r] for i, r in enumerate(ranks)) for ranks in ranks_of(tree)[1:]), reverse=True
        )
        for mine, best in zip(chosen, totals):
            assert abs(mine - best) < Fraction(1, 10**12), case


def check_structure() -> None:
    """Parents first, siblings ascending in rank and row with distinct tokens, the first child is rank 0."""
    rng = random.Random(3)
    for case in range(100):
        values, ids = lattice(rng, coarse=case % 2 == 0)
        tree = ddtree_utils.build_tree(values, ids, rng.randint(1, 30))
        children: dict[int, list[int]] = {}
        for node in range(1, tree.nodes):
            assert int(tree.parent[node]) < node
            children.setdefault(int(tree.parent[node]), []).append(node)
        for nodes in children.values():
            assert [int(tree.rank[n]) for n in nodes] == list(range(len(nodes)))
            assert len({int(tree.token[n]) for n in nodes}) == len(nodes)


def check_mask_positions_and_padding() -> None:
    rng = random.Random(4)
    for case in range(100):
        values, ids = lattice(rng, coarse=False)
        tree = ddtree_utils.build_tree(values, ids, rng.randint(1, 20), root_token=9)
        padded = ddtree_utils.pad_tree(tree, tree.rows + rng.randint(0, 5))
        mask = ddtree_utils.full_mask(padded, 3)
        assert mask.shape == (padded.rows, 3 + padded.rows)
        assert bool(mask[:, :3].all())
        where = ddtree_utils.positions(padded, 40)
        for node in range(padded.rows):
            sees = {node}
            above = node
            while node < tree.nodes and above != 0:
                above = int(tree.parent[above])
                sees.add(above)
            assert set(mask[node, 3:].nonzero().flatten().tolist()) == sees, case
            assert int(where[node]) == 40 + (len(sees) - 1 if node < tree.nodes else 0)
            if node >= tree.nodes:
                assert (int(padded.token[node]), int(padded.parent[node])) == (9, 0)


def walk(links: ddtree_utils.Links, tokens: torch.Tensor, b: int, target: list[int]) -> list[int]:
    """Greedy verify by the link arrays: rows accepted, as SGLang's verify kernel goes. target: token after each row."""
    path, row = [0], 0
    while True:
        child = int(links.next_token[b, row])
        while child != -1 and int(tokens[b, child]) != target[row]:
            child = int(links.next_sibling[b, child])
        if child == -1:
            return path
        path.append(child)
        row = child


def check_links_walk_like_parents() -> None:
    rng = random.Random(5)
    for case in range(100):
        trees = []
        for _ in range(3):
            values, ids = lattice(rng, coarse=False)
            trees.append(ddtree_utils.pad_tree(ddtree_utils.build_tree(values, ids, 12, root_token=100), 14))
        links = ddtree_utils.link(trees)
        assert links.index.flatten().tolist() == list(range(3 * 14))
        tokens = torch.stack([tree.token for tree in trees])
        for b, tree in enumerate(trees):
            target = [rng.randint(100, 105) for _ in range(14)]
            path, row = [0], 0
            while True:
                hits = [
                    n
                    for n in range(1, tree.nodes)
                    if int(tree.parent[n]) == row and int(tree.token[n]) == target[row]
                ]
                if not hits:
                    break
                row = hits[0]
                path.append(row)
            assert walk(links, tokens, b, target) == path, case
        siblings = links.next_sibling
        assert bool((siblings[siblings != -1] > (siblings != -1).nonzero()[:, 1]).all())


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
        ddtree_topk.merge_ranks(torch.stack([ddtree_topk.local_top(hidden, p, k) for p in parts]), k),
    ]
    for values, ids in results:
        assert torch.equal(ids, order.indices[:, :k])
        assert torch.allclose(values, log_probs, atol=1e-5)
        assert bool((values[:, 1:] <= values[:, :-1]).all())


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
    try:
        ddtree_topk.merge_ranks(packed, 2)
    except RuntimeError:
        return
    raise AssertionError("the other ranks did not notice")


def check_statistics() -> None:
    stats = ddtree_shadow.ShadowStats()
    values = torch.tensor([[[-0.1, -3.0], [-0.1, -3.0]]] * 2)
    ids = torch.tensor([[[1, 2], [3, 4]]] * 2)
    chains = torch.tensor([[1, 3], [1, 9]])
    ddtree_shadow.observe(stats, values, ids, chains, torch.tensor([5, 6]), 4)
    assert (stats.trees, stats.nodes, stats.short_trees) == (2, 8, 0)
    assert stats.nodes_by_depth == [4, 4]
    assert (stats.spine_nodes, stats.spine_agree, stats.spine_agreement) == (4, 3, 0.75)
    ddtree_shadow.observe(stats, values, ids, chains, torch.tensor([5, 6]), 50)
    assert (stats.trees, stats.nodes, stats.short_trees) == (4, 20, 2)


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
