"""What the host itself says of its GPUs: module, libraries, device nodes, holders, and the unit's device rules."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ddtree_agent import probe_areas, probe_devices, probe_driver, probe_gpu, probe_processes, sandbox
from ddtree_agent.probe_areas import Context
from ddtree_ops.core.doctor import AREA_RULES

pytestmark = pytest.mark.tier("preflight")


@pytest.mark.parametrize(
    "text, version",
    [
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build  (x@)  \n", "580.159.04"),
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.120  Fri Sep 13 2024\nGCC version: 12\n", "550.120"),
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.129.03  Thu Oct 19 18:56:32 UTC 2023\n", "535.129.03"),
        ("", None),
    ],
)  # fmt: skip
def test_the_loaded_modules_version(text: str, version: str | None) -> None:
    assert probe_driver.module_version(text) == version


def test_library_files_by_their_real_names(tmp_path: Path) -> None:
    for name in ("libcuda.so.550.120", "libnvidia-ml.so.550.120", "libcuda.so.1.1"):
        (tmp_path / name).write_text("")
    (tmp_path / "libcuda.so.1").symlink_to("libcuda.so.550.120")
    (tmp_path / "libnvidia-ml.so.1").symlink_to("gone.so.5")
    found = probe_driver.files((str(tmp_path),))
    assert [(os.path.basename(one["path"]), one["version"]) for one in found] == [
        ("libcuda.so.550.120", "550.120"),
        ("libnvidia-ml.so.550.120", "550.120"),
    ]


def test_loaded_modules() -> None:
    text = "nvidia_uvm 1 0 - Live 0x0 (OE)\nnvidia 2 1 nvidia_uvm, Live 0x0\nvideo 1 0 - Live 0x0\n"
    assert probe_driver.loaded(text) == ["nvidia_uvm", "nvidia"]


def test_majors_of_the_character_devices_alone() -> None:
    text = "Character devices:\n  1 mem\n195 nvidia\n195 nvidiactl\n238 nvidia-uvm\n\nBlock devices:\n195 nvidia9\n"
    assert probe_devices.majors(text) == {"nvidia": 195, "nvidiactl": 195, "nvidia-uvm": 238}


def test_minors_of_the_drivers_gpus(tmp_path: Path) -> None:
    for bus, minor in (("0000:18:00.0", 0), ("0000:2a:00.0", 3)):
        (tmp_path / bus).mkdir()
        (tmp_path / bus / "information").write_text(f"Model: \t\t NVIDIA H200\nDevice Minor: \t {minor}\n")
    assert probe_devices.minors(str(tmp_path)) == [0, 3]
    assert probe_devices.minors(str(tmp_path / "none")) is None


def test_a_node_by_what_it_is(tmp_path: Path) -> None:
    null = probe_devices.node("/dev/null")
    assert (null["char"], null["major"], null["minor"], null["mode"]) == (True, 1, 3, "0666")
    (tmp_path / "nvidia-uvm").write_text("")
    plain = probe_devices.node(str(tmp_path / "nvidia-uvm"))
    assert (plain["char"], plain["major"], plain["link"]) == (False, None, None)


@pytest.mark.parametrize(
    "title, engine",
    [
        ("sglang::scheduler_TP0", True), ("python3 -m sglang.launch_server --tp 2", True), ("VLLM::EngineCore", True),
        ("/v/bin/sglang serve --port 1", True), ("python3 train.py", False), ("nvidia-smi dmon", False),
    ],
)  # fmt: skip
def test_engines_by_their_names(title: str, engine: bool) -> None:
    assert bool(probe_processes._ENGINE.search(title)) is engine


def test_a_pid_of_another_namespace_is_not_taken_for_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    apps = {os.getpid(): {"GPU-a": 9000}}
    monkeypatch.setattr(probe_processes, "compute_apps", lambda: (apps, True))
    before = probe_processes.holders(Context({}, {}, None, {}))["processes"]  # other engines may run here
    assert [one for one in before if one["pid"] == os.getpid()] == []
    monkeypatch.setattr(
        probe_processes, "open_nodes", lambda pid: ["/dev/nvidia0"] if pid == os.getpid() else []
    )
    found = probe_processes.holders(Context({}, {"ActiveState": "active"}, None, {}))
    mine = [one for one in found["processes"] if one["nodes"]]
    assert [(one["pid"], one["used"], one["ours"]) for one in mine] == [(os.getpid(), {"GPU-a": 9000}, False)]
    assert found["unit_active"] is True


def test_the_fabric_managers_version() -> None:
    assert probe_gpu.version_in("Fabric Manager version is : 550.54.15\n") == "550.54.15"
    assert probe_gpu.version_in("nv-fabricmanager: command not found") is None


def test_each_device_that_the_unit_allows_reaches_its_sandbox() -> None:
    show = {"DevicePolicy": "closed", "DeviceAllow": "/dev/nvidia0 rw\nchar-nvidia-uvm rw", "User": "llm"}
    argv = sandbox.unit_argv("x.service", show, {}, 5)
    assert [word for word in argv if "Device" in word] == [
        "--property=DevicePolicy=closed",
        "--property=DeviceAllow=/dev/nvidia0 rw",
        "--property=DeviceAllow=char-nvidia-uvm rw",
    ]


def test_the_probe_asks_for_every_section_that_a_rule_reads() -> None:
    asked = {name for name, _, _ in probe_areas.HERE} | {name for name, _, _, _ in probe_areas.INSIDE}
    assert {rule.section.name for rule in AREA_RULES} <= asked
