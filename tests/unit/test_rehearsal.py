"""What a rehearsal runs, how small it is, what it may take of a GPU, and how its answers are judged: without a host."""

from __future__ import annotations

import http.server
import json
import os
import socket
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Callable
from http.client import IncompleteRead
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from ddtree_agent import (
    rehearsal,
    rehearsal_answers,
    rehearsal_live,
    rehearsal_model,
    rehearsal_room,
    rehearsal_unit,
    rollout,
    unitenv,
)
from ddtree_agent.layout import Layout, locked
from ddtree_agent.observe import signatures
from ddtree_agent.wire import AgentError
from ddtree_ops.core.diagnose import diagnose
from ddtree_ops.core.errors import UsageProblem
from ddtree_ops.core.modes_file import read_modes
from ddtree_ops.core.rehearsal import Small, sentence, small
from ddtree_ops.data import data_dir
from ddtree_ops.engine.series import load_series

pytestmark = pytest.mark.tier("preflight")
RULES = load_series(data_dir("engine_patches") / "sglang-0.5.11").modes.rehearse
PYTHON = ["/env/bin/python3", "-m", "sglang.launch_server"]
GIB = 1 << 30


def made(*flags: str) -> Small:
    found = small([*PYTHON, "--model-path", "/m/target", *flags], 3, RULES)
    assert isinstance(found, Small), found
    return found


def values(argv: list[str], flag: str) -> list[str]:
    return [argv[i + 1] for i, word in enumerate(argv) if word == flag]


def test_the_release_keeps_its_own_flags_and_gets_the_small_ones_once() -> None:
    mode = ["--speculative-algorithm", "DDTREE", "--speculative-draft-model-path=/m/draft", "--tp-size", "2"]
    override = '{"rope_scaling": {"port": 1}}'
    theirs = ["--port", "30000", "--host", "0.0.0.0", "--mem-fraction-static=0.85", "--api-key", "${KEY}"]
    found = made(*mode, *theirs, "--json-model-override-args", override, "--cuda-graph-bs", "1", "2", "64")
    assert found.models == {"target": "/m/target", "draft": "/m/draft"}
    for flag, value in {
        "--model-path": "{target}",
        "--speculative-draft-model-path": "{draft}",
        "--port": "{port}",
        "--host": "127.0.0.1",
        "--mem-fraction-static": "{fraction}",
        "--load-format": "dummy",
        "--speculative-draft-load-format": "dummy",
        "--speculative-algorithm": "DDTREE",
        "--tp-size": "2",
        "--json-model-override-args": override,
    }.items():
        assert values(found.argv, flag) == [value], flag
    assert "--api-key" not in found.argv
    assert not {"1", "64", "${KEY}"} & set(found.argv)
    assert found.argv[:3] == PYTHON


def test_nothing_of_it_reaches_what_the_live_server_shares_with_others() -> None:
    """KV of dummy weights in a store is read by the live server: the keys are the served name and the tokens."""
    stores = ["--hicache-storage-backend", "file", "--hicache-storage-backend-extra-config", '{"a": 1}']
    events = ["--kv-events-config", '{"publisher": "zmq", "endpoint": "tcp://router:5557"}']
    served = ["--served-model-name", "qwen", "--enable-hierarchical-cache", "--hicache-size", "200"]
    found = made(*stores, *events, "--enable-lmcache", *served, "--disaggregation-mode", "null")
    told = " ".join(found.argv)
    assert all(word not in told for word in ("storage", "file", "kv-events", "router", "lmcache", "200"))
    assert "--served-model-name qwen --enable-hierarchical-cache" in told


@pytest.mark.parametrize(
    "theirs",
    [
        ["--model-loader-extra-config", '{"enable_multithread_load": true}'],  # refused by the dummy loader
        ["--checkpoint-engine-wait-weights-before-ready"],  # never ready
        ["--kv-events-config", '{"endpoint": "tcp://*:5557"}'],  # the live server's port
        ["--hicache-storage-backend", "file"],  # the live server's cache
        ["--ssl-keyfile=/etc/key", "--ssl-keyfile-password", "${SSL_PASSWORD}"],
        ["--modelopt-export-path", "/m/out"],
    ],
    ids=lambda theirs: str(theirs[0]).partition("=")[0],
)
def test_what_belongs_to_the_live_server_or_its_weights_goes(theirs: list[str]) -> None:
    assert made("--enable-hierarchical-cache", *theirs) == made("--enable-hierarchical-cache")


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--nnodes", "2"], "several hosts"),
        (["--load-format", "gguf"], "no dummy"),
        (["--disaggregation-mode", "prefill"], "answers nothing by itself"),
        (["--encoder-only"], "answers nothing by itself"),
        (["--served-model-name", "{port}"], "uses for itself"),
    ],
)
def test_what_cannot_be_rehearsed_says_why(flags: list[str], said: str) -> None:
    found = small([*PYTHON, "--model-path", "/m", *flags], 3, RULES)
    assert isinstance(found, str)
    assert said in found


def test_a_command_line_without_model_and_a_series_without_rules_say_why() -> None:
    assert small([*PYTHON, "--port", "1"], 3, RULES) == "the command line names no model"
    assert "modes.yaml" in str(small([*PYTHON, "--model-path", "/m"], 3, None))
    assert isinstance(small([*PYTHON, "--model-path", "/m", "--nnodes", "1"], 3, RULES), Small)


@pytest.mark.parametrize(
    ("rehearse", "said"),
    [
        ([], "must be a mapping"),
        ({"smal": {}}, "unknown key smal"),
        ({"small": {"--model-path": "main"}}, "neither target nor draft"),
        ({"set": {"--port": 1}}, "no flag names the target"),
        ({"small": {"--model-path": "target"}, "refuse": [{"flag": "--x"}]}, "needs flag and reason"),
    ],
)
def test_a_fault_in_the_rules_is_named(rehearse: Any, said: str) -> None:
    with pytest.raises(UsageProblem, match=said):
        read_modes({"modes": {}, "rehearse": rehearse}, "m.yaml")


QWEN = {"model_type": "qwen3", "num_hidden_layers": 64, "architectures": ["Qwen3ForCausalLM"]}


@pytest.mark.parametrize(
    ("config", "count"),
    [
        (QWEN, 4),
        ({**QWEN, "num_hidden_layers": 2}, 2),
        ({**QWEN, "full_attention_interval": 6}, 6),
        ({**QWEN, "first_k_dense_replace": 5}, 6),
        ({**QWEN, "num_hidden_layers": 8, "layer_types": ["a", "a", "a", "a", "a", "b", "a", "b"]}, 6),
        ({"text_config": {**QWEN, "layer_types": ["linear", "linear", "linear", "full"] * 16}}, 4),
        ({"num_hidden_layers": 10, "hybrid_override_pattern": "MMMMMMMM*-"}, 10),
        ({"n_layer": 24}, 4),
        ({"hidden_size": 8}, 0),
    ],
)
def test_few_layers_hold_every_kind(config: dict[str, Any], count: int) -> None:
    assert rehearsal_model.layers(config, 4) == count


def test_what_is_said_layer_by_layer_is_cut_and_nothing_else() -> None:
    config = {
        "model_type": "qwen3",
        "vision_config": {"depth": 27},
        "text_config": {
            "model_type": "qwen3",  # five letters, as many as there are layers
            "num_hidden_layers": 5,
            "layer_types": ["linear", "linear", "full", "linear", "full"],
            "eos_token_id": [1, 2, 3, 4, 5],
            "rope_scaling": {"mrope_section": [1, 2, 3, 4, 5]},
        },
    }
    text = rehearsal_model.cut(config, 3)["text_config"]
    assert text["layer_types"] == ["linear", "linear", "full"]
    assert text["num_hidden_layers"] == 3
    assert (text["model_type"], text["eos_token_id"]) == ("qwen3", [1, 2, 3, 4, 5])
    assert config["text_config"]["num_hidden_layers"] == 5  # type: ignore[index]


def test_a_draft_reads_as_many_layers_of_the_small_target_as_of_the_big_one() -> None:
    draft = {
        "num_hidden_layers": 5,
        "num_target_layers": 64,
        "dflash_config": {
            "target_layer_ids": [1, 16, 31, 46, 61],
            "mask_token_id": 7,
            "num_target_layers": 64,
        },
    }
    assert rehearsal_model.reads(draft) == 5
    found = rehearsal_model.reading(draft, 6)
    assert found["dflash_config"] == {
        "target_layer_ids": [0, 1, 2, 3, 4],
        "mask_token_id": 7,
        "num_target_layers": 6,
    }
    assert found["num_target_layers"] == 6
    # The last layer's output is not among what the engine hands out (engine-notes): ids stay below it.
    for count in range(4, 20):
        ids = rehearsal_model.reading({"target_layer_ids": [3, 9, 40]}, count)["target_layer_ids"]
        assert sorted(set(ids)) == ids
        assert max(ids) < count - 1


def test_a_small_checkpoint_has_everything_but_weights(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for name in (
        "config.json",
        "tokenizer.json",
        "modeling.py",
        "model-00001.safetensors",
        "model.safetensors.index.json",
    ):
        (source / name).write_text("{}")
    rehearsal_model.make(str(tmp_path / "small"), {"num_hidden_layers": 4}, str(source))
    assert sorted(path.name for path in (tmp_path / "small").iterdir()) == [
        "config.json",
        "modeling.py",
        "tokenizer.json",
    ]
    assert json.loads((tmp_path / "small" / "config.json").read_text()) == {"num_hidden_layers": 4}
    assert (source / "config.json").read_text() == "{}"


def test_the_port_is_one_that_the_engine_takes_and_nobody_holds() -> None:
    """0.5.11 ends at once where 10000 above its port is none: a rehearsal on an ephemeral port blamed the release."""
    first = rehearsal.free_port()
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", first))
        holder.listen()
        second = rehearsal.free_port()
    assert first != second
    one, other = rehearsal.free_port("sglang.service"), rehearsal.free_port("second.service")
    assert one != other
    assert min(one, other) >= rehearsal.PORTS[0]
    assert max(one, other) < rehearsal.PORTS[1]
    assert max(first, second) + 10000 <= 65535


@pytest.mark.parametrize(
    ("put", "said"),
    [
        (lambda path: os.mkfifo(path), "no regular file"),
        (lambda path: path.symlink_to("/dev/zero"), "no regular file"),
        (lambda path: path.write_text("[" * 100_000), "nested without end"),
        (lambda path: path.write_text(" " * (17 << 20)), "more than 16 MiB"),
        (lambda path: path.write_text("[]"), "no object"),
        (lambda path: path.write_text("version https://git-lfs.github.com/spec/v1\n"), "Expecting value"),
        (lambda path: path.write_bytes(b"\xff\xfe"), "decode"),
    ],
)
def test_a_config_that_is_none_is_refused_at_once(put: Any, said: str, tmp_path: Path) -> None:
    put(tmp_path / "config.json")
    with pytest.raises(ValueError, match=said):
        rehearsal_model.read(str(tmp_path))


class Server(http.server.BaseHTTPRequestHandler):
    """Answers with `body`, announcing `length` bytes."""

    body, length = b"", 0

    def do_POST(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(self.length or len(self.body)))
        self.end_headers()
        self.wfile.write(self.body)

    def log_message(self, *_: Any) -> None:
        """Nothing."""


@pytest.mark.parametrize(
    ("body", "length"),
    [(b'{"output_ids": [1, 2', 5000), (b'{"output_ids": [null]}', 0), (b"[]", 0), (b"<html>", 0), (b"", 0)],
)
def test_an_answer_that_is_none_is_a_failure_in_words(body: bytes, length: int) -> None:
    handler = type("Handler", (Server,), {"body": body, "length": length})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with pytest.raises((OSError, ValueError)):
            rehearsal_answers.over_http(server.server_address[1])([1, 2], 12)
        server.shutdown()


def smi(text: str, status: int = 0) -> Any:
    return lambda argv, limit: (status, text)


def look(
    monkeypatch: pytest.MonkeyPatch,
    text: str,
    takes: str | rehearsal_room.Takes | None = None,
    status: int = 0,
) -> Any:
    monkeypatch.setattr(rehearsal_room.nvidia_smi, "find", lambda: "/usr/bin/nvidia-smi")
    if not isinstance(takes, rehearsal_room.Takes):
        takes = rehearsal_room.Takes(takes)
    return rehearsal_room.look(takes, smi(text, status))


TWO = "0, GPU-aaaa, 20000, 143771\n1, GPU-bbbb, 9000, 143771\n"


def test_the_fullest_gpu_that_the_service_sees_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    assert look(monkeypatch, TWO).free == 9000 << 20
    assert look(monkeypatch, TWO, "0").free == 20000 << 20
    assert look(monkeypatch, TWO, "GPU-bbbb,GPU-aaaa").free == 9000 << 20
    assert look(monkeypatch, TWO, "7").free == 9000 << 20  # a list that fits no GPU: all of them
    assert look(monkeypatch, "No devices were found\n") is None
    assert look(monkeypatch, TWO, status=124) is None


def test_a_gpu_that_the_server_does_not_take_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another service fills GPU 1; this one runs at tp 1 on GPU 0, and nothing sets CUDA_VISIBLE_DEVICES."""
    full = TWO.replace("9000", "40")
    takes = rehearsal_room.Takes(None, 0, 1)
    assert look(monkeypatch, full, takes).free == 20000 << 20
    assert look(monkeypatch, full, rehearsal_room.Takes(None, 1, 1)).free == 40 << 20
    assert look(monkeypatch, full, rehearsal_room.Takes("1,0", 1, 1)).free == 20000 << 20
    assert look(monkeypatch, full, rehearsal_room.Takes(None, 0, None)).free == 40 << 20


def test_a_host_without_gpus_has_no_limit_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rehearsal_room.nvidia_smi, "find", lambda: None)
    monkeypatch.setattr(rehearsal_room, "DEVICES", ("/absent",))
    room = rehearsal_room.look(rehearsal_room.Takes(None))
    assert room is not None
    assert (room.free, room.why_not(), room.fraction()) == (None, None, "0.5")


def test_a_gpu_that_cannot_be_asked_has_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """AMD, or NVIDIA's driver without its tools: half of what is free would be taken with nobody watching."""
    monkeypatch.setattr(rehearsal_room.nvidia_smi, "find", lambda: None)
    monkeypatch.setattr(rehearsal_room, "DEVICES", ("/absent", "/dev/null"))
    assert rehearsal_room.look(rehearsal_room.Takes(None)) is None


def test_what_may_be_taken_leaves_the_live_server_its_reserve() -> None:
    room = rehearsal_room.Room(24 * GIB, 140 * GIB)
    assert room.reserve == 140 * GIB // 50
    assert room.why_not() is None
    static = float(room.fraction()) * 24 * GIB
    assert static < 0.71 * (24 * GIB - room.reserve)
    assert rehearsal_room.Room(4 * GIB, 24 * GIB).why_not() is None
    tight = rehearsal_room.Room(4 * GIB, 140 * GIB)
    assert "4.0 GiB of a GPU are free" in str(tight.why_not())
    assert rehearsal_room.Room(0, 140 * GIB).usable == 0


def test_the_guard_ends_a_rehearsal_that_comes_near_and_no_other() -> None:
    ended: list[bool] = []
    room = rehearsal_room.Room(24 * GIB, 140 * GIB)
    guard = rehearsal_room.Guard(room, rehearsal_room.Takes(None), lambda: ended.append(True))
    for free in (20 * GIB, 2 * GIB):
        guard.take(rehearsal_room.Room(free, 140 * GIB))
    guard.take(None)  # a hung nvidia-smi is no evidence
    assert (guard.ended, ended, guard.least) == (False, [], 2 * GIB)
    guard.take(rehearsal_room.Room(room.reserve // 2 - 1, 140 * GIB))
    guard.take(rehearsal_room.Room(0, 140 * GIB))
    assert (guard.ended, ended) == (True, [True])


def token(prefix: list[int]) -> int:
    return zlib.crc32(bytes(value % 256 for value in prefix)) % 500


def answer(prompt: list[int], tokens: int) -> list[int]:
    out: list[int] = []
    for _ in range(tokens):
        out.append(token([*prompt, *out]))
    return out


def test_the_targets_own_tokens_pass() -> None:
    found = rehearsal_answers.compare(answer)
    assert (found["ok"], found["same"], found["tokens"], found["first"]) == (True, 44, 44, None)


def test_what_a_tree_left_in_the_prefix_cache_is_not_what_it_is_held_against() -> None:
    """A tree that commits KV of another path: the cache would give the same wrong KV to the prefill of that prefix."""
    cache: dict[tuple[Any, ...], int] = {}

    class Server(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            prompt, tokens = body["input_ids"], body["sampling_params"]["max_new_tokens"]
            out: list[int] = []
            for _ in range(tokens):
                key = (body.get("extra_key"), *prompt, *out)
                # from its fourth token on a tree's KV, and with it the next token, is another's
                spoilt = token([*prompt, *out]) + (tokens > 1 and len(out) > 3)
                out.append(cache.setdefault(key, spoilt))
            data = json.dumps({"output_ids": out}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: Any) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Server) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        found = rehearsal_answers.compare(rehearsal_answers.over_http(server.server_address[1]))
        server.shutdown()
    assert (found["ok"], found["tokens"]) == (False, 44)


def test_one_near_tie_passes() -> None:
    def once(prompt: list[int], tokens: int) -> list[int]:
        out = answer(prompt, tokens)
        return [*out[:-1], out[-1] + 1] if tokens > 1 and len(prompt) == 6 else out

    found = rehearsal_answers.compare(once)
    assert (found["ok"], found["same"]) == (True, 43)
    assert "token 11 of the answer to prompt 0" in found["first"]


@pytest.mark.parametrize("at", [1, 5, 11])
def test_one_wrong_token_in_every_answer_fails(at: int) -> None:
    def wrong(prompt: list[int], tokens: int) -> list[int]:
        out = answer(prompt, min(at, tokens))
        while len(out) < tokens:
            out.append(token([*prompt, *out]) + (len(out) == at))
        return out

    assert not rehearsal_answers.compare(wrong)["ok"]


def test_a_doubled_and_a_lost_token_fail() -> None:
    assert not rehearsal_answers.compare(lambda p, n: (answer(p, n)[:3] + answer(p, n)[2:])[:n])["ok"]
    assert not rehearsal_answers.compare(lambda p, n: (answer(p, n + 1)[:3] + answer(p, n + 1)[4:])[:n])["ok"]
    with pytest.raises(ValueError, match="3 tokens came"):
        rehearsal_answers.compare(lambda p, n: answer(p, min(n, 3)))


def test_the_sentence_says_what_was_seen() -> None:
    passed = {
        "verdict": "PASSED",
        "seconds": 70.2,
        "layers": 6,
        "answers": {"tokens": 44, "same": 44},
        "memory": {"free": 24 * GIB, "least_free": 17 * GIB},
    }
    assert "rehearsed in 70 s" in sentence(passed)
    assert "at least 17.0 GiB of every GPU stayed free" in sentence(passed)
    assert "stayed free" not in sentence({**passed, "memory": {"free": None, "least_free": None}})
    assert sentence({"verdict": "DOES_NOT_FIT", "why": "does not fit: x"}) == "not rehearsed: does not fit: x"


def test_a_gpu_that_is_split_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rehearsal_room.nvidia_smi, "find", lambda: "/usr/bin/nvidia-smi")
    for text, is_split in (
        ("00000000:18:00.0, Disabled\n00000000:2A:00.0, Enabled\n", True),
        ("00000000:18:00.0, Disabled\n", False),
        ("00000000:18:00.0, [N/A]\n", False),
    ):
        monkeypatch.setattr(rehearsal_room.nvidia_smi.query, "__defaults__", (smi(text),))
        assert rehearsal_room.split() is is_split


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, Any]]:
    """run(verdict, ...later): a rehearsal whose watch says these one after the other, on a host that does nothing."""
    sent: list[dict[str, Any]] = []
    retired: list[str] = []
    layout = Layout("sglang.service", str(tmp_path))
    limits = {"imports": 1.0, "weights": 1.0, "graphs": 1.0, "serve": 1.0, "cap": 60.0}
    request = {
        "release": "aaaaaaaaaaaaaaaa",
        "txn": "3e8-abc",
        "argv": ["python3"],
        "limits": limits,
        "expect": {"state": {}},
    }
    case = rehearsal.Case(layout, request, {}, unitenv.Launch("python3", [], "cwd", []), {}, str(tmp_path))
    unit = rehearsal.rehearsal_unit
    for name in ("start", "end", "kill"):
        monkeypatch.setattr(unit, name, lambda *_: None)
    monkeypatch.setattr(rehearsal, "_tail", lambda *_: [])
    monkeypatch.setattr(rehearsal_live, "_live", lambda *_: {"state": "active", "pid": "7"})
    monkeypatch.setattr(
        rehearsal_live.observe_env, "look", lambda: rehearsal_live.observe_env.HostState(None, (), (), {})
    )
    monkeypatch.setattr(rehearsal, "Observer", lambda *_: type("None_", (), {"close": lambda _: None})())
    monkeypatch.setattr(rehearsal, "send", sent.append)
    monkeypatch.setattr(rehearsal.store, "retire", lambda _, digest, *__: retired.append(digest))
    monkeypatch.setattr(rehearsal_live.service, "shutting_down", lambda: False)

    def ran(*verdicts: dict[str, Any], answers: Any = None, place: str = str(tmp_path)) -> dict[str, Any]:
        left = [*verdicts]
        monkeypatch.setattr(rehearsal, "_watch", lambda *_: (left.pop(0) if left else {}, {}))
        monkeypatch.setattr(rehearsal_answers, "compare", answers or (lambda _: {"ok": True, "same": 44}))
        del sent[:], retired[:]
        try:
            found = rehearsal._run(
                case._replace(folder=place), rehearsal_room.Room(None, None), {"layers": 4}, ()
            )
        except AgentError as error:
            found = {"verdict": "REFUSED", **error.fields}
        return {**found, "sent": [*sent], "retired": [*retired]}

    return ran


def verdict(kind: str, reason: str = "", line: str = "what it said") -> dict[str, Any]:
    return {
        "verdict": kind,
        "reason": reason,
        "phase": "weights",
        "line": line,
        "hint": "what to do",
        "context": [],
    }


PASS = verdict("PASS")


def test_a_failure_of_the_release_retires_it_and_one_of_the_host_does_not(run: Any) -> None:
    found = run(verdict("FAIL", "import"))
    assert (found["verdict"], found["retired"]) == ("REFUSED", ["aaaaaaaaaaaaaaaa"])
    assert "the release fails its rehearsal" in found["what"]
    found = run(verdict("ENV", "disk-full"))
    assert (found["verdict"], found["retired"]) == ("REFUSED", [])
    assert "the host, not the release" in found["what"]


@pytest.mark.parametrize(
    "line",
    [
        # SGLang 0.5.11 at tp > 1, where one GPU has a tenth less free than another: so it is beside many a live server
        "RuntimeError: The memory capacity is unbalanced. Some GPUs may be occupied by other processes. "
        "pre_model_load_memory=17.2, local_gpu_memory=22.1, local_gpu_memory * 0.9=19.89",
        "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
    ],
)
def test_too_little_memory_beside_the_live_server_blames_nobody(run: Any, line: str) -> None:
    reason = diagnose([line], signatures()).reason.split()[1]
    hosts = {s.reason for s in signatures() if s.host}
    found = run(verdict("ENV" if reason in hosts else "FAIL", reason, line))
    assert (found["verdict"], found["retired"]) == ("DOES_NOT_FIT", [])
    assert line in found["why"]


def test_a_limit_of_ours_blames_nobody(run: Any) -> None:
    found = run(verdict("FAIL", "start-timeout"))
    assert (found["verdict"], found["retired"]) == ("NOT_POSSIBLE", [])
    assert "timeouts.cap (60 s)" in found["why"]


def test_a_host_that_goes_down_with_it_blames_nobody(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rehearsal_live.service, "shutting_down", lambda: True)
    found = run(verdict("FAIL", "signal-9"))
    assert (found["kind"], found["retired"]) == ("unreachable", [])
    assert run(PASS)["verdict"] == "PASSED"


def test_a_server_that_dies_while_it_answers_is_judged_by_its_log(run: Any) -> None:
    def dies(_: Any) -> Any:
        raise IncompleteRead(b"")

    assert run(PASS, verdict("FAIL", "cuda-oom"), answers=dies)["verdict"] == "DOES_NOT_FIT"
    found = run(PASS, verdict("FAIL", "illegal-access"), answers=dies)
    assert "(illegal-access)" in found["what"]
    found = run(PASS, answers=dies)
    assert "(generation-failed)" in found["what"]
    assert "IncompleteRead" in found["evidence"]


def test_a_rollback_ends_a_rehearsal_and_nobody_is_blamed(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed: list[str] = []
    monkeypatch.setattr(rehearsal.rehearsal_unit, "kill", lambda layout: killed.append(layout.service))
    layout, other = Layout("sglang.service", str(tmp_path)), Layout("other.service", str(tmp_path))
    assert not rehearsal.rehearsal_unit.give_way(layout, "you")
    place = Path(rehearsal.rehearsal_unit.folder(layout, "3e8-abc"))
    place.mkdir(parents=True)
    assert not rehearsal.rehearsal_unit.give_way(other, "you")
    assert killed == []
    assert rehearsal.rehearsal_unit.gave_way(str(place)) is None
    assert rehearsal.rehearsal_unit.give_way(layout, "you@desk")
    assert killed == ["sglang.service"]
    found = run(verdict("FAIL", "signal-9"), place=str(place))
    assert (found["kind"], found["retired"]) == ("locked", [])
    assert "for a rollback by you@desk" in found["what"]


@pytest.mark.parametrize(("kind", "goes_on"), [("undo", True), ("deploy", False)])
def test_only_a_rollback_goes_before_a_rehearsal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, goes_on: bool
) -> None:
    """The rehearsal's agent holds the lock until its unit is stopped."""
    layout, killed, held = Layout("sglang.service", str(tmp_path)), threading.Event(), threading.Event()
    Path(rehearsal.rehearsal_unit.folder(layout, "3e8-abc")).mkdir(parents=True)
    monkeypatch.setattr(rehearsal.rehearsal_unit, "kill", lambda _: killed.set())

    def rehearsing() -> None:
        with locked(layout, "rehearsal by you"):
            held.set()
            killed.wait(5)
            time.sleep(1)

    def inside(_: Layout) -> None:
        raise InterruptedError  # the lock is ours: no need to go on

    monkeypatch.setattr(rollout, "settle", inside)
    monkeypatch.setattr(rollout.hold, "refuse", lambda _: None)
    other = threading.Thread(target=rehearsing)
    other.start()
    held.wait(5)
    with pytest.raises(InterruptedError if goes_on else AgentError):
        rollout.begin(layout, {"kind": kind, "who": "me"}, "")
    assert killed.is_set() is goes_on
    killed.set()
    other.join()


def test_an_operator_who_went_away_is_noticed_while_it_answers(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rehearsal, "_BEAT_S", 0.0)
    monkeypatch.setattr(rehearsal, "_TICK_S", 0.01)
    ended = threading.Event()

    def slow(_: Any) -> Any:
        ended.wait(5)
        return {"ok": True, "same": 44}

    def cut(event: dict[str, Any]) -> None:
        if event["ev"] == "beat":
            raise BrokenPipeError

    monkeypatch.setattr(rehearsal, "send", cut)
    with pytest.raises(BrokenPipeError):
        run(PASS, answers=slow)
    ended.set()


def test_a_secret_in_a_flag_is_filled_in_as_systemd_would(tmp_path: Path) -> None:
    words = tmp_path / "argv.json"
    words.write_text(json.dumps(["/bin/echo", "--token", "${KEY}", "a${KEY}b", "${NONE}", '{"x": "$KEY"}']))
    program = rehearsal_unit._EXEC.format(path=json.dumps(str(words)))
    done = subprocess.run(
        [sys.executable, "-I", "-c", program],
        env={"KEY": "v", "PATH": "/bin"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == '--token v avb ${NONE} {"x": "$KEY"}\n'
