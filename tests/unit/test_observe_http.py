"""The HTTP probe against a small server that behaves, warms up, fails, or hangs."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from ddtree_agent.observe_http import HttpProbe, judge

pytestmark = pytest.mark.tier("main")

GOOD = {"text": "x", "output_ids": [1], "meta_info": {"completion_tokens": 1}}


class Engine:
    """What the fake server answers; change it while it runs."""

    def __init__(self) -> None:
        self.health: list[int] = []  # statuses to give before 200
        self.generate: Callable[[dict[str, Any]], tuple[int, Any]] = lambda body: (200, GOOD)
        self.info: dict[str, Any] = {
            "version": "0.5.11",
            "api_key": "s3cret",
            "internal_states": [{"api_key": "s3cret"}],
        }
        self.paths: list[str] = []
        self.keys: set[str | None] = set()
        self.prompts: list[list[int]] = []
        self.together = self.most = 0
        self.release = threading.Event()
        self.hang = False
        self.lock = threading.Lock()

    def answer(self, path: str, body: bytes, key: str | None) -> tuple[int, Any]:
        self.paths.append(path)
        self.keys.add(key)
        if path == "/health":
            if self.hang:
                self.release.wait(30)
            return (self.health.pop(0) if self.health else 200), ""
        if path == "/server_info":
            return 200, self.info
        if path != "/generate":
            return 404, {"detail": "Not Found"}
        with self.lock:
            self.together += 1
            self.most = max(self.most, self.together)
            self.prompts.append(json.loads(body)["input_ids"])
        time.sleep(0.05)
        with self.lock:
            self.together -= 1
        return self.generate(json.loads(body))


@pytest.fixture
def engine() -> Iterator[tuple[Engine, str]]:
    state = Engine()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            status, answer = state.answer(
                self.path, self.rfile.read(length), self.headers.get("Authorization")
            )
            data = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_POST = do_GET

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield state, f"http://127.0.0.1:{server.server_address[1]}"
    state.release.set()
    server.shutdown()
    server.server_close()


def until(condition: Callable[[], object]) -> None:
    for _ in range(500):
        if condition():
            return
        time.sleep(0.02)
    raise AssertionError("it never came")


def test_it_waits_for_its_leave_then_counts_answers_and_reads_the_state(engine: tuple[Engine, str]) -> None:
    state, base = engine
    state.health = [503, 503]
    headers: dict[str, str] = {}
    probe = HttpProbe(base, headers, generations=4)
    time.sleep(0.1)
    assert state.paths == []
    headers["Authorization"] = "Bearer k"  # learnt from the process once it runs
    probe.allow()
    until(lambda: probe.info)
    assert (probe.health, probe.generations, probe.failures) == (200, 4, [])
    assert probe.info == {"version": "0.5.11", "internal_states": [{}]}
    assert state.keys == {"Bearer k"}
    assert state.most > 1, "some requests at the same time"
    assert len({tuple(prompt) for prompt in state.prompts}) == 4 and min(map(len, state.prompts)) > 1
    probe.close()


def test_a_503_while_it_warms_up_is_no_failure(engine: tuple[Engine, str]) -> None:
    state, base = engine
    state.health = [503] * 1000
    probe = HttpProbe(base)
    probe.allow()
    until(lambda: probe.health)
    assert probe.health == 503 and probe.failures == [] and probe.generations == 0
    probe.close()


def test_a_500_after_ready_is_a_failure_in_words(engine: tuple[Engine, str]) -> None:
    state, base = engine
    state.generate = lambda body: (500, "boom")
    probe = HttpProbe(base, generations=2)
    probe.allow()
    until(lambda: len(probe.failures) == 2)
    assert probe.failures[0] == 'POST /generate: HTTP 500: "boom"'
    assert probe.generations == 0
    probe.close()


def test_a_hanging_health_check_blocks_nobody(engine: tuple[Engine, str]) -> None:
    state, base = engine
    state.hang = True
    probe = HttpProbe(base)
    probe.allow()
    until(lambda: "/health" in state.paths)
    assert probe.health is None
    probe.close()


@pytest.mark.parametrize(
    ("status", "answer", "word"),
    [
        (200, json.dumps(GOOD).encode(), None),
        (200, b'{"text": "", "meta_info": {"completion_tokens": 0}}', "without a single token"),
        (200, b"<html>a proxy</html>", "without a single token"),
        (503, b"", "HTTP 503: empty answer"),
        (None, b"timed out", "timed out"),
    ],
)
def test_200_alone_is_no_answer(status: int | None, answer: bytes, word: str | None) -> None:
    failure = judge(status, answer)
    assert failure is None if word is None else failure is not None and word in failure
