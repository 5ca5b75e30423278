"""Full mode on the stand-in: only after a shadow of the same sources on this host, and back to that shadow."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rig import UNIT, Rig, Run
from series_maker import series_with

pytestmark = [pytest.mark.lab, pytest.mark.tier("dense")]
FIRST = "mode full needs a shadow of the same sources first"
FULL_ONLY = {"algorithm": "DDTREE", "speculative_ddtree_shadow_linear": False}


@pytest.fixture(scope="module")
def rig(module_standin_host: Any, tmp_path_factory: pytest.TempPathFactory) -> Rig:
    made = Rig(module_standin_host("ct129"), tmp_path_factory.mktemp("project"))
    made.adopt()
    return made


@pytest.fixture(autouse=True)
def as_the_operator_left_it(rig: Rig) -> Iterator[None]:
    """Every test starts on the serving baseline, and leaves it with nothing of the operator's changed."""
    rig.scenario()
    before = rig.theirs()
    yield
    rig.scenario()
    rig.configure()
    rig.cli("rollback", "--to", "baseline")
    assert rig.serving() == "None"
    assert rig.ours() == []
    assert rig.theirs() == before


@pytest.fixture
def sources(tmp_path: Path) -> str:
    """A series of this test's own: a host's history knows no other test's sources."""
    return make_sources(tmp_path, tmp_path.name)


def make_sources(where: Path, name: str) -> str:
    text = '"Load weight begin. avail mem'
    return str(
        series_with(where / name, "srt/managers/scheduler.py", text, text.replace("begin", f"begin {name}"))
    )


def told(rig: Rig) -> tuple[str, bool]:
    """The mode that the answering server says it runs, and whether its verify is linear."""
    state = json.loads(rig.host.http("/get_server_info")[1])["internal_states"][0]
    return state["ddtree_mode"], state["speculative_ddtree_shadow_linear"]


def ours(rig: Rig) -> tuple[int, str]:
    """What a refusal must leave as it was: the service's process, and every byte that is ours."""
    rig.wait(
        "! systemctl is-active 'ddtree-txn-*.service'"
    )  # a rollout before it may still keep its evidence
    places = "/opt/ddtree /var/lib/ddtree /etc/ddtree /run/systemd/system /etc/systemd/system"
    script = (
        f"find {places} -type f ! -name lock -print0 2>/dev/null | sort -z | xargs -0 sha256sum | sha256sum"
    )
    return rig.host.main_pid(), rig.host.check(["sh", "-c", script])


def refused(rig: Rig, verb: str, *words: str) -> Run:
    """Exit 3 with these words, and nothing touched."""
    before = ours(rig)
    run = rig.cli(verb, "--mode", "full")
    assert run.rc == 3, run.err
    for word in (*words, "nothing was touched"):
        assert word in run.err, run.err
    assert "Traceback" not in run.err
    assert ours(rig) == before
    return run


def test_shadow_then_full_is_confirmed_and_undone_to_the_shadow(rig: Rig, sources: str) -> None:
    rig.configure(series=sources)
    run = refused(rig, "deploy", FIRST, "ddtree-ops deploy --host ct129 --mode shadow")
    refused(rig, "plan", FIRST)
    machine = rig.cli("deploy", "--mode", "full", "--json").json["error"]
    assert (machine["exit_code"], machine["kind"], machine["host"]) == (3, "precondition", "ct129")
    assert machine["next"] in run.err

    assert rig.cli("deploy", "--mode", "shadow").rc == 0
    shadow = rig.status()["running"]
    plan = rig.cli("plan", "--mode", "full", "-o", str(rig.project / "full.json"))
    assert plan.rc == 0, plan.err
    assert "proof: shadow of the same sources was confirmed here" in plan.err
    assert "clients lose: grammar: HTTP 400" in plan.err
    assert "this plan has" not in plan.err  # budget, draft and all else as in the shadow
    full = rig.cli("apply", str(rig.project / "full.json"), host=False)
    assert full.rc == 0, full.err
    assert told(rig) == ("full", False)
    assert rig.status()["confirmed"]["release"] == rig.status()["running"] != shadow
    assert [entry["mode"] for entry in rig.cli("history", "--json").json["history"][-2:]] == [
        "shadow",
        "full",
    ]

    pid = rig.host.main_pid()
    again = rig.cli("deploy", "--mode", "full")
    assert (again.rc, rig.host.main_pid()) == (0, pid)
    assert "nothing to do" in again.err

    back = rig.cli("rollback")
    assert back.rc == 0, back.err
    assert told(rig) == ("shadow-linear", True)
    assert rig.status()["confirmed"]["release"] == rig.status()["running"] == shadow


def test_a_shadow_of_other_sources_proves_nothing(rig: Rig, sources: str, tmp_path: Path) -> None:
    rig.configure(series=make_sources(tmp_path, "other"))
    assert rig.cli("deploy", "--mode", "shadow").rc == 0
    other = json.loads(rig.cli("plan", "--mode", "shadow", "--json").out)["source_digest"]
    rig.configure(series=sources)
    refused(
        rig,
        "deploy",
        FIRST,
        f"the last confirmed shadow here had source_digest {other}",
    )
    assert told(rig) == ("shadow-linear", True)


def test_a_shadow_that_failed_its_trial_proves_nothing(rig: Rig, sources: str) -> None:
    rig.configure(series=sources)
    rig.scenario({"when": {"algorithm": "DDTREE"}, "then": {"exit": {"import": 3}}})
    assert rig.cli("deploy", "--mode", "shadow").rc == 10
    rig.scenario()
    refused(rig, "deploy", FIRST)


def test_the_proof_is_the_hosts_own_and_outlives_the_release(rig: Rig, sources: str, tmp_path: Path) -> None:
    rig.configure(series=sources)
    assert rig.cli("deploy", "--mode", "shadow").rc == 0
    shadow = rig.status()["running"]
    assert rig.cli("rollback").rc == 0
    rig.host.check(["rm", "-rf", f"/opt/ddtree/releases/{shadow}"])
    # Another operator's machine, which has seen nothing of it.
    elsewhere = Rig(rig.host, tmp_path / "elsewhere", series=sources)
    elsewhere.env["XDG_STATE_HOME"] = str(tmp_path / "state")
    elsewhere.adopt()
    run = elsewhere.cli("deploy", "--mode", "full")
    assert run.rc == 0, run.err
    assert "what that shadow ran with is not known any more" in run.err
    assert told(rig) == ("full", False)
    # Without the host's own record there is none.
    assert rig.cli("rollback").rc == 0
    history = f"/var/lib/ddtree/{UNIT}/history.jsonl"
    rig.host.check(["mv", history, history + ".away"])
    try:
        refused(rig, "deploy", "the host's history has no confirmed shadow")
    finally:
        rig.host.check(["mv", history + ".away", history])


def test_a_lost_history_is_proven_again_by_the_shadow_that_the_refusal_names(rig: Rig, sources: str) -> None:
    """A running shadow is not "nothing to do" while the host has no record of its proof."""
    rig.configure(series=sources)
    assert rig.cli("deploy", "--mode", "shadow").rc == 0
    rig.host.check(["sh", "-c", f"printf '{{torn' > /var/lib/ddtree/{UNIT}/history.jsonl"])
    refused(rig, "deploy", "the host's history has no confirmed shadow")
    assert rig.cli("deploy", "--mode", "shadow").rc == 0
    again = rig.cli("deploy", "--mode", "shadow")
    assert (again.rc, "nothing to do" in again.err) == (0, True), again.err
    run = rig.cli("deploy", "--mode", "full")
    assert run.rc == 0, run.err
    assert told(rig) == ("full", False)


def test_a_shadow_with_another_budget_counts_and_plan_says_so(rig: Rig, sources: str) -> None:
    rig.configure(series=sources, budget=6)
    assert rig.cli("deploy", "--mode", "shadow").rc == 0
    rig.configure(series=sources, budget=5)
    plan = rig.cli("plan", "--mode", "full")
    assert plan.rc == 0, plan.err
    assert "ran with --speculative-ddtree-budget 6, this plan has --speculative-ddtree-budget 5" in plan.err


def test_what_hosts_yaml_requires_blocks_the_mode_that_loses_it(rig: Rig, sources: str) -> None:
    rig.configure(series=sources)
    assert rig.cli("deploy", "--mode", "shadow").rc == 0
    assert rig.cli("plan", "--mode", "full", "-o", str(rig.project / "full.json")).rc == 0
    rig.configure(series=sources, requires=["penalties", "grammar"])
    refused(rig, "deploy", "mode full loses grammar (HTTP 400), which hosts.yaml:1:")
    late = rig.cli("apply", str(rig.project / "full.json"), host=False)
    assert (late.rc, "loses grammar" in late.err) == (3, True), late.err
    assert rig.cli("plan", "--mode", "shadow").rc == 0  # shadow keeps both
    rig.configure(series=sources, requires=["gramar"])
    unknown = rig.cli("deploy", "--mode", "full")
    assert (unknown.rc, "no feature has this name" in unknown.err) == (2, True), unknown.err
    assert "hosts.yaml:1:" in unknown.err


def test_a_full_that_fails_goes_back_to_the_shadow(rig: Rig, sources: str) -> None:
    rig.configure(series=sources)
    assert rig.cli("deploy", "--mode", "shadow").rc == 0
    rig.scenario({"when": FULL_ONLY, "then": {"server_info": {"speculative_ddtree_shadow_linear": True}}})
    run = rig.cli("deploy", "--mode", "full")
    assert run.rc == 10, run.err
    assert told(rig) == ("shadow-linear", True)
