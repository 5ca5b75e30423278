"""The stand-in against the real SGLang 0.5.11 (DFLASH on the cycle pair): same probes, same shapes, same ends."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from real_engine import PYTHON, environment

ROOT = Path(__file__).parents[2]
STANDIN = ROOT / "deploy" / "lab" / "standin"
pytestmark = [pytest.mark.tier("main"), pytest.mark.engine]
ARGV = [
    "--device",
    "cpu",
    "--attention-backend",
    "triton",
    "--disable-cuda-graph",
    "--max-total-tokens",
    "4096",
    "--dtype",
    "bfloat16",
    "--grammar-backend",
    "none",
    "--max-running-requests",
    "8",
    "--mem-fraction-static",
    "0.5",
    "--speculative-algorithm",
    "DFLASH",
]
# What the product reads of /server_info, and must find with the same value for the same command line.
READ = [
    "model_path",
    "port",
    "host",
    "tp_size",
    "version",
    "status",
    "max_total_num_tokens",
    "max_req_input_len",
    "max_running_requests",
    "speculative_algorithm",
    "speculative_draft_model_path",
    "speculative_num_draft_tokens",
    "speculative_num_steps",
    "disable_radix_cache",
    "attention_backend",
    "context_length",
    "api_key",
    "served_model_name",
]
# Lines that a watcher acts on: the real engine must print them, so must the stand-in, in this order.
MILESTONES = [
    "server_args=ServerArgs(",
    "Init torch distributed begin.",
    "Load weight begin. avail mem=N GB",
    "Load weight end. elapsed=N s, type=QwenNForCausalLM, avail mem=N GB, mem usage=N GB.",
    "Memory pool end. avail mem=N GB",
    "max_total_num_tokens=N, chunked_prefill_size=N, max_prefill_tokens=N, max_running_requests=N, "
    "context_len=N, available_cpu_mem=N GB",
    "INFO:     Application startup complete.",
    "INFO:     Uvicorn running on http://N.N:N (Press CTRL+C to quit)",
    "The server is fired up and ready to roll!",
]


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"standin_{name}", STANDIN / f"{name}.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


probes = load("probes")


@dataclass
class Seen:
    """What one engine showed."""

    statuses: list[int]
    start_lines: list[str]
    shapes: dict[str, Any]
    info: dict[str, Any]
    states: dict[str, Any]
    metrics: dict[str, str]
    generated: dict[str, Any]
    ends: dict[str, tuple[int | None, list[str]]]
    usage_error: tuple[int, str]


def has_prometheus() -> bool:
    """The real engine cannot start with --enable-metrics without prometheus_client."""
    done = subprocess.run([str(PYTHON), "-c", "import prometheus_client"], capture_output=True, check=False)
    return done.returncode == 0


def engine(which: str, models: Path, tmp: Path) -> tuple[list[str], dict[str, str]]:
    """Command and environment of the real engine or of the stand-in."""
    model = ["--model-path", str(models / "cyc_target")]
    model += ["--speculative-draft-model-path", str(models / "cyc_draft")]
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp), "PYTHONPATH": str(STANDIN)}
    if which == "standin":
        scenario = tmp / "scenario.json"
        scenario.write_text(json.dumps([{"when": {}, "then": {"delay": {"serve": 1.0}}}]))
        env["STANDIN_SCENARIO"] = str(scenario)
        return [sys.executable, "-B", "-m", "sglang.launch_server", *ARGV, *model], env
    return [str(PYTHON), "-m", "sglang.launch_server", *ARGV, *model], environment()


def end(server: Any, pid: int, number: int) -> tuple[int | None, list[str]]:
    """Send a signal; exit status of the main process, and the lines it printed from then on."""
    before = len(probes.skeleton(server.log()))
    os.kill(pid, number)
    return server.wait_exit(30), probes.skeleton(server.log())[before:]


def observe(which: str, models: Path, tmp: Path) -> Seen:
    """Three servers at once (imports take the time), a fourth on a taken port, one with a wrong flag."""
    command, env = engine(which, models, tmp)
    metrics = ["--enable-metrics"] if has_prometheus() else []
    ports = probes.free_ports(8)
    with ExitStack() as stack:

        def start(name: str, port: int, *more: str) -> Any:
            log = str(tmp / f"{which}-{name}.log")
            # the engine's own choice of this port is a race when several start at once
            own = ["--nccl-port", str(ports.pop())]
            return stack.enter_context(probes.Server([*command, *own, *more], env, log, port))

        main, term = start("main", ports.pop(), *metrics), start("term", ports.pop())
        interrupt = start("interrupt", ports.pop())
        statuses = main.statuses_until_ready(180)
        assert statuses[-1:] == [200], main.log()[-3000:]
        for other in (term, interrupt):
            assert other.wait_log(probes.READY, 120), other.log()[-3000:]
        taken = start("taken", main.port)
        wrong = start("wrong", main.port, "--speculative-algorithm", "DDTREE")
        start_lines = probes.skeleton(main.log()[: main.log().index(probes.READY) + len(probes.READY)])
        shapes = probes.ready_shapes(main)
        shapes["metrics off"] = term.ask("/metrics")[0]
        info = main.ask("/get_server_info")[1]
        states = info.pop("internal_states")[0]
        page = str(main.ask("/metrics")[1])
        generated = main.generate([65, 66, 65], 16)[1]
        ends = {
            "SIGTERM": end(term, term.process.pid, signal.SIGTERM),
            "SIGINT": end(interrupt, interrupt.process.pid, signal.SIGINT),
            "taken port": (taken.wait_exit(120), probes.skeleton(taken.log())),
        }
        ends["scheduler killed"] = end(main, main.child("sglang::scheduler"), signal.SIGKILL)
        usage = (wrong.wait_exit(60), wrong.log().strip().splitlines()[-1])
    return Seen(
        statuses, start_lines, shapes, info, states, probes.metric_types(page), generated, ends, usage
    )


@pytest.fixture(scope="module")
def pair(models: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Seen, Seen]:
    tmp = tmp_path_factory.mktemp("contract")
    return observe("standin", models, tmp), observe("real", models, tmp)


def in_order(lines: list[str], within: list[str]) -> str:
    """The first of `lines` that `within` has not, in this order; empty when it has all."""
    rest = iter(within)
    return next((line for line in lines if line not in rest), "")


def test_every_start_line_is_one_of_the_engine_in_its_order(pair: tuple[Seen, Seen]) -> None:
    standin, real = pair
    assert in_order(standin.start_lines, real.start_lines) == ""
    for seen in pair:
        assert in_order(MILESTONES, seen.start_lines) == ""


def test_health_from_refused_to_ready(pair: tuple[Seen, Seen]) -> None:
    standin, real = pair
    assert standin.statuses == real.statuses == [0, 503, 200]


def test_endpoints_answer_alike(pair: tuple[Seen, Seen]) -> None:
    standin, real = pair
    assert standin.shapes == real.shapes


def test_accept_length_is_that_of_the_cycle_pair(pair: tuple[Seen, Seen]) -> None:
    names = [
        "spec_accept_length",
        "spec_accept_rate",
        "spec_verify_ct",
        "spec_accepted_drafts",
        "completion_tokens",
    ]
    standin, real = ({name: seen.generated["meta_info"][name] for name in names} for seen in pair)
    assert standin == real
    assert real["spec_accept_length"] == 2.0


def test_server_info(pair: tuple[Seen, Seen]) -> None:
    standin, real = pair
    volatile = {"port"}
    values = [{name: seen.info[name] for name in READ if name not in volatile} for seen in pair]
    assert values[0] == values[1]
    assert set(standin.info) == set(real.info)
    for name in ("memory_usage", "effective_max_running_requests_per_dp", "last_gen_throughput"):
        assert probes.shape(standin.states[name]) == probes.shape(real.states[name])


def test_metric_names_and_types(pair: tuple[Seen, Seen]) -> None:
    standin, real = pair
    if not real.metrics:
        pytest.skip("prometheus_client is not in .venv-engine, so the real engine has no /metrics")
    assert set(real.metrics.items()) <= set(standin.metrics.items())
    # a GPU with more requests also has these two (../shared/h200/fixtures/metrics_dflash.txt)
    later = {"sglang:cached_tokens_total", "sglang:inter_token_latency_seconds"}
    assert set(standin.metrics) - set(real.metrics) <= later


@pytest.mark.parametrize(
    ("how", "status", "rarely"),
    [
        ("SIGTERM", -9, -9),
        ("SIGINT", 0, 0),
        # uvicorn gives up with 3; on a loaded machine a child's SIGQUIT was seen to overtake it
        ("taken port", 3, -9),
        ("scheduler killed", -9, -9),
    ],
)
def test_ends(pair: tuple[Seen, Seen], how: str, status: int, rarely: int) -> None:
    standin, real = pair
    assert standin.ends[how][0] == status
    assert real.ends[how][0] in (status, rarely)
    assert standin.ends[how][1], "the stand-in said nothing at its end"
    assert in_order(standin.ends[how][1], real.ends[how][1]) == ""


def test_unknown_algorithm(pair: tuple[Seen, Seen]) -> None:
    standin, real = pair
    assert standin.usage_error == real.usage_error
    assert real.usage_error[0] == 2
