"""The programs that run in the unit's place: each answers, fails or hangs for itself alone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from ddtree_agent import sandbox

pytestmark = pytest.mark.tier("preflight")


def module(tmp_path: Path, name: str, body: str) -> ModuleType:
    """A probe program in a file of its own, as the agent's are."""
    import importlib.util

    path = tmp_path / f"{name}.py"
    path.write_text(body)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def test_a_section_that_hangs_or_fails_costs_the_others_nothing(tmp_path: Path) -> None:
    good = module(
        tmp_path, "good", "def collect(argument):\n    print('noise')\n    return {'got': argument}\n"
    )
    bad = module(tmp_path, "bad", "def collect(argument):\n    raise ValueError('no such thing')\n")
    hung = module(tmp_path, "hung", "import time\ndef collect(argument):\n    time.sleep(60)\n")
    jobs = [("good", good, {"a": "€ \" '"}, 5), ("bad", bad, None, 5), ("hung", hung, None, 0.5)]
    words = [sys.executable, "-c", "import sys; exec(sys.stdin.read())"]
    done = subprocess.run(words, input=sandbox._program(jobs), capture_output=True, timeout=20, check=True)
    found = sandbox._read(done.stdout.decode())
    assert found["good"].pop("ms") >= 0
    assert found["good"] == {"got": {"a": "€ \" '"}}
    assert found["bad"]["error"] == "ValueError: no such thing"
    assert found["hung"] == {"error": "no answer in 0.5 s"}
