"""Between a stop and the next start: memory that comes back late is waited for, and nothing else costs time."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ddtree_agent import gpu_return, nvidia_smi, outcome, probe_processes, rollout, service
from ddtree_agent.journal import Txn
from ddtree_agent.layout import Layout

pytestmark = pytest.mark.tier("transaction")
ONE, TWO = "GPU-11111111-0000-0000-0000-000000000000", "GPU-22222222-0000-0000-0000-000000000000"
#: As a host with two H200 answers `--query-gpu=pci.bus_id,uuid,memory.used --format=csv,noheader,nounits`.
GPUS = f"00000000:18:00.0, {ONE}, %s\n00000000:2A:00.0, {TWO}, %s\n"
#: And `--query-compute-apps=pid,gpu_uuid,used_memory`: 300 is a stranger's.
APPS = f"101, {ONE}, 118000\n102, {TWO}, 118004\n300, {ONE}, 20000\n"
BEFORE = (138616, 118620)


@pytest.fixture
def txn(tmp_path: Path) -> Txn:
    layout = Layout("sglang.service", str(tmp_path))
    named = {"txn": "3e8-abc", "nonce": "n", "kind": "deploy", "who": "me", "release": "ab"}
    return Txn.create(layout, {**named, "timeouts": {"stop": 1}, "was_active": True, "port": 1})


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """host(readings, apps=, nodes=): a nvidia-smi that answers one reading after the other, the last one for ever."""
    clock = [0.0]
    monkeypatch.setattr(gpu_return.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(gpu_return.time, "sleep", lambda s: clock.__setitem__(0, clock[0] + s))
    monkeypatch.setattr(service, "facts", lambda unit: {"ControlGroup": "/system.slice/sglang.service"})
    monkeypatch.setattr(service, "pids", lambda group: [101, 102])

    def made(
        readings: list[str],
        apps: str | tuple[str, str] = APPS,
        nodes: tuple[str, ...] = ("/dev/nvidia0",),
        tool: str = "nvidia-smi",
    ) -> Path:
        monkeypatch.setattr(probe_processes, "open_nodes", lambda pid: list(nodes))
        monkeypatch.setattr(nvidia_smi, "find", lambda: tool or None)
        asked = tmp_path / "asked"
        asked.write_text("")
        left, told = [*readings], [apps] if isinstance(apps, str) else [*apps]

        def ask(argv: list[str], limit: float) -> tuple[int, str]:
            with asked.open("a") as file:
                file.write(f"{argv[1]}\n")
            if "compute-apps" in argv[1]:
                return 0, told.pop(0) if len(told) > 1 else told[0]
            text = left.pop(0) if len(left) > 1 else left[0]
            return (0, text) if text else (124, "no answer in 5 s")

        monkeypatch.setattr(nvidia_smi.query, "__defaults__", (ask,))
        return asked

    return made


def notes(txn: Txn) -> list[str]:
    path = Path(txn.events_path)
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return [line["text"] for line in lines if line.get("ev") == "note"]


def stop_and_wait(txn: Txn) -> float:
    """What a rollout does around its stop; returns the seconds that it waited."""
    gpu_return.look(txn)
    begun = gpu_return.time.monotonic()
    gpu_return.wait(txn)
    return float(gpu_return.time.monotonic() - begun)


def test_memory_that_comes_back_late_is_waited_for(txn: Txn, host: Any) -> None:
    host([GPUS % BEFORE, GPUS % BEFORE, GPUS % (138616, 616), GPUS % (70000, 616), GPUS % (20616, 616)])
    assert stop_and_wait(txn) == 0.75
    assert notes(txn) == ["the GPU memory is free again, 0.8 s after the stop"]


def test_memory_that_is_back_at_once_costs_one_question_and_no_word(txn: Txn, host: Any) -> None:
    asked = host([GPUS % BEFORE, GPUS % (20616, 620)])  # what the stranger holds stays
    assert stop_and_wait(txn) == 0
    assert notes(txn) == []
    assert asked.read_text().count("--query-gpu") == 2


def test_memory_that_stays_is_named_after_30_s_and_the_start_goes_on(txn: Txn, host: Any) -> None:
    host([GPUS % BEFORE, GPUS % (138616, 616)])
    assert stop_and_wait(txn) == gpu_return.LIMIT_S
    assert notes(txn) == [f"WARN 30 s after the stop GPU memory is not free: 118000 MiB on {ONE}"]


def test_an_operator_who_asks_it_back_is_not_kept_waiting(txn: Txn, host: Any) -> None:
    host([GPUS % BEFORE])
    txn.ask_abort("you")
    assert stop_and_wait(txn) == 0


def test_what_a_neighbour_takes_meanwhile_is_not_waited_for(txn: Txn, host: Any) -> None:
    """A drain lasts minutes: another server on the same GPU grows by a pool in that time."""
    host([GPUS % BEFORE, GPUS % (50616, 616)], (APPS, f"300, {ONE}, 50000\n"))
    assert stop_and_wait(txn) == 0
    assert notes(txn) == []


def test_a_neighbour_that_grows_hides_nothing_that_is_still_held(txn: Txn, host: Any) -> None:
    host([GPUS % BEFORE, GPUS % (168616, 616)], (APPS, f"300, {ONE}, 50000\n"))
    assert stop_and_wait(txn) == gpu_return.LIMIT_S
    assert notes(txn) == [f"WARN 30 s after the stop GPU memory is not free: 118000 MiB on {ONE}"]


def test_in_a_container_memory_must_have_fallen_and_fall_no_more(txn: Txn, host: Any) -> None:
    """nvidia-smi tells no process there, or its host's pids."""
    for apps in ("", "4242, " + ONE + ", 118000\n"):
        falling = [(138616, 118620), (138616, 118620), (80000, 618), (20616, 616), (20616, 616)]
        host([GPUS % pair for pair in falling], apps)
        assert stop_and_wait(txn) == 0.75
    assert notes(txn)[-1] == "GPU memory falls no more, 0.8 s after the stop: 21232 MiB in use"


def test_in_a_container_memory_that_does_not_move_is_not_waited_for_long(txn: Txn, host: Any) -> None:
    """A main process whose scheduler died has the nodes open and holds next to nothing; or a neighbour took as much."""
    host([GPUS % (900, 700), GPUS % (800, 650)], "")
    assert stop_and_wait(txn) == gpu_return.STILL_S
    assert notes(txn) == ["WARN 5 s after the stop GPU memory has not fallen: 1450 MiB in use"]


@pytest.mark.parametrize(
    "how",
    [
        {"tool": ""},
        {"nodes": ()},
        {"readings": [""]},
        {"readings": [f"00000000:18:00.0, {ONE}, [N/A]\n"]},
    ],
    ids=["no nvidia-smi", "no GPU is open", "no answer", "MIG"],
)
def test_where_nothing_is_held_or_known_nobody_waits(txn: Txn, host: Any, how: dict[str, Any]) -> None:
    asked = host(how.pop("readings", [GPUS % BEFORE]), **how)
    assert stop_and_wait(txn) == 0
    assert notes(txn) == []
    assert not os.path.exists(os.path.join(txn.dir, "gpu.json"))
    if "tool" in how or "nodes" in how:
        assert asked.read_text() == ""  # it costs nothing at all


def test_a_tool_that_stops_answering_ends_the_wait(txn: Txn, host: Any) -> None:
    host([GPUS % BEFORE, ""])
    assert stop_and_wait(txn) == 0
    assert notes(txn) == ["WARN nvidia-smi does not say whether the GPU memory is free again"]


@pytest.mark.parametrize("text", ["{", "[]", '{"used": 1}', '{"used": {"x": "y"}, "mine": {}}', "7"])
def test_a_damaged_note_costs_no_rollout(txn: Txn, host: Any, text: str) -> None:
    host([GPUS % BEFORE])
    Path(txn.dir, "gpu.json").write_text(text)
    gpu_return.wait(txn)
    gpu_return.look(txn)


def test_both_the_new_release_and_the_one_that_comes_back_wait(
    txn: Txn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The order around each stop: look, stop, wait, and only then anything that starts."""
    done: list[str] = []

    def told(name: str, value: Any = None) -> Callable[..., Any]:
        return lambda *_, **__: done.append(name) or value

    monkeypatch.setattr(gpu_return, "look", told("look"))
    monkeypatch.setattr(gpu_return, "wait", told("wait"))
    monkeypatch.setattr(service, "stop", told("stop", {"seconds": 1}))
    monkeypatch.setattr(service, "wait_port_free", told("port"))
    monkeypatch.setattr(service, "drop_trial", told("drop", True))
    for name in ("reload", "put_kept"):
        monkeypatch.setattr(service, name, lambda *_: None)
    monkeypatch.setattr(service, "start", told("start"))
    monkeypatch.setattr(rollout.drain, "drain", told("drain"))
    monkeypatch.setattr(rollout, "_step", told("step"))
    rollout._stop(txn, {"kind": "deploy", "timeouts": {"stop": 1}})
    assert done == ["look", "drain", "step", "stop", "step", "wait"]
    done.clear()
    monkeypatch.setattr(outcome, "open_gate", lambda txn: None)
    monkeypatch.setattr(outcome, "confirmed", lambda layout: {"release": "baseline"})
    monkeypatch.setattr(service, "kept_release", lambda layout: "baseline")
    monkeypatch.setattr(outcome, "Watching", _Served)
    assert outcome._restore_once(txn) is None
    assert done == ["drop", "stop", "wait", "port", "start"]


class _Served:
    def __init__(self, *_: Any) -> None: ...

    def __enter__(self) -> _Served:
        return self

    def __exit__(self, *_: Any) -> None: ...

    def verdict(self) -> None: ...
