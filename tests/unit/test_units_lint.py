"""Our lint, for what `systemd-analyze verify` never reports, and the wrapper around verify."""

from __future__ import annotations

import pytest

from ddtree_ops.units import verify
from ddtree_ops.units.diff import unified
from ddtree_ops.units.lint import lint
from ddtree_ops.units.raw import RawFile, RawUnit

pytestmark = pytest.mark.tier("main")
PATH = "/etc/systemd/system/sglang.service"
GOOD = "[Service]\nExecStart=/bin/true --x '{\"a\": 1}'\n"


def codes(text: str, *dropins: tuple[str, str]) -> list[str]:
    unit = RawUnit("sglang.service", RawFile(PATH, text), tuple(RawFile(p, t) for p, t in dropins))
    return [
        f.code
        for f in lint(unit, exists=lambda p: "missing" not in p, unit_exists=lambda n: "missing" not in n)
    ]


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("WorkingDirectory=/missing", "working-directory"),
        ("EnvironmentFile=/missing.env", "environment-file"),
        ("ExecStartPre=/bin/echo $NOT_SET", "unset-variable"),
        ("ExecStartPre=/bin/echo ${NOT_SET}", "unset-variable"),
        ('ExecStartPre=/bin/x --json {"a":1}', "unquoted-json"),
        ('ExecStartPre=/bin/x --json={"a":{"b":2}}', "unquoted-json"),
        ("StartLimitIntervalSec=5", "ignored"),
        ('ExecStop=/bin/x "open', "fatal"),
        ("[Unit]\nOnFailure=missing.service", "missing-unit"),
    ],
)
def test_each_fault_is_found(line: str, code: str) -> None:
    assert codes(GOOD) == []
    assert codes(GOOD + line + "\n") == [code]


def test_nothing_is_said_of_what_is_fine() -> None:
    fine = "Environment=A=1\nEnvironmentFile=-/missing.env\nExecStop=/bin/kill $MAINPID ${A}\nWorkingDirectory=/x\n"
    assert codes(GOOD + fine) == []


@pytest.mark.parametrize(
    "text", ["ExecStart=\nExecStart=/bin/x", "Environment=PYTHONPATH=/x", "Environment="]
)
def test_a_dropin_that_would_win_over_ours_is_found(text: str) -> None:
    folder = "/etc/systemd/system/sglang.service.d"
    assert codes(GOOD, (f"{folder}/90-own.conf", f"[Service]\n{text}\n")) == ["late-dropin"]
    assert "late-dropin" not in codes(GOOD, (f"{folder}/20-own.conf", f"[Service]\n{text}\n"))


@pytest.mark.skipif(not verify.available(), reason="systemd-analyze is not installed")
def test_systemd_itself_is_asked() -> None:
    assert verify.verify({PATH: GOOD}, "sglang.service") == []
    found = verify.verify({PATH: GOOD + "Killmode=mixed\n"}, "sglang.service")
    assert len(found) == 1 and "Unknown key" in found[0] and PATH in found[0]


def test_a_diff_names_both_sides() -> None:
    assert unified("a\n", "a\n", "x", "y") == ""
    assert (
        unified("a\n", "b", "x", "y") == "--- x\n+++ y\n@@ -1 +1 @@\n-a\n+b\n\\ No newline at end of file\n"
    )
