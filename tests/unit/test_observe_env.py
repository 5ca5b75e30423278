"""What counts as the host's own fault between two looks."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ddtree_agent.observe_env import HostState, faults, look

pytestmark = pytest.mark.tier("main")

GB = 1 << 30
GPUS = ("GPU 0: NVIDIA H200 (UUID: GPU-a)", "GPU 1: NVIDIA H200 (UUID: GPU-b)")
FINE = HostState(GPUS, ("/dev/nvidia0",), (), {"/": GB})
XID = "[77.1] NVRM: Xid (PCI:0000:04:00): 79, GPU has fallen off the bus."


@pytest.mark.parametrize(
    ("after", "word"),
    [
        (FINE._replace(gpus=GPUS[:1]), "GPU-b"),
        (FINE._replace(gpus=None), "nvidia-smi"),
        (FINE._replace(nodes=()), "/dev/nvidia0"),
        (FINE._replace(xids=(XID,)), "fallen off the bus"),
        (FINE._replace(free={"/": 1 << 20}), "/ is full (1 MiB free)"),
    ],
)
def test_each_fault_is_told_in_words(after: HostState, word: str) -> None:
    found = faults(FINE, after)
    assert len(found) == 1 and word in found[0]


def test_what_was_so_before_is_no_fault() -> None:
    poor = HostState(None, (), (XID,), {"/": 1})
    assert faults(FINE, FINE) == []
    assert faults(poor, poor) == []
    assert faults(poor, FINE._replace(xids=(XID,))) == []


def test_the_looks_read_the_tools_of_the_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = "[78.0] NVRM: Xid (PCI:0000:04:00): 31, pid=7, name=python3, MMU Fault"
    for name, text in {
        "nvidia-smi": "GPU 0: NVIDIA H200 (UUID: GPU-a)",
        "dmesg": f"[1.0] hello\n{XID}\n{own}",
    }.items():
        (tmp_path / name).write_text(f"#!/bin/sh\ncat <<'X'\n{text}\nX\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    found = look([str(tmp_path), "/nonexistent"])
    assert found.gpus == ("GPU 0: NVIDIA H200 (UUID: GPU-a)",)
    assert found.xids == (XID,)
    assert set(found.free) == {str(tmp_path)}


@pytest.mark.parametrize(
    ("code", "hosts"),
    [*[(code, False) for code in (13, 31, 45, 68, 92, 109)], (48, True), (79, True), (999, True)],
)
def test_an_xid_that_a_program_can_cause_does_not_clear_the_release(
    code: int, hosts: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The preflight's own list of Xid numbers decides; also in the spelling of old drivers, and without a comma."""
    lines = [f"[78.0] NVRM: Xid (PCI:0000:04:00): {code}, pid=7", f"[79.0] NVRM: Xid (0000:04:00): {code}"]
    for name, text in {"nvidia-smi": "", "dmesg": "\n".join(lines)}.items():
        (tmp_path / name).write_text(f"#!/bin/sh\ncat <<'X'\n{text}\nX\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert look([str(tmp_path)]).xids == (tuple(lines) if hosts else ())
