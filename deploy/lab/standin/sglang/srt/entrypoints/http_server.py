"""The HTTP side and the life of the main process: launch, listen, warm up, serve, and the four ways to end."""

import json
import logging
import os
import queue
import signal
import socket
import socketserver
import threading
import time
import urllib.request
from http.server import ThreadingHTTPServer
from typing import Any, Dict, Optional

from sglang.srt.entrypoints.endpoints import Handler
from sglang.srt.managers.tokenizer_manager import TokenizerManager
from sglang.srt.scenario import Scenario, load_scenario
from sglang.srt.server_args import ServerArgs

logger = logging.getLogger(__name__)
STARTUP_FAILURE = 3  # uvicorn's exit status when it cannot bind


class Server(ThreadingHTTPServer):
    """A listening socket and what the handlers need. OSError when the port is taken."""

    daemon_threads = True
    request_queue_size = 2048

    def __init__(self, manager: TokenizerManager, info: Dict[str, Any]) -> None:
        self.manager, self.info = manager, info
        self.address_family = socket.AF_INET6 if ":" in manager.args.host else socket.AF_INET
        super().__init__((manager.args.host, manager.args.port), Handler)

    def server_bind(self) -> None:
        """Bind without HTTPServer's look-up of the host's name, which can hang in a guest without DNS."""
        socketserver.TCPServer.server_bind(self)


def launch_server(args: ServerArgs) -> None:
    """Serve until a signal ends it: SIGINT returns (status 0), a taken port exits 3, all else is SIGKILL of itself."""
    scenario = load_scenario(args)
    logger.info(f"server_args={args!r}")
    manager = TokenizerManager(args, scenario)
    try:
        info = manager.launch()
        _serve(manager, scenario, info)
    finally:
        manager.kill_children()


def _serve(manager: TokenizerManager, scenario: Scenario, info: Dict[str, Any]) -> None:
    # SimpleQueue: may be put to from a signal handler, and waits without using any CPU
    signals: "queue.SimpleQueue[int]" = queue.SimpleQueue()
    for number in (signal.SIGINT, signal.SIGTERM):
        if not (number == signal.SIGTERM and scenario.get("ignore_sigterm")):
            signal.signal(number, lambda signum, _: signals.put(signum))
    logger.info(f"INFO:     Started server process [{os.getpid()}]")
    logger.info("INFO:     Waiting for application startup.")
    logger.info("Using fallback token IDs for yes/no (9693/2152)")
    bound = threading.Event()
    warm_up = threading.Thread(target=_warm_up, args=(manager, scenario, bound), daemon=True)
    warm_up.start()
    logger.info("INFO:     Application startup complete.")
    server = _listen(manager, info, warm_up, bound)
    threading.Thread(target=server.serve_forever, args=(3600,), daemon=True).start()
    logger.info(f"INFO:     Uvicorn running on {manager.args.url()} (Press CTRL+C to quit)")
    bound.set()
    if signals.get() == signal.SIGTERM:
        manager.gracefully_exit = True
        logger.warning("SIGTERM received. signum=None frame=None. Draining requests and shutting down...")
        time.sleep(0.3)  # the engine looks every 5 s; meanwhile health says 503
        manager.drain()
    for line in ("Shutting down", "Waiting for application shutdown.", "Application shutdown complete."):
        logger.info(f"INFO:     {line}")
    logger.info(f"INFO:     Finished server process [{os.getpid()}]")


def _listen(
    manager: TokenizerManager, info: Dict[str, Any], warm_up: threading.Thread, bound: threading.Event
) -> Server:
    try:
        return Server(manager, info)
    except OSError as error:
        where = (manager.args.host, manager.args.port)
        logger.error(
            f"ERROR:    [Errno {error.errno}] error while attempting to bind on address {where}: {_lower(error)}"
        )
        logger.info("INFO:     Waiting for application shutdown.")
        # The engine's own trap: its warm-up is answered by whoever holds the port, so it says that it is ready.
        bound.set()
        warm_up.join(15)
        logger.info("INFO:     Application shutdown complete.")
        raise SystemExit(STARTUP_FAILURE) from None


def _lower(error: OSError) -> str:
    return (error.strerror or str(error)).lower()


def _warm_up(manager: TokenizerManager, scenario: Scenario, bound: threading.Event) -> None:
    bound.wait()
    scenario.reach("serve")
    if not manager.args.skip_server_warmup:
        sampling = {"temperature": 0, "max_new_tokens": 8}
        _ask(manager.args, "/model_info", None)
        _ask(
            manager.args, "/generate", {"sampling_params": sampling, "text": "The capital city of France is"}
        )
    manager.status = "Up"
    logger.info("The server is fired up and ready to roll!")
    scenario.reach("ready")
    later = scenario.get("die_after")
    if later:
        time.sleep(later["seconds"])
        victim = manager.children.get({"scheduler": "scheduler_0"}.get(later["process"], later["process"]))
        os.kill(victim.pid if victim else os.getpid(), getattr(signal, later["signal"]))


def _ask(args: ServerArgs, path: str, body: Optional[Dict[str, Any]]) -> None:
    headers = {"Content-Type": "application/json", "X-Standin-Warm-Up": "1"}
    if args.api_key:
        headers["Authorization"] = f"Bearer {args.api_key}"
    data = None if body is None else json.dumps(body).encode()
    for attempt in range(120):
        try:
            urllib.request.urlopen(
                urllib.request.Request(args.url() + path, data, headers), timeout=600
            ).read()
            return
        except OSError:
            time.sleep(0.05 if attempt < 20 else 1)
