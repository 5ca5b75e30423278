"""What is kept of a failed release: the lines of its own run, bounded, without secrets, for root alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ddtree_agent import evidence, store
from ddtree_agent.journal import Txn, open_txn
from ddtree_agent.layout import Layout

pytestmark = pytest.mark.tier("transaction")
RELEASE = "ab" * 8


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "service.log"


def failed(tmp_path: Path, log: Path, **rolling: int) -> Txn:
    layout = Layout("sglang.service", str(tmp_path / "host"))
    txn = Txn.create(
        layout, {"txn": "1-2", "release": RELEASE, "log": f"file:{log}", "who": "me", "kind": "deploy"}
    )
    txn.say({"ev": "state", "state": "SWITCHED"})
    txn.say({"ev": "state", "state": "ROLLING_BACK", **rolling})
    return txn


def kept(txn: Txn) -> Path:
    return Path(store.evidence_dir(txn.layout, RELEASE, txn.id))


def test_the_tail_ends_where_the_rollback_began(tmp_path: Path, log: Path) -> None:
    log.write_text("".join(f"line {i}\n" for i in range(300)))
    mark = evidence.mark(f"file:{log}")
    with open(log, "a") as file:
        file.write("the old service is back\n")
    txn = failed(tmp_path, log, **mark)
    with open(txn.events_path, "a") as events:
        events.write('[1]\n{"state": "SWITCHED"}\n{"state": "SWI')
    evidence.keep(txn, {"failure": {"reason": "x"}}, ())
    lines = (kept(txn) / "log.txt").read_text().splitlines()
    assert (len(lines), lines[-1]) == (200, "line 299")
    assert json.loads((kept(txn) / "report.json").read_text())["failure"] == {"reason": "x"}
    for path in kept(txn).iterdir():
        assert path.stat().st_mode & 0o777 == 0o600, path


def test_secrets_are_blanked(tmp_path: Path, log: Path) -> None:
    txn = failed(tmp_path, log)
    secrets = Path(txn.layout.secrets("ab"))
    secrets.parent.mkdir(parents=True)
    secrets.write_text('ANY="can\\"ary-1234"\n')
    log.write_text('started with can"ary-1234\n--api-key sesame-5678\nhf_abcdefghijklmnopqrst\n')
    text = "\n".join(evidence.tail(txn))
    for secret in ("ary-1234", "sesame-5678", "hf_abc"):
        assert secret not in text
    assert "started with ***" in text


def test_it_is_bounded_in_bytes(tmp_path: Path, log: Path) -> None:
    log.write_text("x" * 300_000 + "\n" + ("y" * 390 + "\n") * 300)
    txn = failed(tmp_path, log)
    evidence.keep(txn, {}, ())
    raw = (kept(txn) / "log.txt").read_bytes()
    assert len(raw) <= 64 << 10
    assert set(raw.decode().split("\n")) <= {"y" * 390, ""}


def test_a_release_that_was_never_started_has_no_lines(tmp_path: Path, log: Path) -> None:
    log.write_text("of the old service\n")
    layout = Layout("sglang.service", str(tmp_path / "host"))
    txn = Txn.create(layout, {"txn": "1-3", "release": RELEASE, "log": f"file:{log}"})
    evidence.keep(txn, {}, ())
    assert [path.name for path in kept(txn).iterdir()] == ["report.json"]


def test_a_key_in_a_quoted_line_is_blanked_in_the_event(tmp_path: Path, log: Path) -> None:
    txn = failed(tmp_path, log)
    secrets = Path(txn.layout.secrets("ab"))
    secrets.parent.mkdir(parents=True)
    secrets.write_text('ANY="can\\"ary-1234"\n')
    event = {"ev": "verdict", "line": 'died of can"ary-1234', "context": ['x can"ary-1234 y'], "lag_s": 0.5}
    assert evidence.told(txn.layout, event) == {**event, "line": "died of ***", "context": ["x *** y"]}


def test_a_damaged_record_of_an_old_rollout_keeps_no_verb_off(tmp_path: Path, log: Path) -> None:
    txn = failed(tmp_path, log)
    Path(txn.dir, "state").write_bytes(b"\0" * 20)
    assert txn.state == "ROLLING_BACK"  # whatever it was, the host must not keep it
    Path(txn.dir, "outcome.json").write_text("{}")
    assert txn.state == "ROLLED_BACK"
    assert open_txn(txn.layout) is None
