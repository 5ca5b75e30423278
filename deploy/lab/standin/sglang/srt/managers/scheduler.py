"""The scheduler process: start-up phases with the engine's log lines, then verify steps over a batch of requests."""

import logging
import time
import traceback
import zlib
from multiprocessing.connection import Connection
from typing import Any, Dict, List, Optional

from sglang.srt.process import become, tell_parent_of_failure
from sglang.srt.scenario import Scenario
from sglang.srt.server_args import ServerArgs, configure_logging, read_model_config

logger = logging.getLogger(__name__)
VOCABULARY = 512
DRAFTED = 3  # draft tokens a step; exactly one of them is accepted, so that the accept length is 2.0


def next_token(prefix: List[int]) -> int:
    """The model: a function of every token before it, so that one wrong commit changes all that follow."""
    return zlib.crc32(b"".join(token.to_bytes(4, "little") for token in prefix)) % VOCABULARY


class Request:
    """One sequence in the batch. `wanted` counts output tokens; a wrong commit is made at `wrong_at`."""

    def __init__(self, message: Dict[str, Any], wrong_at: Optional[int]) -> None:
        self.rid: str = message["rid"]
        self.prompt: List[int] = message["input_ids"]
        self.wanted: int = message["max_new_tokens"]
        self.stream: bool = message["stream"]
        self.wrong_at = wrong_at
        self.output: List[int] = []
        self.steps = 0

    def commit(self, count: int) -> None:
        """Append `count` tokens (fewer at the end)."""
        for _ in range(min(count, self.wanted - len(self.output))):
            token = next_token(self.prompt + self.output)
            wrong = len(self.output) == self.wrong_at
            self.output.append((token + 1) % VOCABULARY if wrong else token)

    @property
    def finished(self) -> bool:
        """Whether all tokens are there."""
        return len(self.output) >= self.wanted


class Scheduler:
    """One rank. Rank 0 answers; the others only start, as far as an outside observer can tell."""

    def __init__(self, args: ServerArgs, scenario: Scenario, rank: int, main_pid: int) -> None:
        self.args, self.scenario, self.rank, self.main_pid = args, scenario, rank, main_pid
        self.tokens = args.max_total_tokens or 32768
        self.running: List[Request] = []
        self.steps = 0
        self.said_verify = False
        capacity = scenario.get("capacity", {})
        self.tokens = capacity.get("max_total_num_tokens", self.tokens)
        self.max_running = capacity.get("max_running_requests", args.max_running_requests or 48)
        longest = args.context_length or args.model_config().get("max_position_embeddings", 4096)
        self.context_len = capacity.get("context_len", longest)

    def start(self) -> Dict[str, Any]:
        """Log and wait as a real start does; returns what the main process wants to know of it."""
        self._load_model(self.args.model_path, draft=False)
        if self.args.speculative_draft_model_path:
            self._load_model(self.args.speculative_draft_model_path, draft=True)
        if self.args.block_draft:
            name = self.args.speculative_algorithm
            backend = self.args.attention_backend
            logger.info(
                f"Initialized {name} draft runner. attention_backend={backend}, model=DFlashDraftModel, "
                "block_size=4, draft_window_size=None, compact_cache=False"
            )
            logger.info(
                f"{name} draft runner ready. mask_token=<|MASK|>, mask_token_id=511, mask_token_id_override=511"
            )
        logger.info(
            f"max_total_num_tokens={self.tokens}, chunked_prefill_size={self.args.chunked_prefill_size}, "
            f"max_prefill_tokens={self.args.max_prefill_tokens}, max_running_requests={self.max_running}, "
            f"context_len={self.context_len}, available_{self._memory()}_mem=130.38 GB"
        )
        info = {
            "status": "ready",
            "max_total_num_tokens": self.tokens,
            "max_req_input_len": self.context_len - 6,
        }
        return {"info": info, "max_running_requests": self.max_running}

    def _memory(self) -> str:
        return "cpu" if self.args.device == "cpu" else "gpu"

    def _load_model(self, path: str, draft: bool) -> None:
        logger.info("Init torch distributed begin.")
        logger.info("Init torch distributed ends. elapsed=0.01 s, mem usage=0.00 GB")
        kind = read_model_config(path).get("architectures", ["Unknown"])[0]
        logger.info("Load weight begin. avail mem=130.76 GB")
        if not draft:
            self.scenario.reach("weights", self.main_pid)
        logger.info(f"Load weight end. elapsed=0.01 s, type={kind}, avail mem=130.81 GB, mem usage=0.05 GB.")
        logger.info("Using KV cache dtype: torch.bfloat16")
        logger.info(f"KV Cache is allocated. #tokens: {self.tokens}, K size: 0.03 GB, V size: 0.03 GB")
        logger.info("Memory pool end. avail mem=130.74 GB")
        if not self.args.disable_cuda_graph and self.args.device != "cpu":
            logger.info("Capture cuda graph begin. This can take up to several minutes. avail mem=130.61 GB")
            logger.info("Capture cuda graph bs [1, 2, 4, 8]")
            if not draft:
                self.scenario.reach("graphs", self.main_pid)
            logger.info(
                "Capture cuda graph end. Time elapsed: 0.01 s. mem usage=0.21 GB. avail mem=130.40 GB."
            )
        elif not draft:
            self.scenario.reach("graphs", self.main_pid)

    def run(self, inbox: Connection, outbox: Connection) -> None:
        """The event loop: admit what came, step the batch, send what finished (or streams)."""
        pause = float(self.scenario.get("step_seconds", 0))
        while True:
            new = 0
            while inbox.poll(0 if self.running or new else None):
                new += self._admit(inbox.recv())
            if new:
                logger.info(
                    f"Prefill batch, #new-seq: {new}, #new-token: {sum(len(r.prompt) for r in self.running[-new:])}, "
                    f"#cached-token: 0, token usage: 0.00, #running-req: {len(self.running) - new}, #queue-req: 0, "
                    "#pending-token: 0, cuda graph: False, input throughput (token/s): 4.77"
                )
            time.sleep(pause)
            for request in self.running:
                self._step(request)
                if request.finished or request.stream:
                    outbox.send(self._reply(request))
            self.running = [request for request in self.running if not request.finished]

    def _admit(self, message: Dict[str, Any]) -> int:
        wrong_at = self.scenario.get("garbage_at", 0) if self.scenario.get("generate") == "garbage" else None
        self.running.append(Request(message, None if message["health"] else wrong_at))
        return 1

    def _step(self, request: Request) -> None:
        if not request.output:
            request.commit(1)
            return
        request.commit(2 if self.args.speculative_algorithm else 1)
        request.steps += 1
        self.steps += 1
        if self.args.block_draft and not self.said_verify:
            self.said_verify = True
            logger.info(
                f"{self.args.speculative_algorithm} verify completed. num_accepted_drafts_per_req=[1]"
            )
        if self.steps % 40 == 0:
            spec = "accept len: 2.00, accept rate: 0.33, " if self.args.speculative_algorithm else ""
            logger.info(
                f"Decode batch, #running-req: {len(self.running)}, #token: {len(request.prompt + request.output)}, "
                f"token usage: 0.00, {spec}cuda graph: False, gen throughput (token/s): 163.69, #queue-req: 0"
            )

    def _reply(self, request: Request) -> Dict[str, Any]:
        return {
            "rid": request.rid,
            "output_ids": list(request.output),
            "steps": request.steps,
            "done": request.finished,
        }


def run_scheduler_process(
    args: ServerArgs,
    scenario: Scenario,
    rank: int,
    main_pid: int,
    ready: Connection,
    inbox: Connection,
    outbox: Connection,
) -> None:
    """Target of the spawned process. `ready` gets one dict; a failure is told to the main process by SIGQUIT."""
    suffix = f"_TP{rank}" if args.tp_size > 1 else ""
    become("sglang::scheduler" + suffix)
    configure_logging(args.log_level, suffix.replace("_", " "))
    try:
        if rank == 0:
            scenario.reach("spawn", main_pid)
        scheduler = Scheduler(args, scenario if rank == 0 else Scenario({}), rank, main_pid)
        ready.send(scheduler.start())
        scheduler.run(inbox, outbox)
    except SystemExit as wanted:
        ready.send({"exit": int(str(wanted).rpartition(":")[2])})
        time.sleep(60)
    except (EOFError, KeyboardInterrupt):
        return
    except Exception as error:
        text = str(error) if type(error).__name__ == "StandinFailure" else traceback.format_exc()
        logger.error("Scheduler hit an exception: %s\n", text)
        tell_parent_of_failure()
        time.sleep(60)
