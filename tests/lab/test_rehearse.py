"""`deploy --rehearse` on the stand-in: the release runs beside the live server first, and costs it nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from rig import UNIT, Rig

pytestmark = [pytest.mark.lab, pytest.mark.tier("preflight")]
#: What only a rehearsal has on its command line.
REHEARSAL = {"load_format": "dummy"}
#: The hang is reached and every note before it was sent: what notices a cut line from here on is the beat.
HANGS = "sleep 1; grep -q 'Load weight begin' /opt/ddtree/staging/rehearsal-*/log"
REHEARSAL_UNIT = f"ddtree-rehearsal-{UNIT}"


@pytest.fixture(scope="module")
def rig(module_standin_host: Any, tmp_path_factory: pytest.TempPathFactory) -> Rig:
    made = Rig(module_standin_host("ct129"), tmp_path_factory.mktemp("project"))
    made.adopt()
    return made


@pytest.fixture(autouse=True)
def as_the_operator_left_it(rig: Rig) -> Iterator[None]:
    rig.scenario()
    before = rig.theirs()
    yield
    rig.scenario()
    rig.cli("rollback", "--to", "baseline")
    assert rig.serving() == "None"
    assert rig.theirs() == before
    assert_nothing_left(rig)


def assert_nothing_left(rig: Rig) -> None:
    assert rig.host.show(REHEARSAL_UNIT, "ActiveState") == "inactive"
    assert rig.host.check(["sh", "-c", "ls /opt/ddtree/staging 2>/dev/null || true"]) == ""
    assert rig.host.check(["sh", "-c", "pgrep -f load-forma[t] || true"]) == ""


def refused(rig: Rig, said: str) -> str:
    """A deploy that ends at its rehearsal: exit 3, nothing stopped, no rollout on record, the old server as it was."""
    pid, rollouts = rig.host.main_pid(), rig.transactions()
    run = rig.cli("deploy", "--rehearse")
    assert run.rc == 3, run.err
    assert said in run.err
    assert (rig.host.main_pid(), rig.transactions()) == (pid, rollouts)
    assert rig.serving() == "None"
    assert_nothing_left(rig)
    return run.err


def test_a_release_that_passes_its_rehearsal_is_deployed(rig: Rig) -> None:
    # the stand-in says what it was started with: its small checkpoint, its own port, the release's package
    rig.scenario({"when": REHEARSAL, "then": {"delay": {"graphs": 3}}})
    running = rig.start("deploy", "--rehearse")
    rig.wait(f"systemctl is-active {REHEARSAL_UNIT}", 60)
    rig.wait("pgrep -f load-forma[t]", 10)
    words = rig.host.check(
        ["sh", "-c", f"tr '\\0' ' ' < /proc/$(systemctl show -P MainPID {REHEARSAL_UNIT})/cmdline"]
    )
    assert "--host 127.0.0.1 --port" in words
    assert f"--port {30000} " not in words
    place = words.split("--model-path ")[1].split()[0]
    assert place.startswith("/opt/ddtree/staging/rehearsal-")
    assert json.loads(rig.host.read(f"{place}/config.json"))["num_hidden_layers"] == 4
    assert rig.host.http("/health")[0] == 200  # the live one serves meanwhile
    _out, err = running.communicate(timeout=120)
    assert running.returncode == 0, err
    assert "rehearsed in" in err
    assert "4 layers, dummy weights, 44 of 44 tokens as the target's own next token" in err
    entry = rig.cli("history", "--json").json["history"][-1]
    assert entry["rehearsed"].startswith("rehearsed in")
    assert rig.serving() == "DDTREE"


def test_a_death_in_the_rehearsal_ends_the_deploy_before_anything_stops(rig: Rig) -> None:
    fatal = "RuntimeError: Triton Error [CUDA]: an illegal memory access was encountered"
    rig.scenario(
        {"when": REHEARSAL, "then": {"raise": {"graphs": ["Traceback (most recent call last):", fatal]}}}
    )
    text = refused(rig, "the release fails its rehearsal in phase")
    assert fatal in text
    assert "the running service was not touched" in text
    kept = rig.host.check(["sh", "-c", "cat /opt/ddtree/failed/*/report.json"])
    assert fatal in kept


def test_a_wrong_token_in_the_rehearsal_ends_the_deploy(rig: Rig) -> None:
    # Every answer of the rehearsal goes wrong at its second token; a prefill alone never does.
    rig.scenario({"when": REHEARSAL, "then": {"generate": "garbage", "garbage_at": 1}})
    text = refused(rig, "(answers)")
    assert "40 of 44 tokens" in text  # after the wrong one the answer goes on as the target would
    assert "the target's own is" in text


def test_what_does_not_fit_is_a_verdict_and_no_failure(rig: Rig) -> None:
    fatal = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
    rig.scenario(
        {"when": REHEARSAL, "then": {"raise": {"weights": ["Traceback (most recent call last):", fatal]}}}
    )
    run = rig.cli("deploy", "--rehearse")
    assert run.rc == 0, run.err
    assert "not rehearsed: does not fit beside the live server" in run.err
    assert (
        rig.cli("history", "--json")
        .json["history"][-1]["rehearsed"]
        .startswith("not rehearsed: does not fit")
    )
    assert rig.serving() == "DDTREE"


@pytest.mark.full
def test_a_port_that_somebody_takes_meanwhile_blames_nobody(rig: Rig) -> None:
    fatal = (
        "[Errno 98] error while attempting to bind on address ('127.0.0.1', 31000): address already in use"
    )
    rig.scenario(
        {"when": REHEARSAL, "then": {"log": {"serve": [f"ERROR:    {fatal}"]}, "exit_main": {"serve": 1}}}
    )
    run = rig.cli("deploy", "--rehearse")
    assert run.rc == 0, run.err
    assert "not rehearsed: its port was taken meanwhile" in run.err
    assert rig.serving() == "DDTREE"


@pytest.mark.full
def test_a_rehearsal_without_end_blames_nobody_and_says_whose_limit_ended_it(rig: Rig) -> None:
    """A slow compile is no fault of the release; the rollout has its own limits."""
    rig.configure(timeouts={"cap": 15})
    rig.scenario({"when": REHEARSAL, "then": {"slow": {"weights": 300}}})
    try:
        run = rig.cli("deploy", "--rehearse")
    finally:
        rig.configure()
    assert run.rc == 0, run.err
    assert "not rehearsed: it took longer than timeouts.cap (15 s) in all" in run.err
    assert rig.serving() == "DDTREE"


def test_an_operator_who_is_cut_off_leaves_no_rehearsal_behind(rig: Rig) -> None:
    rig.scenario({"when": REHEARSAL, "then": {"hang": "weights"}})
    pid, running = rig.host.main_pid(), rig.start("deploy", "--rehearse")
    rig.wait(HANGS, 60)
    rig.kill(running)
    rig.wait(f"! pgrep -f load-forma[t] && ! systemctl is-active {REHEARSAL_UNIT}", 30)
    assert rig.host.main_pid() == pid
    rig.scenario()
    assert rig.cli("deploy").rc == 0


def test_an_agent_that_is_killed_leaves_a_rehearsal_that_the_next_deploy_ends(rig: Rig) -> None:
    rig.scenario({"when": REHEARSAL, "then": {"hang": "weights"}})
    running = rig.start("deploy", "--rehearse")
    rig.wait(HANGS, 60)
    rig.host.check(["sh", "-c", "pkill -KILL -f 'rehears[e]$'"])
    _out, err = running.communicate(timeout=60)
    assert running.returncode == 13, err
    assert "nothing was stopped" in err
    assert rig.host.show(REHEARSAL_UNIT, "ActiveState") == "active"
    rig.scenario()
    done = rig.cli("deploy")
    assert done.rc == 0, done.err
    assert_nothing_left(rig)


def test_a_server_that_dies_of_its_answers_is_quoted_by_its_own_log(rig: Rig) -> None:
    killed = {"seconds": 6, "process": "scheduler", "signal": "SIGKILL"}
    rig.scenario({"when": REHEARSAL, "then": {"step_seconds": 0.3, "die_after": killed}})
    text = refused(rig, "the release fails its rehearsal in phase")
    assert "RemoteDisconnected" not in text
    assert "Subprocess scheduler" in text


@pytest.mark.full
def test_a_rehearsal_whose_folder_gc_took_is_ended_too(rig: Rig) -> None:
    rig.scenario({"when": REHEARSAL, "then": {"hang": "weights"}})
    running = rig.start("deploy", "--rehearse")
    rig.wait("pgrep -f load-forma[t]", 60)
    rig.host.check(["sh", "-c", "pkill -KILL -f 'rehears[e]$'"])
    running.communicate(timeout=60)
    assert rig.cli("gc").rc == 0
    rig.scenario()
    done = rig.cli("deploy")
    assert done.rc == 0, done.err
    assert_nothing_left(rig)
