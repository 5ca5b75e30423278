"""The H200 stages' own logic, without a GPU: the judge on made-up logits, mutants that break, flags that parse."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
from real_engine import PYTHON, environment, need_engine

pytestmark = [pytest.mark.tier("main"), pytest.mark.engine]
CHECKOUT = Path(__file__).resolve().parents[2]
BENCH = CHECKOUT / "bench" / "engine"
CHECKS = Path(__file__).with_name("bench_checks.py")
NAMES = re.findall(r"^def check_(\w+)", CHECKS.read_text(encoding="utf-8"), re.MULTILINE)


@pytest.fixture(scope="module")
def output(overlay: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """What the checks said: one process for all, since importing SGLang is most of the time."""
    need_engine()
    env = environment(overlay, BENCH, BENCH / "plug", CHECKOUT / "engine_patches")
    models = tmp_path_factory.mktemp("bench")
    done = subprocess.run(
        [PYTHON, "-B", BENCH / "models.py", models], env=env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    env |= {"BENCH_MODELS": str(models)}
    # -P: the bench has a module of the same name as one beside the checks
    done = subprocess.run([PYTHON, "-B", "-P", CHECKS], env=env, capture_output=True, text=True)
    return done.stdout + done.stderr


@pytest.mark.parametrize("name", NAMES)
def test_bench(name: str, output: str) -> None:
    assert f"ok {name}\n" in output, output[-4000:]


def test_an_unknown_stage_is_refused(tmp_path: Path) -> None:
    done = subprocess.run(
        ["bash", BENCH / "run_h200.sh", "everything"],
        capture_output=True,
        text=True,
        env={**os.environ, "OUT": str(tmp_path), "SCRATCH": str(tmp_path)},
    )
    assert done.returncode == 2
    assert done.stderr == "there is no stage everything: kernels, lossless or tp2\n"
