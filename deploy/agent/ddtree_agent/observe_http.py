"""Asks the engine whether it serves: health, generations one by one and together, server info; never on the watch's
own thread, because /health may take 20 s to say 503."""

import json
import threading
import urllib.error
import urllib.request
from typing import Any, Dict, List, Mapping, Optional, Tuple

_HEALTH_LIMIT_S = 25.0  # 0.5.11 waits 20 s for its scheduler before it says 503
_GENERATE_LIMIT_S = 120.0
_RETRY_S, _KEEP_S = 0.5, 10.0
_TOKENS = 8
_SECRET_KEYS = ("api_key", "admin_api_key")
Reply = Tuple[Optional[int], bytes]


class HttpProbe:
    """Probes `base` (http://host:port) once `allow` was called. Read `health`, `generations`, `failures`, `info`.

    health: last status of /health, None before the first answer. generations: answers with at least one token.
    failures: what went wrong after the first 200, in words. info: /get_server_info, without the keys it prints.
    """

    def __init__(self, base: str, headers: Optional[Mapping[str, str]] = None, generations: int = 4) -> None:
        self._base, self._wanted = base.rstrip("/"), generations
        # Not copied: the caller may learn the key only once the engine runs.
        self._headers: Mapping[str, str] = {} if headers is None else headers
        self.health: Optional[int] = None
        self.generations = 0
        self.failures: List[str] = []
        self.info: Optional[Dict[str, Any]] = None
        self._lock = threading.Lock()
        self._allowed, self._stop = threading.Event(), threading.Event()
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # never through a proxy
        threading.Thread(target=self._loop, name="http-probe", daemon=True).start()

    def allow(self) -> None:
        """The port is known to be the service's own: begin."""
        self._allowed.set()

    def close(self) -> None:
        """Ask no more."""
        self._stop.set()
        self._allowed.set()

    def _loop(self) -> None:
        self._allowed.wait()
        while not self._stop.is_set() and not self._healthy():
            self._stop.wait(_RETRY_S)
        self._generate(0)
        self._together(range(1, self._wanted))
        while not self._stop.is_set() and self.info is None:
            self.info = self._server_info()
            self._stop.wait(_RETRY_S)
        number = self._wanted
        while not self._stop.wait(_KEEP_S):
            self._generate(number)
            number += 1

    def _healthy(self) -> bool:
        status, _ = self._ask("/health", None, _HEALTH_LIMIT_S)
        if status is not None:
            self.health = status
        return status == 200

    def _together(self, numbers: "range") -> None:
        workers = [threading.Thread(target=self._generate, args=(number,), daemon=True) for number in numbers]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()

    def _generate(self, number: int) -> None:
        if self._stop.is_set():
            return
        # Never a prompt of one token: DFLASH of 0.5.11 is wrong for it on hybrid models (design 8).
        prompt = [65 + (number * 7 + step * (number + 2)) % 50 for step in range(6 + number % 5)]
        sampling = {"temperature": 0, "max_new_tokens": _TOKENS, "ignore_eos": True}
        body = json.dumps({"input_ids": prompt, "sampling_params": sampling}).encode()
        status, answer = self._ask("/generate", body, _GENERATE_LIMIT_S)
        failure = judge(status, answer)
        with self._lock:
            if failure is None:
                self.generations += 1
            elif not self._stop.is_set():
                self.failures.append(f"POST /generate: {failure}")

    def _server_info(self) -> Optional[Dict[str, Any]]:
        for path in ("/get_server_info", "/server_info"):
            status, answer = self._ask(path, None, _HEALTH_LIMIT_S)
            found = _object(answer) if status == 200 else None
            if found is not None:
                return _without_secrets(found)
        return None

    def _ask(self, path: str, body: Optional[bytes], limit_s: float) -> Reply:
        headers = dict(self._headers, **({"Content-Type": "application/json"} if body is not None else {}))
        request = urllib.request.Request(self._base + path, data=body, headers=headers)
        try:
            with self._opener.open(request, timeout=limit_s) as reply:
                return int(reply.status), reply.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read()
        except (OSError, ValueError) as error:
            return None, str(getattr(error, "reason", error)).encode()
        except Exception as error:  # http.client has errors of its own for a server that dies mid-answer
            return None, f"{type(error).__name__}: {error}".encode()


def judge(status: Optional[int], answer: bytes) -> Optional[str]:
    """What is wrong with a reply of /generate, None where it holds at least one token."""
    if status != 200:
        first = answer.decode("utf-8", "replace").strip().splitlines()
        text = first[0][:200] if first else "empty answer"
        return f"HTTP {status}: {text}" if status is not None else text
    found = _object(answer)
    meta = (found or {}).get("meta_info")
    count = meta.get("completion_tokens", 0) if isinstance(meta, dict) else 0
    if found is not None and (count or found.get("output_ids") or found.get("text")):
        return None
    return "HTTP 200 without a single token"


def _object(answer: bytes) -> Optional[Dict[str, Any]]:
    try:
        found = json.loads(answer)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _without_secrets(info: Dict[str, Any]) -> Dict[str, Any]:
    kept = {key: value for key, value in info.items() if key not in _SECRET_KEYS}
    states = kept.get("internal_states")
    if isinstance(states, list):
        kept["internal_states"] = [_without_secrets(state) for state in states if isinstance(state, dict)]
    return kept
