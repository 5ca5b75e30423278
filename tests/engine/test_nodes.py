"""Every node of a verified tree has the logits of its root path run as a chain; each way of breaking that shows."""

from __future__ import annotations

import json
import random
import subprocess
from pathlib import Path
from typing import Any

import pytest
from real_engine import PYTHON, environment, make_overlay, serving

pytestmark = [pytest.mark.tier("dense"), pytest.mark.engine]

HERE = Path(__file__).parent
INFO, HOOK = "srt/speculative/ddtree_info.py", "srt/speculative/node_overlay.py"
FAULTS = ["mask", "parent", "position", "commit"]
DRAFT_FAULT = "hidden"  # costs acceptance, never a token
TOKENS = 24


def prompts() -> list[list[int]]:
    rng = random.Random(5)
    return [[rng.randrange(500) for _ in range(length)] for length in (1, 3, 4, 7, 12, 20, 31, 60)]


@pytest.fixture(scope="module")
def verdicts(
    models: Path, overlay: Path, patched_files: dict[str, bytes], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    """What the float32 forward says of the verifies of one server, whose faults change while it runs."""
    room = tmp_path_factory.mktemp("nodes")
    hook = b"\n\nimport sglang.srt.speculative.node_overlay\n"
    files = {INFO: patched_files[INFO] + hook, HOOK: (HERE / "node_overlay.py").read_bytes()}
    changed = make_overlay(room / "overlay", overlay / "sglang", files)
    names = ["none", *FAULTS, DRAFT_FAULT]
    flags = [
        *("--dtype", "float32", "--disable-radix-cache", "--speculative-algorithm", "DDTREE"),
        *("--speculative-draft-model-path", str(models / "ctx_draft")),
        *("--speculative-ddtree-budget", "40", "--speculative-ddtree-topk-cap", "6"),
    ]
    target, variables = models / "ctx_target", {"DDTREE_TEST_ROOM": str(room)}
    with serving("nodes", room, target, *flags, overlay=changed, **variables) as server:
        for fault in names:
            (room / fault / "fresh").mkdir(parents=True)
            (room / "fault").write_text(fault)
            (room / "record").write_text(str(room / fault))
            answers = server.generate(prompts(), TOKENS)
            server.generate(prompts()[5], TOKENS)
            if fault in ("none", DRAFT_FAULT):
                (room / "record").write_text(str(room / fault / "fresh"))
                texts = [p + a["output_ids"] for p, a in zip(prompts(), answers)]
                server.generate([text[:-n] for text in texts for n in range(2, TOKENS - 6, 3)], 2)
    done = subprocess.run(
        [PYTHON, "-B", HERE / "node_checks.py", target, *(room / name for name in names)],
        env=environment(),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    said = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return dict(zip(names, said, strict=True))


def test_logits_of_every_node_are_those_of_its_path(verdicts: dict[str, Any]) -> None:
    said = verdicts["none"]
    print(json.dumps(said))
    assert said["trees"] >= 50 and said["in_batches"] >= 40 and said["branching"] == said["trees"]
    assert said["nodes"] > 2000
    assert said["worst"] < 1e-4
    assert said["wrong_tokens"] == 0 and said["tokens"] > 80


@pytest.mark.parametrize("fault", FAULTS)
def test_broken_on_purpose_shows_in_logits_and_tokens(fault: str, verdicts: dict[str, Any]) -> None:
    said = verdicts[fault]
    print(json.dumps(said))
    assert said["broken_trees"] > 10
    assert said["wrong_tokens"] > 2


def test_a_tree_is_drafted_from_the_accepted_path_alone(verdicts: dict[str, Any]) -> None:
    """The draft's context is the hidden states of the path's nodes: a prefill of the same text drafts the same tree."""
    said, broken = verdicts["none"], verdicts[DRAFT_FAULT]
    print(json.dumps([said, broken]))
    assert said["redrafted"] > 15 and broken["redrafted"] > 15
    # the draft's own near-ties may turn two nodes round
    assert said["same_trees"] >= said["redrafted"] - 2
    assert broken["same_trees"] < broken["redrafted"] // 2
    assert broken["wrong_tokens"] == 0
