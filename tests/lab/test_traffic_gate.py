"""Users meet no ungated server (I8): from the switch until its gates pass the port answers only us, then everybody."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from outside_client import OutsideClient
from rig import UNIT, Rig

pytestmark = [pytest.mark.lab, pytest.mark.tier("transaction")]
TRIAL_ONLY = {"algorithm": "DDTREE"}
GATE = "inet ddtree_gate_sglang"
URL = "http://127.0.0.1:30000/get_server_info"
NFT = "/usr/sbin/nft"
#: Listens for a second before it is ready, then answers every request with an error.
GARBAGE = {"when": TRIAL_ONLY, "then": {"delay": {"serve": 1}, "generate": "error"}}
SLOW_TO_READY = {"when": TRIAL_ONLY, "then": {"delay": {"serve": 3}}}
HANGS = {"when": TRIAL_ONLY, "then": {"hang": "weights"}}
FOREIGN = "table inet operators { chain input { type filter hook input priority 0; tcp dport 99 drop; }; }"


@pytest.fixture(scope="module")
def rig(module_standin_host: Any, tmp_path_factory: pytest.TempPathFactory) -> Rig:
    host = module_standin_host("gate")
    host.check("useradd --system engine")
    # as the operator runs it: the engine may ask itself over its own port, and it is not root
    host.write(f"/etc/systemd/system/{UNIT}.d/10-user.conf", "[Service]\nUser=engine\nWorkingDirectory=/\n")
    host.check(f"systemctl daemon-reload; systemctl restart {UNIT}")
    host.wait_http()
    made = Rig(host, tmp_path_factory.mktemp("project"))
    made.adopt()
    return made


@pytest.fixture(autouse=True)
def everybody_is_served_in_the_end(rig: Rig) -> Iterator[None]:
    """Every test begins on the baseline beside an operator's own table, and leaves the port open and that table."""
    rig.scenario()
    rig.configure()
    rig.host.check(["nft", FOREIGN])
    foreign = rig.host.check("nft list table inet operators")
    yield
    rig.scenario()
    assert not gated(rig)
    if rig.ours():
        rig.cli("rollback", "--to", "baseline")
    assert rig.serving() == "None"
    assert rig.host.check("nft list table inet operators") == foreign
    rig.host.check("nft delete table inet operators")


def gated(rig: Rig) -> bool:
    return rig.host.exec(f"nft list table {GATE}")[0] == 0


def when(rig: Rig, state: str) -> float:
    """When the newest transaction entered a state (unix seconds)."""
    events = rig.host.read(f"/var/lib/ddtree/{UNIT}/txn/{max(rig.transactions())}/events.jsonl")
    told = [event for event in map(json.loads, events.splitlines()) if event.get("state") == state]
    return float(told[0]["t"])


def test_an_engine_that_answers_garbage_never_answers_a_user(rig: Rig) -> None:
    rig.scenario(GARBAGE)
    with OutsideClient(rig.host) as user:
        run = rig.cli("deploy")
        rig.host.wait_http()
    assert run.rc == 10, run.err
    assert "failed in serve" in run.err, run.err
    assert user.from_trial == []
    assert user.from_baseline
    assert user.refused
    assert "traffic gate shut" in run.err
    assert "traffic gate open" in run.err


def test_a_good_release_meets_users_once_it_is_gated(rig: Rig) -> None:
    rig.scenario(SLOW_TO_READY)
    rig.host.check(f"nft add table {GATE}")  # left over: no rollout is open
    told = rig.cli("status", "--exit-code")
    assert told.rc == 5
    assert f"nft delete table {GATE}" in told.err
    with OutsideClient(rig.host) as user:
        deploy = rig.start("deploy")
        rig.wait_state("STARTING")
        rig.wait(f"curl -sf {URL}")  # it listens, and root is answered
        asked = "setpriv --reuid {} --clear-groups curl -s -o /dev/null --max-time 5 http://{}:30000/health; echo $?"
        by = [("engine", "127.0.0.1"), ("nobody", "127.0.0.1"), ("nobody", rig.host.address)]
        script = "; ".join(asked.format(*pair) for pair in by)
        said = rig.host.check(
            f"{script}; cat /var/lib/ddtree/{UNIT}/txn/{max(rig.transactions())}/state"
        ).split("\n", 3)
        assert said[:3] == ["0", "7", "7"], said
        assert json.loads(said[3])["state"] == "STARTING"
        _, err = deploy.communicate(timeout=60)
        assert rig.serving() == "DDTREE"
    assert deploy.returncode == 0, err
    assert user.from_trial
    assert min(answer.t for answer in user.from_trial) >= when(rig, "GATED")
    assert not gated(rig)
    assert rig.status()["drift"] == []


def test_without_nft_the_same_user_meets_the_garbage(rig: Rig) -> None:
    """The control: what the gate keeps from users is there to be seen, and `plan` says so beforehand."""
    rig.scenario(GARBAGE)
    rig.host.check(f"mv {NFT} {NFT}.away")
    try:
        assert rig.cli("doctor", "--record").rc == 0
        plan = rig.cli("plan")
        assert "this host has no nft: an ungated server would be reachable" in plan.err
        with OutsideClient(rig.host) as user:
            run = rig.cli("deploy")
        assert run.rc == 10, run.err
        assert "no traffic gate" in run.err
        assert user.from_trial
    finally:
        rig.host.check(f"mv {NFT}.away {NFT}")
        assert rig.cli("doctor", "--record").rc == 0


def test_a_killed_runners_guard_opens_the_gate(rig: Rig) -> None:
    rig.scenario(GARBAGE, {"when": TRIAL_ONLY, "then": {"hang": "ready", "delay": {"serve": 30}}})
    with OutsideClient(rig.host) as user:
        deploy = rig.start("deploy")
        rig.wait_state("STARTING")
        rig.wait(f"curl -sf {URL}")
        assert gated(rig)
        rig.host.check("systemctl kill --kill-whom=main --signal=SIGKILL 'ddtree-txn-*.service'")
        _, err = deploy.communicate(timeout=60)
        rig.host.wait_http()
    assert deploy.returncode == 10, err
    assert user.from_trial == []
    assert user.from_baseline[-1].t > when(rig, "ROLLING_BACK")


def test_a_crash_of_the_host_leaves_no_gate(rig: Rig) -> None:
    rig.scenario(HANGS)
    deploy = rig.start("deploy")
    rig.wait_state("STARTING")
    assert gated(rig)
    rig.host.fault("crash")
    Rig.kill(deploy)
    rig.host.fault("start")
    assert rig.serving() == "None"  # from outside, and nothing of ours has run since the boot
    rig.wait_ssh()
    rig.host.check(f"nft add table {GATE}")  # as in a container whose network outlives it
    rig.status()
    assert not gated(rig)
    rig.host.check(["nft", FOREIGN])  # its boot forgot the operator's own table too


def test_a_reboot_from_inside_opens_the_gate_once_the_trial_is_stopped(rig: Rig) -> None:
    """A soft reboot keeps /run and nft's tables, so that nobody else would take either away."""
    rig.scenario({"when": TRIAL_ONLY, "then": {"delay": {"serve": 30}}})
    witness = "nft list tables > /root/left; ls /run/systemd/system/sglang.service.d/* >> /root/left; true"
    with OutsideClient(rig.host) as user:
        deploy = rig.start("deploy")
        rig.wait_state("STARTING")
        rig.wait(f"curl -s {URL}")
        runner = f"ddtree-txn-{max(rig.transactions())}.service"
        rig.host.check(
            "systemd-run -q --unit=witness -p Type=oneshot -p RemainAfterExit=yes "
            f"-p Before={runner} -p ExecStop='/bin/sh -c \"{witness}\"' true"
        )
        before = rig.host.boot_id()
        rig.host.fault("reboot")
        Rig.kill(deploy)
        rig.host.wait_boot(before)
        assert rig.serving() == "None"
    assert user.from_trial == []
    assert rig.host.read("/root/left").split() == ["table", "inet", "operators"]
    rig.status()
    rig.host.check(["nft", FOREIGN])


#: An nft that refuses to load, or to delete, the service's own table, and nothing else.
REFUSES = """#!/bin/sh
rules=
if [ "$1" = -f ]; then rules=$(cat); fi
case "$1 $rules $*" in {case}*ddtree_gate_sglang*) echo "Error: Operation not permitted" >&2; exit 1;; esac
if [ "$1" = -f ]; then printf '%s\\n' "$rules" | {nft}.away "$@"; else exec {nft}.away "$@"; fi
"""


def test_a_gate_that_cannot_be_shut_starts_nothing(rig: Rig) -> None:
    rig.host.check(f"mv {NFT} {NFT}.away")
    rig.host.write(NFT, REFUSES.format(case="-f", nft=NFT), 0o755)
    try:
        with OutsideClient(rig.host) as user:
            run = rig.cli("deploy")
    finally:
        rig.host.check(f"mv {NFT}.away {NFT}")
    assert run.rc == 10, run.err
    assert "the traffic gate of port 30000 could not be shut" in run.err
    assert "Operation not permitted" in run.err
    assert user.from_trial == []
    assert rig.serving() == "None"


def test_a_gate_that_does_not_open_is_a_failed_rollback_until_it_does(rig: Rig) -> None:
    rig.scenario(GARBAGE)
    rig.host.check(f"mv {NFT} {NFT}.away")
    rig.host.write(NFT, REFUSES.format(case="delete", nft=NFT), 0o755)
    try:
        deploy = rig.start("deploy")
        rig.wait_state("ROLLBACK_FAILED")
        assert gated(rig)
    finally:
        rig.host.check(f"mv {NFT}.away {NFT}")
    _, err = deploy.communicate(timeout=60)
    assert deploy.returncode == 11, err
    assert "traffic gate" in err
    rig.wait_state("ROLLED_BACK")
