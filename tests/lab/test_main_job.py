"""The main job on the stand-in: shadow mode, every way in which a start fails, rollback, nothing else touched."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rig import CHECKOUT, UNIT, Rig
from series_maker import series_with

pytestmark = [pytest.mark.lab, pytest.mark.tier("main")]
TRIAL_ONLY = {"algorithm": "DDTREE"}


@pytest.fixture(scope="module")
def rig(module_standin_host: Any, tmp_path_factory: pytest.TempPathFactory) -> Rig:
    made = Rig(module_standin_host("ct129"), tmp_path_factory.mktemp("project"))
    made.adopt()
    return made


@pytest.fixture(autouse=True)
def as_the_operator_left_it(rig: Rig) -> Iterator[None]:
    """Every test starts on the serving baseline, and leaves it with nothing of the operator's changed."""
    rig.scenario()
    rig.configure()
    before = rig.theirs()
    yield
    rig.scenario()
    rig.cli("rollback", "--to", "baseline")
    assert rig.serving() == "None"
    assert rig.ours() == []
    assert rig.theirs() == before


def failure_of(rig: Rig, run: Any) -> dict[str, Any]:
    """The newest entry of the host's history: what a failed deploy left as its record."""
    entry: dict[str, Any] = rig.cli("history", "--json").json["history"][-1]
    assert entry["outcome"] == "rolled-back"
    assert run.rc == 10, run.err
    failure: dict[str, Any] = entry["failure"]
    return failure


def test_shadow_is_confirmed_then_there_is_nothing_to_do_then_it_is_rolled_back_once(rig: Rig) -> None:
    assert rig.cli("deploy", "--mode", "shadow").rc == 0
    info = json.loads(rig.host.http("/get_server_info")[1])
    told = {key: info[f"speculative_{key}"] for key in ("algorithm", "ddtree_budget", "ddtree_topk_cap")}
    assert told == {"algorithm": "DDTREE", "ddtree_budget": 6, "ddtree_topk_cap": 3}
    assert info["speculative_ddtree_shadow_linear"] is True
    pid = rig.host.main_pid()
    again = rig.cli("deploy", "--mode", "shadow")
    assert (again.rc, rig.host.main_pid()) == (0, pid)
    assert "nothing to do" in again.err
    status = rig.status()
    assert status["running"] == status["confirmed"]["release"] != "baseline"
    assert rig.ours() == ["50-ddtree.conf"]
    back = rig.cli("rollback")
    assert back.rc == 0, back.err
    assert rig.serving() == "None"
    pid = rig.host.main_pid()
    twice = rig.cli("rollback")
    assert (twice.rc, rig.host.main_pid()) == (0, pid)
    assert "nothing to do" in twice.err


def test_the_unit_and_its_enabled_state_are_never_touched(rig: Rig) -> None:
    fragment = f"/etc/systemd/system/{UNIT}"
    before = (rig.host.check(["sha256sum", fragment]), rig.host.show(UNIT, "UnitFileState"))
    assert rig.cli("deploy").rc == 0
    assert (rig.host.check(["sha256sum", fragment]), rig.host.show(UNIT, "UnitFileState")) == before
    assert rig.cli("rollback").rc == 0
    assert (rig.host.check(["sha256sum", fragment]), rig.host.show(UNIT, "UnitFileState")) == before


def test_a_release_that_fails_the_import_smoke_never_stops_the_service(rig: Rig, tmp_path: Path) -> None:
    broken = series_with(
        tmp_path / "broken",
        "srt/managers/scheduler.py",
        "logger = ",
        'raise ImportError("common_ops.abi3.so: undefined symbol: _ZN3c105ErrorC2E")\nlogger = ',
    )
    rig.configure(series=str(broken))
    pid = rig.host.main_pid()
    run = rig.cli("deploy")
    assert run.rc == 3
    assert "undefined symbol: _ZN3c105ErrorC2E" in run.err
    assert rig.host.main_pid() == pid
    assert rig.host.check(["ls", "/opt/ddtree/releases"]).split() == rig.status_releases()


def test_death_in_the_spawned_scheduler_is_quoted_and_rolled_back(rig: Rig) -> None:
    fatal = "ImportError: libcudart.so.13: cannot open shared object file: No such file or directory"
    rig.scenario(
        {"when": TRIAL_ONLY, "then": {"raise": {"spawn": ["Traceback (most recent call last):", fatal]}}}
    )
    run = rig.cli("deploy")
    failure = failure_of(rig, run)
    assert fatal in failure["line"]
    assert fatal in run.err
    assert "noticed" in run.err
    assert failure["lag_s"] <= 2.0
    assert rig.serving() == "None"


def test_exit_0_before_ready_is_a_failure(rig: Rig) -> None:
    rig.scenario({"when": TRIAL_ONLY, "then": {"exit": {"import": 0}}})
    failure = failure_of(rig, rig.cli("deploy"))
    assert failure["lag_s"] <= 2.0
    assert rig.serving() == "None"


def test_a_death_by_signal_is_noticed(rig: Rig) -> None:
    rig.scenario({"when": TRIAL_ONLY, "then": {"exit_main": {"weights": "SIGSEGV"}}})
    failure = failure_of(rig, rig.cli("deploy"))
    assert failure["lag_s"] <= 2.0


def test_a_hang_in_loading_fails_at_its_stall_limit(rig: Rig) -> None:
    rig.scenario({"when": TRIAL_ONLY, "then": {"hang": "weights"}})
    rig.configure(timeouts={"weights": 3})
    failure = failure_of(rig, rig.cli("deploy"))
    assert (failure["phase"], failure["reason"]) == ("weights", "stall")


def test_a_slow_start_that_moves_is_not_killed(rig: Rig) -> None:
    rig.scenario({"when": TRIAL_ONLY, "then": {"slow": {"weights": 6}}})
    rig.configure(timeouts={"weights": 3})
    run = rig.cli("deploy")
    assert run.rc == 0, run.err


def test_a_port_that_somebody_takes_after_the_stop_is_named(rig: Rig) -> None:
    rig.scenario({"when": TRIAL_ONLY, "then": {"delay": {"weights": 4}}})
    thief = (
        "import socket,time,sys\n"
        "s=socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)\n"
        "while True:\n"
        "  try: s.bind(('0.0.0.0',30000)); break\n"
        "  except OSError: time.sleep(.02)\n"
        "s.listen(); time.sleep(12)\n"
    )
    rig.host.write("/run/thief.py", thief)
    rig.host.check(["systemd-run", "--collect", "--unit=thief", "/usr/bin/python3", "/run/thief.py"])
    run = rig.cli("deploy")
    failure = failure_of(rig, run)
    assert failure["reason"] == "port-taken", failure
    assert "thief.py" in run.err + failure["hint"] + failure["line"]
    assert rig.serving() == "None"


def test_a_server_that_is_not_in_the_planned_mode_is_rolled_back(rig: Rig) -> None:
    rig.scenario({"when": TRIAL_ONLY, "then": {"server_info": {"speculative_algorithm": "DFLASH"}}})
    failure = failure_of(rig, rig.cli("deploy"))
    assert failure["phase"] == "mode"


def test_a_server_whose_generations_fail_is_rolled_back(rig: Rig) -> None:
    rig.scenario({"when": TRIAL_ONLY, "then": {"generate": "error"}})
    failure = failure_of(rig, rig.cli("deploy"))
    assert failure["phase"] == "serve"


def test_a_crash_of_the_host_during_the_trial_boots_the_baseline(rig: Rig) -> None:
    rig.scenario({"when": TRIAL_ONLY, "then": {"hang": "weights"}})
    deploy = rig.start("deploy")
    rig.wait_state("STARTING")
    before = rig.host.boot_id()
    rig.host.fault("crash")
    Rig.kill(deploy)
    rig.host.fault("start")
    assert rig.host.boot_id() != before
    assert rig.serving() == "None"  # nothing of ours has run since the boot
    # The next call, whoever makes it, writes down that the reboot was the rollback.
    entry = rig.cli("history", "--json").json["history"][-1]
    assert (entry["outcome"], entry["failure"]["reason"]) == ("rolled-back", "reboot")
    rig.scenario()
    assert rig.cli("deploy").rc == 0


def test_an_operator_who_is_cut_off_leaves_the_old_service(rig: Rig) -> None:
    rig.scenario({"when": TRIAL_ONLY, "then": {"delay": {"weights": 2}}})
    rig.configure(timeouts={"confirm": 3})
    deploy = rig.start("deploy")
    rig.wait_state("STARTING")
    Rig.kill(deploy)
    rig.wait_state("ROLLED_BACK")
    entry = rig.cli("history", "--json").json["history"][-1]
    assert (entry["outcome"], entry["failure"]["reason"]) == ("rolled-back", "unconfirmed")


def test_a_killed_agent_is_followed_by_its_own_rollback(rig: Rig) -> None:
    rig.scenario({"when": TRIAL_ONLY, "then": {"hang": "weights"}})
    deploy = rig.start("deploy")
    rig.wait_state("STARTING")
    rig.host.check("systemctl kill --kill-whom=main --signal=SIGKILL 'ddtree-txn-*.service'")
    _, err = deploy.communicate(timeout=60)
    assert deploy.returncode == 10, err
    assert rig.serving() == "None"


def test_an_interrupt_ends_in_the_old_service(rig: Rig) -> None:
    rig.scenario({"when": TRIAL_ONLY, "then": {"hang": "weights"}})
    deploy = rig.start("deploy")
    rig.wait_state("STARTING")
    deploy.send_signal(2)
    _, err = deploy.communicate(timeout=60)
    assert deploy.returncode == 10, err
    assert rig.serving() == "None"


def test_a_second_operator_is_told_who_is_at_work(rig: Rig) -> None:
    rig.scenario({"when": TRIAL_ONLY, "then": {"delay": {"weights": 6}}})
    first = rig.start("deploy")
    rig.wait_state("STARTING")
    second = rig.cli("deploy")
    assert second.rc == 4, second.err
    assert "is open (STARTING)" in second.err
    assert "by " in second.err
    first.communicate(timeout=60)
    assert first.returncode == 0


def test_a_saved_plan_is_applied_and_refused_once_something_moved(rig: Rig) -> None:
    plan = rig.project / "plan.json"
    assert rig.cli("plan", "-o", str(plan)).rc == 0
    pending = rig.cli("plan", "--exit-code")
    assert pending.rc == 5
    rig.host.check(f"printf '# note\\n' >> /etc/systemd/system/{UNIT}; systemctl daemon-reload")
    refused = rig.cli("apply", str(plan), host=False)
    assert refused.rc == 3
    assert f"/etc/systemd/system/{UNIT}" in refused.err
    rig.host.check(f"sed -i '$d' /etc/systemd/system/{UNIT}; systemctl daemon-reload")
    assert rig.cli("apply", str(plan), host=False).rc == 0
    assert rig.cli("plan", "--exit-code").rc == 0
    again = rig.cli("apply", str(plan), host=False)
    assert again.rc == 3
    assert "confirmed release" in again.err


def test_a_teams_own_two_line_series_is_deployed_the_same_way(rig: Rig) -> None:
    rig.configure(series=str(CHECKOUT / "deploy" / "lab" / "standin" / "series-two-lines"))
    assert rig.cli("deploy", "--mode", "custom").rc == 0
    assert "our own build" in rig.host.check(f"journalctl -u {UNIT} -n 100 --no-pager")


def test_json_says_what_the_exit_code_says(rig: Rig) -> None:
    good = rig.cli("deploy", "--json")
    assert good.rc == 0
    assert good.json["result"]["outcome"] == "confirmed"
    assert good.json["result"]["serving"] == rig.status()["running"]
    assert rig.cli("rollback").rc == 0
    rig.scenario({"when": TRIAL_ONLY, "then": {"exit": {"import": 3}}})
    bad = rig.cli("deploy", "--json")
    assert bad.rc == bad.json["error"]["exit_code"] == 10


def test_events_are_json_lines(rig: Rig) -> None:
    run = rig.cli("deploy", "--events")
    events = [json.loads(line) for line in run.out.splitlines()]
    states = [event["state"] for event in events if event["ev"] == "state"]
    assert states[-1] == "CONFIRMED"
    assert {event["host"] for event in events} == {rig.host.name}


def test_a_torn_transfer_is_repeated(rig: Rig) -> None:
    deploy = rig.start("deploy")
    time.sleep(1.0)
    Rig.kill(deploy)
    run = rig.cli("deploy")
    if run.rc == 4:  # the first one's agent has not noticed yet
        time.sleep(5)
        run = rig.cli("deploy")
    assert run.rc == 0, run.err
    assert rig.host.check(["ls", "/opt/ddtree/staging"]).split() == []
