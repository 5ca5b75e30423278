"""A rollout at its edges: a full disk, a reboot between gate and confirm, a rollback typed on the host itself."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from rig import UNIT, Rig

from ddtree_ops.apply.agent import connect
from ddtree_ops.config import load_inventory
from ddtree_ops.core.errors import RolledBack

pytestmark = [pytest.mark.lab, pytest.mark.tier("main")]
STATE = f"/var/lib/ddtree/{UNIT}"
SLOW = {"when": {"algorithm": "DDTREE"}, "then": {"delay": {"weights": 2}}}
HANGS = {"when": {"algorithm": "DDTREE"}, "then": {"hang": "weights"}}


@pytest.fixture(scope="module")
def rig(module_standin_host: Any, tmp_path_factory: pytest.TempPathFactory) -> Rig:
    made = Rig(module_standin_host("edge"), tmp_path_factory.mktemp("project"))
    made.adopt()
    return made


@pytest.fixture(autouse=True)
def back_on_the_baseline(rig: Rig) -> Iterator[None]:
    rig.scenario()
    rig.configure()
    yield
    rig.scenario()
    rig.cli("rollback", "--to", "baseline")
    assert rig.serving() == "None"
    assert rig.ours() == []


def test_a_disk_that_fills_during_the_trial_does_not_cost_the_old_service(rig: Rig) -> None:
    rig.scenario(HANGS)
    rig.configure(timeouts={"weights": 2})
    deploy = rig.start("deploy")
    rig.wait_state("STARTING")
    rig.host.fault("disk-full", "/var/lib/ddtree")
    try:
        assert rig.serving() == "None"
        rig.wait("! ls /run/systemd/system/*.d/60-ddtree-trial.conf")
    finally:
        Rig.kill(deploy)
        rig.host.fault("disk-restore", "/var/lib/ddtree")
    pid = rig.host.main_pid()
    rig.wait("! systemctl is-active 'ddtree-txn-*.service' && ! systemctl is-active 'ddtree-guard-*.service'")
    assert rig.host.main_pid() == pid  # nothing stops it again to write its record


def test_a_confirm_after_a_reboot_confirms_nothing(rig: Rig) -> None:
    rig.scenario(SLOW)
    rig.configure(timeouts={"confirm": 40})
    deploy = rig.start("deploy")
    rig.wait_state("STARTING")
    Rig.kill(deploy)
    rig.wait_state("GATED")
    (txn,) = rig.transactions() - rig.before
    nonce = json.loads(rig.host.read(f"{STATE}/txn/{txn}/intent.json"))["nonce"]
    rig.host.fault("crash")
    rig.host.fault("start")
    rig.serving()
    rig.wait_ssh()
    inventory = load_inventory(rig.project / "hosts.yaml")
    host = inventory.hosts[rig.host.name].model_copy(update={"ssh_config": rig.env["DDTREE_OPS_SSH_CONFIG"]})
    with connect(inventory, host) as client, pytest.raises(RolledBack):
        client.call("confirm", {"txn": txn, "nonce": nonce})
    assert rig.ours() == []
    assert rig.status()["confirmed"]["release"] == "baseline"


def test_a_rollback_typed_on_the_host_needs_nothing_else(rig: Rig) -> None:
    assert rig.cli("deploy").rc == 0
    status, said = rig.host.exec("python3 $(ls -t /opt/ddtree/agent/*/ddtree-agent.pyz | head -1) rollback")
    assert status == 0, said
    assert rig.serving() == "None"
    assert rig.status()["confirmed"]["release"] == "baseline"


def test_a_reboot_from_inside_during_the_trial_is_not_held_up(rig: Rig) -> None:
    rig.scenario(HANGS)
    deploy = rig.start("deploy")
    rig.wait_state("STARTING")
    before = rig.host.boot_id()
    rig.host.fault("reboot")
    Rig.kill(deploy)
    rig.host.wait_boot(before, limit_s=60)
    assert rig.serving() == "None"


def test_a_release_that_is_confirmed_survives_its_own_failed_redeploy(rig: Rig) -> None:
    assert rig.cli("deploy").rc == 0
    release = rig.status()["confirmed"]["release"]
    rig.host.check(f"systemctl stop {UNIT}")  # so that the same release is not simply "nothing to do"
    rig.scenario({"when": {"algorithm": "DDTREE"}, "then": {"exit": {"import": 3}}})
    failed = rig.start("deploy")
    rig.wait_state("STARTING")
    rig.wait_state("ROLLED_BACK")
    failed.communicate(timeout=60)
    assert failed.returncode == 10
    assert rig.host.check(["ls", f"/opt/ddtree/releases/{release}/manifest.json"])
    rig.scenario()
    rig.host.check(f"systemctl reset-failed {UNIT}; systemctl start {UNIT}")
    assert rig.serving() == "DDTREE"


def test_a_confirmed_release_that_somebody_changed_is_seen_and_repaired(rig: Rig) -> None:
    assert rig.cli("deploy").rc == 0
    release = rig.status()["confirmed"]["release"]
    assert rig.cli("status", "--exit-code").rc == 0
    kept = f"/etc/systemd/system/{UNIT}.d/50-ddtree.conf"
    rig.host.check(f"sed -i 's/budget 6/budget 4/' {kept}; systemctl daemon-reload; systemctl restart {UNIT}")
    assert rig.cli("status", "--exit-code").rc == 5
    assert rig.cli("deploy", "--adopt").rc == 0
    assert "budget 6" in rig.host.read(kept)
    assert json.loads(rig.host.http("/get_server_info")[1])["speculative_ddtree_budget"] == 6
    rig.host.check(f"rm -rf /opt/ddtree/releases/{release}/overlay/sglang/srt/managers")
    assert rig.cli("status", "--exit-code").rc == 5
    assert rig.cli("deploy", "--adopt").rc == 0
    assert rig.cli("status", "--exit-code").rc == 0
    rig.host.check(f"rm {kept}; systemctl daemon-reload; systemctl restart {UNIT}")
    assert rig.cli("deploy", "--adopt").rc == 0
    assert rig.serving() == "DDTREE"


@pytest.mark.full  # the guard gives a silent runner half a minute
def test_a_stopped_runner_does_not_hold_the_host(rig: Rig) -> None:
    rig.scenario(HANGS)
    deploy = rig.start("deploy")
    rig.wait_state("STARTING")
    rig.host.check("systemctl kill --kill-who=main --signal=STOP 'ddtree-txn-*.service'")
    _, err = deploy.communicate(timeout=180)
    assert deploy.returncode == 10, err
    assert rig.serving() == "None"


def test_a_rollout_whose_record_was_removed_is_taken_back(rig: Rig) -> None:
    rig.scenario(HANGS)
    deploy = rig.start("deploy")
    rig.wait_state("STARTING")
    rig.host.check(
        f"systemctl kill --kill-who=main --signal=STOP 'ddtree-txn-*.service'; rm -rf {STATE}/txn/*"
    )
    rig.host.check("systemctl kill --kill-who=main --signal=KILL 'ddtree-txn-*.service'")
    _, err = deploy.communicate(timeout=120)
    assert deploy.returncode == 11, err
    rig.wait("! ls /run/systemd/system/*.d/60-ddtree-trial.conf", 60)
    assert rig.serving() == "None"
    rig.wait("! systemctl is-active 'ddtree-guard-*.timer'", 60)


def test_a_trial_that_no_rollout_speaks_for_is_seen_and_taken_away(rig: Rig) -> None:
    assert rig.cli("deploy").rc == 0
    text = rig.host.read(f"/etc/systemd/system/{UNIT}.d/50-ddtree.conf")
    assert rig.cli("rollback").rc == 0
    rig.host.write(f"/run/systemd/system/{UNIT}.d/60-ddtree-trial.conf", text)
    rig.host.check(f"systemctl daemon-reload; systemctl restart {UNIT}")
    assert rig.serving() == "DDTREE"
    assert rig.cli("status", "--exit-code").rc == 5
    assert rig.cli("rollback").rc == 0
    assert rig.serving() == "None"
    assert rig.cli("status", "--exit-code").rc == 0


def test_operators_who_all_roll_back_are_all_right(rig: Rig) -> None:
    assert rig.cli("deploy").rc == 0
    runs = [rig.start("rollback") for _ in range(3)]
    ends = [run.communicate(timeout=60)[1] for run in runs]
    assert rig.serving() == "None"
    assert all(run.returncode in (0, 4) for run in runs), ends
    assert any(run.returncode == 0 for run in runs)


def test_an_etc_that_takes_no_write_is_noticed_before_the_confirm(rig: Rig) -> None:
    rig.scenario(SLOW)
    deploy = rig.start("deploy")
    rig.wait_state("STARTING")
    rig.host.fault("read-only", "/etc")
    try:
        _, err = deploy.communicate(timeout=90)
    finally:
        rig.host.fault("read-only-restore", "/etc")
    assert deploy.returncode == 10, err
    assert "read-only" in err


def test_a_damaged_note_of_what_is_confirmed_does_not_stop_a_rollback(rig: Rig) -> None:
    rig.scenario(HANGS)
    deploy = rig.start("deploy")
    rig.wait_state("STARTING")
    rig.host.write(f"{STATE}/confirmed", "junk{")
    rig.host.check("systemctl kill --kill-who=main --signal=KILL 'ddtree-txn-*.service'")
    _, err = deploy.communicate(timeout=90)
    assert deploy.returncode == 10, err
    assert rig.serving() == "None"
    assert rig.cli("status", "--exit-code").rc == 5
    rig.scenario()
    assert rig.cli("deploy").rc == 3
    assert rig.cli("deploy", "--adopt").rc == 0
    assert rig.cli("status", "--exit-code").rc == 0
