"""Full mode before a host is touched: its command line, what clients lose, and what hosts.yaml requires."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from test_doctor import HEALTHY

from ddtree_ops.cli.plan import describe
from ddtree_ops.config import ConfigProblem, load_inventory
from ddtree_ops.core.doctor import examine, refusal
from ddtree_ops.core.errors import PreconditionFailed, UsageProblem
from ddtree_ops.core.features import FEATURES, Loss, Need
from ddtree_ops.core.modes import Modes, Rewritten, rewrite
from ddtree_ops.core.modes_file import read_modes
from ddtree_ops.core.plan import Plan, Preconditions
from ddtree_ops.core.wanted import Wanted
from ddtree_ops.data import data_dir
from ddtree_ops.engine.series import load_series

pytestmark = pytest.mark.tier("dense")
VALUES: dict[str, str | int | None] = {"draft": "/d", "budget": 16, "topk": 4, "shadow_every": 8}
TRITON = ["--attention-backend", "triton"]


@pytest.fixture(scope="module")
def modes() -> Modes:
    return load_series(data_dir("engine_patches") / "sglang-0.5.11").modes


def go(modes: Modes, flags: list[str], mode: str = "full", hybrid: bool = False) -> Rewritten:
    return rewrite(["x", *flags], 1, modes, modes.get(mode), VALUES, hybrid, "h")


def test_full_is_shadow_without_its_shadow_flags(modes: Modes) -> None:
    shadow, full = go(modes, ["--port", "1"], "shadow"), go(modes, ["--port", "1"])
    rest = [word for word in shadow.argv if "shadow" not in word and word != "8"]
    assert full.argv == [*rest, *TRITON]
    assert full.state == {
        "speculative_algorithm": "DDTREE",
        "speculative_ddtree_shadow_linear": False,
        "speculative_ddtree_budget": 16,
        "speculative_ddtree_topk_cap": 4,
        "ddtree_mode": "full",
        "ddtree_healthy": True,
    }


@pytest.mark.parametrize("words", [["--attention-backend", "fa3"], ["--attention-backend=flashinfer"]])
def test_another_backend_is_replaced_and_said(modes: Modes, words: list[str]) -> None:
    split = ["--prefill-attention-backend", "fa3", "--decode-attention-backend", "triton"]
    done = go(modes, [*words, "--port", "1", *split])
    assert done.argv[1:3] == ["--port", "1"] and done.argv[-2:] == TRITON
    assert sum("attention-backend" in word for word in done.argv) == 1
    said = [flag for flag, _ in done.replaced]
    assert said == [" ".join(words), "--prefill-attention-backend fa3", "--decode-attention-backend triton"]
    assert [flag for flag, _ in done.added] == ["--attention-backend triton"]
    # Shadow runs on what the operator chose.
    assert go(modes, words, "shadow").argv[1 : 1 + len(words)] == words


@pytest.mark.parametrize("words", [TRITON, ["--attention-backend=triton"]])
def test_triton_stays_where_it_stands(modes: Modes, words: list[str]) -> None:
    done = go(modes, [*words, "--port", "1"])
    assert done.argv[1 : 1 + len(words)] == words
    assert done.replaced == [] and done.added == [] and "--attention-backend triton" not in done.dropped


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (["--page-size", "16"], "--page-size 16"),
        (["--enable-deterministic-inference"], "--enable-deterministic-inference"),
        (["--rl-on-policy-target", "fsdp"], "--rl-on-policy-target fsdp"),
        (["--disaggregation-mode", "decode"], "--disaggregation-mode decode"),
        (["--enable-two-batch-overlap"], "--enable-two-batch-overlap"),
        (["--enable-hierarchical-cache"], "--enable-hierarchical-cache"),
    ],
)
def test_what_the_engine_refuses_in_full_is_refused_before_it_in_full_alone(
    modes: Modes, flags: list[str], named: str
) -> None:
    with pytest.raises(PreconditionFailed, match=f"mode full cannot run with the operator's {named}"):
        go(modes, flags)
    for other in ("dflash", "shadow"):
        assert go(modes, flags, other).argv[1 : 1 + len(flags)] == flags
    assert go(modes, ["--page-size", "1"]).argv[1:3] == ["--page-size", "1"]


def test_float32_is_refused_only_where_the_cast_is_upstreams(modes: Modes) -> None:
    with pytest.raises(PreconditionFailed, match="--dtype float32"):
        go(modes, ["--dtype", "float32"], "dflash")
    for mode in ("shadow", "full"):
        assert go(modes, ["--dtype", "float32"], mode).argv[1:3] == ["--dtype", "float32"]


def test_a_hybrid_is_refused_in_full_alone(modes: Modes) -> None:
    with pytest.raises(PreconditionFailed, match="mode full is not available"):
        go(modes, [], hybrid=True)
    assert go(modes, [], "shadow", hybrid=True).argv
    assert modes.get("full").refused(False) is None


def test_every_loss_has_a_name_and_full_keeps_the_penalties_that_linear_loses(modes: Modes) -> None:
    lost = {name: {loss.feature for loss in mode.loses} for name, mode in modes.modes.items()}
    assert lost["dflash"] == lost["shadow"] == {"logprobs", "grammar", "tool_choice", "penalties"}
    assert lost["full"] == (lost["shadow"] - {"penalties"}) | {"custom_logit_processor", "attention_backend"}
    assert lost["full"] | lost["shadow"] == set(FEATURES)


def test_the_drafts_own_window_stays_in_every_mode(modes: Modes) -> None:
    window = ["--speculative-dflash-draft-window-size", "2048"]
    for mode in modes.modes:
        done = go(modes, ["--speculative-algorithm", "DFLASH", *window], mode)
        assert done.argv[1:3] == window
        assert done.dropped == [["--speculative-algorithm", "DFLASH"]]


@pytest.mark.parametrize(
    ("keys", "named"),
    [
        ({"loses": ["logprobs: HTTP 400"]}, r"modes\.a\.loses: each loss is"),
        ({"loses": [{"feature": "logprob", "says": "x"}]}, "unknown feature logprob: one of logprobs"),
        ({"loses": [{"feature": "logprobs"}]}, "each loss is"),
        ({"proven_by": "b"}, r"modes\.a\.proven_by: no other mode is named b"),
        ({"proven_by": "a"}, "no other mode is named a"),
        ({"refuse": {"when": "moe", "reason": "x"}}, "when must be one of always, hybrid, dense"),
        ({"refuse": {"when": "hybrid"}}, "a sentence, or"),
        ({"drop": [{"flag": "--x"}]}, r"modes\.a\.drop: each rule needs flag and reason"),
    ],
)
def test_a_fault_in_a_modes_file_is_named(keys: dict[str, Any], named: str) -> None:
    with pytest.raises(UsageProblem, match=named):
        read_modes({"modes": {"a": keys}}, "m.yaml")


HOSTS = """\
version: 1
defaults:
  requires: [penalties]
groups:
  chat:
    requires:
      - logprobs
      - grammar
hosts:
  own: {groups: [chat], requires: [tool_choice]}
  grouped: {groups: [chat]}
  plain: {}
  free: {requires: []}
"""


def test_each_requirement_keeps_the_line_that_says_it(tmp_path: Path) -> None:
    file = tmp_path / "hosts.yaml"
    file.write_text(HOSTS)
    hosts = load_inventory(file).hosts
    assert hosts["own"].needs == (Need("tool_choice", f"{file}:10:36"),)
    assert hosts["grouped"].needs == (Need("logprobs", f"{file}:7:9"), Need("grammar", f"{file}:8:9"))
    assert hosts["plain"].needs == (Need("penalties", f"{file}:3:14"),)
    assert hosts["free"].needs == ()
    assert hosts["grouped"].requires == ["logprobs", "grammar"]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (
            "requires: [grammar, gramar]",
            "5:25: hosts.ct129.requires[1]: no feature has this name: one of logp",
        ),
        ("requires: grammar", "5:15: hosts.ct129.requires: should be a valid list"),
        ("needs: []", "5:5: hosts.ct129.needs: unknown key"),
    ],
)
def test_an_unknown_feature_is_placed(tmp_path: Path, line: str, said: str) -> None:
    file = tmp_path / "hosts.yaml"
    file.write_text(f"version: 1\nhosts:\n  ct200: {{}}\n  ct129:\n    {line}\n")
    with pytest.raises(ConfigProblem) as error:
        load_inventory(file)
    assert error.value.what.startswith(f"{file}:{said}"), error.value.what


def wanted(mode: str | None, *needs: Need) -> Wanted:
    loses = (Loss("logprobs", "HTTP 400"), Loss("grammar", "HTTP 400"), Loss("grammar", "no regex"))
    return Wanted("ct129", "sglang.service", mode=mode, loses=loses, needs=needs)


def test_a_mode_that_loses_what_is_required_is_a_block() -> None:
    need = Need("grammar", "hosts.yaml:4:16")
    findings = examine(HEALTHY, wanted("full", need))
    error = refusal(findings, "ct129")
    assert isinstance(error, PreconditionFailed) and error.exit_code == 3
    assert "mode full loses grammar (HTTP 400), which hosts.yaml:4:16 requires" in error.what
    assert error.meaning == "nothing was touched"


def test_what_a_mode_keeps_is_no_block() -> None:
    need = Need("grammar", "hosts.yaml:4:16")
    for fine in (wanted("full", Need("penalties", "x")), wanted("full"), wanted(None, need)):
        assert "requires" not in {finding.rule for finding in examine(HEALTHY, fine)}


def test_a_plan_prints_each_loss() -> None:
    plan = Plan(
        host="h", service="s", mode="full", release="aa", source_digest="bb", steps=[],
        preconditions=Preconditions("baseline", "t"), argv_before=["x"], argv_after=["x"], dropin="",
        loses=[Loss("grammar", "HTTP 400")],
    )  # fmt: skip
    assert "  clients lose: grammar: HTTP 400" in describe(plan).splitlines()
    assert plan.to_json()["loses"] == [{"feature": "grammar", "says": "HTTP 400"}]


RULE = {"flag": "--x", "reason": "why"}
WRONG = [
    ("proven_by", [None, "", 5, ["shadow"], {"a": 1}, "dflash"]),
    ("refuse", ["", None, 5, {"when": "always", "reason": ""}, {"when": [], "reason": "x"}]),
    ("loses", [0, False, "", {}, 5, [{"feature": ["grammar"], "says": "x"}]]),
    ("patched", ["x", [5], None]),
    ("requires", ["draft", 5, [5]]),
    ("set", ["x", 5, ["--a"], {5: "x"}]),
    ("state", ["x", [1], True]),
    ("add", [5, True, [5], [{"flag": 5, "reason": "x"}], [{**RULE, "when": ["always"]}]]),
    ("drop", [5, True, "x"]),
    ("forbid", [5, True, [{**RULE, "allow": "triton"}], [{**RULE, "allow": 5}], [{**RULE, "unless": 5}]]),
]


@pytest.mark.parametrize(("key", "value"), [(key, value) for key, values in WRONG for value in values])
def test_a_wrong_type_in_a_modes_file_is_named_and_never_weakens_a_gate(key: str, value: Any) -> None:
    modes = {"dflash": {"patched": False}, "shadow": {"patched": True}, "a": {"patched": True, key: value}}
    with pytest.raises(UsageProblem, match=f"m.yaml: modes.a.*{key}"):
        read_modes({"modes": modes}, "m.yaml")


@pytest.mark.parametrize("key", ["drop", "keep", "forbid"])
@pytest.mark.parametrize("value", [5, True, "x", {"a": 1}])
def test_a_wrong_type_at_the_top_is_named(key: str, value: Any) -> None:
    with pytest.raises(UsageProblem, match=f"m.yaml.*{key}"):
        read_modes({key: value, "modes": {}}, "m.yaml")


def test_two_modes_that_need_each_others_proof_are_refused() -> None:
    modes = {"a": {"patched": True, "proven_by": "b"}, "b": {"patched": True, "proven_by": "a"}}
    with pytest.raises(
        UsageProblem, match="proven_by: no other mode is named a, or it needs this one's proof"
    ):
        read_modes({"modes": modes}, "m.yaml")
