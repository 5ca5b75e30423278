"""Judges what node_overlay.py wrote down by Hugging Face's own float32 forward; runs under .venv-engine's python.

`node_checks.py MODEL DIRECTORY…` prints one JSON object a directory: of every node of every tree, the largest
difference between its logits and those of its root path run as a chain; how many generated tokens are not the
forward's best; and, of the trees that its subdirectory `fresh` drafted from a prefill of the same text, how many
are the same tree.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

NEAR_TIE = 1e-4


def paths_of(parents: list[int]) -> list[list[int]]:
    """Rows of every path from the root to a leaf."""
    inner = set(parents)
    paths = []
    for leaf in range(len(parents)):
        if leaf in inner:
            continue
        path = [leaf]
        while path[-1] != 0:
            path.append(parents[path[-1]])
        paths.append(path[::-1])
    return paths


def logits_of(model: Any, texts: list[list[int]]) -> torch.Tensor:
    """[texts, longest, vocabulary]; behind a text's end there is nothing to read."""
    longest = max(len(text) for text in texts)
    padded = torch.tensor([text + [0] * (longest - len(text)) for text in texts])
    with torch.inference_mode():
        found: torch.Tensor = model(padded).logits
    return found


def worst_node(model: Any, tree: dict[str, Any]) -> float:
    """Largest difference of a tree's logits from those of its paths as chains."""
    assert len(tree["text"]) == tree["prefix"] + 1, "the root is the last token of the text"
    tokens, paths = tree["token"].tolist(), paths_of(tree["parent"].tolist())
    chains = [tree["text"][:-1] + [tokens[row] for row in path] for path in paths]
    worst = 0.0
    for path, logits in zip(paths, logits_of(model, chains)):
        alone = logits[tree["prefix"] : tree["prefix"] + len(path)]
        worst = max(worst, float((alone - tree["logits"][path]).abs().max()))
    return worst


def wrong_tokens(model: Any, text: list[int], prompt: int) -> int:
    """Generated tokens that another token beats by more than a near-tie."""
    logits = logits_of(model, [text])[0, prompt - 1 : -1]
    beaten = logits.max(dim=1).values - logits.gather(1, torch.tensor(text[prompt:])[:, None])[:, 0]
    return int((beaten > NEAR_TIE).sum())


def same_trees(trees: list[dict[str, Any]], fresh: list[dict[str, Any]]) -> tuple[int, int]:
    """Texts that both have a tree of, and how many of these trees are equal."""
    known = {tuple(tree["text"]): tree for tree in trees}
    both = [(known[key], tree) for tree in fresh if (key := tuple(tree["text"])) in known]
    return len(both), sum(
        torch.equal(a["token"], b["token"]) and torch.equal(a["parent"], b["parent"]) for a, b in both
    )


def judge(model: Any, directory: Path) -> dict[str, Any]:
    steps = [torch.load(path) for path in sorted(directory.glob("*.pt"))]
    trees = [tree for step in steps for tree in step]
    last = {(tree["prompt"], *tree["text"][: tree["prompt"]]): tree for tree in trees}
    redrafted, same = same_trees(
        trees, [tree for path in sorted(directory.glob("fresh/*.pt")) for tree in torch.load(path)]
    )
    differences = [worst_node(model, tree) for tree in trees]
    return {
        "trees": len(trees),
        "in_batches": sum(len(step) for step in steps if len(step) > 1),
        "nodes": sum(len(tree["token"]) for tree in trees),
        "branching": sum(len(paths_of(tree["parent"].tolist())) > 1 for tree in trees),
        "redrafted": redrafted,
        "same_trees": same,
        "worst": max(differences),
        "broken_trees": sum(d > 1e-2 for d in differences),
        "tokens": sum(len(tree["text"]) - tree["prompt"] for tree in last.values()),
        "wrong_tokens": sum(wrong_tokens(model, tree["text"], tree["prompt"]) for tree in last.values()),
    }


if __name__ == "__main__":
    reference = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32).eval()
    for name in sys.argv[2:]:
        print(json.dumps(judge(reference, Path(name))))
