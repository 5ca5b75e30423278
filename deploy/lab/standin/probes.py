"""The probes that the stand-in and the real engine are both put through, and the shapes that are compared."""

import json
import os
import random
import re
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from typing import Any, Dict, List, Optional, Tuple

JSON = {"Content-Type": "application/json"}
ENDPOINTS = [
    "/health",
    "/health_generate",
    "/model_info",
    "/get_model_info",
    "/v1/models",
    "/get_load",
    "/nonesuch",
    "/generate",
]
READY = "The server is fired up and ready to roll!"


def free_ports(count: int) -> List[int]:
    """Different free TCP ports, below those the kernel hands out itself (and the engine refuses ports above 55535)."""
    found: List[int] = []
    while len(found) < count:
        port = random.randrange(20000, 30000)
        with socket.socket() as probe:
            if port not in found and probe.connect_ex(("127.0.0.1", port)) != 0:
                found.append(port)
    return found


class Server:
    """One started server with its log file; ends it in `close`, with the process group."""

    def __init__(self, command: List[str], env: Dict[str, str], log: str, port: int) -> None:
        self.log_path, self.port = log, port
        with open(log, "wb") as stream:
            self.process = subprocess.Popen(
                [*command, "--host", "127.0.0.1", "--port", str(port)],
                env=env,
                stdout=stream,
                stderr=stream,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """SIGKILL what is left of the session."""
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()

    def log(self) -> str:
        """All that it printed so far."""
        with open(self.log_path, encoding="utf-8", errors="replace") as stream:
            return stream.read()

    def wait_log(self, text: str, limit_s: float) -> bool:
        """Wait until `text` is in the log; False when the process ended or the time is up before."""
        end = time.monotonic() + limit_s
        while time.monotonic() < end:
            over = self.process.poll() is not None
            if text in self.log():
                return True
            if over:
                return False
            time.sleep(0.03)
        return False

    def wait_exit(self, limit_s: float) -> Optional[int]:
        """Exit status as Popen gives it (-9 = by signal 9), None while it still runs."""
        try:
            return self.process.wait(limit_s)
        except subprocess.TimeoutExpired:
            return None

    def ask(
        self, path: str, body: Any = None, headers: Optional[Dict[str, str]] = None, limit_s: float = 30
    ) -> Tuple[int, Any]:
        """(status, JSON or text); status 0 = refused or reset."""
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}", data, {**JSON, **(headers or {})}
        )
        try:
            with urllib.request.urlopen(request, timeout=limit_s) as reply:
                return reply.status, _decoded(reply.read())
        except urllib.error.HTTPError as error:
            return error.code, _decoded(error.read())
        except (urllib.error.URLError, ConnectionError):
            return 0, None

    def generate(self, input_ids: List[int], count: int, **more: Any) -> Tuple[int, Any]:
        """POST /generate, greedy."""
        return self.ask("/generate", {"input_ids": input_ids, "sampling_params": greedy(count), **more})

    def child(self, title: str, limit_s: float = 10) -> int:
        """Pid of the child whose command line begins with `title`. LookupError when none shows up in time."""
        end = time.monotonic() + limit_s
        while time.monotonic() < end:
            for pid in filter(str.isdigit, os.listdir("/proc")):
                if self._is_child(pid, title.encode()):
                    return int(pid)
            time.sleep(0.03)
        raise LookupError(title)

    def _is_child(self, pid: str, title: bytes) -> bool:
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as line, open(f"/proc/{pid}/stat", "rb") as stat:
                parent = int(stat.read().rsplit(b")", 1)[1].split()[1])
                return line.read().startswith(title) and parent == self.process.pid
        except (OSError, IndexError):
            return False

    def statuses_until_ready(self, limit_s: float) -> List[int]:
        """The distinct statuses of /health, in order, until it says 200 (0 = refused)."""
        seen: List[int] = []
        end = time.monotonic() + limit_s
        while time.monotonic() < end and self.process.poll() is None:
            status = self.ask("/health")[0]
            if seen[-1:] != [status]:
                seen.append(status)
            if status == 200:
                break
            time.sleep(0.03)
        return seen


def greedy(count: int) -> Dict[str, Any]:
    """Sampling parameters of a greedy request for `count` tokens."""
    return {"temperature": 0, "max_new_tokens": count}


def _decoded(raw: bytes) -> Any:
    try:
        return json.loads(raw)
    except ValueError:
        return raw.decode("utf-8", "replace")


def skeleton(log: str) -> List[str]:
    """Stamped log lines without time, numbers, the argument dump, and the lines that our own probes cause."""
    lines = []
    for line in log.splitlines():
        stamped = re.match(r"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d( TP\d+)?\] (.*)", line)
        if stamped and not re.search(r'"\w+ /health|Prefill batch', line):
            text = re.sub(r"(server_args=ServerArgs\().*", r"\1", stamped[2])
            lines.append((stamped[1] or "") + re.sub(r"-?\d+(\.\d+)?", "N", text))
    return lines


def shape(value: Any) -> Any:
    """Keys of objects and the first item of lists, all the way down; scalars count as equal."""
    if isinstance(value, dict):
        # what the prefix cache held depends on what was asked before
        return {key: None if key == "cached_tokens_details" else shape(item) for key, item in value.items()}
    if isinstance(value, list):
        return [shape(item) for item in value[:1]]
    return None


def ready_shapes(server: Server) -> Dict[str, Any]:
    """What a ready server answers: endpoint -> (status, shape)."""
    two = {"input_ids": [[65, 66, 65], [66]], "sampling_params": greedy(4)}
    chat = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "temperature": 0, "max_tokens": 4}
    asked: Dict[str, Tuple[int, Any]] = {path: server.ask(path) for path in ENDPOINTS}
    asked["generate ids"] = server.generate([65, 66, 65], 16)
    asked["generate text"] = server.ask("/generate", {"text": "AB", "sampling_params": greedy(4)})
    asked["generate batch"] = server.ask("/generate", two)
    asked["generate nothing"] = server.ask("/generate", {"sampling_params": greedy(4)})
    asked["generate logprob"] = server.generate([65], 2, return_logprob=True)
    asked["chat"] = server.ask("/v1/chat/completions", chat)
    return {name: (status, shape(body)) for name, (status, body) in asked.items()}


def metric_types(page: str) -> Dict[str, str]:
    """Metric name -> type, from the # TYPE lines."""
    return dict(re.findall(r"^# TYPE (\S+) (\S+)$", page, re.M))
