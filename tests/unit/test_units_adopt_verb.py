"""The adopt verb over a scripted agent: facts written, the host added, nothing written on a refusal."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ddtree_ops.cli.app import run
from ddtree_ops.core.errors import UsageProblem
from ddtree_ops.units.facts import load_facts
from ddtree_ops.units.inventory_edit import add_host

pytestmark = pytest.mark.tier("main")
KEY = "sk-live-0123456789abcdef"
UNIT = f"[Service]\nExecStart=/opt/v/bin/python -m sglang.launch_server --port 30007 --api-key {KEY}\n"
HOSTS = """\
version: 1   # one
hosts:
  # the first
  ct129: {}      # as it was

  # the second
  ct200:
    tp: 2
# what follows

"""


class Agent:
    """Answers read-unit from a text and remembers what it was asked."""

    def __init__(self) -> None:
        self.unit = UNIT
        self.calls: list[tuple[str, dict[str, Any]]] = []

    def call(
        self, op: str, request: dict[str, Any], payload: Any = (), timeout: float | None = None
    ) -> dict[str, Any]:
        self.calls.append((op, request))
        if op == "adopt-baseline":
            return {}
        path = "/etc/systemd/system/sglang.service"
        return {
            "raw": {"fragment": {"path": path, "text": self.unit, "sha256": "0" * 64}, "enabled": "enabled"},
            "engine": {"name": "sglang", "version": "0.5.11", "interpreter": "/opt/v/bin/python", "bytes": 1},
            "capabilities": {"systemd": 255, "nft": True, "log": "journal"},
            "model": {"target_hybrid": None, "context_length": 4096, "error": None},
        }


@pytest.fixture
def agent(monkeypatch: pytest.MonkeyPatch) -> Agent:
    made = Agent()

    @contextmanager
    def connect(inventory: object, host: object) -> Iterator[Agent]:
        yield made

    monkeypatch.setattr("ddtree_ops.apply.agent.connect", connect)
    return made


@pytest.fixture
def hosts(tmp_path: Path) -> Path:
    path = tmp_path / "hosts.yaml"
    path.write_text(HOSTS)
    return path


def test_facts_are_written_without_the_key_and_the_baseline_is_recorded(
    agent: Agent, hosts: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["adopt", "--host", "ct129", "--config", str(hosts), "--json"]) == 0
    facts = load_facts(hosts.parent / "facts" / "ct129.yaml")
    assert facts.port == 30007 and facts.capabilities.systemd == 255 and facts.model.target_hybrid is False
    assert [op for op, _ in agent.calls] == ["read-unit", "adopt-baseline"]
    out = capsys.readouterr()
    written = "".join(p.read_text() for p in hosts.parent.rglob("*.yaml"))
    assert KEY not in written + out.out + out.err + repr(agent.calls)
    assert "DDTREE_API_KEY" in out.err


def test_the_same_again_changes_nothing_and_another_unit_is_asked_about(agent: Agent, hosts: Path) -> None:
    asked = ["adopt", "--host", "ct129", "--config", str(hosts)]
    path = hosts.parent / "facts" / "ct129.yaml"
    assert run(asked) == 0
    before = path.read_bytes()
    assert run(asked) == 0
    assert path.read_bytes() == before
    agent.unit = UNIT.replace("30007", "30008")
    assert run(asked) == 2
    assert path.read_bytes() == before
    assert run([*asked, "--yes"]) == 0
    assert load_facts(path).port == 30008


def test_a_refusal_is_exit_3_and_writes_nothing(
    agent: Agent, hosts: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    agent.unit = f"[Service]\nExecStart=/usr/bin/docker run -e API_KEY={KEY} sglang\n"
    assert run(["adopt", "--host", "ct129", "--config", str(hosts)]) == 3
    said = capsys.readouterr().err
    assert "container (docker)" in said and KEY not in said
    assert not (hosts.parent / "facts").exists()
    assert [op for op, _ in agent.calls] == ["read-unit"]


def test_a_host_that_is_missing_is_added_where_the_person_agrees(agent: Agent, hosts: Path) -> None:
    asked = ["adopt", "--host", "ct201", "--config", str(hosts)]
    assert run(asked) == 2
    assert hosts.read_text() == HOSTS
    assert run([*asked, "--yes"]) == 0
    assert hosts.read_text() == HOSTS.replace("    tp: 2\n", "    tp: 2\n  ct201: {}\n")
    assert (hosts.parent / "facts" / "ct201.yaml").exists()


@pytest.mark.parametrize(
    "text", ["hosts:\n  a:\n    tp: 1", "hosts:\n  a: {}\nversion: 1\n", "hosts:\n    a: {}\n    # end\n"]
)
def test_all_else_in_hosts_yaml_stays_as_it_is(tmp_path: Path, text: str) -> None:
    path = tmp_path / "hosts.yaml"
    path.write_text(text)
    add_host(path, "b")
    new = path.read_text()
    assert [line for line in new.splitlines() if line.strip() != "b: {}"] == text.splitlines()
    assert sum(line.strip() == "b: {}" for line in new.splitlines()) == 1


def test_hosts_on_one_line_are_left_to_the_person(tmp_path: Path) -> None:
    path = tmp_path / "hosts.yaml"
    path.write_text("hosts: {a: {}}\n")
    with pytest.raises(UsageProblem, match="one line"):
        add_host(path, "b")
