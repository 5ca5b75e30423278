"""What a rehearsal runs, how small it is, what it may take of a GPU, and how its answers are judged: without a host."""

from __future__ import annotations

import http.server
import json
import os
import socket
import threading
import zlib
from pathlib import Path
from typing import Any

import pytest

from ddtree_agent import rehearsal, rehearsal_answers, rehearsal_model, rehearsal_room
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


def look(monkeypatch: pytest.MonkeyPatch, text: str, visible: str | None = None, status: int = 0) -> Any:
    monkeypatch.setattr(rehearsal_room.nvidia_smi, "find", lambda: "/usr/bin/nvidia-smi")
    return rehearsal_room.look(visible, smi(text, status))


TWO = "0, GPU-aaaa, 20000, 143771\n1, GPU-bbbb, 9000, 143771\n"


def test_the_fullest_gpu_that_the_service_sees_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    assert look(monkeypatch, TWO).free == 9000 << 20
    assert look(monkeypatch, TWO, "0").free == 20000 << 20
    assert look(monkeypatch, TWO, "GPU-bbbb,GPU-aaaa").free == 9000 << 20
    assert look(monkeypatch, TWO, "7").free == 9000 << 20  # a list that fits no GPU: all of them
    assert look(monkeypatch, "No devices were found\n") is None
    assert look(monkeypatch, TWO, status=124) is None


def test_a_host_without_gpus_has_no_limit_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rehearsal_room.nvidia_smi, "find", lambda: None)
    monkeypatch.setattr(rehearsal_room, "DEVICES", ("/absent",))
    room = rehearsal_room.look(None)
    assert room is not None
    assert (room.free, room.why_not(), room.fraction()) == (None, None, "0.5")


def test_a_gpu_that_cannot_be_asked_has_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """AMD, or NVIDIA's driver without its tools: half of what is free would be taken with nobody watching."""
    monkeypatch.setattr(rehearsal_room.nvidia_smi, "find", lambda: None)
    monkeypatch.setattr(rehearsal_room, "DEVICES", ("/absent", "/dev/null"))
    assert rehearsal_room.look(None) is None


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
    guard = rehearsal_room.Guard(room, None, lambda: ended.append(True))
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
