"""The transaction's safeguards taken away one by one: each missing one is seen, by the scene that it is there for."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import pytest
from mutation import Mutation, mutate
from test_transaction_crashes import (
    Play,
    confirm_cut_by_host_crash,
    confirm_on_full_disk,
    every_cut,
    race_of_confirm_and_guard,
    race_of_two_deploys,
    runner_killed,
    status_during_a_deploy,
    stopped_runner,
    wrong_nonce,
)
from world import FAIL
from world_truth import Broken

from ddtree_agent import decided, guard, journal, layout, outcome, rollout, room

pytestmark = pytest.mark.tier("transaction")
_NO_TIMER: Mutation = (guard.arm, "extend(txn, seconds)", "return extend(txn, seconds)")
_NO_FOLLOW_UP: Mutation = (guard.launch, '"--property=ExecStopPost=" + " ".join(_now(txn, command)),', "")
MUTATIONS: dict[str, tuple[list[Mutation], Play]] = {
    "the compare-and-swap on the state": (
        [(journal.Txn.to, "if not table.may(self.state, new):", "if False:")],
        race_of_confirm_and_guard,
    ),
    "the lock around the compare and the swap": (
        [(inspect.unwrap(journal.Txn.exclusive), "fcntl.flock(fd, fcntl.LOCK_EX)", "pass")],
        race_of_confirm_and_guard,
    ),
    "the nonce": ([(outcome.confirm, 'if nonce != txn.intent["nonce"]:', "if False:")], wrong_nonce),
    "the host's lock": (
        [(layout._take, "fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)", "pass")],
        race_of_two_deploys,
    ),
    "the guard's timer": ([_NO_TIMER], stopped_runner),
    "the guard": ([_NO_TIMER, _NO_FOLLOW_UP], runner_killed(FAIL)),
    "the traffic gate": (
        [(rollout._shut_gate, 'gate.shut(txn.layout.service, intent["port"])', "pass")],
        runner_killed(FAIL),
    ),
    "what a confirm needs, written ahead and in reserve": (
        [
            (layout.write_atomic, "ready if ready and _content(ready) == data else ", ""),
            (room.spend, "if not is_full(error) or not _release(layout):", "if True:"),
        ],
        confirm_on_full_disk,
    ),
    "what boots before the note of it": (
        [
            (
                decided.set_confirmed,
                "service.put_kept(",
                "write_json(layout.confirmed, record); service.put_kept(",
            )
        ],
        confirm_cut_by_host_crash,
    ),
    "the lock around a look at an open rollout": (
        [(rollout.note_reboot, "gone = txn.rebooted", "_see_guarded(txn); gone = txn.rebooted")],
        status_during_a_deploy,
    ),
}


@pytest.fixture(params=sorted(MUTATIONS))
def mutated(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Play]:
    mutations, play = MUTATIONS[request.param]
    for mutation in mutations:
        mutate(monkeypatch, mutation)
    yield play


def test_without_a_safeguard_the_truth_breaks(mutated: Play) -> None:
    with pytest.raises((Broken, AssertionError)) as seen:
        every_cut(mutated)
    print(seen.value)
