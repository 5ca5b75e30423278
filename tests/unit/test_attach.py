"""Re-joining a rollout: which one, with what in hand, and what the end is where none is open."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ddtree_agent import rejoin
from ddtree_agent.core.txn import FORWARD
from ddtree_agent.journal import Txn
from ddtree_agent.layout import Layout
from ddtree_agent.outcome import confirm
from ddtree_agent.wire import AgentError
from ddtree_ops.apply.attach import attach
from ddtree_ops.cli import _run
from ddtree_ops.cli.app import run
from ddtree_ops.config.model import HostConfig
from ddtree_ops.core.errors import HostLocked, OpsError, PreconditionFailed, RollbackFailed, RolledBack

pytestmark = pytest.mark.tier("transaction")
OPEN = {"txn": "a-1", "nonce": "n0nce", "kind": "deploy", "who": "me", "mode": "shadow", "release": "ab"}
GATED = {"ev": "state", "state": "GATED", "t": 0.0, "deadline_s": 60}
NOW = {"active": "active", "running": "baseline"}
LAST = {"kind": "deploy", "mode": "shadow", "release": "ab", "who": "me", "at": 0.0, "serving": "baseline"}
FAILURE = {"phase": "weights", "reason": "stall", "line": "OOM", "hint": None}


class Host:
    """The agent's end of one open rollout, or of none (`open` None)."""

    def __init__(self, answer: dict[str, Any], outcome: dict[str, Any] | None = None) -> None:
        self.answer, self.outcome, self.confirms = answer, outcome, []  # type: ignore[var-annotated]

    @contextmanager
    def connect(self) -> Iterator[Any]:
        yield self

    def call(self, op: str, request: dict[str, Any], timeout: float | None = None) -> dict[str, Any]:
        if op == "confirm":
            self.confirms.append((request["txn"], request["nonce"]))
        return self.answer

    def events(self, op: str, request: dict[str, Any], timeout: float) -> Iterator[dict[str, Any]]:
        assert (op, request["skip"]) == ("follow", 0)
        yield GATED
        yield {"ev": "result", "ok": True, "outcome": self.outcome, "state": "CONFIRMED"}


def attached(host: Host, seen: list[Any]) -> Any:
    client: Any = host
    return attach(HostConfig(name="ct"), client, host.connect, seen.append)


def opened(**fields: Any) -> dict[str, Any]:
    return {"open": {**OPEN, "state": "STARTING", "began": 0.0, **fields}}


def test_the_open_deploy_is_confirmed_with_the_nonce_that_the_host_hands_out() -> None:
    host, seen = Host(opened(), {"outcome": "confirmed"}), []  # type: ignore[var-annotated]
    assert attached(host, seen).joined
    assert host.confirms == [("a-1", "n0nce")]
    for word in ("deploy of shadow ab by me", "STARTING", "interrupt asks the host to roll it back"):
        assert word in seen[0]["text"]
    assert "n0nce" not in str(seen)


def test_a_rollback_on_its_way_is_followed_and_not_confirmed() -> None:
    host, seen = Host(opened(kind="undo"), {"outcome": "confirmed"}), []  # type: ignore[var-annotated]
    attached(host, seen)
    assert host.confirms == []
    assert "does not end a rollback" in seen[0]["text"]


@pytest.mark.parametrize(
    ("outcome", "error"),
    [
        ({"outcome": "rolled-back", "serving": "baseline", "failure": FAILURE}, RolledBack),
        ({"outcome": "rollback-failed", "failure": FAILURE, "problem": {}}, RollbackFailed),
        (
            {"outcome": "rolled-back", "serving": "baseline", "failure": FAILURE, "touched": False},
            PreconditionFailed,
        ),
    ],
)
def test_it_ends_as_the_deploy_would_and_so_does_the_last_one(
    outcome: dict[str, Any], error: type[OpsError]
) -> None:
    with pytest.raises(error):
        attached(Host(opened(), outcome), [])
    past = {"open": None, "held_by": None, "last": {**LAST, **outcome}, "status": {**NOW, "running": "cd"}}
    with pytest.raises(error) as caught:
        attached(Host(past), [])
    assert "no rollout is open; the last one, the deploy of shadow ab by me, ended 1970" in caught.value.what
    assert caught.value.serving == "cd"  # what serves now, not what served then


def test_without_an_open_rollout_a_confirmed_last_one_is_success() -> None:
    last = {**LAST, "outcome": "confirmed"}
    ended = attached(Host({"open": None, "held_by": None, "last": last, "status": NOW}), [])
    assert (ended.joined, ended.outcome, ended.status) == (False, last, NOW)


@pytest.mark.parametrize(("drift", "code"), [([], 0), (["sglang.service is failed: nothing serves"], 5)])
def test_a_confirmed_last_rollout_on_a_host_that_drifted_is_exit_5(
    drift: list[str],
    code: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    last = {**LAST, "outcome": "confirmed"}
    now = {
        **NOW, "service": "sglang.service", "sub": "running", "main_pid": 7, "confirmed": {"release": "ab"},
        "releases": [], "transaction": None, "held_by": None, "drift": drift,
    }  # fmt: skip
    host = Host({"open": None, "held_by": None, "last": last, "status": now})
    monkeypatch.setattr(_run, "connector", lambda inventory, chosen: host.connect)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hosts.yaml").write_text("version: 1\nhosts: {ct: {}}\n")
    assert run(["attach", "--host", "ct", "--json"]) == code
    out, err = capsys.readouterr()
    assert json.loads(out)["status"]["drift"] == drift  # one document, also with the error
    assert "no rollout is open; the last one" in err
    assert ("the host has drifted since: sglang.service is failed" in err) is bool(drift)


def test_a_host_where_nothing_ever_ran_is_no_success() -> None:
    with pytest.raises(PreconditionFailed, match="none ever ran"):
        attached(Host({"open": None, "held_by": None, "last": None, "status": NOW}), [])


def test_a_push_on_its_way_is_not_taken_for_the_last_rollout() -> None:
    last = {**LAST, "outcome": "confirmed"}
    with pytest.raises(HostLocked, match="push by you"):
        attached(Host({"open": None, "held_by": "push by you", "last": last, "status": NOW}), [])


def test_the_agent_hands_out_the_open_rollout_with_its_nonce(tmp_path: Path) -> None:
    layout = Layout("sglang.service", str(tmp_path))
    intent = {
        "txn": "3e8-abc",
        "nonce": "n",
        "kind": "deploy",
        "who": "me",
        "mode": "shadow",
        "release": "ab",
    }
    Txn.create(layout, {**intent, "why": "deploy"})
    found = rejoin.rejoin(layout)["open"]
    assert found == {**intent, "why": "deploy", "state": "PREPARED", "began": 1.0}


def test_a_rollout_that_somebody_asked_back_is_not_confirmed_any_more(tmp_path: Path) -> None:
    layout = Layout("sglang.service", str(tmp_path))
    txn = Txn.create(layout, {"txn": "3e8-abc", "nonce": "n", "kind": "deploy", "who": "me", "release": "ab"})
    for state in FORWARD[1 : FORWARD.index("GATED") + 1]:
        assert txn.to(state)
    txn.ask_abort("you")
    with pytest.raises(AgentError, match="ended: you"):
        confirm(txn, "n")
    assert txn.state == "GATED"  # its runner sees the note and rolls back
