"""The transaction on the real SGLang 0.5.11: a cut-off operator, a killed runner, a host that crashes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rig import UNIT, Rig
from test_main_job_engine import CYCLE, engine_rig, generate

pytestmark = [pytest.mark.lab, pytest.mark.engine, pytest.mark.full, pytest.mark.tier("transaction")]
CONFIRM_S = 5
#: The watch looks ten times a second, systemd and a busy machine take the rest.
SLACK_S = 5.0


@pytest.fixture(scope="module")
def rig(engine_host: Any, tmp_path_factory: pytest.TempPathFactory) -> Rig:
    return engine_rig(engine_host, tmp_path_factory.mktemp("project"), "cycle")


@pytest.fixture(autouse=True)
def on_the_baseline(rig: Rig) -> Iterator[None]:
    yield
    rig.cli("rollback", "--to", "baseline")
    assert rig.serving() == "None"
    assert generate(rig, [65, 66, 65], 16)["output_ids"] == CYCLE
    assert rig.ours() == []


def keys(**more: Any) -> dict[str, Any]:
    return {"series": "sglang-0.5.11", "draft": "/models/cyc_draft", "shadow_every": 2, **more}


def times(rig: Rig) -> dict[str, float]:
    """When the newest rollout entered each state (unix seconds)."""
    script = f"cat $(ls -td /var/lib/ddtree/{UNIT}/txn/*/ | head -1)events.jsonl"
    events = map(json.loads, rig.host.check(["sh", "-c", script]).splitlines())
    return {event["state"]: event["t"] for event in events if event["ev"] == "state"}


def test_a_cut_off_operator_costs_no_more_than_the_deadline_a_stop_and_a_start(rig: Rig) -> None:
    rig.configure(**keys())
    assert rig.cli("deploy").rc == 0
    back = rig.cli("rollback", "--json")
    assert back.rc == 0
    stop_and_start = float(back.json["result"]["downtime_s"])
    rig.configure(**keys(timeouts={"confirm": CONFIRM_S}))
    deploy = rig.start("deploy")
    rig.wait_state("STARTING")
    Rig.kill(deploy)
    rig.wait_state("ROLLED_BACK", limit_s=180)
    when = times(rig)
    assert rig.serving() == "None"
    taken = when["ROLLED_BACK"] - when["GATED"]
    print(f"from the gate to the old service: {taken:.1f} s; its own stop and start: {stop_and_start:.1f} s")
    assert taken <= CONFIRM_S + stop_and_start + SLACK_S


def test_a_killed_runner_is_followed_by_the_old_service(rig: Rig) -> None:
    rig.configure(**keys())
    deploy = rig.start("deploy")
    rig.wait_state("STARTING")
    rig.host.check("systemctl kill --kill-who=main --signal=SIGKILL 'ddtree-txn-*.service'")
    _, err = deploy.communicate(timeout=240)
    assert deploy.returncode == 10, err


def test_a_host_that_crashes_boots_the_old_service_with_nothing_of_ours(rig: Rig, tmp_path: Path) -> None:
    rig.configure(**keys())
    deploy = rig.start("deploy")
    rig.wait_state("STARTING")
    rig.host.fault("crash")
    Rig.kill(deploy)
    rig.host.fault("start")
    rig.host.wait_http(limit_s=180)
    assert rig.serving() == "None"
    assert rig.host.check(["sh", "-c", "systemctl list-units 'ddtree-*' --all --no-legend"]).strip() == ""
