"""Checks of bench/engine that need torch or SGLang; runs under .venv-engine's python, prints one line a check.

PYTHONPATH needs bench/engine, its plug, engine_patches, and what runs the engine; BENCH_MODELS: what models.py made.
"""

from __future__ import annotations

import os
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any

import cases
import ddtree_bench_mutants as mutants
import judge
import lossless
import report
import torch
from ddtree import ddtree_utils

CHOICES = torch.tensor([[2.0, 1.0, 0.0], [0.0, 3.0, 2.9], [1.0, 1.0, 0.5]])


def check_deficit_is_zero_for_the_best_and_for_a_tie() -> None:
    assert judge.deficits(CHOICES, [0, 1, 1]).tolist() == [0.0, 0.0, 0.0]


def check_a_wrong_token_is_counted_and_a_near_tie_is_not() -> None:
    verdict = judge.Verdict()
    verdict.add(judge.deficits(CHOICES, [1, 2, 0]), "a")
    assert (verdict.tokens, verdict.wrong, round(verdict.worst, 3)) == (3, 1, 1.0)
    assert verdict.faults == ["a: token 0 has deficit 1.00"]


def check_penalties_count_what_was_emitted_before() -> None:
    logits = torch.tensor([[2.0, 1.0, -1.0]]).repeat(3, 1)
    got = judge.penalise(logits, [0, 2, 0], frequency=0.5, presence=0.25, repetition=2.0)
    assert got.tolist() == [[2.0, 1.0, -1.0], [0.625, 1.0, -1.0], [0.625, 1.0, -3.5]]


def drawn(greedy: float) -> tuple[torch.Tensor, list[int]]:
    """Logits, and tokens drawn from their top 4 at temperature 1; a share of them greedily instead."""
    generator = torch.Generator().manual_seed(5)
    logits = torch.randn(700, 50, generator=generator) * 2
    best = logits.topk(4)
    picked = torch.multinomial(best.values.softmax(dim=1), 1, generator=generator)
    tokens = best.indices.gather(1, picked)[:, 0]
    mute = torch.rand(700, generator=generator) < greedy
    return logits, torch.where(mute, best.indices[:, 0], tokens).tolist()


def check_honest_draws_pass() -> None:
    logits, tokens = drawn(greedy=0.0)
    assert judge.judge_sampled(logits, tokens, 1.0, 4).right


def check_half_greedy_draws_are_rejected() -> None:
    logits, tokens = drawn(greedy=0.5)
    judged = judge.judge_sampled(logits, tokens, 1.0, 4)
    assert judged.outside == 0 and judged.z < -judge.Z_LIMIT and not judged.right


def check_a_token_outside_the_top_is_rejected() -> None:
    logits, tokens = drawn(greedy=0.0)
    tokens[3] = int(logits[3].argmin())
    assert judge.judge_sampled(logits, tokens, 1.0, 4).outside == 1


def some_trees() -> ddtree_utils.TreeBatch:
    """Two trees of 9 nodes, 4 deep, behind prefixes of 5 and 0 tokens."""
    generator = torch.Generator().manual_seed(3)
    log_probs = (
        torch.randn(2, 4, 3, generator=generator).log_softmax(dim=2).sort(dim=2, descending=True).values
    )
    token_ids = torch.arange(24).view(2, 4, 3)
    return ddtree_utils.build_batch(log_probs, token_ids, torch.tensor([90, 91]), torch.tensor([5, 0]), 9, 12)


def chain_logits(sequences: list[list[int]]) -> list[torch.Tensor]:
    """A made-up model: the logits after a prefix depend on all of it."""
    runs = []
    for sequence in sequences:
        sums = torch.tensor(sequence, dtype=torch.float32).mul(torch.arange(1, len(sequence) + 1)).cumsum(0)
        runs.append(torch.sin(sums[:, None] * torch.arange(1, 6)))
    return runs


def recorded(trees: ddtree_utils.TreeBatch, text: list[int]) -> dict[str, Any]:
    """What a right engine's verify step would have recorded of the first tree behind `text`."""
    nodes, token = int(trees.nodes[0]), trees.token[0].tolist()
    paths = judge.node_paths(trees.parent[0].tolist(), nodes)
    logits = torch.stack([chain_logits([[*text, *(token[r] for r in p)]])[0][-1] for p in paths])
    tree = {name: getattr(trees, name)[0] for name in ("token", "parent", "depth", "nodes")}
    return tree | {
        "prefix": torch.tensor(len(text)),
        "logits": torch.cat([logits, torch.zeros(12 - nodes, 5)]),
    }


def check_nodes_in_context() -> None:
    text = [4, 8, 15, 16, 23]
    dump = recorded(some_trees(), text)
    assert judge.node_difference(chain_logits, dump, [*text, 90, 1]).max() < 1e-4
    dump["logits"][4] += 1.0
    assert int((judge.node_difference(chain_logits, dump, [*text, 90, 1]) > 0.5).sum()) == 1


def check_a_recording_of_another_text_is_refused() -> None:
    text = [4, 8, 15, 16, 23]
    try:
        judge.node_difference(chain_logits, recorded(some_trees(), text), [*text, 89])
    except ValueError:
        return
    raise AssertionError("a root that is not in the text passed")


def check_every_mutant_breaks_what_it_names() -> None:
    for name, changed in (("mask", {"mask"}), ("position", {"position"}), ("wait", set())):
        assert differing(name) == changed, name
    assert {"parent", "next_token"} <= differing("parent") <= {"parent", "next_token", "next_sibling"}
    walk = ddtree_utils.Walk(
        torch.tensor([[0, 1, 4, -1, -1], [0, 2, 3, 5, -1]]),
        torch.tensor([[7, 8, 9, -1, -1], [6, 5, 4, 3, -1]]),
        torch.tensor([3, 4]),
    )
    for name, mutate in mutants.WALK.items():
        broken = ddtree_utils.Walk(walk.path.clone(), walk.token.clone(), walk.length.clone())
        mutate(broken, 12)
        assert broken.token.equal(walk.token) and not broken.path.equal(walk.path), name
        assert broken.path[:, 0].tolist() == [0, 0] and (broken.path >= 0).equal(walk.path >= 0), name


def differing(name: str) -> set[str]:
    """Fields of a tree batch that a mutant changes."""
    right, broken = some_trees(), some_trees()
    mutants.BUILD[name](broken)
    return {field for field in vars(right) if not getattr(right, field).equal(getattr(broken, field))}


def check_a_mutant_that_answers_rightly_fails_its_case() -> None:
    case = cases.mutant("mask")
    for tokens, passed in (([1, 1], False), ([0, 0], True)):
        answer = {"request": {"prompt": [7], "tokens": 2}, "tokens": tokens, "verify_steps": 1, "error": None}
        entry = {
            "greedy": {"alone": [answer]},
            "graphs": True,
            "healthy_after_s": 1.0,
            "dumps": "/nonexistent",
            "log": ["DDTREE broken on purpose: mask"],
        }
        checks = report.judge_case(case, entry, always_one, 1)
        assert checks[0].passed == passed, checks[0].line


def always_one(sequences: list[list[int]]) -> list[torch.Tensor]:
    """A model that says token 1 whatever it reads."""
    return [torch.tensor([[0.0, 1.0]]).expand(len(sequence), 2) for sequence in sequences]


def check_a_stage_that_was_cut_continues() -> None:
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "lossless.json"
        done, probed, dying = (
            cases.LOSSLESS[0],
            next(c for c in cases.LOSSLESS if c.probe),
            cases.Case("x", dies="y"),
        )
        kept = lossless.Results(path, "one")
        kept.put(done, {"greedy": {}})
        kept.put(probed, {"dumps": f"{name}/gone"})
        entries = lossless.Results(path, "one").data["cases"]
        assert lossless.usable(done, entries.get(done.name)) and not lossless.usable(
            probed, entries[probed.name]
        )
        assert lossless.usable(probed, {"dumps": name}) and lossless.usable(
            probed, {"dumps": "", "checks": []}
        )
        assert not lossless.usable(dying, None) and lossless.usable(dying, {"died": "z"})
        assert lossless.Results(path, "another").data["cases"] == {}


def check_ranks_whose_trees_differ_fail() -> None:
    case = next(case for case in cases.TP2 if case.hashes)
    for second, passed in ((["1 a", "2 b"], True), (["1 a", "2 c"], False), (["1 a"], False)):
        entry = {"hashes": {"rank0": ["1 a", "2 b"], "rank1": second}}
        assert report.rank_check(case, entry).passed == passed
    assert not report.rank_check(case, {"hashes": {"rank0": ["1 a"]}}).passed


def check_the_engine_takes_the_flags_of_every_case() -> None:
    from sglang.srt.server_args import prepare_server_args

    models = os.environ["BENCH_MODELS"]
    for case in [*cases.LOSSLESS, *cases.TP2]:
        arguments = cases.command(case, "cpu", f"{models}/target", f"{models}/draft", 30000)
        args = prepare_server_args(arguments)
        assert (args.speculative_algorithm is not None) == case.speculative, case.name
        assert bool(args.speculative_ddtree_shadow_linear) == (case.mode == "shadow-linear"), case.name


def main() -> int:
    """Run the checks; 1 when one fails."""
    failed = 0
    for name, check in list(globals().items()):
        if not name.startswith("check_"):
            continue
        try:
            check()
            print(f"ok {name.removeprefix('check_')}", flush=True)
        except Exception:
            failed = 1
            print(f"FAILED {name}\n{traceback.format_exc()}", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main())
