"""The rewrite of a command line: what a mode drops, sets and adds, and that an operator's value is never changed."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddtree_ops.core.errors import PreconditionFailed, UsageProblem
from ddtree_ops.core.features import Loss
from ddtree_ops.core.modes import Rewritten, read_flags, rewrite
from ddtree_ops.core.modes_file import read_modes

pytestmark = pytest.mark.tier("main")
MODES = read_modes(
    {
        "drop": ["--speculative-*"],
        "forbid": [{"flag": "--config", "reason": "flags in a file"}],
        "modes": {
            "tree": {
                "patched": True,
                "requires": ["draft"],
                "set": {
                    "--speculative-algorithm": "TREE",
                    "--speculative-draft": "{draft}",
                    "--speculative-bare": True,
                },
                "add": [
                    {
                        "flag": "--no-cache",
                        "when": "hybrid",
                        "unless": ["--strategy=extra"],
                        "reason": "hybrids need it",
                    },
                    {"flag": "--backend", "value": "triton", "reason": "tree masks"},
                ],
                "forbid": [{"flag": "--pages", "allow": ["1"], "reason": "one page"}],
                "state": {"budget": "{budget}", "kind": "tree-{budget}"},
                "loses": [{"feature": "logprobs", "says": "HTTP 400"}],
            },
            "later": {"refuse": "not yet"},
        },
    }
)
HEAD = ["/v/python", "-m", "sglang.launch_server"]
VALUES: dict[str, str | int | None] = {"draft": "/d", "budget": 16}


def go(flags: list[str], hybrid: bool = True, mode: str = "tree", **values: Any) -> Rewritten:
    return rewrite([*HEAD, *flags], 3, MODES, MODES.get(mode), {**VALUES, **values}, hybrid, "h")


def test_the_baselines_flags_go_together_and_all_else_stays_in_order() -> None:
    done = go(
        [
            "--port",
            "1",
            "--speculative-algorithm=OLD",
            "--odd",
            "-1",
            "",
            "--speculative-x",
            "3",
            "4",
            "--last",
        ]
    )
    assert done.argv == [
        *HEAD, "--port", "1", "--odd", "-1", "", "--last",
        "--speculative-algorithm", "TREE", "--speculative-draft", "/d", "--speculative-bare", "--no-cache",
        "--backend", "triton",
    ]  # fmt: skip
    assert done.dropped == [["--speculative-algorithm=OLD"], ["--speculative-x", "3", "4"]]
    assert done.added == [("--no-cache", "hybrids need it"), ("--backend triton", "tree masks")]
    assert done.state == {"budget": 16, "kind": "tree-16"} and done.loses == [Loss("logprobs", "HTTP 400")]


def test_a_rule_counts_only_for_its_kind_of_model_and_unless() -> None:
    assert "--no-cache" not in go([], hybrid=False).argv
    assert "--no-cache" not in go(["--strategy", "extra"]).argv
    assert "--no-cache" in go(["--strategy", "other"]).argv


def test_what_the_operator_has_already_is_not_said_twice() -> None:
    done = go(["--backend=triton", "--no-cache"])
    assert done.argv.count("--no-cache") == 1 and "--backend" not in done.argv and done.added == []


@pytest.mark.parametrize(
    ("flags", "flag"),
    [
        (["--backend", "fa3"], "--backend fa3"),
        (["--pages", "2"], "--pages 2"),
        (["--config", "f"], "--config f"),
    ],
)
def test_a_conflict_names_the_flag_and_is_exit_3(flags: list[str], flag: str) -> None:
    with pytest.raises(PreconditionFailed) as error:
        go(flags)
    assert flag in error.value.what and error.value.exit_code == 3
    go(["--pages", "1"])


def test_what_is_missing_or_unknown_is_said() -> None:
    with pytest.raises(UsageProblem, match="needs the host key draft"):
        go([], draft=None)
    with pytest.raises(PreconditionFailed, match="not yet"):
        go([], mode="later")
    with pytest.raises(UsageProblem, match="unknown mode x"):
        MODES.get("x")
    with pytest.raises(UsageProblem, match="unknown key sets"):
        read_modes({"modes": {"a": {"sets": {}}}})


def test_flags_are_read_as_pairs() -> None:
    assert read_flags(["--a", "1", "--b", "--c=", "--d", "x", "y", "--n", "-1", "-h"]) == [
        ("--a", "1"), ("--b", None), ("--c", ""), ("--d", ["x", "y"]), ("--n", "-1"), ("-h", None),
    ]  # fmt: skip


@settings(max_examples=200)
@given(
    st.lists(
        st.sampled_from(["--a", "--b=1", "v", "", "-2", "--speculative-x", "--speculative-y=1", "é"]),
        max_size=10,
    )
)
def test_no_word_of_the_operators_is_lost_or_moved(flags: list[str]) -> None:
    done = go(["--first", *flags])
    kept = done.argv[3 : len(done.argv) - 8]
    lost = [word for words in done.dropped for word in words]
    left = iter(["--first", *flags])
    merged = sorted(kept + lost)
    assert merged == sorted(left)
    rest = iter(["--first", *flags])
    assert all(word in rest for word in kept)
