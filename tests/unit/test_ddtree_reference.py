"""The reference tree, its arrays, top-k and statistics, checked by brute force under the engine's python."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

pytestmark = [pytest.mark.tier("main"), pytest.mark.engine]

CHECKOUT = Path(__file__).resolve().parents[2]
PYTHON = CHECKOUT / ".venv-engine" / "bin" / "python"
SCRIPT = CHECKOUT / "tests" / "engine" / "reference_checks.py"
NAMES = re.findall(r"^def check_(\w+)", SCRIPT.read_text(encoding="utf-8"), re.MULTILINE)


@pytest.fixture(scope="module")
def output() -> str:
    """What the checks said: one process for all, since importing torch is most of the time."""
    if not PYTHON.exists():
        if os.environ.get("CI", "").lower() in ("1", "true"):
            pytest.fail("there is no .venv-engine: make engine-env", pytrace=False)
        pytest.skip("there is no .venv-engine: make engine-env")
    done = subprocess.run([PYTHON, "-B", SCRIPT], capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


@pytest.mark.parametrize("name", NAMES)
def test_reference(name: str, output: str) -> None:
    assert f"ok {name}\n" in output, output
