"""Each invariant turns red over a hand-made read that breaks it, and only over that."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "lab"))

from invariants import Asked, check

pytestmark = pytest.mark.tier("transaction")
OLD, NEW = "0123456789abcdef", "fedcba9876543210"
TXN = "1a2297b012a-f885f2"
Read = dict[str, Any]


def release(mode: str) -> dict[str, Any]:
    argv = ["python", "--speculative-algorithm", "DDTREE"]
    return {"problems": [], "sha256": mode, "mode": mode, "argv": argv, "dropin": mode, "patched": True}


def a_read(serving: str = OLD) -> Read:
    return {
        "boot": "boot-1",
        "service": {
            "main_pid": 4,
            "active": "active",
            "sub": "running",
            "invocation": "i1",
            "enabled": "enabled",
            "dropins": ["/etc/systemd/system/sglang.service.d/50-ddtree.conf"],
            "need_reload": False,
            "release": serving,
            "pythonpath": f"/opt/ddtree/releases/{serving}/overlay",
        },
        "trial": None,
        "kept": {"text": "shadow", "release": serving},
        "confirmed": {"release": serving, "undo": "baseline"},
        "releases": {OLD: release("shadow"), NEW: release("shadow")},
        "transactions": {},
        "history": [],
        "torn_history": [],
        "lock": None,
        "staging": [],
        "leftovers": [],
        "opt": ["agent", "releases"],
        "units": [],
        "gate": [],
        "info": {"status": 200, "body": {"speculative_algorithm": "DDTREE"}},
        "generation": {"status": 200, "body": {}},
        "canaries": [],
        "theirs": {"digest": "t", "files": 9},
        "outside": 200,
    }


def a_txn(*states: str, outcome: dict[str, Any] | None = None, boot: str = "boot-1") -> dict[str, Any]:
    return {
        "kind": "deploy",
        "release": NEW,
        "from": OLD,
        "state": {"state": states[-1], "boot": boot},
        "outcome": outcome,
        "failed_rollback": False,
        "states": [[float(i), state] for i, state in enumerate(states)],
        "verdicts": [],
    }


def put(read: Read, path: str, value: Any) -> None:
    *way, last = path.split(".")
    for key in way:
        read = read[key]
    read[last] = value


BROKEN = [
    ("I1", "service.active", "failed"),
    ("I1", "service.main_pid", 0),
    ("I1", "service.release", NEW),
    ("I1", "service.dropins", []),
    ("I1", "service.need_reload", True),
    ("I1", "service.pythonpath", ""),
    ("I1", "trial", {"text": "", "release": NEW}),
    ("I1", "kept", None),
    ("I1", "info.body.speculative_algorithm", None),
    ("I1", "generation.status", 503),
    ("I1", "torn_history", ["{"]),
    ("I1", "transactions.x", a_txn("GATED")),
    ("I2", f"releases.{OLD}.problems", ["a.py is changed"]),
    ("I2", "kept.text", "by hand"),
    ("I2", "confirmed.undo", "00000000000000aa"),
    ("I3", f"releases.{OLD}.sha256", "other"),
    ("I5", "lock", "someone"),
    ("I5", "units", ["ddtree-guard-1.timer loaded active waiting"]),
    ("I7", "transactions.x", a_txn("ROLLED_BACK", "ROLLED_BACK")),
    ("I7", "transactions.x", a_txn("ROLLED_BACK", outcome={"outcome": "rolled-back", "serving": "baseline"})),
    ("I8", "gate", ["table inet ddtree_gate_sglang"]),
    ("I8", "outside", 0),
    ("I10", "canaries", ["journal"]),
    ("I12", "theirs.digest", "u"),
    ("I12", "service.enabled", "disabled"),
    ("I12", "opt", ["agent", "scratch"]),
]


def violated(found: list[str]) -> set[str]:
    return {sentence.split(":")[0] for sentence in found}


def test_a_sound_host_violates_nothing() -> None:
    assert check(a_read(), a_read(), None, None, Asked(swept=True)) == []


@pytest.mark.parametrize(("invariant", "path", "value"), BROKEN)
def test_each_broken_read_names_its_invariant(invariant: str, path: str, value: Any) -> None:
    read = a_read()
    put(read, path, value)
    assert violated(check(read, a_read(), None, None)) == {invariant}


def test_a_confirmed_release_that_is_gone() -> None:
    read = a_read(NEW)
    del read["releases"][OLD]
    assert violated(check(read, a_read(), None, None)) == {"I3"}


def test_a_rollout_that_a_reboot_ended_waits_for_the_next_command_only() -> None:
    read = a_read()
    read["transactions"]["x"] = a_txn("STARTING", boot="boot-0")
    assert check(read, a_read(), None, None) == []
    assert violated(check(read, a_read(), None, None, Asked(swept=True))) == {"I5"}


@pytest.mark.parametrize("what", ["staging", "leftovers"])
def test_halves_are_swept_by_the_next_command(what: str) -> None:
    read = a_read()
    read[what] = ["/opt/half"]
    assert check(read, a_read(), None, None) == []
    assert violated(check(read, a_read(), None, None, Asked(swept=True))) == {"I5"}


def test_time_limits() -> None:
    read = a_read()
    read["transactions"]["x"] = a_txn("ROLLED_BACK")
    read["transactions"]["x"]["verdicts"] = [{"lag_s": 2.4}]
    assert violated(check(read, a_read(), None, None)) == {"I6"}
    late = Asked(recovery_s=31, recovery_limit_s=30)
    assert violated(check(a_read(), a_read(), None, None, late)) == {"I6"}


def test_a_server_that_does_not_say_what_was_asked_for() -> None:
    asked = Asked(info={"speculative_ddtree_budget": 6})
    done = {"result": {"outcome": "confirmed", "serving": OLD}}
    assert violated(check(a_read(), a_read(), 0, done, asked)) == {"I4"}


def test_a_rollout_stands_once_in_the_history() -> None:
    read = a_read()
    read["transactions"][TXN] = a_txn("ROLLED_BACK")
    read["history"] = [{"txn": TXN}, {"txn": TXN}]
    assert violated(check(read, a_read(), None, None)) == {"I7"}


def test_a_secret_in_what_the_operator_saw() -> None:
    assert violated(check(a_read(), None, None, None, Asked(said="x canary y"), ("canary",))) == {"I10"}


def error(code: int, serving: str | None = None) -> dict[str, Any]:
    return {"ok": False, "error": {"exit_code": code, "serving": serving}}


def moved(read: Read) -> None:
    read["service"]["invocation"] = "i2"


def nothing(_: Read) -> None:
    return


SOUND = [
    (0, {"result": {"outcome": "confirmed", "serving": NEW}}, NEW),
    (10, error(10, f"{OLD}, as before"), OLD),
    (3, error(3), OLD),
    (13, error(13), OLD),
    (14, error(14), NEW),
    (14, error(14), OLD),
    (130, error(130), OLD),
]
LIES = [
    (0, {"result": {"outcome": "confirmed", "serving": NEW}}, OLD, nothing),  # the wish of `wanted`
    (0, error(10), NEW, nothing),
    (0, {"result": {"outcome": "failed"}}, NEW, nothing),
    (10, error(10), NEW, nothing),
    (10, error(3), OLD, nothing),
    (10, {"result": {"outcome": "confirmed"}}, OLD, nothing),
    (10, error(10, "baseline, as before"), OLD, nothing),
    (3, error(3), OLD, moved),
    (4, error(4), OLD, moved),
    (11, error(11), OLD, nothing),
    (1, error(1), OLD, nothing),
    (2, error(2), OLD, nothing),
]


@pytest.mark.parametrize(("code", "document", "now"), SOUND)
def test_what_an_operator_may_be_told(code: int, document: dict[str, Any], now: str) -> None:
    assert check(a_read(now), a_read(OLD), code, document, Asked(wanted=NEW)) == []


@pytest.mark.parametrize(("code", "document", "now", "change"), LIES)
def test_a_lie_to_the_operator(
    code: int, document: dict[str, Any], now: str, change: Callable[[Read], None]
) -> None:
    read = copy.deepcopy(a_read(now))
    change(read)
    assert violated(check(read, a_read(OLD), code, document, Asked(wanted=NEW))) == {"I4"}
