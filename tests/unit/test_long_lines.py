"""A line of any length and content costs no more than a moment: users' own text stands in logs."""

from __future__ import annotations

import io
import json
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import ddtree_ops.core
from ddtree_ops.cli.app import run
from ddtree_ops.core import diagnose as reading
from ddtree_ops.core import log_text
from ddtree_ops.core import signatures as scanning
from ddtree_ops.core.needles import needles
from ddtree_ops.core.scanner import Scanner
from ddtree_ops.core.signatures import load

pytestmark = pytest.mark.tier("preflight")
SIGNATURES = load((Path(ddtree_ops.core.__file__).parent / "signatures.json").read_text())
#: Seconds of a processor for one pattern on one line. The ones that were written badly took from three to minutes.
MOMENT = 0.75


def _words(pattern: re.Pattern[str]) -> set[str]:
    said = re.findall(r"[A-Za-z/][\w/ .-]{2,}", re.sub(r"\\[A-Za-z]", " ", pattern.pattern))
    return {*(needles(pattern) or ()), *said[:6]}


def _hostile(pattern: re.Pattern[str]) -> Iterator[str]:
    size = log_text.LONGEST
    for word in _words(pattern):
        yield (word * (size // len(word) + 1))[:size]
        for end in ("0", "a", " ", "a "):
            yield (word + end * size)[:size]
    for word in ("a", " ", "0", "(", "/", ".", "-", "_", "'", '"', "a.", "a ", "0 ", "[", "]", ": "):
        yield (word * size)[:size]


def _patterns() -> list[tuple[str, re.Pattern[str]]]:
    own = [
        (f"{module.__name__}.{name}", value)
        for module in (reading, scanning, log_text)
        for name, value in vars(module).items()
        if isinstance(value, re.Pattern)
    ]
    return [(signature.id, signature.pattern) for signature in SIGNATURES] + own


def test_no_pattern_takes_long_over_a_line_that_nearly_matches() -> None:
    slow = []
    for name, pattern in _patterns():
        for text in _hostile(pattern):
            began = time.process_time()
            pattern.search(text)
            if time.process_time() - began > MOMENT:
                slow.append((name, text[:40]))
                break
    assert slow == []


@pytest.mark.parametrize("word", ["-", "hash", "error: ", "bindbind"])
def test_a_line_of_a_megabyte_is_read_to_a_length(word: str) -> None:
    scanner, began = Scanner(SIGNATURES), time.process_time()
    scanner.feed(word * (1_000_000 // len(word)), "import")
    assert time.process_time() - began < 10 * MOMENT
    scanner.feed("RuntimeError: CUDA error: out of memory", "weights")
    assert scanner.best is not None
    assert scanner.best.reason == "cuda-oom"


def test_a_json_record_that_nests_without_end_is_text(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text('{"log": ' + "[" * 100_000 + "\nRuntimeError: CUDA error: out of memory\n")
    assert run(["diagnose", "--json", str(log)]) == 0


def test_a_standard_input_that_is_closed_is_exit_2(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", None)
    assert run(["diagnose", "--json", "-"]) == 2
    assert json.loads(capsys.readouterr().out)["error"]["kind"] == "usage"
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"")))
    assert run(["diagnose", "-"]) == 0
