"""Junk where our own records lie on a host: no verb is lost to it, and nothing false is said of what serves."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddtree_agent import decided, evidence, undo
from ddtree_agent.journal import Txn, open_txn, transactions
from ddtree_agent.layout import Layout
from ddtree_agent.main import write_secrets
from ddtree_agent.outcome import outcome

pytestmark = pytest.mark.tier("transaction")
RELEASE = "ab" * 8


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    """A host whose drop-in in /etc boots a release."""
    layout = Layout("sglang.service", str(tmp_path))
    Path(layout.release(RELEASE)).mkdir(parents=True)
    Path(layout.kept).parent.mkdir(parents=True)
    Path(layout.kept).write_text(f"[Service]\nEnvironment=DDTREE_RELEASE={RELEASE}\n")
    Path(layout.txns).mkdir(parents=True)
    return layout


JUNK = {
    "nothing": "",
    "another shape": "[]",
    "no release": "{}",
    "numbers": '{"release": 5, "undo": 7}',
    "a path": '{"release": "../../etc", "undo": null}',
    "no undo": '{"release": "baseline"}',
    "a release that is not here": '{"release": "deadbeefdeadbeef", "undo": null}',
    "bytes": "\x00\x00\x00",
}


@pytest.mark.parametrize("junk", JUNK.values(), ids=JUNK)
def test_a_damaged_record_is_read_from_what_boots(layout: Layout, junk: str) -> None:
    Path(layout.confirmed).write_text(junk)
    assert decided.confirmed(layout) == {"release": RELEASE, "undo": None, "damaged": True}
    said = undo.rollback(layout, {"who": "me"}, "")["nothing"]
    assert f"{RELEASE} is confirmed" in said  # which is the truth


@pytest.mark.parametrize("kind", ["directory", "dangling link"])
def test_a_record_that_is_no_file_is_damaged(layout: Layout, kind: str) -> None:
    path = Path(layout.confirmed)
    path.mkdir() if kind == "directory" else path.symlink_to("nowhere")
    assert decided.confirmed(layout)["damaged"] is True


def test_a_host_where_nothing_was_confirmed_runs_the_baseline(layout: Layout) -> None:
    assert decided.confirmed(layout) == {"release": "baseline", "undo": None}


@pytest.mark.parametrize("junk", ["", "{}", "[]", '{"state": 5}', '{"state": "NOWHERE"}', None])
def test_a_damaged_state_is_taken_back(layout: Layout, junk: str | None) -> None:
    txn = Txn.create(layout, {"txn": "abc-1", "who": "me", "kind": "deploy", "release": RELEASE})
    path = Path(txn.dir, "state")
    path.unlink()
    path.mkdir() if junk is None else path.write_text(junk)
    assert txn.state == "ROLLING_BACK"
    Path(txn.dir, "outcome.json").write_text("{}")
    assert txn.state == "ROLLED_BACK"


def test_a_rollout_whose_intent_is_gone_keeps_nobody_off(layout: Layout) -> None:
    txn = Txn.create(layout, {"txn": "abc-1", "who": "me", "kind": "deploy", "release": RELEASE})
    assert open_txn(layout) is not None
    Path(txn.dir, "intent.json").write_text("{}")
    assert open_txn(layout) is None


def test_what_is_no_rollout_of_ours_is_passed_over(layout: Layout) -> None:
    for name in ("zzz", "abc-1.bak", "..x"):
        (Path(layout.txns) / name).mkdir()
        (Path(layout.txns) / name / "intent.json").write_text("{}")
    assert transactions(layout) == []


SECRETS = [
    's3cret"val"',
    '"quoted"',
    "back\\slash\\",
    "one line\nand another",
    'x"\\"y',
    "$HOME%H`id`",
    "ünïcode ✓",
]


@pytest.mark.parametrize("value", SECRETS)
def test_every_value_that_was_written_is_hidden(layout: Layout, value: str) -> None:
    write_secrets(layout, RELEASE, {"A": "plain-value", "K": value, "Z": "last-one"})
    assert set(evidence.hidden(layout)) >= {"plain-value", value, "last-one", *value.splitlines()}


def test_a_history_that_is_no_file_holds_up_no_confirm(
    layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ddtree_agent import outcome as ends

    txn = Txn.create(layout, {"txn": "abc-1", "who": "me", "kind": "deploy", "release": RELEASE})
    Path(layout.history).mkdir()
    ends._write_down(txn, {"outcome": "confirmed"})
    assert "the history could not be written" in Path(txn.events_path).read_text()
    assert (outcome(txn) or {})["outcome"] == "confirmed"


def test_what_a_crash_left_half_written_goes_with_the_next_rollout(layout: Layout) -> None:
    txn = Txn.create(layout, {"txn": "abc-1", "who": "me", "kind": "deploy", "release": RELEASE})
    halves = [Path(txn.dir, ".ddtree-x1y2"), Path(layout.state, ".ddtree-z3")]
    for half in halves:
        half.write_text("{")
    Path(layout.txns, "NOTES").write_text("a hand's")
    decided.sweep_ready(layout)
    assert not any(half.exists() for half in halves)
    assert txn.state == "PREPARED" and Path(layout.txns, "NOTES").exists()
