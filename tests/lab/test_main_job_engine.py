"""The main job on the real SGLang 0.5.11: shadow mode serves the baseline's tokens, at tp 1 and tp 2, and goes back."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from rig import CHECKOUT, Rig

pytestmark = [pytest.mark.lab, pytest.mark.engine, pytest.mark.tier("main")]
SERIES = CHECKOUT / "engine_patches"
CYCLE = [66, 65] * 8  # what next(65) = 66, next(anything else) = 65 gives from [65, 66, 65]

#: Appended to a copy of our worker: verify commits a wrong token where it accepted one draft.
WRONG_TOKEN = """

import sglang.srt.speculative.dflash_info as _info

_verify = _info.compute_dflash_accept_len_and_bonus


def _commit_a_wrong_token(**kwargs):
    accepted, bonus = _verify(**kwargs)
    return accepted, bonus + 1


_info.compute_dflash_accept_len_and_bonus = _commit_a_wrong_token
"""


def generate(rig: Rig, prompt: list[int], tokens: int) -> dict[str, Any]:
    body = {
        "input_ids": prompt,
        "sampling_params": {"temperature": 0, "max_new_tokens": tokens},
    }
    status, text = rig.host.http("/generate", body, timeout=120)
    assert status == 200, text
    found: dict[str, Any] = json.loads(text)
    return found


def info(rig: Rig) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(rig.host.http("/get_server_info")[1])
    return found


def engine_rig(engine_host: Any, project: Path, pair: str, **spec: Any) -> Rig:
    rig = Rig(engine_host(pair=pair, **spec), project)
    rig.configure(
        series="sglang-0.5.11", draft=f"/models/{pair[:3].replace('con', 'ctx')}_draft", shadow_every=2
    )
    rig.adopt()
    return rig


def assert_shadow(rig: Rig) -> None:
    told = info(rig)
    keys = ("algorithm", "ddtree_shadow_linear", "ddtree_budget", "ddtree_topk_cap")
    assert [told[f"speculative_{key}"] for key in keys] == ["DDTREE", True, 6, 3]


def test_shadow_on_the_cycle_pair(engine_host: Any, tmp_path: Path) -> None:
    rig = engine_rig(engine_host, tmp_path, "cycle")
    before, package = rig.theirs(), rig.host.tree_hash(["/root/ml-env/lib/python3.11/site-packages/sglang"])
    assert generate(rig, [65, 66, 65], 16)["output_ids"] == CYCLE
    run = rig.cli("deploy", "--mode", "shadow")
    assert run.rc == 0, run.err
    assert "KillMode=" in run.err  # how the old service was stopped is part of what the operator reads
    assert_shadow(rig)
    answer = generate(rig, [65, 66, 65], 16)
    assert answer["output_ids"] == CYCLE
    assert answer["meta_info"]["spec_accept_length"] == 2.0
    trees = info(rig)["internal_states"][0]["ddtree"]
    assert trees["trees"] > 0
    assert trees["shadow_errors"] == 0
    pid = rig.host.main_pid()
    assert rig.cli("deploy", "--mode", "shadow").rc == 0
    assert rig.host.main_pid() == pid
    assert rig.cli("rollback").rc == 0
    assert rig.serving() == "None"
    assert generate(rig, [65, 66, 65], 16)["output_ids"] == CYCLE
    assert rig.theirs() == before
    assert rig.host.tree_hash(["/root/ml-env/lib/python3.11/site-packages/sglang"]) == package


@pytest.mark.full  # four minutes; every CI run has tp 2 and the wrong token at the engine's own level (test_shadow)
def test_shadow_at_tp_2_serves_the_baselines_tokens_and_a_wrong_one_shows(
    engine_host: Any, tmp_path: Path
) -> None:
    rig = engine_rig(engine_host, tmp_path / "project", "context", tp=2)
    chosen = json.loads(rig.host.read("/models/prompts.json"))
    prompts, tokens = chosen["ctx"], chosen["max_new_tokens"]
    baseline = [generate(rig, prompt, tokens)["output_ids"] for prompt in prompts]
    assert len({tuple(answer) for answer in baseline}) == len(prompts), "the pair must depend on its context"
    run = rig.cli("deploy", "--mode", "shadow")
    assert run.rc == 0, run.err
    assert_shadow(rig)
    assert info(rig)["tp_size"] == 2
    assert [generate(rig, prompt, tokens)["output_ids"] for prompt in prompts] == baseline
    rig.configure(series=str(wrong_series(tmp_path)), draft="/models/ctx_draft", shadow_every=2)
    assert rig.cli("deploy", "--mode", "shadow").rc == 0
    assert [generate(rig, prompt, tokens)["output_ids"] for prompt in prompts] != baseline


def wrong_series(work: Path) -> Path:
    """Our series with a worker that commits a wrong token: the control of the comparison above."""
    shutil.copytree(SERIES, work / "patches")
    with open(work / "patches" / "ddtree" / "ddtree_worker.py", "a") as file:
        file.write(WRONG_TOKEN)
    return work / "patches" / "sglang-0.5.11"
