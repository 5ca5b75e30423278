"""nvidia-smi's answers: the recorded ones of an H200, and the shapes that a broken, older or sliced GPU gives."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import pytest
from healthy import HEALTHY_H200, WANTED, overlaid

from ddtree_agent import nvidia_smi, probe_gpu, probe_processes, probe_topology
from ddtree_agent.probe_areas import Context
from ddtree_agent.unitenv import split_launch
from ddtree_ops.core.checks import gpu_facts
from ddtree_ops.core.doctor import examine

pytestmark = pytest.mark.tier("preflight")
FIXTURES = Path(__file__).resolve().parent.parent / "fixtures" / "preflight"
#: Each field with the H200's answer to it (driver 580.159.04).
RECORDED = dict(
    line.split(" | ", 1)
    for line in (FIXTURES / "nvidia_smi_fields.txt").read_text().splitlines()
    if " | " in line
)


def asker(known: dict[str, str], extra: str = "", rows: int = 1, status: int = 0) -> Any:
    """A stand-in that answers as nvidia-smi does: csv, or a refusal of the whole question for one unknown field."""
    asked: list[list[str]] = []

    def ask(argv: list[str], limit: float) -> tuple[int, str]:
        fields = argv[1].partition("=")[2].split(",")
        asked.append(fields)
        for field in fields:
            if field not in known:
                return 2, f'Field "{field}" is not a valid field to query.\n'
        line = ", ".join(known[field].removesuffix(" MiB") for field in fields)
        return status, extra + "\n".join([line] * rows) + "\n"

    ask.asked = asked  # type: ignore[attr-defined]
    return ask


def cards(known: dict[str, str], **how: Any) -> tuple[list[gpu_facts.Card], list[str]]:
    ask = asker(known, **how)
    groups = [nvidia_smi.query("smi", "gpu", fields, 1.0, ask) for fields in nvidia_smi.GROUPS]
    found, said = nvidia_smi.join(groups)
    return [gpu_facts.card(bus, row) for bus, row in found.items()], said


def test_the_recorded_h200_is_read_whole() -> None:
    found, said = cards(RECORDED)
    assert said == []
    card = found[0]
    assert (card.bus, card.index, card.name) == ("0000:00:06.0", 0, "NVIDIA H200")
    assert (card.total, card.used, card.cc, card.driver) == (143771, 0, "9.0", "580.159.04")
    assert (card.ecc, card.uncorrected, card.rows_pending, card.rows_failure) == ("Enabled", 0, "No", "No")
    assert (card.recovery, card.mig, card.persistence, card.fabric_state) == (
        "None",
        "Disabled",
        "Enabled",
        "N/A",
    )
    assert (card.retired_pending, card.slow, card.errors) == ("N/A", (), ())


def test_the_recorded_question_answers_as_the_recorded_fields() -> None:
    head, row = (FIXTURES / "nvidia_smi_query_gpu.txt").read_text().strip().splitlines()
    keys = tuple(key.partition(" [")[0] for key in head.split(", "))
    rows, said = nvidia_smi.read(row, keys)
    assert said == []
    assert rows[0]["pci.bus_id"] == RECORDED["pci.bus_id"]
    assert rows[0]["retired_pages.pending"] == "N/A"


@pytest.mark.parametrize(
    "lacking",
    ["gpu_recovery_action", "remapped_rows.failure", "fabric.state", "compute_cap", "retired_pages.pending"],
)
def test_a_field_that_an_older_driver_lacks_costs_that_field_alone(lacking: str) -> None:
    known = {field: value for field, value in RECORDED.items() if field != lacking}
    found, said = cards(known)
    whole, _ = cards(RECORDED)
    names = {
        "gpu_recovery_action": "recovery", "remapped_rows.failure": "rows_failure", "fabric.state": "fabric_state",
        "compute_cap": "cc", "retired_pages.pending": "retired_pending",
    }  # fmt: skip
    for name in gpu_facts.Card.__dataclass_fields__:
        expected = None if name == names[lacking] else getattr(whole[0], name)
        assert getattr(found[0], name) == expected, name
    assert said == []


def test_a_group_is_asked_once_where_the_driver_knows_its_fields() -> None:
    ask = asker(RECORDED)
    for fields in nvidia_smi.GROUPS:
        nvidia_smi.query("smi", "gpu", fields, 1.0, ask)
    assert len(ask.asked) == len(nvidia_smi.GROUPS)


@pytest.mark.parametrize(
    "cell, read",
    [
        ("[N/A]", "N/A"), ("N/A", "N/A"), ("[Not Supported]", "N/A"), ("ERR!", "ERR!"), ("[Unknown Error]", "ERR!"),
        ("Unknown Error", "ERR!"), ("[GPU is lost]", "ERR!"), ("[GPU requires reset]", "ERR!"), ("None", "None"),
        ("No", "No"), ("0", "0"), ("[Requested functionality has been deprecated]", "N/A"),
        ("In Progress", "In Progress"),
    ],
)  # fmt: skip
def test_a_cell_that_could_not_be_read_is_not_one_that_does_not_apply(cell: str, read: str) -> None:
    assert nvidia_smi.value(cell) == read


@pytest.mark.parametrize(
    "line",
    [
        "Unable to determine the device handle for GPU 0000:02:00.0: GPU is lost.  Reboot the system",
        "Unable to determine the device handle for GPU0000:07:00.0: Unknown Error",
        "Failed to initialize NVML: Driver/library version mismatch",
        "No devices were found",
        "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.",
    ],
)
def test_a_complaint_is_told_once_and_never_read_as_a_row(line: str) -> None:
    def ask(argv: list[str], limit: float) -> tuple[int, str]:
        return 15, line + "\n"

    groups = [nvidia_smi.query("smi", "gpu", fields, 1.0, ask) for fields in nvidia_smi.GROUPS]
    found, said = nvidia_smi.join(groups)
    assert found == {}
    assert said == [line]


def test_one_lost_gpu_leaves_the_rows_of_the_others() -> None:
    line = "Unable to determine the device handle for GPU0000:2A:00.0: GPU is lost.  Reboot the system\n"
    found, said = cards(RECORDED, extra=line, status=15)
    assert [card.bus for card in found] == ["0000:00:06.0"]
    assert said == [line.strip()]


@pytest.mark.parametrize(
    "text, short",
    [
        ("00000000:2A:00.0", "0000:2a:00.0"), ("0000:2a:00.0", "0000:2a:00.0"), ("2A:00.0", "0000:2a:00.0"),
        ("00010000:9C:00.0", "0000:9c:00.0"), ("ERR!", "ERR!"),
    ],
)  # fmt: skip
def test_a_pci_address_has_one_spelling(text: str, short: str) -> None:
    assert nvidia_smi.short_bus(text) == short


def test_a_frozen_tool_costs_its_limit_and_is_left_alone(tmp_path: Path) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\nsleep 60 &\nwait\n")
    tool.chmod(0o755)
    began = time.monotonic()
    assert nvidia_smi.ask([str(tool)], 0.3) == (124, "no answer in 0.3 s")
    assert time.monotonic() - began < 3


def context(words: str, env: dict[str, str] | None = None) -> Context:
    return Context({}, {}, split_launch(words.split()), {}, env or {})


def test_a_frozen_tool_is_asked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool, calls = tmp_path / "nvidia-smi", tmp_path / "calls"
    tool.write_text(f"#!/bin/sh\necho x >>{calls}\nexec sleep 60\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(nvidia_smi, "LIMIT_S", 0.5)
    found = probe_gpu.gpus(context("python3 -m sglang.launch_server --tp 2"))
    assert (found["status"], found["cards"], found["need"]) == (124, {}, 2)
    assert calls.read_text().count("x") == 1
    assert gpu_facts.read(found).said == ("nvidia-smi -L: no answer in 0.5 s",)


def test_the_whole_section_from_a_tool_that_answers_as_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text(
        f"#!{sys.executable}\nimport sys\nKNOWN = {RECORDED!r}\n"
        f"if sys.argv[1] == '-L': print({(FIXTURES / 'nvidia_smi_L.txt').read_text()!r}); sys.exit()\n"
        "fields = sys.argv[1].partition('=')[2].split(',')\n"
        "print(', '.join(KNOWN[f].replace(' MiB', '') for f in fields))\n"
    )
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    env = {"CUDA_VISIBLE_DEVICES": "0"}
    found = gpu_facts.read(probe_gpu.gpus(context("python3 -m sglang.launch_server --tp 1", env)))
    assert (found.status, found.visible, found.need) == (0, "0", 1)
    assert found.cards[0].recovery == "None"
    assert found.first_ms is not None


def judged(changed: dict[str, str], **how: Any) -> dict[str, set[str]]:
    """{rule: levels} of the recorded H200 with some of its answers changed, at tp 1."""
    ask = asker({**RECORDED, **changed}, **how)
    groups = [nvidia_smi.query("smi", "gpu", fields, 1.0, ask) for fields in nvidia_smi.GROUPS]
    cards, said = nvidia_smi.join(groups)
    document = overlaid(HEALTHY_H200, {"launch": {"tp": 1}, "gpus": {"need": 1, "said": said, "pci": []}})
    document["gpus"]["cards"] = cards
    found: dict[str, set[str]] = {}
    for one in examine(document, WANTED):
        found.setdefault(one.rule, set()).add(str(one.level))
    return {rule: levels for rule, levels in found.items() if rule.startswith("gpu-") and rule not in ASIDE}


#: These read other sections too, whose GPUs are not the recorded one.
ASIDE = ("gpu-strangers", "gpu-memory", "leftovers", "gpu-xid", "gpu-kernel", "gpu-topology")
LOST = "Unable to determine the device handle for GPU0000:2A:00.0: GPU is lost.  Reboot the system\n"


@pytest.mark.parametrize(
    "changed, extra, rule, level",
    [
        ({}, LOST, "gpu-lost", "BLOCK"),
        ({"uuid": "[Unknown Error]", "memory.total": "ERR!"}, "", "gpu-lost", "BLOCK"),
        ({"mig.mode.current": "Enabled"}, "", "gpu-mig", "WARN"),
        ({"mig.mode.pending": "Enabled"}, "", "gpu-mig", "WARN"),
        ({"fabric.state": "In Progress"}, "", "gpu-fabric", "WARN"),
        ({"remapped_rows.pending": "Yes"}, "", "gpu-rows", "BLOCK"),
        ({"remapped_rows.failure": "Yes"}, "", "gpu-rows", "BLOCK"),
        ({"gpu_recovery_action": "Reset"}, "", "gpu-recovery", "BLOCK"),
        ({"gpu_recovery_action": "[Unknown Error]"}, "", "gpu-recovery", "WARN"),
        ({"persistence_mode": "Disabled"}, "", "gpu-persistence", "WARN"),
        ({"ecc.errors.uncorrected.volatile.total": "2"}, "", "gpu-ecc", "BLOCK"),
        ({"ecc.errors.uncorrected.volatile.total": "[Unknown Error]"}, "", "gpu-ecc", "WARN"),
        ({"compute_mode": "Prohibited"}, "", "gpu-compute-mode", "BLOCK"),
    ],
)
def test_the_recorded_answers_with_a_fault_in_them(
    changed: dict[str, str], extra: str, rule: str, level: str
) -> None:
    found = judged(changed, extra=extra)
    assert level in found[rule]
    others = {name: levels for name, levels in found.items() if name not in (rule, "gpu-lost")}
    assert set().union(*others.values()) == {"OK"}


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"fabric.state": "Completed", "fabric.status": "Success"},
        {"mig.mode.current": "[N/A]", "mig.mode.pending": "[N/A]"},
        {"ecc.mode.current": "[N/A]", "remapped_rows.pending": "[N/A]", "remapped_rows.failure": "[N/A]"},
        {"retired_pages.pending": "No", "gpu_recovery_action": "[N/A]"},
        {"remapped_rows.uncorrectable": "3", "ecc.errors.uncorrected.aggregate.total": "3"},
    ],
)
def test_the_recorded_answers_of_a_healthy_card(changed: dict[str, str]) -> None:
    assert set().union(*judged(changed).values()) == {"OK"}


@pytest.mark.parametrize(
    "words, need, base",
    [
        ("--tp 4", 4, 0), ("--tp-size=4 --pp-size 2", 8, 0), ("--tp 2 --dp 4", 8, 0),
        ("--tp 8 --dp 8 --enable-dp-attention", 8, 0), ("--tp 16 --nnodes 2", 8, 0), ("--base-gpu-id 4", 1, 4),
        ("", 1, 0),
    ],
)  # fmt: skip
def test_how_many_gpus_the_arguments_take(words: str, need: int, base: int) -> None:
    asked = probe_gpu.asked_for(context(f"python3 -m sglang.launch_server {words}").launch)
    assert (asked["need"], asked["base"]) == (need, base)


def test_a_server_on_cpus_asks_for_no_gpu_at_all() -> None:
    on_cpu = context("python3 -m sglang.launch_server --device cpu --tp 2")
    assert probe_gpu.gpus(on_cpu) == {"error": "not asked: --device cpu"}
    assert probe_topology.topology(on_cpu) == {"asked": False}
    assert probe_gpu.smoke_argument(on_cpu) is None
    assert probe_gpu.peer_argument(on_cpu)["need"] == 1


def test_what_the_pci_bus_says(tmp_path: Path) -> None:
    for bus, head in (("0000:18:00.0", b"\xde\x10\x35\x23"), ("0000:2a:00.0", b"\xff" * 4)):
        place = tmp_path / bus
        place.mkdir()
        (place / "vendor").write_text("0x10de\n")
        (place / "class").write_text("0x030200\n")
        (place / "config").write_bytes(head + bytes(60))
    (tmp_path / "0000:00:01.0").mkdir()
    (tmp_path / "0000:00:01.0" / "vendor").write_text("0x8086\n")
    assert [(one["bus"], one["dead"]) for one in probe_gpu.pci(str(tmp_path))] == [
        ("0000:18:00.0", False),
        ("0000:2a:00.0", True),
    ]


def test_who_uses_what() -> None:
    rows, _ = nvidia_smi.read(
        "4100, GPU-a, 812\n4100, GPU-b, [N/A]\n[N/A], GPU-a, 3\n", ("pid", "gpu_uuid", "used_memory")
    )
    assert probe_processes.apps_of({"rows": rows}) == {4100: {"GPU-a": 812, "GPU-b": None}}


TOPO8 = """\t\x1b[4mGPU0\tGPU1\tGPU2\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m
GPU0\t X \tNV18\tSYS\tPIX\t0-47\t0\t\tN/A
GPU1\tNV18\t X \tPHB\tSYS\t0-47\t0\t\tN/A
GPU2\tSYS\tPHB\t X \tSYS\t48-95\t1\t\tN/A
NIC0\tPIX\tSYS\tSYS\t X \t

Legend:

  X    = Self
  NV#  = Connection traversing a bonded set of # NVLinks
"""


def test_pairs_of_the_topology() -> None:
    assert probe_topology.matrix(TOPO8) == {"0-1": "NV18", "0-2": "SYS", "1-2": "PHB"}
    assert probe_topology.matrix((FIXTURES / "nvidia_smi_topo.txt").read_text()) == {}
    p2p = " \tGPU0\tGPU1\t\n GPU0\tX\tOK\t\n GPU1\tCNS\tX\t\n\nLegend:\n"
    assert probe_topology.matrix(p2p) == {"0-1": "OK"}


@pytest.mark.parametrize(
    "cmdline, active, what",
    [
        ("quiet", False, "off"),
        ("quiet iommu=pt", True, "pt"),
        ("intel_iommu=on", True, "on"),
        ("", False, None),
    ],
)
def test_the_iommu(cmdline: str, active: bool, what: str | None) -> None:
    assert probe_topology.iommu(cmdline, active) == what


def space(*capabilities: tuple[int, int]) -> bytes:
    """A PCI Express configuration space with these extended capabilities: (id, control register)."""
    raw = bytearray(4096)
    for i, (kind, control) in enumerate(capabilities):
        at, after = 0x100 + 16 * i, 0x100 + 16 * (i + 1) if i + 1 < len(capabilities) else 0
        raw[at : at + 4] = (kind | 1 << 16 | after << 20).to_bytes(4, "little")
        raw[at + 6 : at + 8] = control.to_bytes(2, "little")
    return bytes(raw)


def test_acs_is_read_from_the_configuration_space() -> None:
    assert probe_topology.acs_control(space((1, 0), (0x000D, 0x1D))) == 0x1D
    assert probe_topology.acs_control(space((1, 0))) is None
    assert probe_topology.acs_control(b"\xff" * 4096) is None
    assert probe_topology.acs_control(bytes(64)) is None
    loop = bytearray(space((1, 0)))
    loop[0x100:0x104] = (1 | 1 << 16 | 0x100 << 20).to_bytes(4, "little")
    assert probe_topology.acs_control(bytes(loop)) is None


def test_bridges_that_redirect(tmp_path: Path) -> None:
    for name, control in (("0000:00:01.0", 0x1D), ("0000:00:02.0", 0x01)):
        place = tmp_path / name
        place.mkdir()
        (place / "class").write_text("0x060400\n")
        (place / "config").write_bytes(space((0x000D, control)))
    assert probe_topology.redirecting(str(tmp_path)) == ["0000:00:01.0"]
    assert probe_topology.redirecting(str(tmp_path / "none")) == []


def test_a_tool_that_lists_and_then_freezes_is_frozen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text(
        '#!/bin/sh\n[ "$1" = -L ] && echo "GPU 0: NVIDIA H200 (UUID: GPU-0)" && exit 0\nexec sleep 60\n'
    )
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    query = nvidia_smi.query
    monkeypatch.setattr(nvidia_smi, "query", lambda tool, what, fields, limit: query(tool, what, fields, 0.3))
    found = probe_gpu.gpus(context("python3 -m sglang.launch_server"))
    assert (found["status"], found["cards"]) == (124, {})
