"""The agent's small pure parts: reading systemctl show, bounds from server info, who owns a port, the zip."""

from __future__ import annotations

import socket
import subprocess
import sys
import zipfile
from io import BytesIO
from pathlib import Path

import pytest

import ddtree_ops.core
from ddtree_agent import store
from ddtree_agent.capacity import bounds_of
from ddtree_agent.journal import Txn, open_txn
from ddtree_agent.layout import Layout
from ddtree_agent.main import write_secrets
from ddtree_agent.sockets import holder
from ddtree_agent.systemd import properties
from ddtree_agent.wire import AgentError
from ddtree_ops.apply import agentzip

pytestmark = pytest.mark.tier("main")


def test_a_value_of_several_lines_is_one_property() -> None:
    text = "ExecStart={ path=/bin/bash ; argv[]=/bin/bash -c A=1\nB=2\n\nexec x ; ignore_errors=no }\nType=simple\n"
    found = properties(text, ["ExecStart", "Type"])
    assert found == {
        "ExecStart": "{ path=/bin/bash ; argv[]=/bin/bash -c A=1\nB=2\n\nexec x ; ignore_errors=no }",
        "Type": "simple",
    }


def test_a_property_that_is_printed_twice_keeps_both() -> None:
    assert properties("EnvironmentFiles=/a\nEnvironmentFiles=/b\n", ["EnvironmentFiles"]) == {
        "EnvironmentFiles": "/a\n/b"
    }


def test_bounds_are_half_the_tokens_and_the_operators_own_requests() -> None:
    info = {"max_total_num_tokens": 4096, "max_running_requests": None, "max_req_input_len": 4090}
    assert bounds_of(info) == {"min_tokens": 2048, "min_context": 4090}
    assert bounds_of({"max_running_requests": 8}) == {"min_requests": 8}


def test_the_listener_on_a_port_is_named() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert "python" in (holder(port) or "")
    assert holder(port) is None


def test_a_push_leaves_the_keys_of_other_releases(tmp_path: Path) -> None:
    layout = Layout("sglang.service", str(tmp_path))
    write_secrets(layout, "aa", {"API_KEY": 'a"b\\c', "OLD": "1"})
    write_secrets(layout, "bb", {"HF_TOKEN": "t", "OLD": "2"})
    path = Path(layout.secrets("aa"))
    assert path.read_text() == 'API_KEY="a\\"b\\\\c"\nOLD="1"\n'
    assert path.stat().st_mode & 0o777 == 0o600
    Path(layout.release("bb")).mkdir(parents=True)
    store.sweep(layout)  # of a release that is gone
    assert [found.name for found in path.parent.iterdir()] == ["secrets-bb.env"]


def test_a_rollout_that_was_only_half_written_down_is_none(tmp_path: Path) -> None:
    layout = Layout("sglang.service", str(tmp_path))
    (Path(layout.txns) / "abc-1").mkdir(parents=True)
    (Path(layout.txns) / ".new-abc-2").mkdir()
    assert open_txn(layout) is None
    txn = Txn.create(layout, {"txn": "abc-3", "who": "me"})
    assert open_txn(layout) is not None
    assert (txn.to("STAGED"), txn.to("GATED"), txn.state) == (True, False, "STAGED")


@pytest.mark.parametrize("name", ["", "../x", "a/b", ".hidden"])
def test_a_service_name_is_no_path(name: str) -> None:
    with pytest.raises(AgentError):
        Layout(name)


@pytest.mark.parametrize("digest", ["", "..", "abc/../..", "ABC", "x"])
def test_a_digest_is_no_path(digest: str) -> None:
    with pytest.raises(AgentError):
        Layout("sglang.service").release(digest)


def test_the_zip_is_reproducible_and_shares_core_verbatim() -> None:
    agentzip.build.cache_clear()
    first = agentzip.build()
    agentzip.build.cache_clear()
    assert agentzip.build() == first
    core = Path(ddtree_ops.core.__file__).parent
    with zipfile.ZipFile(BytesIO(first)) as archive:
        for name in agentzip.SHARED:
            assert archive.read(f"ddtree_agent/core/{name}") == (core / name).read_bytes()


def pythons() -> list[str]:
    """Interpreters from the oldest that a host may have, as far as this machine has them."""
    found = (
        sorted(Path("/root/.pyenv/versions").glob("3.*/bin/python3")) if Path("/root/.pyenv").is_dir() else []
    )
    return [str(p) for p in found if int(p.parts[-3].split(".")[1]) >= 9] or [sys.executable]


@pytest.mark.parametrize("python", pythons())
def test_every_module_of_the_agent_loads_under_old_and_new_pythons(python: str, tmp_path: Path) -> None:
    agent = tmp_path / "ddtree-agent.pyz"
    agent.write_bytes(agentzip.build())
    with zipfile.ZipFile(agent) as archive:
        modules = [
            n[:-3].replace("/", ".") for n in archive.namelist() if n.endswith(".py") and "__" not in n
        ]
    code = f"import sys; sys.path.insert(0, {str(agent)!r})\n" + "".join(f"import {m}\n" for m in modules)
    done = subprocess.run([python, "-I", "-B", "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
