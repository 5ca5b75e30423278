"""Kinds of failure found on fresh public reports: each gives its verdict and names its cause, its twin stays quiet."""

from __future__ import annotations

import pytest
from entries import HERE, Entry, diagnose, judge_facts, judge_log
from pydantic import Field
from ruamel.yaml import YAML

pytestmark = pytest.mark.tier("preflight")


class Kind(Entry):
    """An entry that belongs to no listed report. quotes: what the quoted line must hold."""

    id: str = Field(pattern=r"^[a-z0-9-]+$")
    covered: str = "kind"  # type: ignore[assignment]
    quotes: str = ""


KINDS = [
    Kind.model_validate(item)
    for path in sorted(HERE.glob("heldout_*.yaml"))
    for item in YAML(typ="safe").load(path.read_text(encoding="utf-8"))
]


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.log], ids=lambda kind: kind.id)
def test_a_kind_is_found_in_its_log(kind: Kind) -> None:
    assert judge_log(kind) == []
    assert kind.quotes in str(diagnose(str(kind.log))["line"])


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.facts], ids=lambda kind: kind.id)
def test_a_kind_is_found_before_the_stop(kind: Kind) -> None:
    assert judge_facts(kind) == []


def test_every_kind_is_whole_and_told_once() -> None:
    assert len({kind.id for kind in KINDS}) == len(KINDS)
    for kind in KINDS:
        assert (kind.log and kind.log_twin and kind.reason and kind.hint_names) or (
            kind.facts and kind.twin
        ), kind.id
