"""What crosses the line to the operator: framed JSON lines out, one request in."""

import json
import signal
import sys
import threading
from typing import Any, BinaryIO, Dict, Optional

PREFIX = "@ddt "
#: Exit status of the agent process when it answered with an error; the answer itself is in the frame.
REFUSED = 64


class AgentError(Exception):
    """A refusal or failure in the words that the operator reads. `kind` is one of core.errors' kinds."""

    def __init__(
        self,
        kind: str,
        what: str,
        evidence: Optional[str] = None,
        meaning: Optional[str] = None,
        next: Optional[str] = None,
    ) -> None:
        super().__init__(what)
        self.fields: Dict[str, Any] = {
            "kind": kind,
            "what": what,
            "evidence": evidence,
            "meaning": meaning,
            "next": next,
        }


class Patient:
    """A payload that may be slow and not silent: a line that is cut without a word must not keep the host's lock."""

    def __init__(self, stream: BinaryIO, limit_s: float = 60.0) -> None:
        self.stream, self.limit_s = stream, limit_s

    def read(self, size: int = -1) -> bytes:
        """As of the stream. Raises AgentError(unreachable) where nothing came for `limit_s` seconds."""
        if threading.current_thread() is not threading.main_thread():
            return self.stream.read(size)
        before = signal.signal(signal.SIGALRM, self._silent)
        signal.setitimer(signal.ITIMER_REAL, self.limit_s)
        try:
            return self.stream.read(size)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)

    def _silent(self, *_: Any) -> None:
        raise AgentError(
            "unreachable",
            f"the operator's line said nothing for {self.limit_s:g} s in the middle of a transfer",
            meaning="nothing was touched",
            next="type the same command again",
        )


def read_request(stream: BinaryIO) -> Dict[str, Any]:
    """Read `<length>\\n<JSON>` and leave the stream at the payload. Raises AgentError on junk."""
    head = stream.readline()
    try:
        request = json.loads(stream.read(int(head)))
    except ValueError as error:
        raise AgentError("usage", f"the request is not framed JSON: {error}") from None
    if not isinstance(request, dict):
        raise AgentError("usage", "the request is not a JSON object")
    return request


def emit(event: Dict[str, Any]) -> None:
    """Write one framed line. A reader that went away is not our failure: the work goes on without it."""
    try:
        sys.stdout.write(PREFIX + json.dumps(event, separators=(",", ":"), sort_keys=True) + "\n")
        sys.stdout.flush()
    except (BrokenPipeError, ValueError):
        pass


def result(**fields: Any) -> None:
    """The last frame of a call that went well."""
    emit({"ev": "result", "ok": True, **fields})
