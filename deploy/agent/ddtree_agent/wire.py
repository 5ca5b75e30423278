"""What crosses the line to the operator: framed JSON lines out, one request in."""

import json
import sys
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
        send(event)
    except (BrokenPipeError, ValueError):
        pass


def send(event: Dict[str, Any]) -> None:
    """Write one framed line for a reader without whom there is nothing to do. Raises BrokenPipeError."""
    sys.stdout.write(PREFIX + json.dumps(event, separators=(",", ":"), sort_keys=True) + "\n")
    sys.stdout.flush()


def result(**fields: Any) -> None:
    """The last frame of a call that went well."""
    emit({"ev": "result", "ok": True, **fields})
