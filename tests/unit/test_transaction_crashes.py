"""The transaction cut at every single effect, and its races with every step that comes in between."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from world import FAIL, PASS, World
from world_process import Process
from world_truth import Broken, Truth, named, require

from ddtree_agent import journal

pytestmark = pytest.mark.tier("transaction")
_FAR = 2000  # more effects than any call makes
Play = Callable[["Scene", int], bool]


class Scene:
    """A host that has confirmed aa, with the truth watching."""

    def __init__(self) -> None:
        self.world = World()
        self.truth = Truth(self.world)
        self.deployed("aa")
        self.confirm(self.world.until("GATED"))
        self.world.pass_time(30)
        assert self.world.systemd.running == "aa"

    def deployed(self, release: str, how: str = PASS) -> Process:
        self.world.behaviour[release] = how
        return self.world.deploy(release)

    def gated(self, release: str = "bb") -> journal.Txn:
        self.deployed(release)
        txn = self.world.until("GATED")
        assert txn is not None
        return txn

    def confirm(self, txn: journal.Txn | None, right: bool = True) -> Process:
        assert txn is not None
        proc = self.world.confirm(txn.id, right)
        self.truth.asked_confirm(txn.id, proc)
        return proc

    def runner(self) -> Process:
        return next(proc for proc in self.world.procs if proc.name.startswith("ddtree-txn"))

    def ends(self) -> None:
        self.truth.always()
        self.truth.converged()


def every_cut(play: Play, step: int = 1) -> int:
    """Play a scene with the cut before effect 0, 1, 2, … until it says that there was nothing left to cut."""
    for k in range(0, _FAR, step):
        scene = Scene()
        try:
            if play(scene, k):
                return k
        except Broken as error:
            raise Broken(f"cut before effect {k}: {error}") from None
        finally:
            scene.world.close()
    raise AssertionError("it never ended")


def confirm_cut_by_host_crash(scene: Scene, k: int) -> bool:
    proc = scene.confirm(scene.gated())
    scene.world.run(proc, k)
    scene.truth.always()
    scene.world.crash()
    boots = scene.world.systemd.running
    assert boots in ("aa", "bb"), boots
    scene.ends()
    assert named(scene.world.layout.kept) == boots  # what booted is what the record now says
    return proc.result is not None


def confirm_cut_by_soft_reboot(scene: Scene, k: int) -> bool:
    """/run and the boot id stay; the rollout's own units take the trial away (systemd 254 and newer)."""
    proc = scene.confirm(scene.gated())
    scene.world.run(proc, k)
    scene.world.go_down(soft=True, effects=0)
    boots = scene.world.systemd.running
    scene.ends()
    assert scene.world.systemd.running == boots
    return proc.result is not None


def confirm_cut_by_kill(scene: Scene, k: int) -> bool:
    proc = scene.confirm(scene.gated())
    scene.world.run(proc, k)
    proc.kill()
    scene.ends()
    return proc.result is not None


def confirm_on_full_disk(scene: Scene, k: int) -> bool:
    """The disk fills up at some effect of the confirm, and stays full: nothing that it needs is a new block."""
    txn = scene.gated()
    proc = scene.confirm(txn)
    scene.world.run(proc, k)
    scene.world.set_disk("full")
    scene.world.pass_time(60)
    require(proc.result and txn.state == "CONFIRMED", "I4", f"on a full disk: {txn.state}, {proc.error}")
    scene.ends()
    assert scene.world.systemd.running == "bb"
    return k > proc.count


def runner_killed(how: str) -> Play:
    def play(scene: Scene, k: int) -> bool:
        scene.world.run(scene.deployed("bb", how))
        runner, done = scene.runner(), False
        done = _forward(scene, runner, k)
        runner.kill()
        scene.ends()
        assert scene.world.systemd.running == "aa"
        return done

    return play


def host_crashes(how: str) -> Play:
    def play(scene: Scene, k: int) -> bool:
        scene.world.run(scene.deployed("bb", how))
        done = _forward(scene, scene.runner(), k)
        scene.world.crash()
        assert scene.world.systemd.running == "aa"  # by itself: nothing of ours has run yet
        scene.ends()
        return done

    return play


def disk_fails(state: str) -> Play:
    def play(scene: Scene, k: int) -> bool:
        scene.world.run(scene.deployed("bb", FAIL))
        done = _forward(scene, scene.runner(), k)
        scene.world.set_disk(state)
        scene.world.pass_time(400)
        # The disk is still as it was: the old service serves all the same.
        assert scene.world.systemd.running == "aa", scene.world.procs
        scene.ends()
        return done

    return play


def trial_unreadable(scene: Scene, k: int) -> bool:
    """Not one file of the failed release is needed to go back (I11)."""
    scene.world.run(scene.deployed("bb", FAIL))
    done = _forward(scene, scene.runner(), k)
    scene.world.unreadable.add(scene.world.layout.release("bb"))
    scene.world.pass_time(400)
    assert scene.world.systemd.running == "aa", scene.world.procs
    scene.ends()
    return done


def guard_killed(scene: Scene, k: int) -> bool:
    """The runner dies in the trial, and the guard that follows it up dies as well."""
    scene.gated()
    scene.runner().kill()
    follow_up = scene.world.procs[-1]
    done = _forward(scene, follow_up, k)
    follow_up.kill()
    scene.ends()
    assert scene.world.systemd.running == "aa"
    return done


def undo_cut(fault: str) -> Play:
    def play(scene: Scene, k: int) -> bool:
        scene.world.run(scene.world.rollback())
        runner = scene.runner()
        done = _forward(scene, runner, k)
        if fault == "crash":
            scene.world.crash()
        else:
            runner.kill()
        scene.ends()
        assert scene.world.systemd.running in ("aa", "baseline")
        scene.world.run(scene.world.rollback())  # who saw no end of it types it again
        scene.ends()
        assert scene.world.systemd.running == "baseline"  # undone once, not twice
        return done

    return play


def _forward(scene: Scene, proc: Process, k: int) -> bool:
    """Let a process make k effects, time passing where it waits; whether it ended before."""
    until = proc.count + k
    while not proc.done and proc.count < until:
        before = proc.count
        scene.world.run(proc, until - proc.count)
        if proc.count == before and not proc.done:
            scene.world.tick(1.0)
    scene.truth.always()
    return proc.done


@pytest.mark.parametrize(
    ("play", "least"),
    [
        pytest.param(confirm_cut_by_host_crash, 30, id="confirm, host crashes"),
        pytest.param(confirm_cut_by_soft_reboot, 30, id="confirm, soft reboot"),
        pytest.param(confirm_cut_by_kill, 30, id="confirm, agent killed"),
        pytest.param(confirm_on_full_disk, 30, id="confirm, disk full"),
        pytest.param(runner_killed(FAIL), 90, id="a release that fails, runner killed"),
        pytest.param(host_crashes(FAIL), 90, id="a release that fails, host crashes"),
        pytest.param(disk_fails("full"), 90, id="a release that fails, disk full"),
        pytest.param(disk_fails("read-only"), 90, id="a release that fails, disk read-only"),
        pytest.param(trial_unreadable, 90, id="a release that fails, and cannot be read"),
        pytest.param(guard_killed, 30, id="guard killed"),
        pytest.param(undo_cut("crash"), 90, id="rollback, host crashes"),
        pytest.param(undo_cut("kill"), 90, id="rollback, runner killed"),
    ],
)
def test_a_cut_before_any_effect_loses_no_host(play: Play, least: int) -> None:
    assert every_cut(play) >= least


def race_of_confirm_and_guard(scene: Scene, k: int) -> bool:
    """The confirm stops after k effects; runner, deadline and guard go their whole way; then the confirm goes on."""
    proc = scene.confirm(scene.gated())
    scene.world.run(proc, k)
    proc.frozen = True
    scene.world.pass_time(150)
    proc.frozen = False
    scene.ends()
    return k > proc.count


def race_of_guard_and_confirm(scene: Scene, k: int) -> bool:
    """The runner is killed, its guard stops after k effects; the confirm goes its whole way; then the guard goes on."""
    txn = scene.gated()
    scene.runner().kill()
    follow_up = scene.world.procs[-1]
    done = _forward(scene, follow_up, k)
    proc = scene.confirm(txn)
    follow_up.frozen = True
    scene.world.run_all()
    follow_up.frozen = False
    scene.ends()
    assert done or proc.done
    return done


def race_of_two_confirms(scene: Scene, k: int) -> bool:
    txn = scene.gated()
    first, second = scene.confirm(txn), scene.confirm(txn)
    scene.world.run(first, k)
    first.frozen = True
    scene.world.run_all()
    first.frozen = False
    scene.ends()
    assert first.error is None and second.error is None, (first.error, second.error)
    assert scene.world.systemd.running == "bb"
    return k > first.count


def race_of_two_deploys(scene: Scene, k: int) -> bool:
    first, second = scene.deployed("bb"), scene.deployed("cc")
    scene.world.run(first, k)
    first.frozen = True
    scene.world.pass_time(1.0)
    scene.truth.always()
    first.frozen = False
    scene.world.pass_time(1.0)
    scene.truth.always()
    assert first.error is None or second.error is None
    scene.ends()
    return k > first.count


def status_during_a_deploy(scene: Scene, k: int) -> bool:
    """Whoever only looks disturbs nobody."""
    first = scene.deployed("bb")
    scene.world.run(first, k)
    looker = scene.world.note()
    scene.world.run(looker)
    txn = scene.world.until("GATED")
    assert txn is not None, f"status at effect {k} ended the deploy"
    scene.confirm(txn)
    scene.ends()
    assert scene.world.systemd.running == "bb"
    return first.done and k > first.count


def race_of_a_late_confirm_and_the_next_deploy(scene: Scene, k: int) -> bool:
    """A confirm has done its work and tidies up when the next rollout is at its k-th effect: it takes nothing away."""
    txn = scene.gated("bb")
    late = scene.confirm(txn)
    while txn.state != "CONFIRMED":
        scene.world.run(late, 1)
    late.frozen = True
    scene.world.pass_time(10)
    scene.world.run(scene.deployed("cc"))
    done = _forward(scene, scene.runner(), k)
    late.frozen = False
    scene.world.run(late)
    following = scene.world.until("GATED")
    assert following is not None, f"the next deploy was cut at effect {k}"
    scene.confirm(following)
    scene.ends()
    assert scene.world.systemd.running == "cc"
    return done or ((following.id, "GATED") in scene.world.reached and k > 150)


RACES = [
    race_of_confirm_and_guard,
    race_of_guard_and_confirm,
    race_of_two_confirms,
    race_of_two_deploys,
    race_of_a_late_confirm_and_the_next_deploy,
    status_during_a_deploy,
]


@pytest.mark.parametrize("play", RACES)
def test_a_race_has_one_winner_whoever_comes_first(play: Play) -> None:
    assert every_cut(play) >= 20


def wrong_nonce(scene: Scene, k: int) -> bool:
    txn = scene.gated()
    proc = scene.confirm(txn, right=False)
    scene.world.run_all()
    if txn.state != "GATED" or proc.error is None:
        raise Broken(f"I4: a confirm with another nonce moved it to {txn.state}")
    scene.ends()
    return True


def stopped_runner(scene: Scene, k: int) -> bool:
    """The runner is stopped (SIGSTOP) in the trial: only the timer can see that."""
    scene.gated()
    scene.runner().frozen = True
    scene.world.pass_time(400)
    if scene.world.systemd.running != "aa":
        raise Broken("I11: the trial of a runner that hangs goes on and on")
    scene.ends()
    return True


@pytest.mark.parametrize("play", [wrong_nonce, stopped_runner])
def test_what_else_the_safeguards_are_for(play: Play) -> None:
    every_cut(play)
