"""A line of the history is written whole or not at all, also on a disk that fills in its middle."""

from __future__ import annotations

import json
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ddtree_agent.layout import append_line

pytestmark = pytest.mark.tier("transaction")


@contextmanager
def full_at(size: int) -> Iterator[None]:
    """write(2) takes what fits and fails with the rest, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_line_that_did_not_fit_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    append_line(str(path), {"n": 1})
    whole = path.read_bytes()
    with full_at(len(whole) + 10), pytest.raises(OSError):
        append_line(str(path), {"n": 2, "why": "x" * 100})
    assert path.read_bytes() == whole
    append_line(str(path), {"n": 3})
    assert [json.loads(line)["n"] for line in path.read_text().splitlines()] == [1, 3]


def test_a_torn_line_swallows_no_other(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    path.write_bytes(b'{"n": 1}\n{"n": 2, "wh')
    append_line(str(path), {"n": 3})
    assert path.read_text().splitlines()[-1] == '{"n": 3}'
