"""A hold: it stands, it ends, it refuses, and a file that cannot be read holds as well."""

from __future__ import annotations

import io
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ddtree_agent import hold, rollout
from ddtree_agent import main as agent
from ddtree_agent.layout import Layout
from ddtree_agent.wire import AgentError
from ddtree_ops.apply.deploy import refuse_held
from ddtree_ops.cli import app as cli
from ddtree_ops.cli.status import describe
from ddtree_ops.core.doctor_host import locks
from ddtree_ops.core.errors import HostLocked
from ddtree_ops.core.facts_live import State
from ddtree_ops.core.finding import Level
from ddtree_ops.core.wanted import Wanted

pytestmark = pytest.mark.tier("transaction")
ASKED = {"who": "me@here", "why": "GPU 3 is replaced", "for_s": 3600, "until": None}


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return Layout("sglang.service", str(tmp_path))


def test_a_hold_refuses_and_names_who_why_and_what_to_type(layout: Layout) -> None:
    hold.refuse(layout)
    assert hold.put(layout, ASKED)["replaced"] is None
    with pytest.raises(AgentError) as caught:
        hold.refuse(layout)
    fields = caught.value.fields
    assert (fields["kind"], fields["next"]) == ("locked", "ddtree-ops unhold")
    for word in ("me@here", "GPU 3 is replaced", "until 20"):
        assert word in fields["what"]
    lifted = hold.lift(layout)
    assert lifted is not None and lifted["who"] == "me@here"
    hold.refuse(layout)
    assert hold.lift(layout) is None


def test_a_hold_ends_by_itself(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    stands = hold.put(layout, ASKED)["hold"]
    monkeypatch.setattr(hold.time, "time", lambda: stands["until"] - 1)
    assert hold.standing(layout)
    monkeypatch.setattr(hold.time, "time", lambda: stands["until"])
    assert hold.standing(layout) is None
    hold.refuse(layout)


def test_a_hold_without_an_end_stands_until_it_is_lifted(
    layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    hold.put(layout, {**ASKED, "for_s": None})
    monkeypatch.setattr(hold.time, "time", lambda: 9e10)
    assert hold.standing(layout)


def test_a_second_hold_names_the_first(layout: Layout) -> None:
    hold.put(layout, ASKED)
    assert hold.put(layout, {**ASKED, "who": "you"})["replaced"]["who"] == "me@here"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "junk{",
        "[]",
        "null",
        "{}",
        '{"who": "a", "why": "b", "since": 1}',
        '{"who": "a", "why": "b", "since": 1, "until": "soon"}',
        '{"who": "a", "why": "b", "since": 1, "until": NaN}',
        '{"who": 1, "why": "b", "since": 1, "until": null}',
        '{"who": "a", "why": "b", "since": true, "until": null}',
    ],
)
def test_a_damaged_hold_holds_and_can_be_lifted(layout: Layout, text: str) -> None:
    path = Path(hold.path(layout))
    path.parent.mkdir(parents=True)
    path.write_text(text)
    with pytest.raises(AgentError, match="damaged"):
        hold.refuse(layout)
    assert hold.lift(layout)
    hold.refuse(layout)


def test_a_time_that_has_passed_on_the_host_is_refused(layout: Layout) -> None:
    with pytest.raises(AgentError, match="has passed") as caught:
        hold.put(layout, {**ASKED, "for_s": None, "until": 5.0})
    assert caught.value.fields["kind"] == "usage"
    assert hold.standing(layout) is None


def test_a_deploy_is_refused_before_it_sends_anything() -> None:
    prepared: Any = SimpleNamespace(
        held="by me: x", plan=SimpleNamespace(host="ct"), host=SimpleNamespace(service="s.service")
    )
    with pytest.raises(HostLocked, match="by me: x") as caught:
        refuse_held(prepared)
    assert caught.value.next == "ddtree-ops unhold --host ct"
    prepared.held = None
    refuse_held(prepared)


def test_the_preflight_warns_of_a_hold_and_still_finds_the_rest() -> None:
    wanted = Wanted(host="ct", service="s.service", version="1", series="x", base={}, recorded=None)
    state = State(None, None, (), "push by you", hold={"text": "by me: x"})
    found: Any = locks(state, None, wanted)  # type: ignore[arg-type]
    assert [(one.rule, one.level) for one in found] == [("hold", Level.WARN), ("transaction", Level.BLOCK)]


def test_status_shows_a_hold() -> None:
    seen: dict[str, Any] = {
        "service": "s",
        "active": "active",
        "sub": "running",
        "main_pid": 1,
        "running": "baseline",
        "confirmed": {"release": "baseline", "undo": None},
        "transaction": None,
        "held_by": None,
        "releases": [],
        "drift": [],
        "hold": {"text": "by me: x"},
    }
    assert "on hold by me: x (ddtree-ops unhold --host ct)" in describe("ct", seen)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "needs a reason"),
        (["--why", "  "], "needs a reason"),
        (["--why", "x", "--for", "2"], "no length of time"),
        (["--why", "x", "--until", "2026-12-01T08:00"], "no time zone"),
        (["--why", "x", "--for", "2h", "--until", "2026-12-01T08:00Z"], "choose one"),
    ],
)
def test_bad_words_are_exit_2_and_connect_to_nothing(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(["hold", "--host", "nowhere", *words, "--json"]) == 2
    out, err = capsys.readouterr()
    assert said in err
    assert json.loads(out)["error"]["exit_code"] == 2


@pytest.mark.parametrize("op", ["push", "begin"])
def test_the_agent_asks_again_under_its_lock(
    layout: Layout, op: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    hold.put(layout, ASKED)
    monkeypatch.setattr(agent, "_layout", lambda request: layout)
    monkeypatch.setattr(agent.install, "installed", lambda layout, archive, digest: "")
    request = {"kind": "deploy", "who": "you", "agent": "", "manifest": {}, "txn": "1-2"}
    with pytest.raises(AgentError, match="on hold by me@here"):
        agent.OPS[op](request, io.BytesIO())
    assert sorted(path.name for path in Path(layout.state).iterdir()) == ["hold", "lock"]


def test_a_rollback_is_not_held(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    hold.put(layout, ASKED)
    with pytest.raises(AgentError, match="confirmed release"):  # it goes on to the next check
        rollout.begin(layout, {"kind": "undo", "who": "you", "from": "abc"}, "")
