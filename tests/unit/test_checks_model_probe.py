"""What the probe reads of checkpoints and arguments, from real files: whole, and broken in each way."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from ddtree_agent import (
    inner_arguments,
    inner_code,
    inner_model,
    inner_weights,
    probe_areas,
    probe_model,
    sandbox,
    unitenv,
)

pytestmark = pytest.mark.tier("preflight")
CONFIG: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "num_hidden_layers": 2, "hidden_size": 64,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 512, "torch_dtype": "bfloat16",
}  # fmt: skip


def shard(path: Path, tensors: dict[str, list[int]], cut: int = 0, more: bytes = b"") -> Path:
    """A safetensors file of zeros in bfloat16, `cut` bytes short of its end."""
    head: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, shape in tensors.items():
        size = 2
        for n in shape:
            size *= n
        head[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(head).encode()
    whole = struct.pack("<Q", len(text)) + text + bytes(at) + more
    path.write_bytes(whole[: len(whole) - cut])
    return path


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A checkpoint of two shards with an index and a tokenizer."""
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "tokenizer.json").write_text(json.dumps({"model": {"vocab": {"a": 0, "<|MASK|>": 3}}}))
    shard(tmp_path / "model-00001-of-00002.safetensors", {"model.embed_tokens.weight": [512, 64]})
    shard(tmp_path / "model-00002-of-00002.safetensors", {"lm_head.weight": [512, 64]})
    names = {
        "model.embed_tokens.weight": "model-00001-of-00002.safetensors",
        "lm_head.weight": "model-00002-of-00002.safetensors",
    }
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    return tmp_path


def faults(place: Path) -> list[str]:
    found = inner_weights.collect({"target": str(place), "draft": None})["target"]
    return [f"{fault['file']} {fault['why']}" for fault in found["faults"]]


def test_a_whole_checkpoint_has_no_fault(place: Path) -> None:
    found = inner_weights.collect({"target": str(place), "draft": None})
    assert found["draft"] is None
    assert found["target"]["faults"] == [] and found["target"]["files"] == 2
    assert found["target"]["by_dtype"] == {"BF16": 2 * 512 * 64 * 2}
    assert found["target"]["shapes"]["lm_head.weight"] == [512, 64]
    assert found["target"]["bytes"] == sum(p.stat().st_size for p in place.glob("*.safetensors"))


SECOND = "model-00002-of-00002.safetensors"


def test_each_way_to_be_broken_is_named(place: Path) -> None:
    second = place / SECOND
    size = second.stat().st_size
    shard(second, {"lm_head.weight": [512, 64]}, cut=100)
    assert faults(place) == [f"{SECOND} is truncated: {size - 100} of {size} bytes"]
    shard(second, {"lm_head.weight": [512, 64]}, cut=size - 40)
    assert "is truncated: 40 bytes, its header alone" in faults(place)[0]
    shard(second, {"lm_head.weight": [512, 64]}, more=b"more")
    assert "is longer than its header says" in faults(place)[0]
    shard(second, {"other.weight": [2, 2]})
    assert faults(place) == [
        f"{SECOND} lacks 1 tensors that the index says it has, lm_head.weight among them"
    ]
    second.write_bytes(b"")
    assert faults(place) == [f"{SECOND} is empty (0 bytes)"]
    second.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:ab\nsize 12\n")
    assert faults(place) == [f"{SECOND} is a Git LFS pointer, not the weights"]
    second.write_bytes(b"\xff" * 64)
    assert faults(place) == [f"{SECOND} does not begin like a safetensors file"]
    second.write_bytes(struct.pack("<Q", 4) + b"null" + bytes(9))
    assert faults(place) == [f"{SECOND} has a header that is no JSON of tensors"]
    second.unlink()
    assert faults(place) == [f"{SECOND} is missing"]
    second.symlink_to(place / "no-blob")
    assert faults(place) == [f"{SECOND} is a link to nothing (the cache's blob is gone)"]
    second.unlink()
    os.mkfifo(second)
    assert faults(place) == [f"{SECOND} is no regular file"]


def test_parts_count_even_without_an_index(place: Path) -> None:
    (place / "model.safetensors.index.json").unlink()
    assert faults(place) == []
    (place / SECOND).unlink()
    assert faults(place) == [f"{SECOND} is missing"]


def test_a_broken_index_and_other_formats(tmp_path: Path) -> None:
    shard(tmp_path / "model.safetensors", {"a.weight": [2, 2]})
    (tmp_path / "model.safetensors.index.json").write_text("{")
    assert "model.safetensors.index.json cannot be read" in faults(tmp_path)[0]
    (tmp_path / "model.safetensors.index.json").unlink()
    assert faults(tmp_path) == []
    (tmp_path / "model.safetensors").unlink()
    assert inner_weights.collect({"target": str(tmp_path), "draft": None})["target"]["format"] is None
    (tmp_path / "pytorch_model.bin").write_bytes(b"PK\x03\x04" + bytes(1000))
    assert "zip's directory is missing" in faults(tmp_path)[0]
    (tmp_path / "pytorch_model.bin").write_bytes(b"PK\x03\x04" + bytes(1000) + b"PK\x05\x06" + bytes(18))
    assert faults(tmp_path) == []
    one = tmp_path / "m.gguf"
    one.write_bytes(b"GGUF" + bytes(20))
    assert inner_weights.collect({"target": str(one), "draft": None})["target"]["faults"] == []
    one.write_bytes(b"nope" + bytes(20))
    assert "GGUF" in inner_weights.collect({"target": str(one), "draft": None})["target"]["faults"][0]["why"]


def test_the_time_limit_leaves_files_unchecked(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inner_weights, "SECONDS", -1.0)
    found = inner_weights.collect({"target": str(place), "draft": None})["target"]
    assert (found["unchecked"], found["faults"]) == (2, [])


def test_a_config_is_described(place: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    side = tmp_path_factory.mktemp("draft")
    config = {
        **CONFIG, "architectures": ["DFlashDraftModel"], "block_size": 8, "num_target_layers": 2,
        "layer_types": ["sliding_attention", "full_attention"], "sliding_window": 128, "auto_map": {"AutoModel": "x"},
        "dflash_config": {"target_layer_ids": [0, 1]}, "rope_parameters": {"rope_theta": 1e7, "factor": 4.0},
    }  # fmt: skip
    (side / "config.json").write_text(json.dumps(config))
    found = inner_model.collect({"target": str(place), "draft": str(side), "skip": []})
    target, draft = found["target"], found["draft"]
    assert target["tokenizer"] == ["tokenizer.json"] and target["filesystem"]
    assert (target["hidden_size"], target["dtype"], target["hybrid"]) == (64, "bfloat16", False)
    assert draft["layer_types"] == {"full_attention": 1, "sliding_attention": 1}
    assert draft["dflash"] == {
        "target_layer_ids": [0, 1], "block_size": 8, "num_target_layers": 2, "mask_token": None, "mask_token_id": None,
    }  # fmt: skip
    assert (draft["rope_theta"], draft["rope_parameters_theta"], draft["rope_factor"]) == (None, 1e7, 4.0)
    assert draft["mask_token_in_target"] is True and draft["remote_code"] is True
    assert found["same"] is False
    assert inner_model.collect({"target": str(place), "draft": str(place), "skip": []})["same"] is True


def test_the_code_of_a_checkpoint_is_followed(tmp_path: Path) -> None:
    """Modules that the configs name, files and packages that they import; none of it is run."""
    place, cache = tmp_path / "m", tmp_path / "hub"
    place.mkdir()
    (place / "config.json").write_text(
        json.dumps({"auto_map": {"AutoConfig": "configuration_odd.Odd", "AutoModel": "modeling_odd.Odd"}})
    )
    (place / "tokenizer_config.json").write_text(
        json.dumps(
            {"auto_map": {"AutoTokenizer": ["tokenization_odd.Slow", None], "AutoProcessor": "org/p--x.P"}}
        )
    )
    (place / "configuration_odd.py").write_text(
        "import os\nfrom .parts import A\nraise SystemExit\ntry:\n    import absent_a\nexcept ImportError:\n    pass\n"
    )
    (place / "tokenization_odd.py").write_text(
        "import json\nfrom absent_b.sub import B\nif B:\n    import absent_c\n"
    )
    asked = {"target": str(place), "draft": None, "cache": str(cache)}
    found = inner_code.collect(asked)
    assert found["draft"] is None
    assert found["target"] == {
        "files": ["configuration_odd.py", "tokenization_odd.py"], "missing": ["parts.py"], "elsewhere": ["org/p"],
        "needs": ["absent_b"], "processor": [],
    }  # fmt: skip
    (place / "parts.py").write_text("A = 1\n")
    (place / "preprocessor_config.json").write_text("{}")
    (cache / "models--org--p" / "snapshots" / "ab").mkdir(parents=True)
    again = inner_code.collect(asked)["target"]
    assert (again["missing"], again["elsewhere"]) == ([], [])
    assert again["processor"] == ["preprocessor_config.json"] and "parts.py" in again["files"]


def test_the_code_of_a_checkpoint_that_is_odd(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"auto_map": {"AutoConfig": "bad.Odd"}}')
    (tmp_path / "tokenizer_config.json").write_text("[]")
    (tmp_path / "bad.py").write_text("def (:\n")
    found = inner_code.collect({"target": str(tmp_path), "draft": "no/such"})
    assert found["draft"] is None
    assert (found["target"]["files"], found["target"]["missing"]) == ([], [])


def test_a_multimodal_config_counts_by_its_text(tmp_path: Path) -> None:
    text = {
        **CONFIG,
        "model_type": "qwen3_5_text",
        "linear_num_value_heads": 48,
        "full_attention_interval": 4,
    }
    (tmp_path / "config.json").write_text(
        json.dumps(
            {"model_type": "qwen3_5", "architectures": ["X"], "text_config": text, "vision_config": {}}
        )
    )
    side = inner_model.collect({"target": str(tmp_path), "draft": None})["target"]
    assert (side["hidden_size"], side["hybrid"], side["multimodal"]) == (64, True, True)
    assert (side["model_type"], side["text_model_type"]) == ("qwen3_5", "qwen3_5_text")


def test_a_damaged_tokenizer_or_config_is_named(place: Path) -> None:
    (place / "tokenizer.json").write_text('{"model": {"vocab": {"a"')
    side = inner_model.collect({"target": str(place), "draft": None})["target"]
    assert side["tokenizer_faults"] == ["tokenizer.json is no whole JSON"]
    (place / "config.json").write_text("{")
    assert "config.json" in inner_model.collect({"target": str(place), "draft": None})["target"]["error"]


def test_a_tokenizer_is_held_against_the_libraries(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packages = place / "site"
    auto = packages / "transformers" / "models" / "auto"
    auto.mkdir(parents=True)
    (packages / "transformers" / "__init__.py").write_text('__version__ = "4.57.1"\n')
    (auto / "tokenization_auto.py").write_text(
        'NAMES = [("qwen2", ("Qwen2Tokenizer", "Qwen2TokenizerFast"))]\n'
    )
    (auto / "configuration_auto.py").write_text('NAMES = [("qwen3", "Qwen3Config")]\n')
    (packages / "sglang" / "srt" / "models").mkdir(parents=True)
    (packages / "sglang" / "srt" / "models" / "qwen3.py").write_text("class Qwen3ForCausalLM(nn.Module):\n")
    (packages / "sglang" / "srt" / "configs").mkdir(parents=True)
    (packages / "sglang" / "srt" / "configs" / "own.py").write_text('class C:\n    model_type = "own"\n')
    monkeypatch.setattr(sys, "path", [str(packages)])
    (place / "tokenizer_config.json").write_text('{"tokenizer_class": "Qwen2TokenizerFast"}')
    found = inner_model.collect({"target": str(place), "draft": None})
    side = found["target"]
    assert found["transformers"] == "4.57.1"
    assert (side["type_known"], side["class_known"], side["tokenizer_class_known"]) == (True, True, True)
    (place / "tokenizer_config.json").write_text('{"tokenizer_class": "TokenizersBackend"}')
    (place / "tokenizer.json").unlink()
    (place / "tokenizer.model").write_bytes(b"x")
    (place / "config.json").write_text(
        json.dumps({**CONFIG, "model_type": "own", "architectures": ["Other"]})
    )
    side = inner_model.collect({"target": str(place), "draft": None})["target"]
    assert (side["type_known"], side["class_known"], side["tokenizer_class_known"]) == (True, False, False)
    assert side["tokenizer_needs"] == "sentencepiece"
    (place / "config.json").write_text(json.dumps({**CONFIG, "model_type": "nobodys"}))
    assert inner_model.collect({"target": str(place), "draft": None})["target"]["type_known"] is False
    again = inner_model.collect({"target": str(place), "draft": None, "skip": [str(packages) + "/"]})[
        "target"
    ]
    assert (again["type_known"], again["class_known"]) == (None, None)


def test_a_directory_that_the_user_may_not_enter_is_named(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hidden = place.parent
    monkeypatch.setattr(os.path, "isdir", lambda path: str(path) != str(place))
    monkeypatch.setattr(os, "access", lambda path, mode: str(path) != str(hidden))
    side = inner_model.collect({"target": str(place), "draft": None})["target"]
    assert (side["denied"], side["exists"], side["directory"]) == (str(hidden), None, None)


def test_a_hub_id_is_found_in_the_units_own_cache(
    place: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    cache = tmp_path_factory.mktemp("home") / "hub"
    base = cache / "models--acme--m8"
    (base / "snapshots").mkdir(parents=True)
    (base / "snapshots" / "ab12").symlink_to(place)
    hub = inner_model.hub_facts(
        {"HF_HOME": str(cache.parent), "HF_TOKEN": "hf_secret", "HF_HUB_OFFLINE": "1"}
    )
    assert (hub["exists"], hub["offline"], hub["token"]) == (True, True, True)
    assert "hf_secret" not in json.dumps(hub)
    library = inner_model.Library([])
    assert inner_model.side("acme/m8", hub, library)["directory"] == str(base / "snapshots" / "ab12")
    assert inner_model.side("acme/other", hub, library) == {
        "path": "acme/other", "hub": True, "exists": None, "directory": None, "denied": None,
    }  # fmt: skip
    assert inner_model.side("/no/such", hub, library)["exists"] is False
    launch = unitenv.Launch("/v/bin/python3", [], "cwd", ["--model-path", "acme/m8"])
    asked = probe_model.stored({}, launch, {"HF_HOME": str(cache.parent)}, None)
    assert asked == {"target": "acme/m8", "draft": None, "cache": str(cache)}
    assert inner_weights.collect(asked)["target"]["files"] == 2
    (base / "refs").mkdir()
    (base / "refs" / "main").write_text("gone\n")
    assert inner_weights.collect(asked)["target"] is None
    assert inner_weights.collect({**asked, "target": "acme/other"})["target"] is None


ENGINE = """
COLOURS = ["red", "blue"]
def add_cli_args(parser):
    parser.add_argument("--model-path", "--model", type=str, required=True)
    parser.add_argument("--port", type=int)
    parser.add_argument("--colour", choices=COLOURS)
    parser.add_argument("--switch", action="store_true")
    parser.add_argument("--maybe", action=argparse.BooleanOptionalAction)
    parser.add_argument("--sizes", type=int, nargs="+")
    parser.add_argument("--old", action=DeprecatedAction)
    parser.add_argument("--api-key", type=str)
    parser.add_argument("--admin-port-key", type=int)
"""


def test_the_parsers_flags_are_read_from_its_text() -> None:
    parser = inner_arguments.read_parser(ENGINE)
    assert {"--model", "--no-maybe", "--sizes"} <= set(parser["known"]) and parser["complete"] is True
    assert parser["choices"] == {"--colour": ["red", "blue"]}
    assert (parser["nargs"]["--switch"], parser["nargs"]["--sizes"], parser["nargs"]["--old"]) == (
        "0",
        "+",
        "deprecated",
    )
    more = inner_arguments.read_parser(ENGINE + "    add_ours(parser, 1)\n")
    assert more["complete"] is False
    starred = inner_arguments.read_parser(ENGINE + "    parser.add_argument(*names, **options)\n")
    assert starred["complete"] is False and "--port" in starred["known"]
    assert inner_arguments.read_parser("parser.add_argument('--port')")["known"] is None
    assert inner_arguments.read_parser("def (")["known"] is None
    assert inner_arguments.read_parser(None)["known"] is None


COMPUTED = """
from sglang.srt.paints import Paint
from sglang.srt.gone import Gone
def add_cli_args(parser):
    shades = list(Paint.Shades.keys())
    parser.add_argument("--model-path")
    parser.add_argument("--paint", choices=list(Paint.Map.keys()))
    parser.add_argument("--shade", choices=shades)
    parser.add_argument("--odd", choices=list(Paint.Odd.keys()))
    parser.add_argument("--gone", choices=list(Gone.Map.keys()))
"""


def test_choices_that_are_the_keys_of_a_mapping_elsewhere_are_read_there(tmp_path: Path) -> None:
    package = tmp_path / "sglang"
    (package / "srt").mkdir(parents=True)
    (package / "srt" / "paints.py").write_text(
        'class Paint:\n    Map: Dict[str, type] = {"oil": A, "water": B}\n    Shades = {"dark": 1}\n'
        '    Odd = {**Map, "x": 1}\n'
    )
    parser = inner_arguments.read_parser(COMPUTED, str(package))
    assert parser["choices"] == {"--paint": ["oil", "water"], "--shade": ["dark"]}
    assert inner_arguments.read_parser(COMPUTED)["choices"] == {}


def test_how_many_layers_an_eagle3_draft_joins_is_read_from_either_place() -> None:
    ids = {"eagle_aux_hidden_state_layer_ids": [2, 18, 33]}
    assert inner_model.describe({"eagle_config": ids})["eagle_layers"] == 3
    assert inner_model.describe(ids)["eagle_layers"] == 3
    assert inner_model.describe({})["eagle_layers"] is None


def test_no_value_that_may_be_a_secret_is_told() -> None:
    parser = inner_arguments.read_parser(ENGINE)
    words = "--model /m --por 30000 --colour green --api-key s3cret --admin-port-key 77123 --mystery s3cret --switch x"
    flags, repeated, stray = inner_arguments.spell(words.split(), parser)
    assert flags == {
        "--model": "/m", "--port": "30000", "--colour": "green", "--api-key": "", "--admin-port-key": "",
        "--mystery": "", "--switch": True,
    }  # fmt: skip
    assert (repeated, stray) == ([], ["--switch"])
    shell = ["--port", "1", "--switch", "$@", ">>", "/var/log/x", "2>&1"]
    assert inner_arguments.spell(shell, parser) == ({"--port": "1", "--switch": True}, [], [])
    assert inner_arguments.spell(["--model=/my", "model"], parser)[2] == ["--model"]
    assert inner_arguments.spell(["--port", "1", "--port=2"], parser) == ({"--port": "2"}, ["--port"], [])
    assert inner_arguments.spell(["/m", "--port", "1"], parser)[2] == []


def test_the_sections_run_from_their_text_alone_and_quickly(place: Path) -> None:
    """As inside the unit: nothing of the agent is importable there."""
    launch = unitenv.Launch(sys.executable, [], "cwd", ["--model-path", str(place), "--port", "1"])
    context = probe_areas.Context({}, {}, launch, {}, {})
    started = time.monotonic()
    jobs = [
        (name, module, ask(context), limit)
        for name, module, ask, limit in probe_areas.INSIDE
        if module in (inner_model, inner_weights, inner_arguments)
    ]
    words = [sys.executable, "-I", "-c", "import sys; exec(sys.stdin.read())"]
    done = subprocess.run(words, input=sandbox._program(jobs), capture_output=True, check=True)
    found = sandbox._read(done.stdout.decode())
    assert sorted(found) == ["arguments", "checkpoints", "weights"]
    assert found["weights"]["target"]["files"] == 2
    assert found["checkpoints"]["target"]["hidden_size"] == 64
    assert found["arguments"]["flags"]["--model-path"] == str(place)
    assert time.monotonic() - started < 30  # on a loaded CI machine; alone it takes half a second
