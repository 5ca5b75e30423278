"""The table of a preflight: sixty rules stay readable, on a terminal and in a pipe."""

from __future__ import annotations

import io
import sys

import pytest

from ddtree_ops.apply.prepare import _warnings
from ddtree_ops.cli._findings import headline, plain, rows, show
from ddtree_ops.core.finding import Finding, Level, block, ok, warn

pytestmark = pytest.mark.tier("preflight")
UNKNOWN = [warn(f"gpu-{i}", "unknown: no answer in 60 s", "ddtree-ops doctor --host a") for i in range(5)]
FINDINGS = [
    *[ok(f"rule-{i}", "fine") for i in range(40)],
    *UNKNOWN,
    warn("log", "the lines go nowhere"),
    block("unit", "it is masked", "ssh a systemctl unmask x"),
    Finding("port", Level.WARN, "port 1 is taken", "ss -ltn", waived="moved soon"),
]


def test_worst_first_the_unknown_together_the_good_counted() -> None:
    text = plain(headline("a", FINDINGS), rows(FINDINGS))
    assert text.splitlines() == [
        "a: 1 BLOCK, 7 WARN, 40 OK (1 waived)",
        "  BLOCK unit      it is masked",
        "                  → ssh a systemctl unmask x",
        "  WARN  5 rules   unknown: no answer in 60 s (gpu-0, gpu-1, gpu-2, gpu-3, gpu-4)",
        "                  → ddtree-ops doctor --host a",
        "  WARN  log       the lines go nowhere",
        "  WARN  port      port 1 is taken",
        "                  waived: moved soon",
        "                  → ss -ltn",
        "  OK    40 rules  -v lists them",
    ]
    assert plain("a", rows(FINDINGS, verbose=1)).count("  OK ") == 40


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def drawn(finding: Finding, patch: pytest.MonkeyPatch, **environment: str) -> str:
    """What a terminal of 60 columns shows."""
    for name in ("CI", "NO_COLOR", "FORCE_COLOR"):
        patch.delenv(name, raising=False)
    for name, value in {"TERM": "xterm-256color", "COLUMNS": "60", **environment}.items():
        patch.setenv(name, value)
    screen = Terminal()
    patch.setattr(sys, "stderr", screen)
    show("a", [finding])
    return screen.getvalue()


LONG = block("cuda-kernel", "word " * 30 + "[end]", "do this")


def test_a_terminal_gets_colour_and_lines_that_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    text = drawn(LONG, monkeypatch)
    assert "\x1b[1;31m" in text and "[end]" in text and len(text.splitlines()) > 4


def test_no_color_is_obeyed_and_still_wraps(monkeypatch: pytest.MonkeyPatch) -> None:
    text = drawn(LONG, monkeypatch, NO_COLOR="1")
    assert "\x1b" not in text and "[end]" in text
    assert max(len(line.rstrip()) for line in text.splitlines()) <= 60


@pytest.mark.parametrize("environment", [{"TERM": "dumb"}, {"CI": "true"}], ids=str)
def test_a_dumb_terminal_and_ci_get_whole_lines(
    environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = drawn(LONG, monkeypatch, **environment)
    assert text == plain(headline("a", [LONG]), rows([LONG])) + "\n"


def test_no_secret_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    leaking = warn("env", "HF_TOKEN=hf_abcdefghijklmnopqrstuvwxyz0123 is in the unit")
    assert "hf_abcdefghijklmnopqrstuvwxyz0123" not in drawn(leaking, monkeypatch)


def test_a_rollout_tells_few_warnings_in_full_the_waived_first() -> None:
    many = [*FINDINGS, *[warn(f"w-{i}", f"says {i}") for i in range(9)]]
    lines = _warnings(many, "a")
    assert lines[0] == "WARN port: port 1 is taken (waived: moved soon)"
    assert lines[1] == "WARN gpu-0, gpu-1, gpu-2, gpu-3, gpu-4: unknown: no answer in 60 s"
    assert len(lines) == 7
    assert lines[-1] == (
        "WARN 6 more: w-3, w-4, w-5, w-6, w-7, w-8; ddtree-ops doctor --host a says what they saw"
    )
    assert _warnings([ok("a", "fine")], "a") == []
