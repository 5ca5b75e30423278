"""Triton accepts our kernels' sources in a process where SGLang has been imported; no GPU, nothing is compiled."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from real_engine import PYTHON, environment

pytestmark = [pytest.mark.tier("dense"), pytest.mark.engine]

# SGLang puts a plain function in place of triton.next_power_of_2, which no kernel may call from then on.
LOOK = """
import importlib, json
import sglang.srt.utils.common
from triton.runtime.jit import JITFunction

found = {}
for name in ("topk", "tree", "walk"):
    module = importlib.import_module("sglang.srt.speculative.ddtree_kernels_" + name)
    for kernel, function in vars(module).items():
        if isinstance(function, JITFunction):
            try:
                function.cache_key
                found[kernel] = ""
            except Exception as error:
                found[kernel] = f"{type(error).__name__}: {error}"
print(json.dumps(found))
"""


def test_no_kernel_calls_what_sglang_replaces(overlay: Path) -> None:
    env = environment(overlay)
    del env["TRITON_INTERPRET"]
    done = subprocess.run([PYTHON, "-c", LOOK], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert len(found) >= 4
    assert {name: error for name, error in found.items() if error} == {}
