"""The import smoke: run for real in a subprocess on small engine trees; systemd-run's part is checked as data."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ddtree_agent import sandbox, smoke, unitenv

pytestmark = pytest.mark.tier("main")
ENGINE = Path(__file__).resolve().parents[2] / ".venv-engine"
STUBS = Path(__file__).resolve().parents[2] / "deploy/lab/engine/stubs"
PARSER = """
import argparse
def prepare_server_args(argv):
    p = argparse.ArgumentParser(prog="sglang serve")
    p.add_argument("--model-path")
    p.add_argument("--api-key")
    p.add_argument("--speculative-algorithm", choices=["DFLASH", "DDTREE"])
    args = p.parse_args(argv)
    if args.api_key == "boom":
        raise ValueError("bad key boom-key-value")
    if args.model_path == "gpu":
        raise RuntimeError("No CUDA GPUs are available")
    return args
"""
TREE = {
    "__init__.py": "",
    "launch_server.py": "",
    "srt/__init__.py": "",
    "srt/entrypoints/__init__.py": "",
    "srt/entrypoints/http_server.py": "import sglang.srt.server_args\n",
    "srt/managers/__init__.py": "",
    "srt/managers/scheduler.py": "",
    "srt/server_args.py": PARSER,
    "srt/ddtree.py": "",
}


@pytest.fixture
def overlay(tmp_path: Path) -> Path:
    write(tmp_path / "release" / "overlay" / "sglang", TREE)
    (tmp_path / "work").mkdir()
    return tmp_path / "release" / "overlay"


def write(root: Path, files: dict[str, str]) -> None:
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)


def run(
    overlay: Path,
    argv: list[str] | None = None,
    env: dict[str, str] | None = None,
    python: str = sys.executable,
    modules: list[str] | None = None,
    cwd: Path | None = None,
) -> dict[str, Any]:
    """What systemd-run would run, without systemd-run."""
    launch = unitenv.split_launch([python, *(argv or ["-m", "sglang.launch_server", "--model-path", "/m"])])
    assert launch is not None
    done = subprocess.run(
        smoke.command(launch),
        input=smoke.stdin({"modules": modules or ["sglang.srt.ddtree"]}, launch, str(overlay)),
        capture_output=True,
        env={
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(overlay),
            "PYTHONDONTWRITEBYTECODE": "1",
            **(env or {}),
        },
        cwd=cwd or overlay.parent.parent / "work",
        timeout=120,
        check=False,
    )
    return smoke.judge(done.returncode, done.stdout.decode(), done.stderr.decode(), False)


def test_a_sound_release_passes_in_both_processes(overlay: Path) -> None:
    report = run(overlay)
    assert report["ok"], report
    assert report["origin"] == dict.fromkeys(("main", "child"), str(overlay / "sglang" / "__init__.py"))
    assert list((overlay / "sglang").rglob("__pycache__")) == []


def test_a_patched_module_that_does_not_import_is_named(overlay: Path) -> None:
    write(overlay / "sglang", {"srt/ddtree.py": "import no_such_kernel\n"})
    report = run(overlay)
    assert not report["ok"]
    assert report["stage"] == "main import"
    assert report["first_fatal"].startswith("ModuleNotFoundError: No module named 'no_such_kernel'")
    assert f"{overlay}/sglang/srt/ddtree.py:1" in report["first_fatal"]


def test_a_syntax_error_names_file_and_line(overlay: Path) -> None:
    write(overlay / "sglang", {"srt/ddtree.py": "x = 1\ndef f(:\n"})
    report = run(overlay)
    assert report["first_fatal"].startswith("SyntaxError: ")
    assert f"{overlay}/sglang/srt/ddtree.py:2" in report["first_fatal"]


def test_the_innermost_cause_is_quoted(overlay: Path) -> None:
    text = """
try:
    raise ImportError("common_ops.abi3.so: undefined symbol: _ZNK3c106SymInt6sym_neERKS0_")
except ImportError as error:
    raise ImportError("Could not load any common_ops library") from error
"""
    write(overlay / "sglang", {"srt/ddtree.py": text})
    assert "undefined symbol: _ZNK3c106SymInt" in run(overlay)["first_fatal"]


def test_what_fails_only_in_the_spawned_child_fails(overlay: Path) -> None:
    text = "import multiprocessing\nassert multiprocessing.parent_process() is None, 'not in a child'\n"
    write(overlay / "sglang", {"srt/ddtree.py": text})
    report = run(overlay)
    assert report["stage"] == "child import"
    assert report["first_fatal"].startswith("AssertionError: not in a child")
    assert report["origin"]["main"]


def test_a_child_that_dies_without_a_word_fails(overlay: Path) -> None:
    text = "import multiprocessing, os\nif multiprocessing.parent_process(): os._exit(9)\n"
    write(overlay / "sglang", {"srt/ddtree.py": text})
    report = run(overlay)
    assert report["stage"] == "child import"
    assert "ended with 9" in report["first_fatal"]


def test_a_crash_names_the_step(overlay: Path) -> None:
    text = "import multiprocessing, os, signal\nif not multiprocessing.parent_process(): os.kill(os.getpid(), 11)\n"
    write(overlay / "sglang", {"srt/ddtree.py": text})
    report = run(overlay)
    assert report["stage"] == "died"
    assert (
        report["first_fatal"]
        == "Fatal Python error: Segmentation fault (at step “main: import sglang.srt.ddtree”)"
    )


def test_exiting_at_import_is_no_pass(overlay: Path) -> None:
    write(overlay / "sglang", {"srt/ddtree.py": "raise SystemExit(0)\n"})
    report = run(overlay)
    assert (report["ok"], report["stage"]) == (False, "main import")
    write(overlay / "sglang", {"srt/ddtree.py": "import os\nos._exit(0)\n"})
    assert (run(overlay)["ok"], run(overlay)["stage"]) == (False, "died")


def test_a_folder_in_the_working_directory_is_found_out(overlay: Path, tmp_path: Path) -> None:
    write(tmp_path / "work" / "sglang", {"__init__.py": "import nothing_of_the_kind\n"})
    report = run(overlay)
    assert report["stage"] == "main origin"
    assert f"working directory {tmp_path / 'work'} holds a sglang/ folder" in report["first_fatal"]


def test_a_console_script_does_not_look_into_the_working_directory(overlay: Path, tmp_path: Path) -> None:
    write(tmp_path / "work" / "sglang", TREE)
    script = tmp_path / "bin" / "sglang"
    write(tmp_path / "bin", {"sglang": f"#!{sys.executable}\n"})
    report = run(overlay, [str(script), "serve", "--model-path", "/m"])
    assert report["ok"], report


@pytest.mark.parametrize("flag", ["-E", "-I"])
def test_an_interpreter_that_ignores_pythonpath_is_found_out(overlay: Path, flag: str) -> None:
    report = run(overlay, [flag, "-m", "sglang.launch_server"])
    assert report["stage"] == "main origin"
    assert "ignores PYTHONPATH" in report["first_fatal"]


def test_another_tree_first_on_pythonpath_is_found_out(overlay: Path, tmp_path: Path) -> None:
    write(tmp_path / "base" / "sglang", TREE)
    report = run(overlay, env={"PYTHONPATH": f"{tmp_path / 'base'}:{overlay}"})
    assert report["stage"] == "main origin"
    assert f"sglang is {tmp_path / 'base'}/sglang/__init__.py" in report["first_fatal"]


def test_a_module_that_slips_in_from_elsewhere_is_found_out(overlay: Path, tmp_path: Path) -> None:
    write(tmp_path / "base" / "sglang" / "srt", {"extra.py": ""})
    place = str(tmp_path / "base" / "sglang" / "srt")
    text = f"import sglang.srt\nsglang.srt.__path__.append({place!r})\nimport sglang.srt.extra\n"
    write(overlay / "sglang", {"srt/ddtree.py": text})
    report = run(overlay)
    assert report["stage"] == "main origin"
    assert "sglang.srt.extra from" in report["first_fatal"]


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--no-such"], "unrecognized arguments: --no-such"),
        (["--speculative-algorithm", "NEXTN"], "invalid choice: 'NEXTN'"),
        (["--api-key", "boom"], "ValueError: bad key"),
    ],
)
def test_arguments_that_the_new_tree_refuses(overlay: Path, args: list[str], said: str) -> None:
    report = run(overlay, ["-m", "sglang.launch_server", *args])
    assert (report["ok"], report["stage"]) == (False, "arguments")
    assert said in report["first_fatal"]


def test_a_parser_that_looks_for_a_gpu_is_not_a_fault_of_the_release(overlay: Path) -> None:
    report = run(overlay, ["-m", "sglang.launch_server", "--model-path", "gpu"])
    assert report["ok"]
    assert "No CUDA GPUs" in report["note"]


def test_variables_in_arguments_are_expanded_as_systemd_does(overlay: Path) -> None:
    report = run(overlay, ["-m", "sglang.launch_server", "--api-key", "${KEY}"], env={"KEY": "boom"})
    assert "bad key boom-key-value" in report["first_fatal"]


def test_noise_on_stdout_is_no_report() -> None:
    steps, done = smoke.read(
        'loading…\nnoise @smoke {"step": "a"}\n@smoke {"torn\n@smoke {"done": {"ok": true}}\n'
    )
    assert steps == ["a"]
    assert done == {"ok": True}
    assert smoke.judge(0, "fine\n", "", False)["ok"] is False


def test_a_late_end_is_a_timeout() -> None:
    report = smoke.judge(1, '@smoke {"step": "main: import torch"}\n', "", True)
    assert report["stage"] == "timeout"
    assert "main: import torch" in report["first_fatal"]


def test_without_systemd_run_the_report_says_so() -> None:
    report = smoke.judge(127, "", "systemd-run: No such file or directory", False)
    assert (report["ok"], report["stage"]) == (False, "systemd-run")


SHOW = {
    "User": "llm",
    "WorkingDirectory": "!/srv/llm",
    "LimitNOFILE": "1048576",
    "MemoryMax": "infinity",
    "Environment": 'HF_TOKEN=hf_abcdef PYTHONPATH=/opt/ddtree/releases/ab/overlay:/opt/plug "A=x y"',
    "EnvironmentFiles": "/etc/a.env (ignore_errors=no)\n/etc/b.env (ignore_errors=yes)",
}


def test_the_unit_is_copied_and_no_value_is_in_argv(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox.caps, "systemd_version", lambda: 252)
    env = smoke.environment({"DDTREE_RELEASE": "cd"}, SHOW, "/opt/ddtree/releases/cd/overlay")
    assert env["PYTHONPATH"] == "/opt/ddtree/releases/cd/overlay:/opt/plug"
    assert (env["A"], env["DDTREE_RELEASE"], env["PYTHONDONTWRITEBYTECODE"]) == ("x y", "cd", "1")
    argv = sandbox.unit_argv("u.service", SHOW, env, 90)
    assert "--property=User=llm" in argv
    assert "--property=WorkingDirectory=-/srv/llm" in argv
    assert "--property=EnvironmentFile=/etc/a.env" in argv
    assert "--property=EnvironmentFile=-/etc/b.env" in argv
    assert "--property=RuntimeMaxSec=90" in argv
    assert "--setenv=HF_TOKEN" in argv
    assert not any("MemoryMax" in word or "hf_abcdef" in word for word in argv)


def test_what_is_secret_is_not_told() -> None:
    values = smoke.secrets(
        {"HF_TOKEN": "hf_abcdef", "TOKENIZERS_PARALLELISM": "true"},
        ["--api-key", "s3cret", "--max-total-tokens", "4096"],
    )
    assert sorted(values) == ["hf_abcdef", "s3cret"]
    told = smoke.redacted({"first_fatal": "bad hf_abcdef", "tail": ["--api-key s3cret 4096"]}, values)
    assert "hf_abcdef" not in json.dumps(told)
    assert told["tail"] == ["--api-key *** 4096"]


@pytest.mark.engine
@pytest.mark.skipif(not (ENGINE / "bin/python").exists(), reason="needs .venv-engine")
def test_the_real_engine_passes_and_refuses_an_algorithm_that_it_does_not_have(tmp_path: Path) -> None:
    site = next((ENGINE / "lib").glob("python3*/site-packages"))
    (tmp_path / "overlay").mkdir()
    (tmp_path / "work").mkdir()
    (tmp_path / "overlay" / "sglang").symlink_to(site / "sglang")
    env = {
        "PYTHONPATH": f"{tmp_path / 'overlay'}:{STUBS}",
        "SGLANG_USE_CPU_ENGINE": "1",
        "TRITON_INTERPRET": "1",
    }
    args = [
        "-m",
        "sglang.launch_server",
        "--device",
        "cpu",
        "--model-path",
        "m",
        "--speculative-algorithm",
        "NOPE",
    ]
    report = run(
        tmp_path / "overlay",
        args,
        env,
        str(ENGINE / "bin/python"),
        ["sglang.srt.server_args"],
        cwd=tmp_path / "work",
    )
    assert (report["ok"], report["stage"]) == (False, "arguments"), report
    assert "invalid choice: 'NOPE'" in report["first_fatal"]
    assert report["origin"]["main"] == str(tmp_path / "overlay" / "sglang" / "__init__.py")


def test_the_program_travels_inside_the_agents_zip(tmp_path: Path) -> None:
    from ddtree_ops.apply import agentzip

    archive = tmp_path / "agent.pyz"
    archive.write_bytes(agentzip.build())
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from ddtree_agent import smoke, unitenv\n"
        "launch = unitenv.split_launch(['/v/python3', '-m', 'sglang.launch_server'])\n"
        "sys.stdout.buffer.write(smoke.stdin({}, launch, '/o'))"
    )
    sent = subprocess.run(
        [sys.executable, "-I", "-B", "-c", code, archive], capture_output=True, check=True
    ).stdout
    source = (Path(smoke.__file__).parent / "smoke_inner.py").read_bytes()
    assert sent.split(b"\n", 1)[1] == source
