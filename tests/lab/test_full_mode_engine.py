"""Full mode on the real SGLang 0.5.11: refused, then after its shadow confirmed, with the gain computed by hand."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from rig import CHECKOUT, Rig

pytestmark = [pytest.mark.lab, pytest.mark.engine, pytest.mark.tier("dense")]
PROMPT, TOKENS = [65, 66, 65], 18  # 18 tokens are whole steps of 2 and of 3
CYCLE = [66, 65] * 9  # what next(65) = 66, next(anything else) = 65 gives from the prompt
#: deploy/lab/engine/mkmodels.py, `cycle_pair`, has the sum: a chain, and a tree of budget 6 with top-k 3.
LINEAR, TREE = 2.0, 3.0


def ask(rig: Rig, **more: Any) -> tuple[int, dict[str, Any]]:
    sampling = {"temperature": 0, "max_new_tokens": TOKENS, **more.pop("sampling", {})}
    body = {"input_ids": PROMPT, "sampling_params": sampling, **more}
    status, text = rig.host.http("/generate", body, timeout=120)
    return status, json.loads(text)


def accept_length(rig: Rig) -> float:
    """Tokens a verify step of one request, whose answer must be the baseline's."""
    status, answer = ask(rig)
    assert status == 200, answer
    assert answer["output_ids"] == CYCLE
    found: float = answer["meta_info"]["spec_accept_length"]
    return found


def state(rig: Rig) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(rig.host.http("/get_server_info")[1])["internal_states"][0]
    return found


def test_shadow_then_full_gains_what_the_sum_says(engine_host: Any, tmp_path: Path) -> None:
    # A copy: an edit of the checkout between the two deploys would rightly void the proof.
    shutil.copytree(CHECKOUT / "engine_patches", tmp_path / "patches")
    rig = Rig(engine_host("ct129", pair="cycle"), tmp_path / "project")
    rig.configure(
        series=str(tmp_path / "patches" / "sglang-0.5.11"), draft="/models/cyc_draft", budget=6, topk=3
    )
    rig.adopt()
    before, pid = rig.theirs(), rig.host.main_pid()
    assert ask(rig)[1]["output_ids"] == CYCLE

    early = rig.cli("deploy", "--mode", "full")
    assert early.rc == 3, early.err
    assert "ddtree-ops deploy --host ct129 --mode shadow" in early.err
    assert (rig.host.main_pid(), rig.ours()) == (pid, [])

    run = rig.cli("deploy", "--mode", "shadow")
    assert run.rc == 0, run.err
    assert state(rig)["ddtree_mode"] == "shadow-linear"
    assert accept_length(rig) == LINEAR
    shadow = rig.status()["running"]

    run = rig.cli("deploy", "--mode", "full")
    assert run.rc == 0, run.err
    assert "proof: shadow of the same sources was confirmed here" in run.err
    assert rig.status()["confirmed"]["release"] == rig.status()["running"] != shadow
    told = state(rig)
    assert (told["ddtree_mode"], told["speculative_ddtree_shadow_linear"]) == ("full", False)
    assert accept_length(rig) == TREE
    assert accept_length(rig) - LINEAR == 1.0
    trees = state(rig)["ddtree"]
    assert trees["trees"] > 0
    assert trees["shadow_errors"] == 0
    # What the mode's data file says that clients lose, they lose with a sentence.
    for lost in ({"return_logprob": True}, {"sampling": {"regex": "a+"}}):
        status, answer = ask(rig, **lost)
        assert (status, "does not support" in json.dumps(answer)) == (400, True), answer
    assert accept_length(rig) == TREE

    back = rig.cli("rollback")
    assert back.rc == 0, back.err
    assert rig.status()["running"] == shadow
    assert accept_length(rig) == LINEAR
    assert rig.theirs() == before
