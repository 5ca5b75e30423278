"""Plans as data: what moved is named, what is unknown is said, documents that are none are refused."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from ddtree_ops.core.errors import PreconditionFailed, UsageProblem
from ddtree_ops.core.plan import Plan, Preconditions, check_unmoved, moved, read_plan
from ddtree_ops.core.steps import deploy_steps
from ddtree_ops.core.txn import FORWARD

pytestmark = pytest.mark.tier("main")
PLAN = Plan(
    host="ct129",
    service="sglang.service",
    mode="shadow",
    release="aa",
    source_digest="bb",
    steps=deploy_steps("sglang.service", "aa", 3, 100, 90),
    preconditions=Preconditions("baseline", "t" * 64, {"/etc/u.service": "1"}),
    argv_before=["x"],
    argv_after=["x", "--y"],
    dropin="",
)
SAVED = json.loads(json.dumps(PLAN.to_json()))


def test_a_plan_survives_its_file() -> None:
    assert read_plan(SAVED, "p.json")["release"] == "aa"
    assert moved(SAVED, PLAN) == []


@pytest.mark.parametrize(
    ("now", "word"),
    [
        (replace(PLAN, release="cc"), "aa is now cc"),
        (replace(PLAN, preconditions=replace(PLAN.preconditions, confirmed="dd")), "dd"),
        (replace(PLAN, preconditions=replace(PLAN.preconditions, tree="u" * 64)), "sources"),
        (
            replace(PLAN, preconditions=replace(PLAN.preconditions, unit_files={"/etc/u.service": "2"})),
            "/etc/u.service",
        ),
        (replace(PLAN, preconditions=replace(PLAN.preconditions, unit_files={})), "/etc/u.service"),
    ],
)
def test_what_moved_is_named(now: Plan, word: str) -> None:
    with pytest.raises(PreconditionFailed, match=word):
        check_unmoved(SAVED, now)


@pytest.mark.parametrize("document", [[], {}, {"kind": "plan"}, {**SAVED, "schema_version": 99}])
def test_what_is_no_plan_is_refused(document: object) -> None:
    with pytest.raises(UsageProblem, match=r"p\.json"):
        read_plan(document, "p.json")


def test_the_steps_walk_the_transition_table() -> None:
    states = [step.state for step in PLAN.steps]
    assert states == [state for state in FORWARD if state in states]
    assert all(step.undo for step in PLAN.steps)
