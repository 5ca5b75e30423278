"""CI's share of the random campaign; `make campaign N=300` is the night's."""

from __future__ import annotations

import os
import random
from collections import Counter
from pathlib import Path

import campaign
import pytest
from campaign_draw import BUDGETS, FORCED, GENTLE, draw
from ddtree_lab.client import Lab
from rig import CHECKOUT

pytestmark = [pytest.mark.tier("transaction")]
RUNS, HOSTS = 30, 6
CYCLES = {"deploy": 10.0, "rollback": 10.0}
CLASSES = {**dict.fromkeys(FORCED, "forced"), **dict.fromkeys(GENTLE, "gentle")}


@pytest.mark.lab
@pytest.mark.timeout(1500)
def test_no_interrupted_rollout_loses_a_host(lab: Lab, tmp_path: Path) -> None:
    seed = os.environ.get("CAMPAIGN_SEED") or str(random.SystemRandom().randrange(10**6))
    hosts = int(os.environ.get("CAMPAIGN_HOSTS", HOSTS))
    found = campaign.run_campaign(lab, tmp_path, RUNS, hosts, seed, CHECKOUT / "build" / "campaign-ci")
    assert found.violations == []
    assert len(found.results) == RUNS


def test_a_seed_draws_the_same_run_again() -> None:
    assert draw("7/3", CYCLES, 6) == draw("7/3", CYCLES, 6) != draw("7/4", CYCLES, 6)


def test_what_is_drawn_is_what_the_issue_asks_for() -> None:
    plans = [draw(f"s/{number}", CYCLES, 6) for number in range(4000)]
    first = [plan.faults[0] for plan in plans]
    classes = Counter(CLASSES[fault.name] for fault in first)
    assert 0.82 < classes["forced"] / len(plans) < 0.88
    times = sorted(fault.t for fault in first)
    assert times[0] < 0.1 and times[-1] > 10.9
    assert all(abs(times[len(times) * tenth // 10] - 1.1 * tenth) < 0.5 for tenth in range(1, 10))  # uniform
    assert set(CLASSES) == {fault.name for fault in first}
    assert {plan.budget for plan in plans} == {None, *BUDGETS}
    assert any(len(plan.faults) == 2 for plan in plans)


def test_a_sick_release_is_never_the_one_that_must_come_back() -> None:
    plans = [draw(f"s/{number}", CYCLES, 5) for number in range(2000)]
    assert {plan.health for plan in plans} == {"good", "dies", "hangs"}
    assert all(plan.health == "good" or (plan.budget, plan.action) != (5, "rollback") for plan in plans)
    assert all(plan.budget != 5 for plan in plans if plan.health != "good")


def test_a_baseline_is_deployed_over_not_rolled_back() -> None:
    assert {draw(f"s/{number}", CYCLES, None).action for number in range(50)} == {"deploy"}


def test_processes_that_die_unseen_fail_the_campaign(tmp_path: Path) -> None:
    found = campaign.Campaign("s", 30, tmp_path)
    found.results = [{"lag_s": 0.4, "violations": []}] * 28 + [{"lag_s": None, "violations": []}]
    assert found.violations == []
    found.results += [{"lag_s": 2.5, "violations": []}] * 2
    assert found.violations == ["I6: dead processes were noticed after 2.5 s (p95 of 30)"]
