"""The transition table: complete, closed, and with no way back from a confirm."""

import pytest

from ddtree_ops.core.txn import FORWARD, TABLE, TERMINAL, is_open, may

pytestmark = pytest.mark.tier("main")


def test_every_state_is_in_the_table_and_every_target_is_a_state() -> None:
    targets = {new for news in TABLE.values() for new in news}
    assert targets <= set(TABLE)
    assert set(FORWARD) <= set(TABLE)


def test_every_state_reaches_an_end() -> None:
    for start in TABLE:
        seen, todo = set(), [start]
        while todo:
            state = todo.pop()
            if state not in seen:
                seen.add(state)
                todo.extend(TABLE[state])
        assert seen & TERMINAL, start


def test_rolling_back_is_open_until_the_confirm_and_never_after() -> None:
    for state in FORWARD[: FORWARD.index("CONFIRMING")]:
        assert may(state, "ROLLING_BACK"), state
    assert not may("CONFIRMING", "ROLLING_BACK")
    assert may("CONFIRMING", "ROLLED_BACK")  # by a reboot before the drop-in in /etc was written
    assert not may("CONFIRMED", "ROLLING_BACK")


def test_no_step_is_skipped() -> None:
    for i, state in enumerate(FORWARD):
        assert [new for new in FORWARD if may(state, new)] == list(FORWARD[i + 1 : i + 2])


def test_an_unknown_state_goes_nowhere() -> None:
    assert not may("SOMETHING", "CONFIRMED")
    assert is_open("SOMETHING")
