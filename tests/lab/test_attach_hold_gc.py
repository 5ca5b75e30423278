"""attach, hold and gc on a host: re-joining after the operator was killed, deploys kept off, old things freed."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Iterator
from typing import Any

import pytest
from rig import UNIT, Rig

pytestmark = [pytest.mark.lab, pytest.mark.tier("transaction")]
STATE = f"/var/lib/ddtree/{UNIT}"
SLOW = {"when": {"algorithm": "DDTREE"}, "then": {"delay": {"weights": 3}}}
FATAL = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"
#: What is confirmed before a test runs DDTREE too, and must come back.
BROKEN = 9
DIES = {
    "when": {"speculative_ddtree_budget": BROKEN},
    "then": {"delay": {"import": 3}, "raise": {"weights": ["Traceback (most recent call last):", FATAL]}},
}
HANGS = {"when": {"speculative_ddtree_budget": BROKEN}, "then": {"hang": "weights"}}


@pytest.fixture(scope="module")
def rig(module_standin_host: Any, tmp_path_factory: pytest.TempPathFactory) -> Rig:
    made = Rig(module_standin_host("verbs"), tmp_path_factory.mktemp("project"))
    made.adopt()
    return made


@pytest.fixture(autouse=True)
def afresh(rig: Rig) -> Iterator[None]:
    rig.scenario()
    rig.configure()
    yield
    assert [name for name in rig.ours() if "trial" in name] == []


def abandoned(rig: Rig, scenario: dict[str, Any]) -> None:
    """A deploy whose operator is killed while the service starts."""
    rig.scenario(scenario)
    deploy = rig.start("deploy")
    rig.wait_state("STARTING")
    Rig.kill(deploy)


def deployed(rig: Rig, budget: int) -> str:
    rig.configure(budget=budget)
    run = rig.cli("deploy", "--json")
    assert run.rc == 0, run.err
    return str(run.json["result"]["release"])


def listing(rig: Rig, *folders: str) -> list[str]:
    return rig.host.check(["sh", "-c", f"ls -A {' '.join(folders)} 2>/dev/null || true"]).split()


def test_attach_with_nothing_to_attach_to_is_no_success(rig: Rig) -> None:
    run = rig.cli("attach")
    assert (run.rc, run.out) == (3, "")
    assert "none ever ran here" in run.err
    assert "serving now: baseline" in run.err


def test_a_rollout_whose_operator_was_killed_is_confirmed_by_another(rig: Rig) -> None:
    abandoned(rig, SLOW)
    assert rig.cli("gc").rc == 4  # on its way: releases are not touched
    run = rig.cli("attach", "--json")
    assert run.rc == 0, run.err
    found = run.json
    release = rig.status()["confirmed"]["release"]
    assert (found["attached"], found["result"]["outcome"], found["result"]["serving"]) == (
        True,
        "confirmed",
        release,
    )
    assert release == rig.status()["running"] != "baseline"
    assert run.err.count("STARTING") >= 1 and "undo: ddtree-ops rollback" in run.err
    again = rig.cli("attach", "--json")
    assert (again.rc, again.json["attached"], again.json["result"]["release"]) == (0, False, release)
    assert again.json["status"]["running"] == release


def test_a_rollout_that_fails_ends_as_its_own_operator_would_have_seen_it(rig: Rig) -> None:
    before = rig.status()["confirmed"]["release"]
    rig.configure(budget=BROKEN)
    abandoned(rig, DIES)
    run = rig.cli("attach")
    assert run.rc == 10, run.err
    assert FATAL in run.err
    again = rig.cli("attach", "--json")
    assert (again.rc, again.json["error"]["exit_code"], again.json["error"]["serving"]) == (10, 10, before)
    (kept,) = listing(rig, "-d", "/opt/ddtree/failed/*")
    assert rig.host.check(f"stat -c '%a %u' {kept}/*").split("\n")[:3] == ["600 0"] * 3
    log = rig.host.read(f"{kept}/log.txt")
    assert FATAL in log
    # of the failed run alone, not of the one that was brought back after it
    assert "DDTREE" in log and log.count("server_args=") == 1
    report = json.loads(rig.host.read(f"{kept}/report.json"))
    assert FATAL in report["failure"]["line"] and report["outcome"] == "rolled-back"
    assert report["stop"]["seconds"] >= 0


def test_an_interrupt_while_attached_rolls_back_and_says_so(rig: Rig) -> None:
    before = rig.status()["confirmed"]["release"]
    rig.configure(budget=BROKEN)
    abandoned(rig, HANGS)
    attach = subprocess.Popen(
        rig.argv("attach"),
        cwd=rig.project,
        env=rig.env,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert attach.stderr is not None
    said = [attach.stderr.readline() for _ in range(2)]
    assert "An interrupt asks the host to roll it back" in said[0]
    attach.send_signal(signal.SIGINT)
    _, err = attach.communicate(timeout=60)
    assert attach.returncode == 10, err
    assert "asking the host to roll back" in err
    assert rig.status()["running"] == before


def test_a_hold_keeps_deploys_off_and_nothing_else(rig: Rig) -> None:
    release = deployed(rig, 5)
    pid = rig.host.main_pid()
    held = rig.cli("hold", "--why", "GPU 3 is being replaced", "--for", "2h", "--json")
    assert held.rc == 0 and held.json["hold"]["until"] > time.time() + 7000
    assert rig.status()["hold"]["why"] == "GPU 3 is being replaced"
    before = listing(rig, "/opt/ddtree/*", f"{STATE}/txn")
    rig.configure(budget=4)
    refused = rig.cli("deploy")
    assert refused.rc == 4, refused.err
    for word in ("GPU 3 is being replaced", "until 20", "next: ddtree-ops unhold --host verbs"):
        assert word in refused.err
    assert rig.cli("plan").rc == 0
    assert (listing(rig, "/opt/ddtree/*", f"{STATE}/txn"), rig.host.main_pid()) == (before, pid)
    assert rig.cli("rollback").rc == 0
    assert rig.status()["confirmed"]["release"] != release
    rig.host.write(f"{STATE}/hold", "junk{")
    assert "damaged" in rig.cli("status").err
    assert rig.cli("deploy").rc == 4
    assert rig.cli("hold", "--why", "for a moment", "--for", "1s").rc == 0
    time.sleep(1.1)
    deployed(rig, 4)
    assert rig.status()["hold"] is None


def test_gc_frees_what_nothing_needs_and_survives_a_kill(rig: Rig) -> None:
    old, undo, kept = (deployed(rig, budget) for budget in (10, 11, 12))
    # enough files that the kill comes in the middle of the deletion
    rig.host.check(
        f"cd /opt/ddtree/releases/{old}/overlay && mkdir many && cd many && seq 40000 | xargs touch"
    )
    told = rig.cli("gc", "--keep", "1", "--json", "--dry-run").json
    assert old in [one["name"] for one in told["removed"]]
    assert {old, undo, kept} <= set(listing(rig, "/opt/ddtree/releases"))
    rig.host.check(
        "systemd-run --collect --quiet sh -c 'until ls -d /opt/ddtree/staging/gc-* >/dev/null 2>&1; do :; done;"
        ' pkill -9 -f "sglang.service gc$"\''
    )
    cut = rig.cli("gc", "--keep", "1")
    assert cut.rc == 14, cut.err
    assert listing(rig, "/opt/ddtree/staging")  # else it was not in the middle
    assert rig.cli("status", "--exit-code").rc == 0
    rig.host.fault("disk-full", "/opt")  # what gc is for
    try:
        done = rig.cli("gc", "--keep", "1", "--failed-bytes", "0", "--json")
    finally:
        rig.host.fault("disk-restore", "/opt")
    assert done.rc == 0, done.err
    assert "leftover" in [one["kind"] for one in done.json["removed"]]
    assert done.json["freed"] == sum(one["bytes"] for one in done.json["removed"]) > 0
    assert (
        sorted(rig.status_releases()) == sorted([undo, kept]) == sorted(listing(rig, "/opt/ddtree/releases"))
    )
    assert listing(rig, "/opt/ddtree/staging") == []
    assert len(listing(rig, "/opt/ddtree/failed")) <= 1
    assert rig.cli("status", "--exit-code").rc == 0
    assert rig.cli("gc", "--keep", "1", "--json").json["removed"] == []
    assert rig.cli("rollback").rc == 0
    assert rig.status()["running"] == undo
