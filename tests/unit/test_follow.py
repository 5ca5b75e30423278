"""Following a transaction: cut lines, lost replies, interrupts, and what the operator is told at the end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from ddtree_ops.apply import follow
from ddtree_ops.core.errors import (
    Detached,
    OutcomeUnknown,
    PreconditionFailed,
    RollbackFailed,
    RolledBack,
    Unreachable,
    UsageProblem,
)

pytestmark = pytest.mark.tier("main")
CONFIRMED = {"ev": "result", "ok": True, "state": "CONFIRMED", "outcome": {"outcome": "confirmed"}}
GATED = {"ev": "state", "state": "GATED", "t": 0.0, "deadline_s": 60}


class Host:
    """The agent's end: `lines` is one list of events (or an exception) for each connection that follows."""

    def __init__(self, *lines: list[Any]) -> None:
        self.lines = list(lines)
        self.skips: list[int] = []
        self.confirms: list[str] = []
        self.aborts = 0
        self.confirm_fails: list[Exception] = []
        self.abort_fails: list[Exception] = []

    @contextmanager
    def connect(self) -> Iterator[Any]:
        yield self

    def events(self, op: str, request: dict[str, Any], timeout: float) -> Iterator[dict[str, Any]]:
        self.skips.append(request["skip"])
        for item in self.lines.pop(0):
            if isinstance(item, BaseException):
                raise item
            yield item

    def call(self, op: str, request: dict[str, Any]) -> dict[str, Any]:
        if op == "abort":
            if self.abort_fails:
                raise self.abort_fails.pop(0)
            self.aborts += 1
            return {}
        assert op == "confirm"
        if self.confirm_fails:
            raise self.confirm_fails.pop(0)
        self.confirms.append(request["nonce"])
        return {}


def following(host: Host, seen: list[Any]) -> follow.Following:
    return follow.Following(host.connect, "ct129", "t1", "n0nce", seen.append, "me")


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow, "_RETRY_S", (0.0, 0.0, 0.0))


def test_a_gated_release_is_confirmed_once_with_its_nonce() -> None:
    host = Host([{"ev": "state", "state": "STARTING", "t": 0}, GATED, CONFIRMED])
    assert following(host, []).to_the_end() == {"outcome": "confirmed"}
    assert host.confirms == ["n0nce"]


def test_a_cut_line_is_taken_up_where_it_broke() -> None:
    host = Host([{"ev": "state", "state": "STARTING", "t": 0}, Unreachable("cut")], [GATED, CONFIRMED])
    following(host, []).to_the_end()
    assert host.skips == [0, 1]


def test_a_confirm_whose_reply_was_lost_is_repeated() -> None:
    host = Host([GATED], [CONFIRMED])
    host.confirm_fails = [Unreachable("cut")]
    following(host, []).to_the_end()
    assert host.confirms == ["n0nce"]


def test_a_confirm_that_comes_too_late_leaves_the_word_to_the_host() -> None:
    rolled = {"ev": "result", "ok": True, "outcome": {"outcome": "rolled-back"}}
    host = Host([GATED, rolled])
    host.confirm_fails = [RolledBack("too late")]
    assert following(host, []).to_the_end()["outcome"] == "rolled-back"


def test_an_interrupt_whose_abort_is_lost_is_asked_again() -> None:
    rolled = {"ev": "result", "ok": True, "outcome": {"outcome": "rolled-back"}}
    host = Host([KeyboardInterrupt()], [rolled])
    host.abort_fails = [Unreachable("cut")]
    assert following(host, []).to_the_end()["outcome"] == "rolled-back"
    assert host.aborts == 1


def test_what_the_host_never_took_on_is_told_apart_from_a_rollback() -> None:
    for nonce, words in (("n0nce", "meaning: nothing changed\n"), ("", "may have been ended by it")):
        one = following(Host([UsageProblem("there is no rollout t1")]), [])
        one.begun, one.nonce = False, nonce
        with pytest.raises(Unreachable) as seen:
            one.to_the_end()
        assert words.removeprefix("meaning: ").strip() in str(seen.value)


def test_an_undo_that_nobody_follows_is_not_said_to_roll_back() -> None:
    one = following(Host(*[[Unreachable("cut")]] * 9), [])
    one.nonce = ""
    with pytest.raises(OutcomeUnknown, match="needs no confirm"):
        one.to_the_end()


READ_ONLY = PreconditionFailed(
    "the host takes no write: Read-only file system", meaning="nothing was stopped"
)


def test_a_host_that_cannot_write_for_a_while_is_followed_on_and_confirmed() -> None:
    """Seen in the matrix: a disk that was read-only for seconds made a running rollout look untouched (exit 3)."""
    beat = {"ev": "beat", "state": "GATED"}
    host = Host([READ_ONLY], [GATED, beat, CONFIRMED])
    host.confirm_fails = [READ_ONLY]
    assert following(host, []).to_the_end() == {"outcome": "confirmed"}
    assert host.confirms == ["n0nce"]


def test_a_host_that_never_writes_again_is_outcome_unknown() -> None:
    seen: list[Any] = []
    with pytest.raises(OutcomeUnknown, match="cannot be followed"):
        following(Host(*[[READ_ONLY]] * 9), seen).to_the_end()
    assert "Read-only" in seen[0]["text"]


def test_a_line_that_stays_cut_is_outcome_unknown_with_the_deadline() -> None:
    host = Host([GATED, Unreachable("cut")], *[[Unreachable("cut")]] * 9)
    with pytest.raises(OutcomeUnknown) as caught:
        following(host, []).to_the_end()
    assert "00:01:00" in str(caught.value)
    assert "status" in str(caught.value)


def test_the_first_interrupt_aborts_and_waits_for_the_host() -> None:
    rolled = {"ev": "result", "ok": True, "outcome": {"outcome": "rolled-back"}}
    host = Host([KeyboardInterrupt()], [GATED, rolled])
    assert following(host, []).to_the_end()["outcome"] == "rolled-back"
    assert (host.aborts, host.confirms) == (1, [])


def test_the_second_interrupt_detaches() -> None:
    host = Host([KeyboardInterrupt()], [KeyboardInterrupt()])
    with pytest.raises(Detached):
        following(host, []).to_the_end()


def test_an_orphaned_rollout_is_not_called_a_success() -> None:
    host = Host([{"ev": "result", "ok": True, "outcome": None, "state": "STARTING", "orphan": True}])
    with pytest.raises(OutcomeUnknown):
        following(host, []).to_the_end()


def test_the_verdict_is_raised_with_the_first_fatal_line_and_what_serves() -> None:
    failure = {
        "phase": "import",
        "reason": "died",
        "line": "ImportError: x",
        "hint": "reinstall",
        "lag_s": 0.7,
    }
    outcome = {"outcome": "rolled-back", "failure": failure, "serving": "baseline", "rollback_s": 2.1}
    with pytest.raises(RolledBack) as caught:
        follow.judge("ct129", outcome, "confirmed")
    text = str(caught.value)
    for part in ("ImportError: x", "baseline", "0.7 s", "reinstall", "ddtree-ops logs"):
        assert part in text


def test_a_failed_rollback_is_its_own_error() -> None:
    with pytest.raises(RollbackFailed):
        follow.judge(
            "ct129", {"outcome": "rollback-failed", "problem": {"reason": "port-taken"}}, "confirmed"
        )


def test_a_drain_that_could_not_be_undone_is_not_called_untouched() -> None:
    outcome = {
        "outcome": "rolled-back", "touched": False, "serving": "baseline", "undrain": "undo: exit status 127",
        "failure": {"hint": "the drain command failed: x"},
    }  # fmt: skip
    with pytest.raises(PreconditionFailed) as seen:
        follow.judge("ct129", outcome, "confirmed")
    said = str(seen.value)
    for words in ("still out of its router", "undo: exit status 127", "run drain.undo on ct129"):
        assert words in said
