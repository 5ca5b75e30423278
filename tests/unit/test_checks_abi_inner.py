"""What runs in the unit's place, on real files and programs: tools, caches, bytecode, modes, packages."""

from __future__ import annotations

import json
import os
import py_compile
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from healthy import HEALTHY_H200, WANTED, overlaid

from ddtree_agent import inner_caches, inner_sources, inner_toolchain, package, probe_areas, probe_python
from ddtree_agent.unitenv import split_launch
from ddtree_ops.core.doctor import examine
from ddtree_ops.core.finding import Finding, Level

pytestmark = pytest.mark.tier("preflight")
NOBODY = 65534


def judged(section: str, answer: dict[str, Any], rule: str, **more: Any) -> Finding:
    """The rule's word on a healthy host whose probe answered that."""
    seen = [
        one for one in examine({**overlaid(HEALTHY_H200, more), section: answer}, WANTED) if one.rule == rule
    ]
    assert len(seen) == 1, seen
    return seen[0]


def as_nobody(module: Any, argument: Any, env: dict[str, str]) -> dict[str, Any]:
    """collect() of a program as another user, by its text alone, as the sandbox runs it."""
    code = "import sys, json as j; s={}; exec(sys.stdin.read(), s); print(j.dumps(s['collect'](j.loads(sys.argv[-1]))))"
    who: dict[str, Any] = {"user": NOBODY, "group": NOBODY, "extra_groups": []} if os.geteuid() == 0 else {}
    done = subprocess.run(
        [
            shutil.which("python3", path="/usr/bin:/usr/local/bin") or sys.executable,
            "-c",
            code,
            json.dumps(argument),
        ],
        input=Path(module.__file__).read_text(),
        capture_output=True,
        text=True,
        env=env,
        timeout=60,
        check=False,
        cwd="/",
        **who,
    )
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


@pytest.fixture
def open_dir() -> Iterator[Path]:
    """A directory that every user can pass (pytest's own cannot be)."""
    place = Path(tempfile.mkdtemp(prefix="ddtree-abi-"))
    place.chmod(0o755)
    yield place
    shutil.rmtree(place)


def program(folder: Path, name: str, body: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PATH of our own: gcc, ninja, and nvcc of a whole toolkit, and a GPU of the kind 9.0."""
    bin_ = tmp_path / "cuda/bin"
    program(
        bin_,
        "nvcc",
        'if [ "$1" = --list-gpu-arch ]; then echo compute_80; echo compute_90; '
        "else echo 'Cuda compilation tools, release 12.8, V12.8.93'; fi",
    )
    program(bin_, "gcc", "echo 'gcc (Debian 12.2.0-14) 12.2.0'")
    program(bin_, "ninja", "echo 1.11.1")
    include = tmp_path / "cuda/include"
    include.mkdir()
    for name in ("cuda_fp8.h", "cuda_runtime.h"):
        (include / name).write_text("")
    for name in inner_toolchain.VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", f"{bin_}")
    monkeypatch.setattr(inner_toolchain, "_devices", lambda: ([{"name": "NVIDIA H200", "cc": "9.0"}], None))
    return tmp_path


def test_tools_are_found_and_asked(tools: Path) -> None:
    seen = inner_toolchain.collect({"backends": {"--attention-backend": "fa3"}})
    assert seen["tools"]["cc"] == {"path": f"{tools}/cuda/bin/gcc", "version": "12.2.0", "error": None}
    assert seen["tools"]["nvcc"]["version"] == "12.8" and seen["nvcc_archs"] == ["80", "90"]
    assert seen["cuda_home"]["value"] == f"{tools}/cuda" and seen["cuda_home"]["cuda_fp8"]
    assert seen["python_h"]["found"] or not Path(seen["python_h"]["include"], "Python.h").exists()
    for rule in ("ninja", "nvcc", "cuda-home"):
        assert judged("toolchain", seen, rule).level is Level.OK


def test_a_tool_that_is_not_there_or_fails(tools: Path) -> None:
    (tools / "cuda/bin/ninja").unlink()
    program(tools / "cuda/bin", "nvcc", "echo 'nvcc fatal: no'; exit 1")
    seen = inner_toolchain.collect({})
    assert seen["tools"]["ninja"] == {"path": None, "version": None, "error": None}
    assert judged("toolchain", seen, "ninja").level is Level.WARN, "warm caches, and it serves"
    assert "nvcc fatal: no" in judged("toolchain", seen, "nvcc").evidence


OLD = "def _detect_gpu_backend():\n    try:\n        _find_rocm_home()\n        return 'hip'\n"
NEW = "def _detect_gpu_backend():\n    import torch\n    _find_rocm_home()\n\n\ndef _other():\n    _find_rocm_home()\n"


def test_an_older_tvm_ffi_beside_rocm_takes_hipcc(tools: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tools / "site" / "tvm_ffi" / "cpp" / "extension.py"
    source.parent.mkdir(parents=True)
    (tools / "site/tvm_ffi/__init__.py").write_text("")
    monkeypatch.setattr(inner_toolchain, "_where", lambda name: str(tools / "site" / name / "__init__.py"))
    monkeypatch.setenv("ROCM_PATH", "/elsewhere/rocm")
    source.write_text("\n" + NEW)
    assert inner_toolchain._hipcc() is None, "it asks torch first"
    source.write_text("\n" + OLD)
    assert inner_toolchain._hipcc() == "ROCM_PATH=/elsewhere/rocm"
    monkeypatch.setenv("TVM_FFI_GPU_BACKEND", "cuda")
    assert inner_toolchain._hipcc() is None
    monkeypatch.setenv("TVM_FFI_GPU_BACKEND", "hip")
    assert inner_toolchain._hipcc() == "TVM_FFI_GPU_BACKEND=hip"


def test_cuda_home_is_told_word_for_word(tools: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_HOME", f":{tools}/cuda")
    said = judged("toolchain", inner_toolchain.collect({}), "cuda-home")
    assert said.level is Level.BLOCK and f"CUDA_HOME=:{tools}/cuda" in said.evidence
    assert f"CUDA_HOME={tools}/cuda " in str(said.remedy)
    monkeypatch.setenv("CUDA_HOME", f"{tools}/cuda")
    assert judged("toolchain", inner_toolchain.collect({}), "cuda-home").level is Level.OK


@pytest.mark.parametrize(("known", "level"), [(True, Level.OK), (False, Level.BLOCK)])
def test_ptxas_is_asked_about_the_gpu(
    tools: Path, monkeypatch: pytest.MonkeyPatch, known: bool, level: Level
) -> None:
    refusal = (
        ""
        if known
        else "echo \"ptxas fatal   : Value 'sm_90a' is not defined for option 'gpu-name'\"; exit 255"
    )
    path = program(
        tools,
        "ptxas",
        f'if [ "$1" = --version ]; then echo "release 12.0, V12"; else {refusal or "exit 0"}; fi',
    )
    monkeypatch.setenv("TRITON_PTXAS_PATH", str(path))
    seen = inner_toolchain.collect({})
    assert {k: v for one in seen["ptxas"] for k, v in one["accepts"].items()} == {"90": known}
    seen["jit"]["triton"] = True
    assert judged("toolchain", seen, "ptxas").level is level


def test_each_program_puts_its_cache_where_it_says() -> None:
    plain = inner_caches.places({"HOME": "/home/llm"})
    assert plain["triton"] == ("/home/llm/.triton/cache", "HOME")
    assert (
        plain["flashinfer"][0] == "/home/llm/.cache/flashinfer"
        and plain["huggingface"][0] == "/home/llm/.cache/huggingface"
    )
    moved = inner_caches.places(
        {
            "HOME": "/",
            "TRITON_CACHE_DIR": "/c/t",
            "TMPDIR": "/scratch",
            "XDG_CACHE_HOME": "/x",
            "FLASHINFER_WORKSPACE_BASE": "/f",
        }
    )
    assert moved["triton"] == ("/c/t", "TRITON_CACHE_DIR") and moved["inductor"][0].startswith(
        "/scratch/torchinductor_"
    )
    assert (
        moved["flashinfer"][0] == "/f/.cache/flashinfer"
        and moved["torch-extensions"][0] == "/x/torch_extensions"
    )


def test_a_cache_of_another_user(open_dir: Path) -> None:
    cache = open_dir / "triton"
    cache.mkdir(mode=0o755)
    env = {"HOME": str(open_dir), "TRITON_CACHE_DIR": str(cache)}
    if os.geteuid() != 0:
        cache.chmod(0o555)
    seen = as_nobody(inner_caches, None, env)
    said = judged("caches", seen, "cache-write")
    assert said.level is Level.BLOCK and str(cache) in said.evidence and "Permission denied" in said.evidence
    cache.chmod(0o777)
    mine = as_nobody(inner_caches, None, env)
    assert mine["places"]["triton"]["write"] is True and mine["places"]["triton"]["exec"] is True
    assert list(cache.iterdir()) == [], "the trial left something"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount")
@pytest.mark.parametrize(("options", "level"), [("noexec", Level.BLOCK), ("exec", Level.OK)])
def test_a_mount_without_execution(open_dir: Path, options: str, level: Level) -> None:
    code = "import sys, json; s = {}; exec(sys.stdin.read(), s); print(json.dumps(s['collect'](None)))"
    script = f'mount -t tmpfs -o {options},mode=0777 tmpfs {open_dir} && exec {sys.executable} -c "{code}"'
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", script],
        input=Path(inner_caches.__file__).read_text(),
        capture_output=True,
        text=True,
        env={**os.environ, "TRITON_CACHE_DIR": str(open_dir)},
        timeout=60,
        check=True,
    )
    seen = json.loads(done.stdout)
    assert judged("caches", seen, "cache-exec").level is level
    assert judged("caches", seen, "cache-place").level is Level.WARN, "tmpfs is lost at boot"


def test_only_the_installed_flashinfer_makes_its_cache_warm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLASHINFER_WORKSPACE_BASE", str(tmp_path))
    old = tmp_path / ".cache/flashinfer/0.6.7/90a/cached_ops/page"
    old.mkdir(parents=True)
    (old / "page.so").write_bytes(b"\x7fELF")
    assert inner_caches.collect({"flashinfer": "0.6.7"})["places"]["flashinfer"]["compiled"] == 1
    assert inner_caches.collect({"flashinfer": "0.6.8"})["places"]["flashinfer"]["compiled"] == 0
    context: Any = SimpleNamespace(asked={"dists": [["FlashInfer_Python", "0.6.8", "x"]]})
    assert probe_python.caches_argument(context) == {"flashinfer": "0.6.8"}


def test_what_a_power_cut_leaves_in_a_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    (tmp_path / "a").mkdir()
    (tmp_path / "a/kernel.json").write_text('{"name": "k"}')
    (tmp_path / "a/kernel.cubin").write_bytes(b"\x7fELF")
    (tmp_path / "a/kernel.lock").write_text("")
    os.utime(tmp_path / "a/kernel.lock", (1, 1))
    whole = inner_caches.collect(None)["places"]["triton"]
    assert (whole["compiled"], whole["broken"], whole["locks"]) == (1, [], [])
    (tmp_path / "b").mkdir()
    (tmp_path / "b/kernel2.json").write_text('{"name": ')
    (tmp_path / "b/kernel2.so").write_bytes(b"")
    (tmp_path / "b/other.lock").write_text("")
    os.utime(tmp_path / "b/other.lock", (1, 1))
    seen = inner_caches.collect(None)
    cut = seen["places"]["triton"]
    assert sorted(cut["broken"]) == [str(tmp_path / "b/kernel2.json"), str(tmp_path / "b/kernel2.so")]
    assert cut["locks"] == [str(tmp_path / "b/other.lock")]
    assert judged("caches", seen, "cache-whole").level is Level.WARN
    idle = {"service": {"active_state": "inactive", "sub_state": "dead"}}
    assert judged("caches", seen, "cache-whole", **idle).level is Level.BLOCK
    assert judged("caches", seen, "cache-locks").level is Level.WARN


def test_bytecode_of_an_older_text(tmp_path: Path) -> None:
    file = tmp_path / "engine.py"

    def stale() -> list[str]:
        return list(inner_sources.collect({"package": str(tmp_path), "files": ["engine.py"]})["stale"])

    file.write_text("LIMIT = 1\n")
    os.utime(file, (1000, 1000))
    py_compile.compile(str(file), doraise=True)
    assert stale() == []
    file.write_text("LIMIT = 2\n")  # of the same size, and with the time of the first
    os.utime(file, (1000, 1000))
    assert stale() == ["engine.py"]
    os.utime(file, (1001, 1001))  # Python sees another time and compiles anew
    assert stale() == []
    py_compile.compile(str(file), invalidation_mode=py_compile.PycInvalidationMode.CHECKED_HASH)
    file.write_text("LIMIT = 3\n")
    assert stale() == []
    py_compile.compile(str(file), invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)
    assert stale() == []
    file.write_text("LIMIT = 4\n")
    assert stale() == ["engine.py"]
    seen = inner_sources.collect({"package": str(tmp_path), "files": ["engine.py"]})
    assert judged("sources", seen, "bytecode").level is Level.WARN


def test_files_that_only_their_owner_reads(open_dir: Path) -> None:
    engine = open_dir / "sglang"
    (engine / "srt").mkdir(parents=True)
    (engine / "srt/server_args.py").write_text("")
    argument = {
        "package": str(engine),
        "files": [],
        "roots": [{"path": str(open_dir / "opt/releases"), "there": False}],
    }
    fine = as_nobody(inner_sources, argument, {})
    assert (fine["unreadable"], fine["roots"][0]["ok"]) == ([], True)
    (engine / "srt/server_args.py").chmod(0o600 if os.geteuid() == 0 else 0o000)
    bad = as_nobody(inner_sources, argument, {})
    said = judged("sources", bad, "modes")
    assert (
        said.level is Level.BLOCK and "srt/server_args.py" in said.evidence and "umask 077" in said.evidence
    )
    engine.chmod(0o700 if os.geteuid() == 0 else 0o000)
    closed = as_nobody(inner_sources, argument, {})
    assert closed["unreadable"][0]["path"] == str(engine)
    engine.chmod(0o755)
    (open_dir / "opt/releases").mkdir(parents=True)
    (open_dir / "opt").chmod(0o700 if os.geteuid() == 0 else 0o000)
    argument["roots"][0]["there"] = True  # type: ignore[index]
    shut = as_nobody(inner_sources, argument, {})
    (open_dir / "opt").chmod(0o755)
    said = judged("sources", shut, "release-reach")
    assert said.level is Level.BLOCK and f"{open_dir}/opt " in said.evidence


def dist(site: Path, name: str, metadata: str = "", direct: dict[str, Any] | None = None) -> str:
    info = site / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(
        f"Name: {name}\nLicense: X\n        \n        more\n{metadata}\nRequires-Dist: not-one==1\n"
    )
    if direct is not None:
        (info / "direct_url.json").write_text(json.dumps(direct))
    return str(info)


def test_pins_are_read_from_metadata(tmp_path: Path) -> None:
    info = dist(
        tmp_path,
        "sglang",
        "Requires-Dist: torch==2.11.0\nRequires-Dist: flashinfer_python (==0.6.8)\nRequires-Dist: orjson\n"
        "Requires-Dist: triton[extra]>=3\nRequires-Dist: xformers==1; extra == 'all'\n",
    )
    assert probe_python.pins(info) == {"torch": "==2.11.0", "flashinfer-python": "==0.6.8", "triton": ">=3"}
    gone = probe_python._missing(
        [("sglang", "1", info), ("torch", "2", info), ("triton", "3", info)], "3.11.7"
    )
    assert [one["name"] for one in gone] == ["flashinfer-python", "orjson"]


def test_what_was_installed_since_and_what_is_editable(tmp_path: Path) -> None:
    old = [
        (
            "sglang",
            "1",
            dist(tmp_path, "sglang", direct={"url": "file:///src/sglang", "dir_info": {"editable": True}}),
        ),
        ("torch", "2", dist(tmp_path, "torch", direct={"url": "file:///w/torch.whl", "archive_info": {}})),
    ]
    assert probe_python._editable(old) == [{"name": "sglang", "source": "/src/sglang"}]
    assert probe_python._newer(old, time.time() + 60) == []
    assert probe_python._newer(old, time.time() - 60) == ["sglang", "torch"]
    assert probe_python._newer(old, None) == []
    mine = probe_python._started({"MainPID": str(os.getpid())})
    assert mine is not None and 0 < time.time() - mine < 24 * 3600
    assert probe_python._started({"MainPID": "0"}) is None or os.path.exists("/proc/0")


def test_the_sections_of_a_real_interpreter(tmp_path: Path) -> None:
    asked = package.query(sys.executable, [], dict(os.environ), str(tmp_path))
    launch = split_launch(
        [sys.executable, "-m", "sglang.launch_server", "--attention-backend", "fa3", "--api-key", "s3cret"]
    )
    context = probe_areas.Context({"files": "all"}, {}, launch, asked, {})
    for name, work, limit in probe_areas.HERE:
        if name in ("python", "binaries"):
            began = time.monotonic()
            assert "error" not in work(context), name
            assert time.monotonic() - began < limit
    assert probe_python.toolchain_argument(context) == {"backends": {"--attention-backend": "fa3"}}
    assert probe_python.sources_argument(context)["files"] == []
    broken: Any = SimpleNamespace(asked={"error": "gone"}, request={}, launch=None, show={}, env={})
    assert probe_python.python(broken) == {"error": "gone"}
