"""What the draft reads after a branching accept: its next tree is the one it drafts behind a fresh prefill.

Wrong rows in the draft's context change no token that is emitted, they only lower acceptance: so no
comparison of answers shows them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from real_engine import Server, make_overlay, serving

pytestmark = [pytest.mark.tier("dense"), pytest.mark.engine]

PROMPTS = [[70, 111, 112], list(range(40, 54)), [200, 100, 50, 25, 12, 6, 3, 1, 0]]
WORKER = "srt/speculative/ddtree_worker.py"
# Appended to a copy of the worker: one line for each verify step of a lone request, its prefix and its tree.
DUMP = """

import json as _json

_built = DDTreeWorker._trees


def _and_write(self, roots, draft_hidden, lm_head, prefix_lens, prefixes):
    trees = _built(self, roots, draft_hidden, lm_head, prefix_lens, prefixes)
    line = {"prefix": prefixes[0], "token": trees.token[0].tolist(), "parent": trees.parent[0].tolist()}
    with open("trees.jsonl", "a") as out:
        out.write(_json.dumps(line) + "\\n")
    return trees


DDTreeWorker._trees = _and_write
"""
# Appended to a copy of the verify module: the context gets the first rows instead of the path's.
WRONG_ROWS = """

_verify = DDTreeVerifyInput.verify


def _take_the_first_rows(self, *, batch, logits_output, page_size):
    hidden = logits_output.hidden_states.view(batch.batch_size(), self.draft_token_num, -1)
    token, committed, _, accepted = _verify(
        self, batch=batch, logits_output=logits_output, page_size=page_size
    )
    rows = [hidden[i, :m] for i, m in enumerate(committed.tolist())]
    return token, committed, torch.cat(rows), accepted


DDTreeVerifyInput.verify = _take_the_first_rows
"""


def drafted(server: Server, work: Path, prompt: list[int], tokens: int) -> tuple[list[int], list[Any]]:
    """The answer, and the trees of its steps."""
    (work / "trees.jsonl").write_text("")
    answer = server.generate(prompt, tokens)["output_ids"]
    return answer, [json.loads(line) for line in (work / "trees.jsonl").read_text().splitlines()]


def differing(models: Path, overlay: Path, work: Path) -> tuple[int, int, int]:
    """Trees compared, of these behind an accepted row that is not its own place, and trees that differ."""
    flags = [
        *("--speculative-algorithm", "DDTREE", "--speculative-draft-model-path", str(models / "ctx_draft")),
        *("--speculative-ddtree-budget", "16", "--speculative-ddtree-topk-cap", "6"),
        *("--disable-radix-cache", "--dtype", "float32"),
    ]
    compared = moved = differ = 0
    with serving("draft", work, models / "ctx_target", *flags, overlay=overlay) as server:
        for prompt in PROMPTS:
            answer, steps = drafted(server, work, prompt, 24)
            text = prompt + answer
            for before, step in zip(steps, steps[1:]):
                grown = text[before["prefix"] : step["prefix"] + 1]
                moved += leaves_first_rows(before, grown)
                fresh = drafted(server, work, text[: step["prefix"]], 2)[1][0]
                compared += 1
                differ += (fresh["token"], fresh["parent"]) != (step["token"], step["parent"])
    return compared, moved, differ


def leaves_first_rows(tree: Any, path: list[int]) -> bool:
    """Whether the accepted path's rows are others than 0, 1, 2, …; path: the root, then the tokens that followed."""
    row = 0
    for depth, token in enumerate(path[1:-1], 1):
        row = next(i for i, (t, p) in enumerate(zip(tree["token"], tree["parent"])) if (t, p) == (token, row))
        if row != depth:
            return True
    return False


def test_the_next_tree_is_that_of_a_fresh_prefill(
    models: Path, patched_files: dict[str, bytes], overlay: Path, tmp_path: Path
) -> None:
    dumping = {WORKER: patched_files[WORKER] + DUMP.encode()}
    compared, moved, differ = differing(
        models, make_overlay(tmp_path / "dump", overlay / "sglang", dumping), tmp_path
    )
    assert compared > 20 and moved > 5
    assert differ == 0


@pytest.mark.full
def test_wrong_rows_in_the_context_are_seen(
    models: Path, patched_files: dict[str, bytes], overlay: Path, tmp_path: Path
) -> None:
    info = "srt/speculative/ddtree_info.py"
    broken = {
        WORKER: patched_files[WORKER] + DUMP.encode(),
        info: patched_files[info] + WRONG_ROWS.encode(),
    }
    _, moved, differ = differing(
        models, make_overlay(tmp_path / "broken", overlay / "sglang", broken), tmp_path
    )
    assert differ > 0.5 * moved
