"""The main process's side of the engine: the child processes, the requests in flight, and the watch over both."""

import logging
import multiprocessing
import os
import queue
import signal
import threading
import time
import uuid
from typing import Any, Dict, Iterator, List

from sglang.srt.managers.detokenizer_manager import run_detokenizer_process
from sglang.srt.managers.scheduler import run_scheduler_process
from sglang.srt.scenario import Scenario
from sglang.srt.server_args import ServerArgs

logger = logging.getLogger(__name__)


class TokenizerManager:
    """Children and requests of one server. `status` is Starting, Up or UnHealthy, as in the engine."""

    def __init__(self, args: ServerArgs, scenario: Scenario) -> None:
        self.args, self.scenario = args, scenario
        self.status = "Starting"
        self.gracefully_exit = False
        self.last_receive = 0.0
        self.in_flight: Dict[str, "queue.Queue[Dict[str, Any]]"] = {}
        self.counts = {"requests": 0, "prompt": 0, "generated": 0, "steps": 0}
        self.children: Dict[str, Any] = {}
        self.lock = threading.Lock()

    def launch(self) -> Dict[str, Any]:
        """Spawn schedulers and detokenizer; the first one's answer when all are ready. RuntimeError if one dies."""
        signal.signal(signal.SIGQUIT, self._child_failed_at_launch)
        context = multiprocessing.get_context("spawn")
        from_main, self.to_scheduler = context.Pipe(duplex=False)
        from_scheduler, to_detokenizer = context.Pipe(duplex=False)
        self.from_detokenizer, to_main = context.Pipe(duplex=False)
        readers = []
        for rank in range(self.args.tp_size):
            reader, writer = context.Pipe(duplex=False)
            arguments = (self.args, self.scenario, rank, os.getpid(), writer, from_main, to_detokenizer)
            self._spawn(context, f"scheduler_{rank}", run_scheduler_process, arguments)
            writer.close()
            readers.append(reader)
        self._spawn(context, "detokenizer", run_detokenizer_process, (from_scheduler, to_main))
        infos = [self._wait_ready(rank, reader) for rank, reader in enumerate(readers)]
        signal.signal(signal.SIGQUIT, self._child_failed)
        threading.Thread(target=self._receive, daemon=True).start()
        threading.Thread(target=self._watch_children, daemon=True).start()
        return infos[0]

    def _spawn(self, context: Any, name: str, target: Any, arguments: Any) -> None:
        process = context.Process(target=target, args=arguments)
        process.start()
        self.children[name] = process

    def _wait_ready(self, rank: int, reader: Any) -> Dict[str, Any]:
        try:
            info: Dict[str, Any] = reader.recv()
        except EOFError:
            child = self.children[f"scheduler_{rank}"]
            child.join(10)
            raise RuntimeError(
                f"Rank {rank} scheduler died during initialization (exit code: {child.exitcode}). "
                "If exit code is -9 (SIGKILL), a common cause is the OS OOM killer."
            ) from None
        if "exit" in info:
            self.kill_children()
            os._exit(info["exit"])
        return info

    def _child_failed_at_launch(self, *_: Any) -> None:
        logger.error("Received sigquit from a child process. It usually means the child failed.")
        self.kill_tree()

    def _child_failed(self, *_: Any) -> None:
        logger.error("SIGQUIT received. signum=None, frame=None. It usually means one child failed.")
        self.kill_tree()

    def kill_children(self) -> None:
        """SIGKILL to every child; they are reaped when this process ends."""
        for process in self.children.values():
            process.kill()

    def kill_tree(self) -> None:
        """End as the engine does, whatever the reason: SIGKILL to the children, then to this process."""
        self.kill_children()
        os.kill(os.getpid(), signal.SIGKILL)

    def _watch_children(self) -> None:
        while True:
            time.sleep(1.0)
            for name, process in self.children.items():
                if process.exitcode:
                    logger.error(
                        f"Subprocess {name} (pid={process.pid}) crashed with exit code {process.exitcode}. "
                        "Triggering SIGQUIT for cleanup..."
                    )
                    os.kill(os.getpid(), signal.SIGQUIT)
                    return

    def _receive(self) -> None:
        try:
            while True:
                reply = self.from_detokenizer.recv()
                self.last_receive = time.time()
                waiting = self.in_flight.get(reply["rid"])
                if waiting:
                    waiting.put(reply)
        except (EOFError, OSError):
            return

    def generate(
        self, input_ids: List[int], max_new_tokens: int, stream: bool, health: bool = False
    ) -> Iterator[Any]:
        """Replies of one request: cumulative ones when streaming, else only the last."""
        rid = ("HEALTH_CHECK_" if health else "") + uuid.uuid4().hex
        replies: "queue.Queue[Dict[str, Any]]" = queue.Queue()
        self.in_flight[rid] = replies
        message = {
            "rid": rid,
            "input_ids": input_ids,
            "max_new_tokens": max_new_tokens,
            "stream": stream,
            "health": health,
        }
        try:
            with self.lock:
                self.to_scheduler.send(message)
            while True:
                reply = replies.get()
                yield reply
                if reply["done"]:
                    self._count(input_ids, reply)
                    return
        finally:
            self.in_flight.pop(rid, None)

    def _count(self, input_ids: List[int], reply: Dict[str, Any]) -> None:
        added = {
            "requests": 1,
            "prompt": len(input_ids),
            "generated": len(reply["output_ids"]),
            "steps": reply["steps"],
        }
        with self.lock:
            self.counts = {name: count + added[name] for name, count in self.counts.items()}

    def healthy(self) -> bool:
        """Generate one token, as /health of 0.5.11 does; True as soon as anything came back, False after 20 s."""
        limit = int(os.environ.get("SGLANG_HEALTH_CHECK_TIMEOUT", "20"))
        tic = time.time()
        threading.Thread(target=lambda: list(self.generate([0], 1, False, health=True)), daemon=True).start()
        while time.time() < tic + limit:
            time.sleep(0.02)
            if self.last_receive > tic:
                self.status = "Up"
                return True
        clock = [time.strftime("%H:%M:%S", time.localtime(moment)) for moment in (tic, self.last_receive)]
        logger.error(
            f"Health check failed. Server couldn't get a response from detokenizer for last {limit} seconds. "
            f"tic start time: {clock[0]}. last_heartbeat time: {clock[1]}"
        )
        self.status = "UnHealthy"
        return False

    def drain(self) -> None:
        """After SIGTERM: wait for the requests in flight, then end by SIGKILL of the whole tree."""
        while True:
            if self.status == "UnHealthy":
                logger.error("Signal SIGTERM received while health check failed. Force exiting.")
                self.kill_tree()
            remaining = [rid for rid in self.in_flight if not rid.startswith("HEALTH_CHECK_")]
            logger.info(
                f"Gracefully exiting... Remaining number of requests {len(remaining)}. "
                f"Remaining requests remaining_rids={remaining}."
            )
            if not remaining:
                self.kill_tree()
            time.sleep(0.5)
