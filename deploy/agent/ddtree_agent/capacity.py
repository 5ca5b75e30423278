"""What the service that is about to be stopped can hold: the least that a release on trial must hold as well."""

import http.client
import json
import urllib.request
from typing import Any, Dict, Mapping

_LIMIT_S = 5.0
#: A draft model's KV shares the pool with the target's, so that a speculating release holds fewer tokens.
_TOKEN_SHARE = 0.5


def bounds(port: int, address: str, headers: Mapping[str, str]) -> Dict[str, int]:
    """Ask the running server (/get_server_info); {} where it does not answer: then nothing is compared."""
    request = urllib.request.Request(f"http://{address}:{port}/get_server_info", headers=dict(headers))
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=_LIMIT_S) as answer:
            info = json.loads(answer.read())
    except (OSError, ValueError, http.client.HTTPException):
        return {}
    return bounds_of(info) if isinstance(info, dict) else {}


def bounds_of(info: Mapping[str, Any]) -> Dict[str, int]:
    """The bounds as core.watch.Expect takes them.

    Requests count only where the operator set them: left to itself the engine lowers them under speculation, which is
    no fault of a release.
    """
    found: Dict[str, int] = {}
    tokens = info.get("max_total_num_tokens")
    if isinstance(tokens, int):
        found["min_tokens"] = int(tokens * _TOKEN_SHARE)
    requests = info.get("max_running_requests")
    if isinstance(requests, int):
        found["min_requests"] = requests
    longest = info.get("max_req_input_len")
    if isinstance(longest, int):
        found["min_context"] = longest
    return found
