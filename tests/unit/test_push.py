"""The agent's push where the import smoke fails: a broken release is put away, a host that goes down blames none."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest

from ddtree_agent import main as agent
from ddtree_agent.layout import Layout
from ddtree_agent.wire import AgentError

pytestmark = pytest.mark.tier("transaction")
DIGEST = "ab" * 8
REPORT = {"ok": False, "stage": "died", "first_fatal": "ended with status 1"}


@pytest.fixture
def push(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """push(going_down) -> the digests that were put away. Raises what the agent answers."""
    layout = Layout("sglang.service", str(tmp_path))
    put_away: list[str] = []

    def stage(where: Layout, txn: str, manifest: dict[str, Any], payload: Any) -> None:
        Path(where.release(manifest["release"])).mkdir(parents=True)

    def call(going_down: bool) -> None:
        request = {"who": "you", "agent": "", "manifest": {"release": DIGEST}, "txn": "1-2", "smoke": {}}
        monkeypatch.setattr(agent.service, "shutting_down", lambda: going_down)
        agent.OPS["push"](request, io.BytesIO())

    monkeypatch.setattr(agent, "_layout", lambda request: layout)
    monkeypatch.setattr(agent.install, "installed", lambda layout, archive, digest: "")
    monkeypatch.setattr(agent.rollout, "settle", lambda layout: None)
    monkeypatch.setattr(agent.smoke, "smoke", lambda request: dict(REPORT))
    monkeypatch.setattr(agent.store, "stage", stage)
    monkeypatch.setattr(agent.store, "retire", lambda layout, digest, *rest: put_away.append(digest))
    call.put_away = put_away  # type: ignore[attr-defined]
    return call


def test_a_release_that_fails_its_smoke_is_put_away(push: Any) -> None:
    with pytest.raises(AgentError, match="does not pass the import smoke") as seen:
        push(going_down=False)
    assert seen.value.fields["kind"] == "precondition"
    assert push.put_away == [DIGEST]


def test_a_host_that_goes_down_says_nothing_of_the_release(push: Any) -> None:
    with pytest.raises(AgentError, match="the host is shutting down") as seen:
        push(going_down=True)
    assert seen.value.fields["kind"] == "unreachable"
    assert push.put_away == []
