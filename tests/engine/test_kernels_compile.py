"""The kernels compile for the GPU they are for, by their own launchers, on machines that have none."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from real_engine import PYTHON, need_engine

pytestmark = [pytest.mark.tier("main"), pytest.mark.engine]
CHECKOUT = Path(__file__).resolve().parents[2]


def test_every_kernel_compiles_for_an_h200(tmp_path: Path) -> None:
    """Batch 1 and 8; trees of one node, of a chain, of 64 and of 256 nodes."""
    need_engine()
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "TRITON"))}
    env = {**kept, "PYTHONPATH": str(CHECKOUT / "engine_patches"), "TRITON_CACHE_DIR": str(tmp_path)}
    script = Path(__file__).with_name("compile_checks.py")
    done = subprocess.run([PYTHON, "-B", script], env=env, capture_output=True, text=True)
    lines = done.stdout.splitlines()
    assert done.returncode == 0 and len(lines) == 8, done.stdout[-3000:] + done.stderr[-3000:]
    assert all(line.startswith("ok ") and "_walk_kernel" in line for line in lines), done.stdout
