"""The endpoints of 0.5.11 that clients, probes and the product read: paths, statuses and reply keys."""

import json
import logging
import queue
import time
import uuid
from http.client import responses
from http.server import BaseHTTPRequestHandler
from typing import Any, Dict, List, Optional

from sglang.srt.metrics import exposition
from sglang.version import __version__

logger = logging.getLogger(__name__)
DEPRECATED = {"/get_model_info": "/model_info", "/get_server_info": "/server_info", "/get_load": "/v1/loads"}
OPEN_PATHS = ("/health", "/health_generate", "/metrics", "/ping")  # answered without the API key


class Refused(Exception):
    """A request that is answered with a status and a JSON body instead of tokens."""

    def __init__(self, status: int, body: Any) -> None:
        super().__init__(status)
        self.status, self.body = status, body


class Handler(BaseHTTPRequestHandler):
    """One connection. `self.server` is http_server.Server."""

    protocol_version = "HTTP/1.1"
    server_version, sys_version = "uvicorn", ""
    server: Any

    def log_message(self, format: str, *args: Any) -> None:
        """Silence the default log: `_send` writes uvicorn's line."""

    def do_GET(self) -> None:
        """GET and its 404/405."""
        path = self.path.partition("?")[0]
        if path in DEPRECATED:
            new = DEPRECATED[path]
            logger.warning(
                f"Endpoint '{path}' is deprecated and will be removed in a future version. Use '{new}' instead."
            )
        routes = {
            "/health": self._health,
            "/health_generate": self._health,
            "/model_info": self._model_info,
            "/server_info": self._server_info,
            "/v1/models": self._models,
            "/v1/loads": self._loads,
            "/metrics": self._metrics,
        }
        route = routes.get(DEPRECATED.get(path, path))
        if path == "/metrics" and not self.server.manager.args.enable_metrics:
            route = None
        if path in ("/generate", "/v1/chat/completions"):
            self._send(405, {"detail": "Method Not Allowed"})
        elif route is None:
            self._send(404, {"detail": "Not Found"})
        elif self._allowed(path):
            route()

    def do_POST(self) -> None:
        """POST: the two ways to generate."""
        raw = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if not self._allowed(self.path):
            return
        try:
            if self.path not in ("/generate", "/v1/chat/completions"):
                raise Refused(404, {"detail": "Not Found"})
            try:
                body = json.loads(raw)
            except ValueError:
                raise Refused(
                    400, {"object": "error", "message": "1 validation error", "code": 400}
                ) from None
            self._misbehave()
            (self._generate if self.path == "/generate" else self._chat)(body)
        except Refused as refused:
            self._send(refused.status, refused.body)

    def _misbehave(self) -> None:
        manager = self.server.manager
        how = manager.scenario.get("generate")
        if "X-Standin-Warm-Up" in self.headers:
            return
        if how == "hang":
            manager.in_flight[uuid.uuid4().hex] = (
                queue.Queue()
            )  # so that a graceful stop waits for it, in vain
            time.sleep(1e6)
        if how == "error":
            raise Refused(500, {"error": {"message": "Internal Server Error"}})

    def _allowed(self, path: str) -> bool:
        key = self.server.manager.args.api_key
        if key is None or path in OPEN_PATHS or self.headers.get("Authorization") == f"Bearer {key}":
            return True
        self._send(401, {"error": "Unauthorized"})
        return False

    def _send(self, status: int, body: Any = b"", kind: str = "application/json") -> None:
        data = body if isinstance(body, bytes) else json.dumps(body, separators=(",", ":")).encode()
        host, port = self.client_address[:2]
        reason = responses[status]
        logger.info(f'INFO:     {host}:{port} - "{self.command} {self.path} HTTP/1.1" {status} {reason}')
        self.send_response(status)
        if data:
            self.send_header("content-type", kind)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _health(self) -> None:
        manager = self.server.manager
        if manager.gracefully_exit:
            logger.info("Health check request received during shutdown. Returning 503.")
            self._send(503)
        elif manager.status == "Starting":
            self._send(503)
        else:
            self._send(200 if manager.healthy() else 503)

    def _model_info(self) -> None:
        args = self.server.manager.args
        config = args.model_config()
        self._send(
            200,
            {
                "model_path": args.model_path,
                "tokenizer_path": args.tokenizer_path,
                "is_generation": True,
                "preferred_sampling_params": args.preferred_sampling_params,
                "weight_version": args.weight_version,
                "has_image_understanding": False,
                "has_audio_understanding": False,
                "model_type": config.get("model_type"),
                "architectures": config.get("architectures"),
            },
        )

    def _server_info(self) -> None:
        manager, info = self.server.manager, self.server.info["info"]
        arguments = dict(vars(manager.args), **manager.scenario.get("server_info", {}))
        state = {
            "last_gen_throughput": 0.0,
            "memory_usage": {
                "weight": 0.05,
                "kvcache": 0.06,
                "token_capacity": info["max_total_num_tokens"],
                "graph": 0,
            },
            "effective_max_running_requests_per_dp": self.server.info["max_running_requests"],
        }
        if manager.args.speculative_algorithm and manager.counts["steps"]:
            state["avg_spec_accept_length"] = 2.0
        self._send(
            200, {**arguments, **info, "internal_states": [{**arguments, **state}], "version": __version__}
        )

    def _models(self) -> None:
        manager = self.server.manager
        name = manager.args.served_model_name
        card = {
            "id": name,
            "object": "model",
            "created": int(time.time()),
            "owned_by": "sglang",
            "root": name,
        }
        card.update(parent=None, max_model_len=self.server.info["info"]["max_req_input_len"] + 6)
        self._send(200, {"object": "list", "data": [card]})

    def _loads(self) -> None:
        running = len(self.server.manager.in_flight)
        load = {
            "dp_rank": None,
            "num_reqs": running,
            "num_waiting_reqs": 0,
            "num_tokens": 0,
            "num_pending_tokens": 0,
        }
        self._send(200, [dict(load, ts_tic=time.perf_counter())])

    def _metrics(self) -> None:
        text = exposition(self.server.manager, self.server.info["info"])
        self._send(200, text.encode(), "text/plain; version=0.0.4; charset=utf-8")

    def _generate(self, body: Dict[str, Any]) -> None:
        prompts = body.get("input_ids", body.get("text"))
        if not prompts:
            raise Refused(400, _error("Either text, input_ids or input_embeds should be provided."))
        algorithm = self.server.manager.args.speculative_algorithm
        if body.get("return_logprob") and self.server.manager.args.block_draft:
            message = f"{algorithm} speculative decoding does not support return_logprob yet."
            logger.error(f"[http_server] Error: {message}")
            raise Refused(400, _error(message))
        batch = isinstance(prompts, list) and not isinstance(prompts[0], int)
        if body.get("stream"):
            self._stream(_ids(prompts), body)
            return
        replies = [self._complete(_ids(prompt), body) for prompt in (prompts if batch else [prompts])]
        self._send(200, replies if batch else replies[0])

    def _complete(self, ids: List[int], body: Dict[str, Any]) -> Dict[str, Any]:
        wanted = body.get("sampling_params", {}).get("max_new_tokens", 128)
        started = time.time()
        (reply,) = self.server.manager.generate(ids, wanted, False)
        return self._shape(ids, reply, started, body)

    def _shape(
        self, ids: List[int], reply: Dict[str, Any], started: float, body: Dict[str, Any]
    ) -> Dict[str, Any]:
        count, now = len(reply["output_ids"]), time.time()
        meta: Dict[str, Any] = {
            "id": reply["rid"],
            "finish_reason": {"type": "length", "length": count} if reply["done"] else None,
            "prompt_tokens": len(ids),
            "weight_version": "default",
            "total_retractions": 0,
            "reasoning_tokens": 0,
            "completion_tokens": count,
            "cached_tokens": 0,
            "cached_tokens_details": None,
            "dp_rank": None,
        }
        if body.get("return_logprob"):
            meta["output_token_logprobs"] = [[-0.1, token, None] for token in reply["output_ids"]]
            top = [[[-0.1, token, None], [-2.5, (token + 1) % 512, None]] for token in reply["output_ids"]]
            meta["output_top_logprobs"] = top
        if not reply["done"]:
            return {"text": reply["text"], "output_ids": reply["output_ids"], "meta_info": meta}
        meta["e2e_latency"] = now - started
        steps = reply["steps"]
        if self.server.manager.args.speculative_algorithm and steps:
            accepted = count - 1 - steps
            meta.update(spec_accept_rate=accepted / (3 * steps), spec_accept_length=count / steps)
            meta.update(spec_accepted_drafts=accepted, spec_proposed_drafts=3 * steps, spec_verify_ct=steps)
        meta["response_sent_to_client_ts"] = now
        if self.server.manager.args.enable_metrics:  # the engine gives its timings only then
            meta.update(queue_time=0.0, prefill_waiting_latency=None, prefill_launch_latency=None)
            meta.update(request_received_ts=started, api_server_dispatch_finish_ts=started)
            meta.update(request_finished_ts=now, inference_time=now)
            meta["decode_throughput"] = count / max(now - started, 1e-6)
        return {"text": reply["text"], "output_ids": reply["output_ids"], "meta_info": meta}

    def _stream(self, ids: List[int], body: Dict[str, Any]) -> None:
        started = time.time()
        wanted = body.get("sampling_params", {}).get("max_new_tokens", 128)
        host, port = self.client_address[:2]
        logger.info(f'INFO:     {host}:{port} - "POST {self.path} HTTP/1.1" 200 OK')
        self.send_response(200)
        self.send_header("content-type", "text/event-stream; charset=utf-8")
        self.send_header("connection", "close")
        self.end_headers()
        for reply in self.server.manager.generate(ids, wanted, True):
            event = json.dumps(self._shape(ids, reply, started, body), separators=(",", ":"))
            self.wfile.write(f"data: {event}\n\n".encode())
            self.wfile.flush()
        self.wfile.write(b"data: [DONE]\n\n")
        self.close_connection = True

    def _chat(self, body: Dict[str, Any]) -> None:
        text = "".join(f"{message['role']}: {message['content']}\n" for message in body.get("messages", []))
        ids = _ids(text or "\n")
        wanted = body.get("max_completion_tokens") or body.get("max_tokens") or 128
        (reply,) = self.server.manager.generate(ids, wanted, False)
        message = {
            "role": "assistant",
            "content": reply["text"],
            "reasoning_content": None,
            "tool_calls": None,
        }
        choice = {
            "index": 0,
            "message": message,
            "logprobs": None,
            "finish_reason": "length",
            "matched_stop": None,
        }
        usage: Dict[str, Optional[int]] = {"prompt_tokens": len(ids), "total_tokens": len(ids) + wanted}
        usage.update(completion_tokens=wanted, prompt_tokens_details=None, reasoning_tokens=0)
        answer = {"id": uuid.uuid4().hex, "object": "chat.completion", "created": int(time.time())}
        shape = {
            "model": body.get("model"),
            "choices": [choice],
            "usage": usage,
            "metadata": {"weight_version": "default"},
        }
        self._send(200, {**answer, **shape})


def _error(message: str) -> Dict[str, Any]:
    return {"error": {"message": message}}


def _ids(prompt: Any) -> List[int]:
    return list(prompt.encode()) if isinstance(prompt, str) else list(prompt)
