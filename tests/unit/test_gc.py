"""Garbage collection: what is chosen and why (no host), and that deleting survives a kill at any moment."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ddtree_agent import collect, install, store
from ddtree_agent.gcplan import KEEP_TXNS, Item, plan_gc
from ddtree_agent.journal import Txn, transactions
from ddtree_agent.layout import Layout, append_history, write_json
from ddtree_agent.wire import AgentError
from ddtree_ops.apply import gc as apply_gc
from ddtree_ops.cli import app as cli
from ddtree_ops.cli.gc import describe
from ddtree_ops.config.model import HostConfig
from ddtree_ops.core.errors import OutcomeUnknown, Unreachable

pytestmark = pytest.mark.tier("transaction")
A, B, C, D, E = (letter * 16 for letter in "abcde")


def plan(
    needed: dict[str, str] | None = None, keep: int = 2, cap: int = 100, **items: list[Item]
) -> dict[str, str]:
    """Names that go, with the reason."""
    lists = [items.get(name, []) for name in ("releases", "failed", "agents", "txns")]
    chosen = plan_gc(*lists, needed or {}, keep, cap)
    assert len(chosen) == sum(len(part) for part in lists)
    return {choice.item.name: choice.why for choice in chosen if choice.goes}


def releases(*names: str, whole: bool = True) -> list[Item]:
    """Oldest first."""
    return [Item("release", name, 10, float(place), "", whole) for place, name in enumerate(names)]


def test_the_newest_releases_stay_and_those_that_something_stands_on() -> None:
    assert set(plan(releases=releases("a", "b", "c", "d"))) == {"a", "b"}
    assert set(plan({"a": "confirmed"}, releases=releases("a", "b", "c", "d"))) == {"b"}
    assert set(plan({"a": "confirmed", "b": "undo"}, keep=1, releases=releases("a", "b", "c", "d"))) == {"c"}
    assert plan(keep=9, releases=releases("a", "b")) == {}


def test_a_release_that_a_crash_left_half_made_goes_unless_something_stands_on_it() -> None:
    half = releases("a", "b", "c", "d", whole=False)
    found = plan({"a": "named by a drop-in"}, keep=1, releases=[*half[:3], *releases("whole"), half[3]])
    assert set(found) == {"b", "c", "d"}  # and none of them takes the place of a whole one


def test_evidence_goes_oldest_first_beyond_the_cap_and_the_newest_stays() -> None:
    found = [
        Item("failed", name, size, at) for name, size, at in (("old", 5, 1), ("mid", 60, 2), ("new", 50, 3))
    ]
    assert set(plan(failed=found, cap=115)) == set()
    assert set(plan(failed=found, cap=110)) == {"old"}
    assert set(plan(failed=found, cap=100)) == {
        "old",
        "mid",
    }  # an older one that would fit does not jump the queue
    assert set(plan(failed=found, cap=0)) == {"old", "mid"}


def test_agents_that_nothing_runs_go_but_not_the_newest() -> None:
    agents = [Item("agent", name, 1, at) for name, at in (("a", 1), ("b", 2), ("c", 3))]
    assert set(plan({"a": "a guard unit runs it"}, agents=agents)) == {"b"}


def test_the_last_rollouts_of_each_service_stay() -> None:
    txns = [Item("txn", f"{s}{i}", 1, i, s) for s in ("x", "y") for i in range(KEEP_TXNS + 1)]
    assert set(plan(txns=txns)) == {"x0", "y0"}
    assert set(plan({"x0": "open"}, txns=txns)) == {"y0"}


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return Layout("sglang.service", str(tmp_path))


def sealed(layout: Layout, *names: str) -> None:
    """Sealed releases, oldest first."""
    for place, name in enumerate(names):
        folder = Path(layout.releases) / name
        (folder / "overlay").mkdir(parents=True)
        (folder / "overlay" / "x.py").write_text("x" * 5000)
        (folder / "manifest.json").write_text(json.dumps({"release": name}))
        for path in (folder / "overlay", folder):
            path.chmod(0o555)
        os.utime(folder, (place, place))


def dropin(layout: Layout, path: str, release: str) -> None:
    file = Path(layout.root) / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"[Service]\nEnvironment=DDTREE_RELEASE={release}\n")


def run(layout: Layout, **changed: Any) -> dict[str, Any]:
    asked = {"who": "me", "agent": "f" * 16, "keep": 1, "failed_bytes": 0, "dry_run": False, **changed}
    return collect.collect(layout, **asked)


def names(layout: Layout) -> list[str]:
    return sorted(os.listdir(layout.releases))


def test_what_any_service_of_the_host_stands_on_is_kept(layout: Layout) -> None:
    sealed(layout, A, B, C, D, E)
    other = Layout("other.service", layout.root)
    write_json(layout.confirmed, {"release": A, "undo": "baseline"})
    write_json(other.confirmed, {"release": "baseline", "undo": B})
    dropin(layout, "run/systemd/system/third.service.d/60-ddtree-trial.conf", C)
    found = run(layout)
    assert names(layout) == [A, B, C, E]  # E is the newest
    assert [(one["kind"], one["name"]) for one in found["removed"]] == [("release", D)]
    assert found["freed"] == found["removed"][0]["bytes"] >= 5000
    why = {one["name"]: one["why"] for one in found["kept"]}
    assert why[A] == "sglang.service: confirmed"
    assert why[B] == "other.service: rollback goes there"
    assert "60-ddtree-trial.conf" in why[C]


def test_a_dry_run_says_the_same_and_removes_nothing(layout: Layout) -> None:
    sealed(layout, A, B, C)
    told = run(layout, dry_run=True)
    assert names(layout) == [A, B, C]
    assert not os.path.exists(layout.staging)
    assert {**run(layout), "dry_run": True} == told
    assert names(layout) == [C]


def test_an_agent_that_is_not_whole_never_outlives_one_that_is(layout: Layout) -> None:
    for place, data in enumerate((b"oldest", b"old", b"half")):
        folder = Path(layout.agents) / install.digest_of(data)
        folder.mkdir(parents=True)
        if data != b"half":
            (folder / install.NAME).write_bytes(data)
        os.utime(folder, (place, place))
    run(layout)
    assert os.listdir(layout.agents) == [install.digest_of(b"old")]


def test_a_release_that_ran_lately_counts_as_new(layout: Layout) -> None:
    sealed(layout, A, B)
    append_history(layout, {"kind": "deploy", "who": "me", "outcome": "confirmed", "release": A})
    run(layout)
    assert names(layout) == [A]


@pytest.mark.parametrize("service", ["sglang.service", "other.service"])
def test_an_open_rollout_of_any_service_is_not_disturbed(layout: Layout, service: str) -> None:
    sealed(layout, A, B)
    Txn.create(Layout(service, layout.root), {"txn": "1-2", "who": "you", "release": A})
    with pytest.raises(AgentError, match="by you is open") as caught:
        run(layout)
    assert caught.value.fields["kind"] == "locked"
    assert names(layout) == [A, B]


@pytest.mark.parametrize("file", ["confirmed", "dropin"])
def test_where_it_cannot_be_known_what_is_needed_nothing_goes(layout: Layout, file: str) -> None:
    sealed(layout, A, B)
    if file == "confirmed":
        other = Path(Layout("other.service", layout.root).confirmed)
        other.parent.mkdir(parents=True)
        other.write_text("junk{")
    else:
        (Path(layout.root) / "etc/systemd/system/x.service.d/50-ddtree.conf").mkdir(parents=True)
    with pytest.raises(AgentError, match="is not known"):
        run(layout)
    assert names(layout) == [A, B]


def test_what_a_kill_in_the_middle_left_goes_at_the_next_run(
    layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    sealed(layout, A, B, C)
    for number in range(KEEP_TXNS + 2):
        Txn.create(layout, {"txn": f"{number:03x}-0"}).to("ROLLING_BACK")
        Txn(layout, f"{number:03x}-0").to("ROLLED_BACK")
        os.utime(layout.txn(f"{number:03x}-0"), (number, number))
    whole = collect.remove_tree

    def dies(path: str, within: str) -> None:
        if os.path.exists(path):
            raise KeyboardInterrupt
        whole(path, within)

    monkeypatch.setattr(collect, "remove_tree", dies)
    for _ in range(2):  # at the first thing that goes; then already at the leftovers of that
        with pytest.raises(KeyboardInterrupt):
            run(layout)
    assert [name for name, _ in store.releases(layout)] == names(layout) == [B, C]
    monkeypatch.setattr(collect, "remove_tree", whole)
    os.makedirs(os.path.join(layout.txns, ".new-7-7"))
    found = run(layout)
    assert [one["kind"] for one in found["removed"]].count("leftover") == 2
    assert names(layout) == [C]
    assert os.listdir(layout.staging) == []
    assert len(os.listdir(layout.txns)) == len(transactions(layout)) == KEEP_TXNS


def test_what_is_not_ours_stays(layout: Layout) -> None:
    sealed(layout, A, B)
    for path in ("releases/NOTES", "failed/mine", "agent/README", "staging/1-2.strange.service"):
        (Path(layout.root) / "opt/ddtree" / path).mkdir(parents=True)
    run(layout)
    assert names(layout) == ["NOTES", B]
    for path in ("failed/mine", "agent/README", "staging/1-2.strange.service"):
        assert (Path(layout.root) / "opt/ddtree" / path).is_dir()


def test_a_link_that_leaves_our_roots_is_not_followed(layout: Layout, tmp_path: Path) -> None:
    sealed(layout, B)
    precious = tmp_path / "precious"
    (precious / "deep").mkdir(parents=True)
    (Path(layout.releases) / A).symlink_to(precious)
    os.utime(Path(layout.releases) / A, (0, 0), follow_symlinks=False)
    os.makedirs(layout.staging)
    (Path(layout.staging) / "1-2.sglang.service").symlink_to(precious)
    for _ in range(2):
        assert run(layout)["removed"] == []
    assert (precious / "deep").is_dir()


@pytest.mark.parametrize("changed", [{"keep": 0}, {"failed_bytes": -1}])
def test_the_agent_refuses_bad_numbers(layout: Layout, changed: dict[str, int]) -> None:
    with pytest.raises(AgentError):
        run(layout, **changed)


@pytest.mark.parametrize("words", [["--keep", "0"], ["--keep", "x"], ["--failed-bytes", "64MB"]])
def test_bad_words_are_exit_2(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["gc", "--host", "nowhere", *words]) == 2
    assert words[0] in capsys.readouterr().err


def test_the_report_says_bytes_and_reasons() -> None:
    gone = {"kind": "release", "name": A, "bytes": 8192, "why": "old"}
    text = describe(
        "ct", {"dry_run": True, "freed": 8192, "removed": [gone], "kept": [{**gone, "why": "new"}]}
    )
    assert text.splitlines() == [
        "ct: 8192 bytes would be freed",
        f"  would go: release {A} (8192 bytes): old",
        f"  kept: release {A}: new",
    ]


class CutLine:
    """A client whose line breaks before anything comes back."""

    def events(self, op: str, request: dict[str, Any], timeout: float) -> Iterator[dict[str, Any]]:
        raise Unreachable("the connection broke before the command ended")
        yield {}


@pytest.mark.parametrize(("dry_run", "kind"), [(False, OutcomeUnknown), (True, Unreachable)])
def test_a_cut_line_is_no_promise_that_nothing_was_removed(dry_run: bool, kind: type[Exception]) -> None:
    host = HostConfig(name="ct", address="ct")
    with pytest.raises(kind, match=r"line was cut|connection broke"):
        apply_gc.gc(host, CutLine(), keep=3, failed_bytes=0, dry_run=dry_run)  # type: ignore[arg-type]
