"""The observer and the reducer together: a real process, a real port, a real log file; only systemctl is made up."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ddtree_agent.core.watch import Expect, Limits, Verdict, start
from ddtree_agent.observe import Observer, signatures, unit_state

pytestmark = pytest.mark.tier("main")

ENGINE = """
import json, sys, threading, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
print("server_args=ServerArgs(...)", flush=True)
print("Memory pool end. avail mem=1 GB", flush=True)
print("max_total_num_tokens=4096, chunked=1, max_running_requests=8, context_len=2048", flush=True)
class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        data = json.dumps({"output_ids": [1], "speculative_algorithm": "DFLASH"}).encode()
        self.send_response(200); self.send_header("Content-Length", str(len(data))); self.end_headers()
        self.wfile.write(data)
    do_POST = do_GET
    def log_message(self, *_): pass
ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""
RUNNING = {
    "ActiveState": "active",
    "SubState": "running",
    "Result": "success",
    "InvocationID": "new",
    "NRestarts": "0",
}


class Host:
    """A systemctl that shows what the test wrote, and one service process that logs to a file."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.log = folder, folder / "service.log"
        self.process: subprocess.Popen[bytes] | None = None
        self.show({"InvocationID": "old", "ActiveState": "inactive", "SubState": "dead"})

    def show(self, props: dict[str, Any]) -> None:
        temporary = self.folder / "props.new"
        temporary.write_text("".join(f"{key}={value}\n" for key, value in props.items()))
        temporary.rename(self.folder / "props")

    def run(self, source: str, *args: str) -> None:
        with self.log.open("ab") as log:
            argv = [sys.executable, "-u", "-c", textwrap.dedent(source), *args]
            self.process = subprocess.Popen(argv, stdout=log, stderr=log)
        self.show({**RUNNING, "MainPID": self.process.pid})

    def die(self, number: int = 0) -> None:
        assert self.process is not None
        if number:
            self.process.send_signal(number)
        status = self.process.wait()
        ended = {"MainPID": 0, "ExecMainExitTimestampMonotonic": int(time.monotonic() * 1e6)}
        code = (
            {"ExecMainCode": 2, "ExecMainStatus": -status}
            if status < 0
            else {"ExecMainCode": 1, "ExecMainStatus": status}
        )
        self.show(
            {**RUNNING, **ended, **code, "ActiveState": "failed", "SubState": "failed", "Result": "exit-code"}
        )

    def close(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Host]:
    tool = tmp_path / "bin" / "systemctl"
    tool.parent.mkdir()
    tool.write_text(f"#!/bin/sh\ncat {tmp_path}/props\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tool.parent}:{os.environ['PATH']}")
    made = Host(tmp_path)
    yield made
    made.close()


def free_port() -> int:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def judged(observer: Observer, expect: Expect | None = None, limits: Limits | None = None) -> Verdict:
    watch = start(limits or Limits(), expect or Expect(), signatures())
    try:
        for _ in range(400):
            watch.observe(observer.observe())
            if watch.verdict is not None:
                return watch.verdict
            time.sleep(0.05)
    finally:
        observer.close()
    raise AssertionError(f"no verdict, still in {watch.phase}")


def test_a_good_start_is_pass(host: Host) -> None:
    port = free_port()
    observer = Observer("x.service", port, f"file:{host.log}")
    host.run(ENGINE, str(port))
    verdict = judged(observer, Expect(state={"speculative_algorithm": "DFLASH"}, min_tokens=4096))
    assert verdict.kind == "PASS", verdict


def test_a_death_is_told_with_its_line_and_time(host: Host) -> None:
    observer = Observer("x.service", free_port(), f"file:{host.log}")
    host.run("raise ImportError('/x/common_ops.abi3.so: undefined symbol: _ZN3c10')")
    host.die()
    verdict = judged(observer)
    assert (verdict.kind, verdict.reason) == ("FAIL", "abi-torch")
    assert verdict.line == "ImportError: /x/common_ops.abi3.so: undefined symbol: _ZN3c10"
    assert verdict.lag_s is not None


def test_an_exit_with_status_0_before_ready_is_a_failure(host: Host) -> None:
    observer = Observer("x.service", free_port(), f"file:{host.log}")
    host.run("print('bye')")
    host.die()
    verdict = judged(observer)
    assert (verdict.kind, verdict.reason) == ("FAIL", "exited-0")
    assert "bye" in verdict.context


def test_a_kill_is_told_by_its_signal(host: Host) -> None:
    observer = Observer("x.service", free_port(), "none")
    host.run("import time; time.sleep(60)")
    host.die(signal.SIGKILL)
    verdict = judged(observer, Expect(log=False))
    assert verdict.reason == "signal-9"


def test_a_port_of_a_third_process_fails_although_it_answers(host: Host) -> None:
    port = free_port()
    third = subprocess.Popen([sys.executable, "-c", ENGINE, str(port)], stdout=subprocess.DEVNULL)
    try:
        observer = Observer("x.service", port, f"file:{host.log}")
        host.run("import time; time.sleep(60)")
        verdict = judged(observer)
    finally:
        third.kill()
        third.wait()
    assert verdict.reason == "port-taken" and f"pid {third.pid} (" in verdict.line


def test_a_hang_is_a_stall(host: Host) -> None:
    observer = Observer("x.service", free_port(), f"file:{host.log}")
    host.run("import time; print('server_args=ServerArgs(', flush=True); time.sleep(60)")
    verdict = judged(observer, limits=Limits(imports=0.5, weights=0.5))
    assert (verdict.reason, verdict.phase) == ("stall", "weights")


def test_what_was_logged_before_the_observer_is_left_out(host: Host) -> None:
    host.log.write_text("torch.OutOfMemoryError: CUDA out of memory in the run before\n")
    observer = Observer("x.service", free_port(), f"file:{host.log}")
    host.run("import sys; sys.exit(7)")
    host.die()
    assert judged(observer).reason == "exit-7"


def test_a_unit_that_systemd_forgot_has_ended(host: Host) -> None:
    observer = Observer("x.service", free_port(), "none")
    host.run("import time; time.sleep(60)")
    observer.observe()
    host.show({"InvocationID": "", "ActiveState": "inactive", "SubState": "dead", "MainPID": 0})
    assert judged(observer, Expect(log=False)).reason == "exited-0"


def test_the_run_before_is_not_the_run_that_is_watched() -> None:
    assert unit_state({"InvocationID": "old", "ActiveState": "failed"}, "old") is None
    assert unit_state({"InvocationID": "", "ActiveState": "inactive"}, "") is None
    assert unit_state({}, "old") is None
    # `systemctl reset-failed` makes systemd forget a unit that nothing else holds
    assert unit_state({"InvocationID": "", "ActiveState": "inactive"}, "old") is None
    found = unit_state({"InvocationID": "new", "MainPID": "7", "ExecMainStatus": "[not set]"}, "old")
    assert found is not None and (found.main_pid, found.exec_main_status, found.exited_at) == (7, 0, None)
