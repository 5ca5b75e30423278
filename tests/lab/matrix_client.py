"""A client of the service that polls on the host's own loopback, which a cut cable does not touch."""

from __future__ import annotations

import threading
import time
from pathlib import Path

from ddtree_lab import netns
from ddtree_lab.client import LabHost


class Client(threading.Thread):
    """Keeps the moments at which nobody answered."""

    def __init__(self, host: LabHost, port: int = 30000) -> None:
        super().__init__(daemon=True)
        self.port = port
        self.down: list[float] = []
        self._place = str(Path(host.lab.controller_netns).with_name(host.name))
        self._ended = threading.Event()

    def run(self) -> None:
        while not self._ended.wait(0.25):
            if not self._answers():
                self.down.append(time.time())

    def end(self) -> None:
        """Poll no more."""
        self._ended.set()
        self.join()

    def recovery_s(self, since: float) -> float:
        """Seconds from `since` to the last moment without an answer; 0 where there was none."""
        return round(max([0.0, *(t - since for t in self.down)]), 2)

    def _answers(self) -> bool:
        try:
            with netns.tcp_socket(self._place) as line:
                line.settimeout(5)
                line.connect(("127.0.0.1", self.port))
                line.sendall(b"GET /health HTTP/1.0\r\n\r\n")
                return b" 200 " in line.recv(64)
        except OSError:
            return False
