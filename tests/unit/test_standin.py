"""The engine stand-in does what its scenario says: healthy start, each way to fail, and a series that applies to it."""

from __future__ import annotations

import base64
import csv
import hashlib
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from ddtree_ops.engine.patch import apply_series
from ddtree_ops.engine.series import load_series

pytestmark = pytest.mark.tier("main")
STANDIN = Path(__file__).parents[2] / "deploy" / "lab" / "standin"
DFLASH = ["--speculative-algorithm", "DFLASH", "--speculative-draft-model-path", "{models}/draft"]


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"standin_{name}", STANDIN / f"{name}.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


probes = load("probes")
installer = load("install")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(installer.install(str(tmp_path_factory.mktemp("host"))))


@pytest.fixture
def start(home: Path, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    servers: list[Any] = []

    def run(
        *extra: str, rules: Any = None, package: Path = STANDIN, port: int | None = None, **env: str
    ) -> Any:
        scenario = tmp_path / f"{len(servers)}.json"
        scenario.write_text(rules if isinstance(rules, str) else json.dumps(rules or []))
        models = str(home / "models")
        command = [
            sys.executable,
            "-m",
            "sglang.launch_server",
            "--model-path",
            models + "/target",
            "--tp",
            "1",
        ]
        command += [part.replace("{models}", models) for part in extra]
        environment = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(package),
            "STANDIN_SCENARIO": str(scenario),
        }
        environment |= {"PYTHONPYCACHEPREFIX": str(home.parent / "pycache"), **env}
        log = tmp_path / f"{len(servers)}.log"
        servers.append(probes.Server(command, environment, str(log), port or probes.free_ports(1)[0]))
        return servers[-1]

    yield run
    for server in servers:
        server.close()


def rule(**then: Any) -> list[dict[str, Any]]:
    return [{"when": {}, "then": then}]


def patched(series: str, tmp_path: Path) -> Path:
    shutil.copytree(STANDIN / "sglang", tmp_path / "over" / "sglang")
    for name in (STANDIN / series / "series").read_text().split():
        subprocess.run(
            ["git", "apply", "-p1", str(STANDIN / series / name)],
            cwd=tmp_path / "over" / "sglang",
            check=True,
        )
    return tmp_path / "over"


def test_healthy_dflash_serves_and_drains(start: Callable[..., Any]) -> None:
    server = start(*DFLASH, rules=rule(delay={"serve": 0.6}, step_seconds=0.02))
    assert server.statuses_until_ready(60) == [0, 503, 200]
    one, again = server.generate([1, 2, 3], 16)[1], server.generate([1, 2, 3], 16)[1]
    assert one["output_ids"] == again["output_ids"]
    assert (one["meta_info"]["spec_accept_length"], one["meta_info"]["spec_verify_ct"]) == (2.0, 8)
    # the next token depends on the whole prefix, so continuing from a prefix gives the same tail
    assert server.generate([1, 2, 3, *one["output_ids"][:5]], 11)[1]["output_ids"] == one["output_ids"][5:]
    assert server.generate([9, 2, 3], 16)[1]["output_ids"] != one["output_ids"]
    info = server.ask("/get_server_info")[1]
    assert info["speculative_algorithm"] == "DFLASH" and info["port"] == server.port and info["tp_size"] == 1
    os.kill(server.process.pid, signal.SIGTERM)
    assert server.wait_log("SIGTERM received.", 60)
    assert server.ask("/health")[0] == 503
    assert server.wait_exit(60) == -signal.SIGKILL
    assert "Remaining number of requests 0." in server.log()


def test_request_in_flight_is_answered_before_a_graceful_end(start: Callable[..., Any]) -> None:
    server = start(rules=rule(step_seconds=0.05))
    assert server.wait_log(probes.READY, 60)
    code = (
        "import json,urllib.request as u;"
        f"r=u.Request('http://127.0.0.1:{server.port}/generate',"
        "json.dumps({'input_ids':[1],'sampling_params':{'max_new_tokens':20}}).encode());"
        "print(len(json.load(u.urlopen(r))['output_ids']))"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as client:
        assert server.wait_log("#new-token: 1,", 60)
        os.kill(server.process.pid, signal.SIGTERM)
        assert client.communicate(timeout=10)[0].strip() == "20"
    assert server.wait_exit(60) == -signal.SIGKILL
    assert "Remaining number of requests 1." in server.log()


def test_api_key_is_printed_and_asked_for(start: Callable[..., Any]) -> None:
    server = start("--api-key", "s3cret", "--enable-metrics")
    assert server.statuses_until_ready(60)[-1] == 200
    assert "api_key='s3cret'" in server.log()
    assert server.ask("/get_server_info")[0] == 401
    info = server.ask("/get_server_info", headers={"Authorization": "Bearer s3cret"})[1]
    assert info["api_key"] == "s3cret"
    assert "sglang:num_requests_total" in probes.metric_types(server.ask("/metrics")[1])


@pytest.mark.parametrize("argv", [["--speculative-algorithm", "DDTREE"], ["--nonesuch"]])
def test_unknown_argument_is_argparse_error(start: Callable[..., Any], argv: list[str]) -> None:
    server = start(*argv)
    assert server.wait_exit(60) == 2
    assert "invalid choice: 'DDTREE'" in server.log() or "unrecognized arguments: --nonesuch" in server.log()


def test_port_above_55535_is_refused(start: Callable[..., Any]) -> None:
    server = start(port=60361)
    assert server.wait_exit(60) == 1
    assert "SGLANG_GRPC_PORT (70361) must be between 1 and 65535" in server.log()


def test_missing_draft_is_refused_before_anything_loads(start: Callable[..., Any]) -> None:
    server = start("--speculative-algorithm", "DFLASH")
    assert server.wait_exit(60) == 1
    assert "requires setting --speculative-draft-model-path" in server.log()


@pytest.mark.parametrize(
    ("then", "status", "line"),
    [
        ({"exit": {"import": 7}}, 7, ""),
        ({"raise": {"import": ["ImportError: a.so: undefined symbol: _Z1f"]}}, 1, "undefined symbol: _Z1f"),
        (
            {"raise": {"spawn": ["ImportError: no x"]}},
            1,
            "Rank 0 scheduler died during initialization (exit code: 1)",
        ),
        (
            {"raise": {"weights": ["torch.OutOfMemoryError: CUDA"]}},
            -9,
            "Received sigquit from a child process.",
        ),
        (
            {"raise": {"graphs": ["RuntimeError: capture"]}},
            -9,
            "Scheduler hit an exception: RuntimeError: capture",
        ),
        ({"exit": {"weights": "SIGKILL"}}, 1, "(exit code: -9)"),
        ({"exit_main": {"weights": 0}}, 0, "Load weight begin."),
        ({"exit_main": {"graphs": "SIGKILL"}}, -9, "Memory pool end."),
        ({"exit": {"serve": 0}}, 0, "Uvicorn running"),
        ({"exit": {"ready": 5}}, 5, probes.READY),
        ({"die_after": {"seconds": 0, "process": "main", "signal": "SIGSEGV"}}, -11, probes.READY),
        (
            {"die_after": {"seconds": 0, "process": "detokenizer", "signal": "SIGKILL"}},
            -9,
            "Subprocess detokenizer",
        ),
    ],
)
def test_a_start_fails_as_told(
    start: Callable[..., Any], then: dict[str, Any], status: int, line: str
) -> None:
    server = start("--cuda-graph-max-bs", "8", rules=rule(**then))
    assert server.wait_exit(60) == status, server.log()
    assert line in server.log()


@pytest.mark.parametrize(("phase", "line"), [("weights", "Load weight begin."), ("serve", "Uvicorn running")])
def test_hang_is_silent_and_idle(start: Callable[..., Any], phase: str, line: str) -> None:
    server = start(rules=rule(hang=phase))
    assert server.wait_log(line, 60)
    pids = (server.process.pid, server.child("sglang::scheduler"), server.child("sglang::detokenizer"))

    def seen() -> tuple[list[list[str]], str]:
        stats = [Path(f"/proc/{pid}/stat").read_text() for pid in pids]
        return [stat.rsplit(")", 1)[1].split()[11:13] for stat in stats], server.log()

    for _ in range(20):  # the other processes may still be starting
        before = seen()
        time.sleep(0.5)
        if seen() == before:
            break
    else:
        pytest.fail("it never came to rest")
    assert server.ask("/health")[0] == {"weights": 0, "serve": 503}[phase]


def test_slow_start_shows_progress(start: Callable[..., Any]) -> None:
    server = start(
        rules=rule(slow={"weights": 0.6}, delay={"graphs": 0.1}, log={"graphs": ["JIT: my own line"]})
    )
    assert server.wait_log(probes.READY, 60)
    assert "Completed | 2/3" in server.log() and "\nJIT: my own line\n" in server.log()


def test_rules_apply_where_their_when_holds(start: Callable[..., Any]) -> None:
    rules = [{"when": {"algorithm": "DFLASH"}, "then": {"exit": {"import": 9}}}]
    assert start(*DFLASH, rules=rules).wait_exit(60) == 9
    assert start(rules=rules).wait_log(probes.READY, 60)
    elsewhere = [{"when": {"package": "/opt/ddtree/*"}, "then": {"exit": {"import": 9}}}]
    assert start(rules=elsewhere).wait_log(probes.READY, 60)


def test_lies_after_ready(start: Callable[..., Any]) -> None:
    then = {"generate": "garbage", "garbage_at": 3, "server_info": {"speculative_algorithm": "NGRAM"}}
    bad = start(*DFLASH, rules=rule(**then, capacity={"max_total_num_tokens": 99}))
    good = start(*DFLASH)
    assert bad.statuses_until_ready(60)[-1] == good.statuses_until_ready(60)[-1] == 200
    wrong, right = (server.generate([1, 2], 12)[1]["output_ids"] for server in (bad, good))
    assert wrong[:3] == right[:3] and all(a != b for a, b in zip(wrong[3:], right[3:], strict=True))
    info = bad.ask("/get_server_info")[1]
    assert (info["speculative_algorithm"], info["max_total_num_tokens"]) == ("NGRAM", 99)
    assert "max_total_num_tokens=99," in bad.log()


def test_generate_fails_while_health_says_200(start: Callable[..., Any]) -> None:
    broken, hanging = start(rules=rule(generate="error")), start(rules=rule(generate="hang"))
    for server in (broken, hanging):
        assert server.statuses_until_ready(60)[-1] == 200
    assert broken.generate([1], 2)[0] == 500
    with pytest.raises(TimeoutError):
        hanging.ask("/generate", {"text": "x"}, limit_s=0.5)
    assert broken.ask("/health")[0] == hanging.ask("/health")[0] == 200
    os.kill(hanging.process.pid, signal.SIGTERM)
    assert hanging.wait_log("Remaining number of requests 1.", 60)
    assert hanging.wait_exit(0.6) is None


def test_missing_draft_directory_fails_in_the_scheduler(start: Callable[..., Any]) -> None:
    server = start("--speculative-algorithm", "DFLASH", "--speculative-draft-model-path", "/nonesuch")
    assert server.wait_exit(60) == -signal.SIGKILL
    assert "OSError: /nonesuch does not appear to have a file named config.json." in server.log()
    assert "Received sigquit from a child process." in server.log()


def test_sigint_sigterm_ignored_and_taken_port(start: Callable[..., Any]) -> None:
    first = start(rules=rule(ignore_sigterm=True))
    assert first.wait_log(probes.READY, 60)
    second = start(port=first.port)
    assert second.wait_exit(60) == 3
    text = second.log()
    assert text.index("address already in use") < text.index(probes.READY)
    os.killpg(first.process.pid, signal.SIGTERM)
    assert first.wait_exit(0.7) is None and first.ask("/health")[0] == 200
    os.kill(first.process.pid, signal.SIGINT)
    assert first.wait_exit(60) == 0


def test_stopped_scheduler_turns_health_503(start: Callable[..., Any]) -> None:
    server = start(SGLANG_HEALTH_CHECK_TIMEOUT="1")
    assert server.wait_log(probes.READY, 60)
    pid = server.child("sglang::scheduler")
    os.kill(pid, signal.SIGSTOP)
    assert server.ask("/health")[0] == 503
    assert "couldn't get a response from detokenizer for last 1 seconds" in server.log()
    os.kill(pid, signal.SIGCONT)
    assert server.ask("/health")[0] == 200
    os.kill(pid, signal.SIGSTOP)  # it cannot notice by itself that its parent is gone
    os.kill(server.process.pid, signal.SIGKILL)
    server.process.wait()
    for _ in range(100):
        if not Path(f"/proc/{pid}").exists() or ") Z " in Path(f"/proc/{pid}/stat").read_text():
            return
        time.sleep(0.02)
    pytest.fail("the scheduler outlived its parent")


def test_two_ranks_log_under_their_names(start: Callable[..., Any]) -> None:
    server = start("--tp", "2")
    assert server.wait_log(probes.READY, 60)
    assert " TP0] Load weight begin" in server.log() and " TP1] Load weight begin" in server.log()
    assert server.child("sglang::scheduler_TP1") != server.child("sglang::scheduler_TP0")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{", "not JSON"),
        ("{}", "expected a list of rules"),
        ('[{"when": {}}]', "rule 1: expected"),
        ('[{"when": {}, "then": {"hnag": "weights"}}]', "rule 1: unknown behaviour 'hnag'"),
        ('[{"when": {}, "then": {"hang": "wieghts"}}]', "rule 1: hang: unknown phase 'wieghts'"),
        ('[{"when": {}, "then": {"exit": {"import": "SIGNOPE"}}}]', "neither an exit code nor a signal name"),
    ],
)
def test_bad_scenario_is_one_sentence(start: Callable[..., Any], text: str, sentence: str) -> None:
    server = start(rules=text)
    assert server.wait_exit(60) == 1
    assert sentence in server.log() and "Traceback" not in server.log()


def test_series_adds_ddtree(start: Callable[..., Any], tmp_path: Path) -> None:
    shadow = [*DFLASH, "--speculative-algorithm", "DDTREE", "--speculative-ddtree-budget", "24"]
    shadow += ["--speculative-ddtree-topk-cap", "6", "--speculative-ddtree-shadow-linear"]
    server, plain = start(*shadow, package=patched("series", tmp_path)), start(*DFLASH)
    assert server.statuses_until_ready(60)[-1] == plain.statuses_until_ready(60)[-1] == 200
    info = server.ask("/get_server_info")[1]
    assert info["internal_states"][0]["ddtree_mode"] == "shadow-linear"
    said = {
        key: info[key] for key in info if key.startswith("speculative_ddtree") or key.endswith("_algorithm")
    }
    assert said["speculative_algorithm"] == "DDTREE" and said["speculative_ddtree_budget"] == 24
    assert said["speculative_ddtree_topk_cap"] == 6 and said["speculative_ddtree_shadow_linear"] is True
    assert server.generate([5, 6], 9)[1]["output_ids"] == plain.generate([5, 6], 9)[1]["output_ids"]


def test_two_line_series_changes_its_line(start: Callable[..., Any], tmp_path: Path) -> None:
    server = start(package=patched("series-two-lines", tmp_path))
    assert server.wait_log("Init torch distributed begin (our own build).", 30)


@pytest.mark.parametrize(
    ("series", "modes"), [("series", ["dflash", "shadow", "full"]), ("series-two-lines", ["custom"])]
)
def test_the_product_reads_the_series(series: str, modes: list[str]) -> None:
    loaded = load_series(STANDIN / series)
    assert list(loaded.modes.modes) == modes
    assert set(apply_series(loaded, STANDIN / "sglang").files) == set(loaded.base)


@pytest.mark.parametrize("series", ["series", "series-two-lines"])
def test_pre_image_hashes_are_those_of_the_package(series: str) -> None:
    base = json.loads((STANDIN / series / "base.json").read_text())
    assert base["files"] == load("rehash").pre_images(series), (
        "run deploy/lab/standin/rehash.py after an edit"
    )


def test_installed_tree_has_a_true_record_and_starts(home: Path, tmp_path: Path) -> None:
    (site,) = home.glob("lib/python3.*/site-packages")
    for info in site.glob("*.dist-info"):
        rows = list(csv.reader((info / "RECORD").open()))
        for path, digest, _ in rows[:-1]:
            sha = hashlib.sha256((site / path).read_bytes()).digest()
            assert digest == "sha256=" + base64.urlsafe_b64encode(sha).rstrip(b"=").decode(), path
    script = (
        "import importlib.metadata as m, multiprocessing as p, sys\n"
        "import sglang.launch_server, sglang.srt.entrypoints.http_server, sglang.srt.managers.scheduler\n"
        "from sglang.srt.server_args import prepare_server_args\n"
        "print(m.version('sglang'), m.version('sglang-kernel'), m.version('torch'), sglang.__file__)\n"
    )
    run = [str(home / "bin" / "python3"), "-I", "-c", script]
    if Path("/usr/bin/python3.11").exists():
        out = subprocess.run(run, capture_output=True, text=True, check=True).stdout.split()
        assert out[:3] == ["0.5.11", "0.4.2+cu130", "2.11.0"] and out[3].startswith(str(site))
    older = Path(installer.install(str(tmp_path), torch_cuda="12.8"))
    assert "cuda = '12.8'" in next(older.glob("lib/*/site-packages/torch/version.py")).read_text()


def test_install_into_nowhere_is_one_sentence(tmp_path: Path) -> None:
    command = [sys.executable, str(STANDIN / "install.py"), str(tmp_path / "nowhere")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "is no directory" in done.stderr
