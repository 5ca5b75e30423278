"""Ground truth in its pure parts: what drift is called, that it is named once, and how status and history say it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from ddtree_agent import decided, drift, rollout
from ddtree_agent import follow as following
from ddtree_agent.decided import set_confirmed
from ddtree_agent.drift import edited, hashes
from ddtree_agent.journal import Txn
from ddtree_agent.layout import Layout, rewrite_json
from ddtree_agent.probe_unit import environment_files
from ddtree_agent.wire import AgentError
from ddtree_ops.cli.history import describe as told
from ddtree_ops.cli.plan import describe as shown
from ddtree_ops.cli.status import describe
from ddtree_ops.config import load_inventory
from ddtree_ops.config.problems import ConfigProblem
from ddtree_ops.core.doctor import DRIFT, drifted, refusal
from ddtree_ops.core.doctor_unit import confirmed
from ddtree_ops.core.facts_live import FileHash, Live, Service, State, Unknown
from ddtree_ops.core.finding import block
from ddtree_ops.core.plan import Plan, Preconditions
from ddtree_ops.core.wanted import Wanted

pytestmark = pytest.mark.tier("transaction")
UNIT = "/etc/systemd/system/sglang.service"
MINE = f"{UNIT}.d/10-mine.conf"
ENV = "/etc/default/sglang"


def test_each_file_that_differs_is_named_with_what_it_is() -> None:
    before = {UNIT: "a", ENV: "b", "/etc/gone.env": "c"}
    assert edited(before, {UNIT: "a2", ENV: "b", MINE: "d"}) == [
        "environment file /etc/gone.env is gone since the last confirm or adopt",
        f"unit file {UNIT} was edited since the last confirm or adopt",
        f"drop-in {MINE} is new since the last confirm or adopt",
    ]
    assert edited(before, before) == []


def test_a_host_that_was_confirmed_before_this_was_recorded_does_not_drift() -> None:
    assert edited(None, {UNIT: "a"}) == []


def test_hashes_are_read_from_the_probe_and_from_facts_alike() -> None:
    unit = {
        "fragment": {"path": UNIT, "sha256": "a"},
        "dropins": [{"path": MINE, "sha256": "b", "sets": []}],
        "environment_files": [{"path": ENV, "sha256": None, "optional": True}],
    }
    assert hashes(unit) == {UNIT: "a", MINE: "b"}
    assert hashes({"fragment": {"path": None, "sha256": None}}) == {}


def test_our_own_file_of_secrets_is_not_the_operators(tmp_path: Path) -> None:
    shown = f"{ENV} (ignore_errors=no)\n/etc/ddtree/secrets-0123abcd.env (ignore_errors=no)"
    theirs = tmp_path / "sglang.service"
    show = {"EnvironmentFiles": shown, "FragmentPath": str(theirs), "DropInPaths": "/x.d/50-ddtree.conf"}
    theirs.write_text(f"[Service]\nEnvironmentFile={ENV}\n")
    assert [f["path"] for f in environment_files(show)] == [ENV]


def test_a_confirm_notes_the_unit_files_and_a_rollback_keeps_that_note(tmp_path: Path) -> None:
    layout = Layout("sglang.service", str(tmp_path))
    set_confirmed(layout, "baseline", None, "1", {UNIT: "a"})
    assert decided.confirmed(layout)["files"] == {UNIT: "a"}
    set_confirmed(layout, "baseline", None, "2", {})
    assert decided.confirmed(layout)["files"] == {UNIT: "a"}
    set_confirmed(layout, "baseline", None, "3", {ENV: "b"})
    assert decided.confirmed(layout)["files"] == {ENV: "b"}


@pytest.mark.parametrize("adopted", [[], ["y was edited"]])
def test_a_rollout_begins_over_nothing_that_was_not_adopted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, adopted: list[str]
) -> None:
    monkeypatch.setattr(drift, "unknown", lambda _: ["x was edited", "y was edited"])
    monkeypatch.setattr(drift, "unread", lambda _: [])
    request = {
        "kind": "deploy",
        "who": "me",
        "from": "baseline",
        "unit_files": {},
        "txn": "1-a",
        "adopted": adopted,
    }
    with pytest.raises(AgentError) as caught:
        rollout.begin(Layout("sglang.service", str(tmp_path)), request, "")
    assert ("x was edited" in str(caught.value), "y was edited" in str(caught.value)) == (True, not adopted)


def live(fragment: str) -> Live:
    service = Service(
        load_state="loaded", active_state="active", sub_state="running", result="success", main_pid=7,
        unit_file_state="enabled", masked=False, need_daemon_reload=False, unread=(), dropins=(), ours=(),
        fragment=FileHash(UNIT, fragment), late_dropins=(), environment_files=(),
    )  # fmt: skip
    return Live(**{**dict.fromkeys(Live.__dataclass_fields__, Unknown("not asked")), "service": service})  # type: ignore[arg-type]


def judged(unknown: list[str], fragment: str = "a" * 64) -> list[str]:
    recorded = {"unit": {"fragment": {"path": UNIT, "sha256": "a" * 64}, "enabled": "enabled"}}
    wanted = Wanted("ct129", "sglang.service", recorded=recorded)
    state = State(None, None, (), None, unknown=tuple(unknown))
    return [f.evidence for f in confirmed(state, live(fragment), wanted) if f.level == "BLOCK"]


def test_an_edit_that_the_facts_name_is_not_named_twice() -> None:
    said = [f"unit file {UNIT} was edited since the last confirm or adopt", "50-ddtree.conf is missing"]
    assert judged(said, fragment="b" * 64) == said[1:]
    assert judged(said) == said  # the facts were adopted anew, on another machine: only the host knows
    assert judged([]) == []


CONF, KEPT = f"{UNIT}.d/10-limits.conf", f"{UNIT}.d/50-ddtree.conf"
FLAG = "unit files of sglang.service changed on disk: systemctl daemon-reload"
#: (what differs, what systemd has not read, how it is told).
ONCE: list[tuple[list[str], list[str], list[str]]] = [
    ([], [], []),
    (
        [f"{KEPT} is missing though ab is confirmed"],
        [f"drop-in {KEPT} changed on disk and systemd has not read it", FLAG],
        [f"{KEPT} is missing though ab is confirmed; systemd has not read it: systemctl daemon-reload"],
    ),
    (
        [f"unit file {UNIT} was edited"],
        [FLAG],
        [f"unit file {UNIT} was edited; systemd has not read it: systemctl daemon-reload"],
    ),
    (["environment file /etc/a.env was edited"], [FLAG], ["environment file /etc/a.env was edited", FLAG]),
    (
        [f"unit file {UNIT} was edited", f"drop-in {CONF} was edited"],  # which of them was not read, nobody says
        [FLAG],
        [f"unit file {UNIT} was edited", f"drop-in {CONF} was edited", FLAG],
    ),
    (
        [f"unit file {UNIT} was edited"],
        [f"drop-in {CONF} changed on disk and systemd has not read it"],
        [f"unit file {UNIT} was edited", f"drop-in {CONF} changed on disk and systemd has not read it"],
    ),
]  # fmt: skip


@pytest.mark.parametrize(("differs", "fresh", "told"), ONCE)
def test_a_file_that_differs_and_was_not_read_is_one_sentence(
    differs: list[str], fresh: list[str], told: list[str]
) -> None:
    assert drift.once(differs, fresh) == told


def test_drift_is_refused_whole_and_adopting_it_is_the_next_command() -> None:
    findings = [
        block("facts", "x changed", "ddtree-ops adopt --host h"),
        block("drift", "y is missing", "…--adopt"),
    ]
    assert drifted(findings) == ["x changed", "y is missing"]
    error = refusal(findings, "h", "shadow aa, untouched", "shadow")
    assert error is not None
    assert error.exit_code == 3
    for word in (
        "x changed; y is missing",
        "deploy --host h --mode shadow --adopt",
        "ddtree-ops adopt --host h",
    ):
        assert word in str(error)
    assert refusal([f for f in findings if f.rule not in DRIFT], "h", None, "shadow") is None
    other = refusal([block("disk", "/opt is full", "rm"), *findings], "h", None, "shadow")
    assert other is not None
    assert "/opt is full; 2 more: drift, facts" in str(other)
    assert "--adopt" not in str(other)  # adopting does not help against a full disk


SEEN: dict[str, Any] = {
    "service": "sglang.service", "active": "active", "sub": "running", "main_pid": 7, "transaction": None,
    "held_by": None, "drift": [], "releases": [{"release": "aa", "mode": "shadow"}, {"release": "bb", "mode": "full"}],
}  # fmt: skip


@pytest.mark.parametrize(
    ("running", "record", "said"),
    [
        ("aa", {"release": "aa", "undo": "baseline"}, "runs shadow aa, confirmed; before it baseline"),
        ("bb", {"release": "bb", "undo": "aa"}, "runs full bb, confirmed; before it shadow aa"),
        (
            "aa",
            {"release": "aa", "undo": None, "abandoned": "bb"},
            "runs shadow aa, confirmed; full bb was rolled back, no change is left to undo",
        ),
        ("baseline", {"release": "baseline", "undo": None}, "runs baseline, confirmed; nothing before it"),
        (
            "baseline",
            {"release": "aa", "undo": "cc"},
            "runs baseline; shadow aa is confirmed; before it a release",
        ),
        (None, {"release": "aa", "undo": None}, "runs nothing; shadow aa is confirmed"),
    ],
)
def test_status_names_modes(running: str | None, record: dict[str, Any], said: str) -> None:
    assert said in describe("ct129", {**SEEN, "running": running, "confirmed": record})


def test_status_says_why_the_last_rollout_failed_and_only_then() -> None:
    last: dict[str, Any] = {
        "at": 0, "kind": "deploy", "mode": "shadow", "release": "aa", "who": "lena@laptop", "outcome": "rolled-back",
        "serving": "baseline", "txn": "1-a", "failure": {"phase": "weights", "reason": "oom", "line": "out of memory"},
    }  # fmt: skip
    seen = {**SEEN, "running": "baseline", "confirmed": {"release": "baseline", "undo": None}}
    said = describe("ct129", {**seen, "last": last})
    for word in (
        "last rollout failed",
        "1970-01-01",
        "deploy shadow aa by lena@laptop",
        "weights (oom): out of memory",
    ):
        assert word in said
    for fine in (None, {**last, "outcome": "confirmed", "failure": None}):
        assert "failed" not in describe("ct129", {**seen, "last": fine})


def test_the_history_tells_from_where_why_and_what_was_adopted() -> None:
    entry: dict[str, Any] = {
        "at": 0, "kind": "deploy", "mode": "shadow", "release": "aa", "who": "lena@laptop", "origin": "192.0.2.7",
        "outcome": "confirmed", "serving": "aa", "why": "more load tonight", "adopted": ["x was edited"],
    }  # fmt: skip
    text = told(entry)
    for word in (
        "by lena@laptop from 192.0.2.7: confirmed",
        "why: more load tonight",
        "adopted: x was edited",
    ):
        assert word in text
    assert "why:" not in told({**entry, "why": "deploy --mode shadow"})
    assert "from" not in told({**entry, "origin": None})


def test_a_plan_over_drift_says_that_a_deploy_is_refused() -> None:
    plan = Plan(
        host="h", service="s", mode="shadow", release="aa", source_digest="bb", steps=[], argv_before=["x", "1"],
        argv_after=["x", "2"], dropin="", preconditions=Preconditions("cc", "t"), running="full cc", drift=["y edited"],
    )  # fmt: skip
    text = shown(plan)
    assert "drift: y edited" in text
    assert "refused until --adopt" in text
    assert "command line now, full cc" in text


def ended(tmp_path: Path) -> Txn:
    layout = Layout("sglang.service", str(tmp_path))
    os.makedirs(layout.txns)
    intent = {"txn": "1-ab", "kind": "deploy", "release": "aa", "nonce": "n", "who": "me"}
    txn = Txn.create(layout, intent)
    for state in ("STAGED", "ROLLING_BACK"):
        assert txn.to(state)
    return txn


def frames(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line.removeprefix("@ddt ")) for line in capsys.readouterr().out.splitlines()]


def test_the_last_state_is_told_though_it_was_never_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    txn = ended(tmp_path)
    rewrite_json(
        os.path.join(txn.dir, "state"), {"state": "ROLLED_BACK", "boot": "b"}
    )  # a crash before it was said
    following.follow(txn)
    assert [f.get("state") for f in frames(capsys)[-2:]] == ["ROLLED_BACK", "ROLLED_BACK"]
    following.follow(txn, skip=2)
    assert [f["ev"] for f in frames(capsys)] == ["state", "result"]


def test_the_last_state_is_told_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    txn = ended(tmp_path)
    assert txn.to("ROLLED_BACK")
    following.follow(txn)
    states = [f["state"] for f in frames(capsys) if f["ev"] == "state"]
    assert states == ["STAGED", "ROLLING_BACK", "ROLLED_BACK"]


def test_a_state_that_comes_between_the_look_and_the_end_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    txn, said = ended(tmp_path), Txn.say

    def slow(self: Txn, event: dict[str, Any]) -> None:
        threading.Timer(0.3, said, (self, event)).start()  # the state is written, its event is on the way

    monkeypatch.setattr(Txn, "say", slow)
    assert txn.to("ROLLED_BACK")
    following.follow(txn)
    assert [f["state"] for f in frames(capsys) if f["ev"] == "state"][-1] == "ROLLED_BACK"


def test_the_operators_address_is_found_past_sudo(tmp_path: Path) -> None:
    agent = Path(__file__).resolve().parents[2] / "deploy" / "agent"
    inner = f"import sys; sys.path.insert(0, {str(agent)!r}); from ddtree_agent.origin import origin; print(origin())"
    outer = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {inner!r}], env={{}})"
    run = [sys.executable, "-c", outer]
    env = {"SSH_CONNECTION": "192.0.2.7 5000 192.0.2.1 22"}
    assert subprocess.run(run, env=env, capture_output=True, text=True, check=True).stdout == "192.0.2.7\n"


def test_a_feature_that_is_required_twice_is_placed(tmp_path: Path) -> None:
    path = tmp_path / "hosts.yaml"
    path.write_text(
        "version: 1\n"
        "defaults: {requires: [logprobs, logprobs]}\n"
        "groups:\n  g: {requires: [grammar, logprobs, grammar]}\n"
        "hosts:\n  a:\n    requires:\n      - logprobs\n      - logprobs\n  b: {requires: [logprobs, grammar]}\n"
    )
    with pytest.raises(ConfigProblem) as caught:
        load_inventory(path)
    assert [(p.line, p.path) for p in caught.value.problems] == [
        (2, "defaults.requires[1]"),
        (4, "groups.g.requires[2]"),
        (9, "hosts.a.requires[1]"),
    ]
