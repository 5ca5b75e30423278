"""Starts SGLang servers for the losslessness stages, waits for them, talks to them and ends them."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from cases import Case, command

PLUG = Path(__file__).resolve().parent / "plug"


class Server:
    """One case's server. why: what went wrong at the start, empty once it is healthy."""

    def __init__(self, case: Case, device: str, models: Path, work: Path, port: int) -> None:
        self.case, self.port, self.why = case, port, "not healthy yet"
        self.directory = work / case.name
        self.directory.mkdir(parents=True, exist_ok=True)
        self.log_path = self.directory / "log.txt"
        self.device = device
        self.healthy_after = 0.0
        self._started = time.monotonic()
        arguments = command(case, device, str(models / "target"), str(models / "draft"), port)
        with self.log_path.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "sglang.launch_server", *arguments],
                env=self._environment(),
                cwd=self.directory,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _environment(self) -> dict[str, str]:
        env = dict(os.environ)
        if self.case.plugged:
            env["PYTHONPATH"] = f"{env.get('PYTHONPATH', '')}:{PLUG}"
        if self.case.mutant:
            env["DDTREE_BENCH_MUTANT"] = self.case.mutant
        if self.case.probe:
            env["DDTREE_BENCH_PROBE"] = str(self.directory)
        if self.case.nosync:
            env["DDTREE_BENCH_NOSYNC"] = "1"
        if self.case.hashes:
            env["DDTREE_BENCH_HASH"] = str(self.directory)
        return env

    def wait(self, limit_s: float) -> None:
        """Until it has generated a token, has ended, or the limit is over."""
        while time.monotonic() - self._started < limit_s:
            if self._process.poll() is not None:
                self.why = f"exit {self._process.returncode}; {self.first_error()}"
                return
            if not isinstance(self._send("/health_generate", None, 25), str):
                self.healthy_after = round(time.monotonic() - self._started, 1)
                self.why = ""
                return
            time.sleep(0.3)
        self.why = f"not healthy after {limit_s:.0f} s"

    def watch(self, label: str | None) -> None:
        """Name the request that the probe shall record, or stop it."""
        path = self.directory / "label"
        if label is None:
            path.unlink(missing_ok=True)
        elif self.case.probe:
            path.write_text(label)

    def post(self, body: dict[str, Any]) -> Any:
        """The answer of /generate, or a sentence about the failure."""
        return self._send("/generate", body, 240)

    def state(self) -> dict[str, Any]:
        """What /get_server_info says about speculation."""
        info = self._send("/get_server_info", None, 30)
        if isinstance(info, str):
            return {"error": info}
        return dict((info.get("internal_states") or [{}])[0])

    def metrics(self) -> list[str]:
        """DDTREE's lines of /metrics."""
        url = f"http://127.0.0.1:{self.port}/metrics"
        with urllib.request.urlopen(url, timeout=30) as reply:
            return [line for line in reply.read().decode().splitlines() if line.startswith("sglang:ddtree")]

    def log_lines(self) -> list[str]:
        """The log so far."""
        return self.log_path.read_text(errors="replace").splitlines()

    def first_error(self) -> str:
        """The first traceback's last line, or the log's."""
        lines = self.log_lines()
        errors = [line for line in lines if re.match(r"[\w.]+(Error|Exception)\b", line)]
        return next(iter(errors), lines[-1] if lines else "no output").strip()[:300]

    def stop(self) -> None:
        """Kill its whole session."""
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self._process.wait()

    def _send(self, path: str, body: dict[str, Any] | None, timeout: float) -> Any:
        data = None if body is None else json.dumps(body).encode()
        url = f"http://127.0.0.1:{self.port}{path}"
        request = urllib.request.Request(url, data, headers={"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=timeout) as reply:
                text = reply.read()
            return json.loads(text) if text else {}
        except urllib.error.HTTPError as error:
            return f"HTTP {error.code}: {error.read().decode(errors='replace')[:200]}"
        except (urllib.error.URLError, OSError) as error:
            return f"{type(error).__name__}: {error}"
