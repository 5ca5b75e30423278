"""The Triton kernels in Triton's interpreter, against the reference, under the engine's python."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
from real_engine import PYTHON, need_engine

pytestmark = [pytest.mark.tier("main"), pytest.mark.engine]

SCRIPT = Path(__file__).with_name("kernel_checks.py")
NAMES = re.findall(r"^def check_(\w+)", SCRIPT.read_text(encoding="utf-8"), re.MULTILINE)


@pytest.fixture(scope="module")
def output() -> str:
    """What the checks said: one process for all, since importing torch is most of the time of many."""
    need_engine()
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "TRITON"))}
    done = subprocess.run([PYTHON, "-B", SCRIPT], env=env, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


@pytest.mark.parametrize("name", NAMES)
def test_kernel(name: str, output: str) -> None:
    assert f"ok {name}\n" in output, output
