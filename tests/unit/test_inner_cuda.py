"""The CUDA smoke and the peer write, against a libcuda of our own that fails where it is told to."""

from __future__ import annotations

import inspect
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ddtree_agent import inner_cuda, inner_nccl
from ddtree_ops.core.checks import cuda_facts, nccl

pytestmark = [
    pytest.mark.tier("preflight"),
    pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc"),
]


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a fake driver of version 570.1.2."""
    place = tmp_path_factory.mktemp("driver")
    source = Path(__file__).with_name("fake_libcuda.c")
    for name in ("libcuda", "libnvidia-ml"):
        real = place / f"{name}.so.570.1.2"
        subprocess.run(
            ["gcc", "-shared", "-fPIC", "-w", f"-Wl,-soname,{name}.so.1", "-o", real, source], check=True
        )
        (place / f"{name}.so.1").symlink_to(real.name)
    return place


def inside(module: Any, argument: Any, place: Path | None, fake: str = "") -> dict[str, Any]:
    """collect(argument) in a fresh interpreter, as sandbox.py runs it: from its text alone."""
    env = {"PATH": os.environ["PATH"], "FAKE_CUDA": fake}
    if place is not None:
        env["LD_LIBRARY_PATH"] = str(place)
    program = f"{inspect.getsource(module)}\nimport json\nprint(json.dumps(collect({argument!r})))\n"
    done = subprocess.run(
        [sys.executable, "-c", "import sys; exec(sys.stdin.read())"],
        input=program, capture_output=True, text=True, env=env, timeout=30, check=True,
    )  # fmt: skip
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


ASKED = {"need": 2, "base": 0}


def test_a_working_driver(libraries: Path) -> None:
    found = cuda_facts.read(inside(inner_cuda, ASKED, libraries, "count=2"))
    assert (found.init, found.count, found.driver_cuda) == (0, 2, "12.8")
    assert [(one.cc, one.code, one.step) for one in found.devices] == [("9.0", 0, None)] * 2
    assert (found.libcuda.path, found.libcuda.version) == (str(libraries / "libcuda.so.570.1.2"), "570.1.2")
    assert found.libnvml.version == "570.1.2"
    assert cuda_facts.works(found)


def test_no_driver_at_all() -> None:
    found = cuda_facts.read(inside(inner_cuda, ASKED, None))
    assert (found.init, found.count, found.devices) == (None, None, ())
    assert "libcuda.so.1" in (found.libcuda.error or "")
    assert not cuda_facts.works(found)


@pytest.mark.parametrize("code", [3, 100, 802, 804, 999])
def test_a_driver_that_does_not_start(libraries: Path, code: int) -> None:
    found = cuda_facts.read(inside(inner_cuda, ASKED, libraries, f"init={code}"))
    assert (found.init, found.driver_cuda, found.devices) == (code, "12.8", ())


def test_the_step_that_failed_is_named(libraries: Path) -> None:
    found = cuda_facts.read(inside(inner_cuda, ASKED, libraries, "count=2 bad=1"))
    assert [(one.step, one.code) for one in found.devices] == [(None, 0), ("cuDevicePrimaryCtxRetain", 101)]
    assert not cuda_facts.works(found)
    sync = cuda_facts.read(inside(inner_cuda, ASKED, libraries, "sync=719"))
    assert [(one.step, one.code) for one in sync.devices] == [("cuCtxSynchronize", 719)]


def test_a_full_gpu_is_taken_and_not_broken(libraries: Path) -> None:
    found = cuda_facts.read(inside(inner_cuda, ASKED, libraries, "alloc=2"))
    assert [(one.step, one.code) for one in found.devices] == [("cuMemAlloc", 2)]
    assert cuda_facts.works(found)


def test_no_context_is_made_where_the_running_server_left_little_room(libraries: Path) -> None:
    found = cuda_facts.read(inside(inner_cuda, ASKED, libraries, "free=900 bad=0"))
    assert [(one.step, one.code) for one in found.devices] == [("room for a context", 2)]
    assert cuda_facts.works(found)
    pairs = nccl.read(inside(inner_nccl, {"need": 2, "base": 0}, libraries, "count=2 free=900 bad=0")).pairs
    assert pairs["0-1"] == nccl.Pair(True, None, 2)


def test_a_device_that_the_server_does_not_take_is_left_alone(libraries: Path) -> None:
    found = cuda_facts.read(inside(inner_cuda, dict(ASKED, need=1), libraries, "count=2 bad=1"))
    assert [(one.cc, one.code) for one in found.devices] == [("9.0", 0), ("9.0", 0)]
    beside = cuda_facts.read(inside(inner_cuda, dict(ASKED, need=1, base=1), libraries, "count=2 bad=1"))
    assert [one.code for one in beside.devices] == [0, 101]


def test_a_compat_directory_in_front(libraries: Path, tmp_path: Path) -> None:
    place = tmp_path / "cuda" / "compat"
    shutil.copytree(libraries, place, symlinks=True)
    found = cuda_facts.read(inside(inner_cuda, ASKED, place, "init=804"))
    assert found.compat == str(place)
    assert "/compat/" in (found.libcuda.path or "")
    assert cuda_facts.read(inside(inner_cuda, ASKED, libraries)).compat is None


def test_a_server_on_cpus_is_not_tried(libraries: Path) -> None:
    assert inside(inner_cuda, None, libraries) == {"error": "not asked: --device cpu"}


def test_a_peer_write_arrives(libraries: Path) -> None:
    found = nccl.read(inside(inner_nccl, {"need": 2, "base": 0}, libraries, "count=2"))
    assert {name: (pair.access, pair.ok, pair.code) for name, pair in found.pairs.items()} == {
        "0-1": (True, True, 0)
    }


def test_a_peer_write_that_is_dropped(libraries: Path) -> None:
    found = nccl.read(inside(inner_nccl, {"need": 4, "base": 0}, libraries, "count=4 lost=1"))
    assert {name: pair.ok for name, pair in found.pairs.items()} == {
        "0-1": False,
        "1-2": False,
        "2-3": False,
        "0-3": False,
    }


def test_no_peer_access_is_promised(libraries: Path) -> None:
    found = nccl.read(inside(inner_nccl, {"need": 2, "base": 0}, libraries, "count=2 peer=0"))
    assert found.pairs["0-1"] == nccl.Pair(False, None, 0)


def test_one_gpu_tries_no_peer(libraries: Path) -> None:
    assert inside(inner_nccl, {"need": 1, "base": 0}, libraries, "count=2")["pairs"] == {}


def test_without_a_driver_peers_are_unknown_and_shm_is_not() -> None:
    found = nccl.read(inside(inner_nccl, {"need": 2, "base": 0}, None))
    assert found.pairs == {} and "libcuda" in (found.peer_error or "")
    assert found.shm is not None and found.shm.size > 0


def test_shared_memory_that_is_not_there(tmp_path: Path) -> None:
    assert inner_nccl.shm(str(tmp_path / "none")) is None
    (tmp_path / "nccl-x1").write_text("")
    (tmp_path / "mine").write_text("")
    found = inner_nccl.shm(str(tmp_path))
    assert found is not None and (found["entries"], found["leftovers"]) == (2, 1)
