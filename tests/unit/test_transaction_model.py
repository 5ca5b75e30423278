"""The transaction under any interleaving of operators, runner, guard, crashes, reboots and a failing disk.

DDTREE_MODEL_EXAMPLES=20000 is the night's profile, DDTREE_MODEL_SHRINK=1 minimises what it found.
"""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from world import DIES, FAIL, HANG, PASS, World
from world_truth import Truth

pytestmark = pytest.mark.tier("transaction")
NIGHT = "DDTREE_MODEL_EXAMPLES" in os.environ
#: In each of the parts, which may run side by side.
EXAMPLES = int(os.environ.get("DDTREE_MODEL_EXAMPLES", "500"))
RELEASES = ["aa", "bb", "cc"]
_spent = {"rollouts": 0, "effects": 0, "runs": 0}


class Transaction(RuleBasedStateMachine):
    """Operators, time, kills and the disk as rules; the truth after each."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.truth = Truth(self.world)
        self._seen = (0, 0)

    @initialize(had=st.booleans())
    def before(self, had: bool) -> None:
        if had:
            self._confirm_one("aa")

    def _confirm_one(self, release: str) -> None:
        world = self.world
        world.behaviour[release] = PASS
        world.deploy(release)
        txn = world.until("GATED")
        assert txn is not None
        proc = world.confirm(txn.id)
        self.truth.asked_confirm(txn.id, proc)
        world.pass_time(30)
        assert world.systemd.running == release

    @rule(release=st.sampled_from(RELEASES), how=st.sampled_from([PASS, PASS, FAIL, HANG, DIES]))
    def deploy(self, release: str, how: str) -> None:
        confirmed = self.world.systemd.running == release
        self.world.behaviour[release] = PASS if confirmed else how
        self.world.deploy(release)

    @rule(right=st.sampled_from([True, True, True, False]))
    @precondition(lambda self: self._last_deploy())
    def confirm(self, right: bool) -> None:
        txn = self._last_deploy()
        self.truth.asked_confirm(txn, self.world.confirm(txn, right))

    def _last_deploy(self) -> str:
        deploys = [txn.id for txn in self.world.transactions() if txn.intent["kind"] == "deploy"]
        return deploys[-1] if deploys else ""

    @rule()
    def abort(self) -> None:
        self.world.abort()

    @rule(to=st.sampled_from([None, None, "baseline", *RELEASES]))
    def rollback(self, to: str | None) -> None:
        self.world.rollback(to)

    @rule()
    def status(self) -> None:
        self.world.note()

    @rule(which=st.integers(0, 7), effects=st.integers(1, 60))
    @precondition(lambda self: self.world.procs)
    def one_goes_on(self, which: int, effects: int) -> None:
        self.world.run(self.world.procs[which % len(self.world.procs)], effects)

    @rule(which=st.integers(0, 7), effects=st.integers(0, 60))
    @precondition(lambda self: self.world.procs)
    def one_dies(self, which: int, effects: int) -> None:
        proc = self.world.procs[which % len(self.world.procs)]
        self.world.run(proc, effects)
        proc.kill()

    @rule(which=st.integers(0, 7))
    @precondition(lambda self: self.world.procs)
    def one_is_stopped(self, which: int) -> None:
        self.world.procs[which % len(self.world.procs)].frozen = True

    @rule()
    def all_go_on(self) -> None:
        self.world.run_all()

    @rule(seconds=st.sampled_from([1.0, 21.0, 70.0, 700.0]))
    def time_passes(self, seconds: float) -> None:
        self.world.tick(seconds)

    @rule(seconds=st.sampled_from([5.0, 30.0, 100.0, 1000.0]))
    def everything_goes_its_way(self, seconds: float) -> None:
        self.world.pass_time(seconds)

    @rule()
    def gated(self) -> None:
        self.world.until("GATED", 60)

    @rule()
    def host_crashes(self) -> None:
        self.world.crash()

    @rule(soft=st.booleans(), effects=st.integers(0, 60))
    def host_reboots(self, soft: bool, effects: int) -> None:
        self.world.go_down(soft, effects)

    @rule(works=st.booleans())
    def nft(self, works: bool) -> None:
        self.world.systemd.nft_works = works

    @rule()
    def somebody_restarts_the_service(self) -> None:
        self.world.systemd.restart()

    @rule(state=st.sampled_from(["full", "read-only", "ok", "ok"]))
    def disk(self, state: str) -> None:
        self.world.set_disk(state)

    @rule()
    @precondition(lambda self: self.world.open_txn() is not None)
    def the_trial_cannot_be_read(self) -> None:
        txn = self.world.open_txn()
        if txn and txn.intent["release"] not in ("baseline", txn.intent["from"]):
            self.world.unreadable.add(self.world.layout.release(txn.intent["release"]))

    @invariant()
    def truth_always(self) -> None:
        now = (self.world.effects + sum(proc.count for proc in self.world.procs), self.world.systemd.pid)
        if now != self._seen:  # else nothing has happened
            self._seen = now
            self.truth.always()

    def teardown(self) -> None:
        try:
            self.truth.converged()
            self._confirm_one("cc" if self.world.systemd.running != "cc" else "bb")
            self.truth.converged()
        finally:
            _spent["runs"] += 1
            _spent["rollouts"] += sum(1 for _ in self.world.transactions())
            self.world.close()
            _spent["effects"] += self.world.effects


@pytest.mark.parametrize("part", range(4))
def test_every_interleaving_ends_in_the_truth(part: int, capsys: pytest.CaptureFixture[str]) -> None:
    run_state_machine_as_test(
        Transaction if NIGHT else seed(part)(type("Transaction", (Transaction,), {})),
        settings=settings(
            max_examples=EXAMPLES,
            stateful_step_count=30,
            deadline=None,
            report_multiple_bugs=False,
            # Shrinking may take five minutes: only where somebody waits for it.
            phases=[Phase.generate, *([Phase.shrink] if "DDTREE_MODEL_SHRINK" in os.environ else [])],
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
    with capsys.disabled():
        print(
            "\nmodel, so far: {runs} interleavings, {rollouts} rollouts, {effects} effects".format(**_spent)
        )
