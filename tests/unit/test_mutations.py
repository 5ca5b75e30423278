"""The mutations still fit the sources, and each is declared to be seen by a test that there is."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

import mutations  # noqa: E402

pytestmark = pytest.mark.tier("transaction")


@pytest.mark.parametrize("mutation", mutations.MUTATIONS, ids=lambda mutation: mutation.name)
def test_a_mutation_changes_one_place_and_still_compiles(mutation: mutations.Mutation) -> None:
    text = (ROOT / mutation.file).read_text()
    compile(mutations.mutated(text, mutation), mutation.file, "exec")
    assert mutation.red
    assert set(mutation.red) <= set(mutations.TESTS)


@pytest.mark.parametrize("node", mutations.TESTS.values())
def test_the_tests_are_there(node: str) -> None:
    path, _, name = node.partition("::")
    assert f"def {name}" in (ROOT / path).read_text()


def test_a_mutation_that_does_not_fit_is_said_so() -> None:
    with pytest.raises(mutations.NotApplied, match="stands 0 times"):
        mutations.mutated("other", mutations.MUTATIONS[0])
