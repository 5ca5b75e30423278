"""Runs the real SGLang 0.5.11 of .venv-engine in tests: servers that end with the test, overlays of its package."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

CHECKOUT = Path(__file__).resolve().parents[2]
LAB = CHECKOUT / "deploy" / "lab" / "engine"
PYTHON = CHECKOUT / ".venv-engine" / "bin" / "python"
START_LIMIT_S = 120
FLAGS = [
    *("--device", "cpu", "--attention-backend", "triton", "--disable-cuda-graph", "--dtype", "bfloat16"),
    *("--grammar-backend", "none", "--skip-server-warmup", "--max-total-tokens", "4096"),
    # computed from the machine's memory otherwise, and negative on a small one
    *("--mem-fraction-static", "0.3", "--max-running-requests", "8"),
]


@dataclass
class Server:
    """A serving engine. log: its output so far."""

    url: str
    log_path: Path

    @property
    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    def get(self, path: str) -> Any:
        with urllib.request.urlopen(self.url + path, timeout=60) as reply:
            return json.load(reply)

    def post(self, path: str, body: dict[str, Any]) -> Any:
        """The open reply, for a stream of events or for `json.load`."""
        request = urllib.request.Request(
            self.url + path, json.dumps(body).encode(), headers={"content-type": "application/json"}
        )
        return urllib.request.urlopen(request, timeout=300)

    def generate(self, prompt: list[int] | list[list[int]], tokens: int, **more: Any) -> Any:
        """The answer to a prompt, or the list of answers to a list of prompts, which then run in one batch.

        more: further fields of the body; `sampling` changes the greedy parameters.
        """
        sampling = {
            "temperature": 0,
            "max_new_tokens": tokens,
            "ignore_eos": True,
            **more.pop("sampling", {}),
        }
        with self.post("/generate", {"input_ids": prompt, "sampling_params": sampling, **more}) as reply:
            return json.load(reply)

    def state(self) -> Any:
        """The scheduler's state: DDTREE's counters are in ["ddtree"]."""
        return self.get("/get_server_info")["internal_states"][0]


def need_engine() -> None:
    """Skip with one sentence where there is no engine; in CI that is a hole, so fail."""
    if PYTHON.exists():
        return
    sentence = "there is no .venv-engine: make engine-env"
    if os.environ.get("CI", "").lower() in ("1", "true"):
        pytest.fail(sentence, pytrace=False)
    pytest.skip(sentence)


def package() -> Path:
    """The unmodified sglang package of .venv-engine."""
    need_engine()
    return next((CHECKOUT / ".venv-engine").glob("lib/python3*/site-packages/sglang"))


def environment(*first: Path) -> dict[str, str]:
    """Environment of an engine process with these directories first on PYTHONPATH."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    path = ":".join(str(p) for p in (*first, LAB / "stubs", LAB / "plug"))
    return {
        **kept,
        "PYTHONPATH": path,
        "HF_HUB_OFFLINE": "1",
        "SGLANG_USE_CPU_ENGINE": "1",
        "TRITON_INTERPRET": "1",
    }


def free_port() -> int:
    """A free port that no outgoing connection of this machine is given before the server takes it (ip(7): 32768 on)."""
    for port in random.sample(range(20000, 32768), 100):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)):
                return port
    raise AssertionError("no free port among a hundred")


@contextmanager
def serving(
    name: str, work: Path, model: Path, *flags: str, overlay: Path | None = None, **variables: str
) -> Iterator[Server]:
    """A server that answers /health; its whole session is killed at the end. variables: of its environment."""
    need_engine()
    port = free_port()
    log = work / f"{name}.log"
    command = [
        *(str(PYTHON), "-m", "sglang.launch_server", "--host", "127.0.0.1", "--port", str(port)),
        # the engine's own choice of this port is a race when two start at once
        *("--nccl-port", str(free_port()), "--model-path", str(model), *FLAGS, *flags),
    ]
    env = environment(*([overlay] if overlay else [])) | variables
    if "--tp" in flags:
        # SGLang binds one set of cores a rank, and finds none by itself where there is no NUMA
        env["SGLANG_CPU_OMP_THREADS_BIND"] = "|".join(
            str(i) for i in range(int(flags[flags.index("--tp") + 1]))
        )
    with log.open("wb") as out:
        process = subprocess.Popen(
            command, env=env, cwd=work, stdout=out, stderr=subprocess.STDOUT, start_new_session=True
        )
    try:
        server = Server(f"http://127.0.0.1:{port}", log)
        _wait_until_healthy(server, process)
        yield server
    finally:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.wait()


def _wait_until_healthy(server: Server, process: subprocess.Popen[bytes]) -> None:
    limit = time.monotonic() + START_LIMIT_S
    while time.monotonic() < limit:
        if process.poll() is not None:
            pytest.fail(f"the engine ended with {process.returncode}:\n{server.log[-3000:]}")
        try:
            with urllib.request.urlopen(server.url + "/health", timeout=25):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.2)
    pytest.fail(f"the engine was not healthy after {START_LIMIT_S} s:\n{server.log[-3000:]}")


def make_overlay(root: Path, source: Path, files: dict[str, bytes]) -> Path:
    """A copy of the package at root/sglang with these files put over it; returns root, for PYTHONPATH."""
    shutil.copytree(source, root / "sglang")
    for path, content in files.items():
        (root / "sglang" / path).write_bytes(content)
    return root


def with_config(source: Path, copy: Path, **changed: object) -> Path:
    """A copy of a model directory with other values in its config.json."""
    shutil.copytree(source, copy)
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps(config | changed))
    return copy


def parsed(overlay: Path, lines: dict[str, list[str]]) -> dict[str, Any]:
    """What the engine makes of each command line, by name (args_probe.py); all are parsed in one process."""
    done = subprocess.run(
        [PYTHON, Path(__file__).with_name("args_probe.py")],
        input=json.dumps(list(lines.values())),
        env=environment(overlay),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    printed = [line for line in done.stdout.splitlines() if line.startswith("{")]
    return dict(zip(lines, map(json.loads, printed), strict=True))
