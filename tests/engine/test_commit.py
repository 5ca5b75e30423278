"""The commit's bookkeeping on its own: rows that no answer of a small model reaches."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from real_engine import PYTHON, environment

pytestmark = [pytest.mark.tier("dense"), pytest.mark.engine]

FREE = """
from types import SimpleNamespace
import torch
from sglang.srt.speculative.ddtree_info import _free_others

def freed(kept, total):
    given = []
    pool = SimpleNamespace(free=given.append)
    batch = SimpleNamespace(out_cache_loc=torch.arange(100, 100 + total), token_to_kv_pool_allocator=pool)
    _free_others(batch, kept, total)
    return torch.cat(given).tolist()

print(freed([0, 1, 2, 3], 4), freed([0, 2, 4, 5], 8))
"""


def test_every_row_that_is_not_kept_is_freed_even_where_there_is_none(overlay: Path) -> None:
    done = subprocess.run([PYTHON, "-c", FREE], env=environment(overlay), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.splitlines()[-1] == "[] [101, 103, 106, 107]"
