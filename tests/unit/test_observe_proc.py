"""Process counters and socket owners, read from this machine's own /proc."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from ddtree_agent.observe_gpu import parse
from ddtree_agent.observe_proc import _covers, owner, tree, usage

pytestmark = pytest.mark.tier("main")

BUSY = "print('up', flush=True)\nwhile True: pass"
LISTEN = (
    "import socket, time; s = socket.create_server(('127.0.0.1', 0));"
    "print(s.getsockname()[1], flush=True); time.sleep(60)"
)


@pytest.fixture
def child(request: pytest.FixtureRequest) -> Iterator[tuple[int, str]]:
    """A Python child running the given source: (pid, the first line it printed)."""
    process = subprocess.Popen([sys.executable, "-c", request.param], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    yield process.pid, process.stdout.readline().strip()
    process.kill()
    process.wait()
    process.stdout.close()


@pytest.mark.parametrize("child", [BUSY], indirect=True)
def test_a_busy_process_burns_ticks_and_a_gone_one_does_not_count(child: tuple[int, str]) -> None:
    pid = child[0]
    before = usage([pid])
    for _ in range(200):
        if usage([pid]).cpu_ticks > before.cpu_ticks:
            break
        time.sleep(0.02)
    assert usage([pid]).cpu_ticks > before.cpu_ticks
    assert before.procs == 1
    assert usage([2**22 + 1]) == (0, 0, 0, 0)


def test_without_a_cgroup_the_tree_is_the_main_process_and_its_descendants() -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        found = tree("", os.getpid())
        process.kill()
    assert os.getpid() in found and process.pid in found
    assert tree("", 0) == []


def test_compilers_are_told_by_name(tmp_path: object) -> None:
    tool = f"{tmp_path}/ptxas"
    os.symlink("/bin/sleep", tool)
    with subprocess.Popen([tool, "60"]) as process:
        for _ in range(100):
            if usage([process.pid]).compilers:
                break
            time.sleep(0.02)
        found = usage([process.pid, os.getpid()])
        process.kill()
    assert found.compilers == 1 and found.procs == 2


@pytest.mark.parametrize("child", [LISTEN], indirect=True)
def test_the_owner_of_a_port_is_told_by_its_socket(child: tuple[int, str]) -> None:
    pid, port = child[0], int(child[1])
    assert owner(port, [pid]) == ("ours", "")
    whose, holder = owner(port, [os.getpid()])
    assert whose == "other" and holder.startswith(f"pid {pid} (")


def test_a_free_port_has_no_owner() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert owner(port, [os.getpid()])[0] == "ours"
    assert owner(port, [os.getpid()]) == ("none", "")


def test_a_listener_on_another_address_does_not_take_the_port() -> None:
    with socket.create_server(("127.0.0.2", 0)) as server:
        port = server.getsockname()[1]
        assert owner(port, [], "127.0.0.1") == ("none", "")
        assert owner(port, [], "127.0.0.2")[0] == "other"


@pytest.mark.parametrize(
    ("address", "covers"),
    [
        ("00000000", True),
        ("0" * 32, True),
        ("0100007F", True),
        ("0200007F", False),
        ("0000000000000000FFFF00000100007F", True),
    ],
)
def test_addresses_as_the_kernel_prints_them(address: str, covers: bool) -> None:
    assert _covers(address, "127.0.0.1") is covers


def test_gpu_memory_is_summed_and_absent_where_it_is_no_number() -> None:
    assert parse("100\n28\n") == 128 << 20
    assert parse("[N/A]\n") is None
    assert parse("") is None
