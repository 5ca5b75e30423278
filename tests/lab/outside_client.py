"""A user of the service: asks it every 50 ms from outside the host, and keeps what answered and when."""

from __future__ import annotations

import http.client
import json
import threading
import time
from dataclasses import dataclass
from types import TracebackType

from ddtree_lab import netns
from ddtree_lab.client import LabHost

PERIOD_S = 0.05


@dataclass(frozen=True)
class Answer:
    """One HTTP answer, complete at `t` (unix seconds). `algorithm`: what the server says it runs, None for the
    baseline, "?" for an answer that does not say."""

    t: float
    status: int
    algorithm: str | None


class OutsideClient:
    """A context manager; `answers` and `refused` (asks that nobody answered) grow while it is entered."""

    def __init__(self, host: LabHost, port: int = 30000) -> None:
        self._namespace, self._address, self._port = host.lab.controller_netns, host.address, port
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._poll, name="outside-client")
        self.answers: list[Answer] = []
        self.refused = 0

    def __enter__(self) -> OutsideClient:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()

    @property
    def from_trial(self) -> list[Answer]:
        """Answers that the serving baseline did not give."""
        return [answer for answer in self.answers if answer.algorithm is not None]

    @property
    def from_baseline(self) -> list[Answer]:
        return [answer for answer in self.answers if answer.algorithm is None]

    def _poll(self) -> None:
        netns.enter(self._namespace)  # of this thread alone
        while not self._stop.is_set():
            due = time.monotonic() + PERIOD_S
            try:
                self.answers.append(self._ask())
            except (OSError, http.client.HTTPException):
                self.refused += 1
            self._stop.wait(max(0.0, due - time.monotonic()))

    def _ask(self) -> Answer:
        line = http.client.HTTPConnection(self._address, self._port, timeout=1)
        try:
            line.request("GET", "/get_server_info")
            reply = line.getresponse()
            text = reply.read()
        finally:
            line.close()
        algorithm: str | None = "?"
        if reply.status == 200:
            algorithm = json.loads(text).get("speculative_algorithm")
        return Answer(time.time(), reply.status, algorithm)
