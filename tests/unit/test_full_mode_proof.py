"""Full mode needs a shadow of the same sources on the same host: the decision, and the host's own record of it."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from ddtree_agent import outcome, rollout, status
from ddtree_agent.journal import Txn
from ddtree_agent.layout import Layout, append_history, write_json
from ddtree_agent.wire import AgentError
from ddtree_ops.core.errors import PreconditionFailed
from ddtree_ops.core.proof import Proof, describe, proven, read_proofs, recorded

pytestmark = pytest.mark.tier("dense")
SAME, OTHER = "5a" * 8, "07" * 8
RELEASE, ELDER = "aa" * 8, "bb" * 8


def proof(
    mode: str = "shadow", source: str = SAME, release: str = RELEASE, argv: tuple[str, ...] = ()
) -> Proof:
    return Proof(mode, source, release, 1764441600.0, "ann@desk", argv)


def test_the_newest_rollout_of_the_same_sources_counts() -> None:
    found = proven(
        [proof(release=ELDER), proof("full"), proof(), proof(source=OTHER)], "shadow", SAME, "full", "h"
    )
    assert found == proof()


@pytest.mark.parametrize(
    ("had", "evidence"),
    [
        ([], "has no confirmed shadow"),
        ([proof("dflash"), proof("full")], "has no confirmed shadow"),
        ([proof(source=OTHER)], f"source_digest {OTHER} \\(release {RELEASE}, 2025-11-29 18:40 UTC\\)"),
    ],
)
def test_without_it_the_deploy_is_refused_with_what_to_type(had: list[Proof], evidence: str) -> None:
    with pytest.raises(
        PreconditionFailed, match=f"source_digest {SAME} was never confirmed in mode shadow"
    ) as error:
        proven(had, "shadow", SAME, "full", "ct129")
    assert error.value.exit_code == 3 and error.value.host == "ct129"
    assert error.value.next == "ddtree-ops deploy --host ct129 --mode shadow"
    assert error.value.meaning == "nothing was touched"
    assert re.search(evidence, str(error.value.evidence))


def test_a_proof_says_who_when_and_what_differs() -> None:
    then = proof(argv=("py", "--model", "/a", "--budget", "16", "--old"))
    said = describe(then, ["py", "--model", "/b", "--budget", "16", "--new", "1", "2"])
    assert said == [
        "proof: shadow of the same sources was confirmed here 2025-11-29 18:40 UTC by ann@desk",
        "proof: that shadow ran with --model /a, this plan has --model /b",
        "proof: that shadow ran with --old, this plan has no --old",
        "proof: that shadow ran with no --new, this plan has --new 1 2",
    ]
    assert len(describe(then, list(then.argv))) == 1
    assert "not known any more" in describe(proof(), ["py"])[1]
    assert "not known any more" in describe(then, None)[1]


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return Layout("sglang.service", str(tmp_path))


def entry(**keys: Any) -> dict[str, Any]:
    base = {"kind": "deploy", "mode": "shadow", "release": RELEASE, "outcome": "confirmed", "who": "ann@desk"}
    return {**base, "source_digest": SAME, **keys}


def release(layout: Layout, digest: str = RELEASE, source: str = SAME) -> None:
    os.makedirs(layout.release(digest))
    manifest = {
        "release": digest,
        "source_digest": source,
        "argv": ["py", "--x"],
        "mode": "shadow",
        "runtime": "7" * 16,
    }
    write_json(os.path.join(layout.release(digest), "manifest.json"), manifest)


def pairs(layout: Layout) -> list[tuple[str, str]]:
    return [(found.mode, found.source_digest) for found in read_proofs(status.proven(layout))]


def test_only_what_a_deploy_confirmed_is_proven(layout: Layout) -> None:
    assert pairs(layout) == []
    append_history(layout, entry(outcome="rolled-back"))
    append_history(layout, entry(kind="undo"))
    append_history(layout, entry(source_digest=None))
    assert pairs(layout) == []
    append_history(layout, entry())
    append_history(layout, entry(mode="full"))
    append_history(layout, entry(release=ELDER))
    with open(layout.history, "a") as file:
        file.write('{"torn')
    assert pairs(layout) == [("full", SAME), ("shadow", SAME)]


def test_the_proof_outlives_the_release_and_older_entries_are_read_from_it(layout: Layout) -> None:
    release(layout)
    append_history(layout, entry())
    old = entry(release=ELDER)
    del old["source_digest"]
    append_history(layout, old)
    (with_release,) = status.proven(layout)
    assert with_release["argv"] == ["py", "--x"]
    release(layout, ELDER, OTHER)
    assert pairs(layout) == [("shadow", SAME), ("shadow", OTHER)]
    os.unlink(os.path.join(layout.release(RELEASE), "manifest.json"))
    os.unlink(os.path.join(layout.release(ELDER), "manifest.json"))
    (alone,) = status.proven(layout)
    assert (alone["source_digest"], alone["argv"]) == (SAME, [])


def test_no_number_of_later_changes_hides_a_proof(layout: Layout) -> None:
    append_history(layout, entry())
    for number in range(200):
        append_history(layout, entry(mode="dflash", source_digest=f"{number:016x}", release=f"{number:016x}"))
    assert ("shadow", SAME) in pairs(layout)


def begin(layout: Layout, **keys: Any) -> Txn:
    asked = {
        "kind": "deploy",
        "who": "bob",
        "from": "baseline",
        "mode": "full",
        "release": RELEASE,
        "txn": "1-a",
    }
    return rollout.begin(layout, {**asked, "proven_by": "shadow", **keys}, "/x")


@pytest.mark.parametrize("had", [None, {"source_digest": OTHER}, {"mode": "full"}, {"kind": "undo"}])
def test_the_host_asks_its_own_record_before_anything_begins(
    layout: Layout, had: dict[str, Any] | None
) -> None:
    release(layout)
    if had is not None:
        append_history(layout, entry(**had))
    with pytest.raises(AgentError) as error:
        begin(layout)
    assert error.value.fields["kind"] == "precondition"
    assert f"source_digest {SAME} was never confirmed in mode shadow" in error.value.fields["what"]
    assert error.value.fields["next"] == "ddtree-ops deploy --mode shadow"
    assert not os.path.exists(layout.txns)


def test_with_the_proof_the_host_goes_on(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    release(layout)
    append_history(layout, entry())
    launched: list[str] = []
    monkeypatch.setattr(rollout.service, "facts", lambda _: {"ActiveState": "active"})
    monkeypatch.setattr(rollout.guard, "launch", lambda txn, _: launched.append(txn.id))
    begin(layout)
    assert launched == ["1-a"]


def test_the_history_keeps_the_source_digest(layout: Layout) -> None:
    release(layout)
    intent = {
        "txn": "1-a",
        "kind": "deploy",
        "release": RELEASE,
        "mode": "shadow",
        "from": "baseline",
        "who": "w",
    }
    txn = Txn.create(layout, intent)
    outcome._record(txn, {"outcome": "confirmed", "serving": RELEASE})
    line = json.loads(Path(layout.history).read_text())
    assert (line["source_digest"], line["runtime"]) == (SAME, "7" * 16)
    assert pairs(layout) == [("shadow", SAME)]
    gone = Txn.create(layout, {**intent, "txn": "2-a", "kind": "undo", "release": "baseline"})
    outcome._record(gone, {"outcome": "confirmed", "serving": "baseline"})
    undone = json.loads(Path(layout.history).read_text().splitlines()[1])
    assert (undone["source_digest"], undone["runtime"]) == (None, None)


JUNK = [
    b"5",
    b"[1]",
    b"null",
    b'"x"',
    b"\xff\xfe",
    b"[" * 3000,
    b'{"torn',
    *(
        json.dumps({"at": 1.0, **entry(), **wrong}).encode()
        for wrong in (
            {"at": "soon"},
            {"at": None},
            {"at": 1e30},
            {"at": float("nan")},
            {"who": None},
            {"kind": 5},
            {"outcome": ["confirmed"]},
            {"downtime_s": "abc"},
            {"failure": "x"},
        )
    ),
]


@pytest.mark.parametrize("junk", JUNK, ids=range(len(JUNK)))
def test_a_line_that_is_no_entry_is_skipped_and_swallows_none(layout: Layout, junk: bytes) -> None:
    append_history(layout, entry())
    with open(layout.history, "ab") as file:
        file.write(junk)  # no newline, as a power cut leaves it
    append_history(layout, entry(mode="full"))
    assert pairs(layout) == [("shadow", SAME), ("full", SAME)]
    assert [found["mode"] for found in status.history(layout, 20)] == ["shadow", "full"]


def test_a_history_that_cannot_be_read_is_a_sentence(layout: Layout) -> None:
    os.makedirs(layout.history)
    with pytest.raises(AgentError, match="cannot be read"):
        status.proven(layout)


def test_an_outcome_whose_line_was_lost_gets_it_at_the_next_try_and_once(layout: Layout) -> None:
    release(layout)
    keys = {"kind": "deploy", "release": RELEASE, "mode": "shadow", "from": "baseline", "who": "w"}
    txn = Txn.create(layout, {"txn": "1-a", **keys})
    outcome._record(txn, {"outcome": "confirmed", "serving": RELEASE})
    os.unlink(layout.history)  # the first try ended between its two writes
    outcome._record(txn, {"outcome": "confirmed", "serving": RELEASE})
    outcome._record(txn, {"outcome": "confirmed", "serving": RELEASE})
    assert len(status.history(layout, 20)) == 1
    assert pairs(layout) == [("shadow", SAME)]


def test_a_record_is_asked_by_mode_and_sources() -> None:
    assert recorded([proof(source=OTHER), proof()], "shadow", SAME)
    assert not recorded([proof(source=OTHER), proof("full")], "shadow", SAME)
