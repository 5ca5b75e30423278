"""The cheap test before the patterns: it may let a line through for nothing, and never keeps one from its pattern."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from ddtree_ops.core.log_text import bare
from ddtree_ops.core.needles import Gate, needles
from ddtree_ops.core.signatures import load

pytestmark = pytest.mark.tier("preflight")

ROOT = Path(__file__).resolve().parents[2]
SIGNATURES = load((ROOT / "src/ddtree_ops/core/signatures.json").read_text())


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("undefined symbol: cu[A-Z]", {"undefined symbol: cu"}),
        ("(?i)OUT of (memory|disk)", {"out of "}),
        ("foo|bar", {"foo", "bar"}),
        ("(?:alpha)?beta", {"beta"}),
        ("alpha|b", None),
        ("[Ff]atal", {"atal"}),
        (r"\d+", None),
        ("(?!never).*always", {"always"}),
    ],
)
def test_the_words_that_a_pattern_needs(pattern: str, words: set[str] | None) -> None:
    assert needles(re.compile(pattern)) == words


def test_no_line_of_any_log_here_is_kept_from_a_pattern_that_matches_it() -> None:
    texts = [path.read_text() for path in (ROOT / "tests/fixtures").rglob("*.txt")]
    for path in (ROOT / "tests/catalogue").glob("*.log.yaml"):
        for entry in YAML(typ="safe").load(path.read_text()):
            texts += [entry["log"], entry["log_twin"]]
    quick = Gate([s for s in SIGNATURES if s.role not in ("benign", "passed", "entered")])
    lines = {bare(line)[:2000] for text in texts for line in text.split("\n")}
    assert len(lines) > 1000
    for line in sorted(lines):
        let_through = {signature.id for signature in quick.candidates(line)}
        assert {s.id for s in quick.candidates("")} <= let_through
        missed = [s.id for s in quick.all if s.id not in let_through and s.pattern.search(line)]
        assert not missed, line
