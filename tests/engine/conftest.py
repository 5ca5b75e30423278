"""Fixtures of the real engine: the patched package and the tiny models, made once a session."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from real_engine import LAB, PYTHON, environment, make_overlay, need_engine, package

from ddtree_ops.data import data_dir
from ddtree_ops.engine.patch import apply_series
from ddtree_ops.engine.series import load_series


@pytest.fixture(scope="session")
def patched_files() -> dict[str, bytes]:
    """What our series makes of the unmodified package."""
    return apply_series(load_series(data_dir("engine_patches") / "sglang-0.5.11"), package()).files


@pytest.fixture(scope="session")
def overlay(tmp_path_factory: pytest.TempPathFactory, patched_files: dict[str, bytes]) -> Path:
    """The patched package, to be put first on PYTHONPATH."""
    return make_overlay(tmp_path_factory.mktemp("overlay"), package(), patched_files)


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The four tiny models and prompts.json."""
    need_engine()
    out = tmp_path_factory.mktemp("models")
    subprocess.run([PYTHON, LAB / "mkmodels.py", out], check=True, env=environment())
    return out
