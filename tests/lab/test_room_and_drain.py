"""A rollout on a host whose disk fills up, whose agent or release was tampered with, or that a router stands before."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from rig import UNIT, Rig

pytestmark = [pytest.mark.lab, pytest.mark.tier("transaction")]
STATE = f"/var/lib/ddtree/{UNIT}"
HANGS = {"when": {"algorithm": "DDTREE"}, "then": {"hang": "weights"}}
SLOW = {"when": {"algorithm": "DDTREE"}, "then": {"delay": {"weights": 3}}}
DIES = {"when": {"algorithm": "DDTREE"}, "then": {"exit": {"import": 3}}}
ROUTER = "/run/router"


@pytest.fixture(scope="module")
def rig(module_standin_host: Any, tmp_path_factory: pytest.TempPathFactory) -> Rig:
    made = Rig(module_standin_host("room"), tmp_path_factory.mktemp("project"))
    made.adopt()
    return made


@pytest.fixture(autouse=True)
def back_on_the_baseline(rig: Rig) -> Iterator[None]:
    rig.scenario()
    rig.configure()
    rig.host.check(["rm", "-f", ROUTER])
    yield
    rig.scenario()
    rig.configure()
    rig.cli("rollback", "--to", "baseline")
    assert rig.serving() == "None"
    assert rig.ours() == []
    assert hidden(rig) == []


def hidden(rig: Rig) -> list[str]:
    """Files that a rollout wrote ahead and left."""
    places = f"{STATE} /etc/systemd/system/*.d /run/systemd/system/*.d"
    return rig.host.check(["sh", "-c", f"find {places} -name '.ddtree-*' 2>/dev/null || true"]).split()


def last(rig: Rig) -> dict[str, Any]:
    entry: dict[str, Any] = rig.cli("history", "--json").json["history"][-1]
    return entry


@pytest.mark.parametrize("full", ["/var/lib/ddtree", "/etc/systemd/system"])
def test_a_confirm_needs_no_new_block(rig: Rig, full: str) -> None:
    rig.scenario(SLOW)
    deploy = rig.start("deploy", "--json")
    rig.wait_state("STARTING")
    rig.host.fault("disk-full", full)
    try:
        out, err = deploy.communicate(timeout=120)
    finally:
        rig.host.fault("disk-restore", full)
    assert deploy.returncode == 0, err
    assert rig.serving() == "DDTREE"
    assert (rig.status()["confirmed"]["release"], last(rig)["outcome"]) == (
        json.loads(out)["result"]["serving"],
        "confirmed",
    )
    assert rig.cli("status", "--exit-code").rc == 0


def test_a_rollback_is_recorded_on_a_disk_that_has_no_block_left(rig: Rig) -> None:
    rig.scenario(HANGS)
    rig.configure(timeouts={"weights": 3})
    deploy = rig.start("deploy")
    rig.wait_state("STARTING")
    rig.host.fault("disk-full", "/var/lib/ddtree")
    try:
        _, err = deploy.communicate(timeout=120)
        assert deploy.returncode == 10, err
        assert last(rig)["failure"]["reason"] == "stall"
    finally:
        rig.host.fault("disk-restore", "/var/lib/ddtree")


def test_a_full_disk_refuses_a_deploy_and_not_a_rollback(rig: Rig) -> None:
    assert rig.cli("deploy").rc == 0
    rig.configure(budget=5)
    rig.host.fault("disk-full", "/var/lib/ddtree")
    try:
        pid = rig.host.main_pid()
        refused = rig.cli("deploy")
        assert (refused.rc, rig.host.main_pid()) == (3, pid), refused.err
        assert "/var/lib/ddtree has 0 MiB free" in refused.err
        back = rig.cli("rollback")
        assert back.rc == 0, back.err
        assert rig.serving() == "None"
    finally:
        rig.host.fault("disk-restore", "/var/lib/ddtree")


def test_a_flipped_bit_in_a_release_is_refused_by_name(rig: Rig) -> None:
    assert rig.cli("deploy").rc == 0
    release = rig.status()["running"]
    assert rig.cli("rollback").rc == 0
    path = f"/opt/ddtree/releases/{release}/overlay/sglang/srt/server_args.py"
    rig.host.check(["sh", "-c", f"chmod u+w {path}; printf x >> {path}"])
    pid = rig.host.main_pid()
    back = rig.cli("rollback", "--to", release)
    assert back.rc in (3, 10), back.err
    assert "server_args.py" in back.err
    assert (rig.host.main_pid(), rig.serving()) == (pid, "None")
    assert rig.cli("deploy").rc == 0  # built anew from the same sources


def test_a_flipped_bit_in_the_installed_agent_is_never_run(rig: Rig) -> None:
    assert rig.cli("deploy").rc == 0
    agent = rig.host.check(["sh", "-c", "ls /opt/ddtree/agent/*/ddtree-agent.pyz"]).split()[0]
    whole = rig.host.check(["sha256sum", agent])
    rig.host.check(["sh", "-c", f"printf '\\xff' | dd of={agent} bs=1 seek=200 conv=notrunc"])
    assert rig.host.check(["sha256sum", agent]) != whole
    assert rig.cli("rollback").rc == 0
    assert rig.host.check(["sha256sum", agent]) == whole


def drained(
    rig: Rig, command: str = f"touch {ROUTER}.out && env > {ROUTER}", undo: str = f"rm {ROUTER}.out"
) -> None:
    rig.configure(drain={"command": ["/bin/sh", "-c", command], "undo": ["/bin/sh", "-c", undo]})


def out_of_the_router(rig: Rig) -> bool:
    return rig.host.exec(["test", "-e", f"{ROUTER}.out"])[0] == 0


def test_the_server_is_taken_out_before_the_stop_and_put_back_after_the_confirm(rig: Rig) -> None:
    drained(rig)
    rig.scenario(SLOW)
    deploy = rig.start("deploy")
    rig.wait_state("STARTING")
    assert out_of_the_router(rig)
    told = rig.host.read(ROUTER)
    assert f"DDTREE_SERVICE={UNIT}" in told
    assert "DDTREE_PORT=30000" in told
    _, err = deploy.communicate(timeout=120)
    assert deploy.returncode == 0, err
    assert not out_of_the_router(rig)


def test_it_is_put_back_after_a_failure_and_after_a_kill(rig: Rig) -> None:
    drained(rig)
    rig.scenario(DIES)
    assert rig.cli("deploy").rc == 10
    assert not out_of_the_router(rig)
    rig.scenario(HANGS)
    deploy = rig.start("deploy")
    rig.wait_state("STARTING")
    rig.host.check("systemctl kill --kill-who=main --signal=SIGKILL 'ddtree-txn-*.service'")
    _, err = deploy.communicate(timeout=120)
    assert deploy.returncode == 10, err
    assert not out_of_the_router(rig)


def test_a_drain_that_fails_stops_nothing(rig: Rig) -> None:
    drained(rig, command=f"touch {ROUTER}.out; echo router says no >&2; exit 7")
    pid = rig.host.main_pid()
    run = rig.cli("deploy")
    assert (run.rc, rig.host.main_pid()) == (3, pid), run.err
    assert "router says no" in run.err
    assert not out_of_the_router(rig)


def test_a_server_that_cannot_be_put_back_is_said_to_be_out(rig: Rig) -> None:
    drained(rig, undo="exit 9")
    run = rig.cli("deploy")
    assert run.rc == 0, run.err
    assert "still drained" in run.err
    assert rig.cli("status", "--exit-code").rc == 5
    assert "drain.undo" in rig.cli("status").err


def test_a_trial_is_forgotten_by_a_reboot_that_keeps_run(rig: Rig) -> None:
    """systemd 254's soft reboot keeps /run; this host's has none, so the trial's folder is one that a reboot keeps."""
    folder, kept = f"/run/systemd/system/{UNIT}.d", "/root/kept-over-the-reboot"
    rig.host.check(["sh", "-c", f"mkdir -p {kept} && ln -s {kept} {folder}"])
    rig.scenario(HANGS)
    deploy = rig.start("deploy")
    rig.wait_state("STARTING")
    assert rig.host.check(["ls", kept]).split() == ["60-ddtree-trial.conf"]
    before = rig.host.boot_id()
    rig.host.fault("reboot")
    rig.host.wait_boot(before)
    assert rig.host.check(["ls", kept]).split() == []
    rig.host.check(["rmdir", kept])
    _, err = deploy.communicate(timeout=120)
    assert deploy.returncode == 10, err
    assert last(rig)["failure"]["reason"] == "reboot"
