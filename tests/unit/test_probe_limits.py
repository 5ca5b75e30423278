"""The whole probe: one round trip, and a section that hangs costs its own limit, no other section and no more."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from healthy import HEALTHY_H200

from ddtree_agent import probe, probe_areas, probe_unit, systemd
from ddtree_ops.apply.agent import AgentClient
from ddtree_ops.apply.prepare import probe as ask_host
from ddtree_ops.config.model import HostConfig
from ddtree_ops.transport.fake import FakeTransport, Reply

pytestmark = pytest.mark.tier("preflight")
LIMIT_S = 0.4


@pytest.fixture
def frozen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A host whose nvidia-smi never answers, and no unit; the limits of all that asks it are short."""
    tool, pids = tmp_path / "nvidia-smi", tmp_path / "pids"
    tool.write_text(f"#!/bin/sh\necho $$ >> {pids}\nexec sleep 60\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(systemd, "show", lambda name, props: {})
    monkeypatch.setitem(probe.LIMITS, "gpu", LIMIT_S)
    areas = [(name, work, min(limit, LIMIT_S)) for name, work, limit in probe_areas.HERE]
    monkeypatch.setattr(probe_areas, "HERE", areas)
    monkeypatch.setattr(probe_areas, "INSIDE", [])  # needs a systemd
    yield pids
    for pid in pids.read_text().split() if pids.exists() else ():
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)


def test_a_frozen_nvidia_smi_costs_its_own_limit_only(frozen: Path) -> None:
    started = time.monotonic()
    found = probe.probe({"service": "sglang.service", "measure": False})
    seconds = time.monotonic() - started
    assert frozen.read_text().strip(), "nothing asked nvidia-smi"
    assert found["gpu"] == {"error": f"no answer in {LIMIT_S} s"}
    for name in ("session", "port", "state", "memory", "user", "capabilities", "storage"):
        assert "error" not in found[name], (name, found[name])
    assert seconds < LIMIT_S + 2


def test_sections_of_the_areas_hang_for_themselves(frozen: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def hang(_: Any) -> dict[str, Any]:
        time.sleep(20)
        return {}

    jobs = [(f"hung-{i}", hang, LIMIT_S) for i in range(5)] + [("quick", lambda context: {"x": 1}, 5.0)]
    monkeypatch.setattr(probe_areas, "HERE", jobs)
    started = time.monotonic()
    found = probe.probe({"service": "sglang.service", "measure": False})
    assert time.monotonic() - started < LIMIT_S + 2  # not five times its limit
    assert found["quick"]["x"] == 1
    assert [found[f"hung-{i}"] for i in range(5)] == [{"error": f"no answer in {LIMIT_S} s"}] * 5


def test_a_hung_section_does_not_keep_those_that_need_no_answer_of_it_from_beginning(
    frozen: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    began: dict[str, float] = {}

    def slow_state(_: str) -> dict[str, Any]:
        began["state"] = time.monotonic()
        return {"confirmed": None, "open": None, "releases": [], "lock": None}

    monkeypatch.setattr(probe_unit, "state", slow_state)
    started = time.monotonic()
    probe.probe({"service": "sglang.service", "measure": False})
    assert began["state"] - started < LIMIT_S


def test_the_probe_is_one_round_trip() -> None:
    answer = {"ev": "result", "ok": True, "facts": HEALTHY_H200}
    line = FakeTransport([Reply(b"@ddt " + json.dumps(answer).encode() + b"\n")])
    host = HostConfig(name="ct129")
    seen = ask_host(AgentClient(line, host), host, None)
    assert seen["transport"]["noise_lines"] == 0  # the controller's own end of the line
    assert {**seen, "transport": HEALTHY_H200["transport"]} == HEALTHY_H200
    assert len(line.calls) == 1
