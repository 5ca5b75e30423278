"""Temperature above 0 in full DDTREE: tokens 2 to 4 are the target's joint, in the walk and over HTTP."""

from __future__ import annotations

import json
import re
import subprocess
from collections import Counter
from pathlib import Path

import pytest
from real_engine import PYTHON, environment, need_engine, serving

pytestmark = [pytest.mark.tier("dense"), pytest.mark.engine]

HERE = Path(__file__).parent
SCRIPT = HERE / "sampling_checks.py"
NAMES = re.findall(r"^def check_(\w+)", SCRIPT.read_text(encoding="utf-8"), re.MULTILINE)
PROMPT = [200, 100, 50, 25, 12, 6, 3, 1, 0]
TOP_K, TEMPERATURE = 4, 0.8
DRAWS, AT_ONCE = 6_000, 100


@pytest.fixture(scope="module")
def output() -> str:
    """What the checks of the walk said: one process for all."""
    need_engine()
    return subprocess.run(
        [PYTHON, "-B", SCRIPT], capture_output=True, text=True, check=False, env=environment()
    ).stdout


@pytest.mark.parametrize("name", NAMES)
def test_walk(name: str, output: str) -> None:
    assert f"ok {name}\n" in output, output


@pytest.mark.full  # minutes: the walk itself, above, has its draws in every run
def test_server_draws_from_the_target(models: Path, overlay: Path, tmp_path: Path) -> None:
    """Against an independent float32 forward; half of a batch is greedy, and stays so."""
    flags = [
        *("--dtype", "float32", "--max-running-requests", "64", "--random-seed", "7"),
        *("--speculative-algorithm", "DDTREE", "--speculative-draft-model-path", str(models / "ctx_draft")),
        *("--speculative-ddtree-budget", "12", "--speculative-ddtree-topk-cap", "6"),
    ]
    drawn = {"temperature": TEMPERATURE, "top_k": TOP_K, "max_new_tokens": 4, "ignore_eos": True}
    greedy = drawn | {"temperature": 0}
    sampling = [drawn] * AT_ONCE + [greedy] * 4
    body = {"input_ids": [PROMPT] * len(sampling), "sampling_params": sampling}
    seen: Counter[tuple[int, ...]] = Counter()
    fixed = set()
    with serving("sampled", tmp_path, models / "ctx_target", *flags, overlay=overlay) as server:
        for _ in range(DRAWS // AT_ONCE):
            with server.post("/generate", body) as reply:
                given = [tuple(answer["output_ids"]) for answer in json.load(reply)]
            seen.update(given[:AT_ONCE])
            fixed.update(given[AT_ONCE:])
        trees = server.state()["ddtree"]
    question = {
        "model": str(models / "ctx_target"),
        "prompt": PROMPT,
        "top_k": TOP_K,
        "temperature": TEMPERATURE,
        "seen": [[*text, count] for text, count in seen.items()],
    }
    done = subprocess.run(
        [PYTHON, "-B", HERE / "sampling_joint.py"],
        input=json.dumps(question),
        env=environment(),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    said = json.loads(done.stdout.splitlines()[-1])
    assert said["impossible"] == 0, "tokens outside the target's top-k"
    assert said["cells"] > 40
    assert said["p"] > 1e-3, said
    assert said["p_greedy_at_nodes"] < 1e-9, said
    assert fixed == {tuple(said["greedy"])}
    assert trees["accepted_by_depth"][1] > 100, "the draws did not go down the trees"
