"""The kernel's lines: every form of an Xid, faults told over several lines, kills and disks; a healthy log."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddtree_agent import kernel_log, probe_kernel_log
from ddtree_agent.probe_areas import Context

pytestmark = pytest.mark.tier("preflight")
FIXTURES = Path(__file__).resolve().parent.parent / "fixtures" / "preflight"


def one(*lines: str) -> tuple[str, int | None, str | None]:
    found = kernel_log.events(lines)
    assert len(found) == 1, found
    return found[0]["kind"], found[0]["code"], found[0]["bus"]


def test_the_recorded_boot_of_an_h200_has_no_event() -> None:
    assert kernel_log.events((FIXTURES / "dmesg_h200.txt").read_text().splitlines()) == []


@pytest.mark.parametrize(
    "line, code, bus",
    [
        (
            "[ 8123.1] NVRM: Xid (PCI:0000:9c:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
            79,
            "0000:9c:00.0",
        ),
        ("NVRM: Xid (0000:02:00): 13, 0001 00000000 0000a097 00001b0c 00000000 00000000", 13, "0000:02:00.0"),
        (
            "Nov 30 02:08:31 ct129 kernel: NVRM: Xid (PCI:0000:18:00): 119, pid=77, name=python3, Timeout after 6s",
            119,
            "0000:18:00.0",
        ),
        (
            "2026-11-30T02:08:31+00:00 ct129 kernel: NVRM: Xid (PCI:0000:18:00): 63, Row Remapper",
            63,
            "0000:18:00.0",
        ),
        (
            "[Mon Nov 30 02:08:31 2026] NVRM: Xid (PCI:0000:18:00): 94, Contained: SM (0x1)",
            94,
            "0000:18:00.0",
        ),
        ("[1.0] NVRM: Xid (PCI:0000:18:00.0): 31, pid=1", 31, "0000:18:00.0"),
    ],
)
def test_an_xid_in_every_form(line: str, code: int, bus: str) -> None:
    assert one(line) == ("xid", code, bus)


def test_what_xid_154_asks_for() -> None:
    lines = [
        f"[{at}.0] NVRM: Xid (PCI:0000:18:00): 154, GPU recovery action changed from {was} to {now}"
        for at, was, now in (
            (1, "0x0 (None)", "0x1 (GPU Reset Required)"),
            (2, "0x1 (GPU Reset Required)", "0x0 (None)"),
        )
    ]
    assert [event["detail"] for event in kernel_log.events(lines)] == ["GPU Reset Required", "None"]


def test_equal_events_are_counted_and_the_last_one_dated() -> None:
    lines = [f"[{at}.0] NVRM: Xid (PCI:0000:18:00): 13, Graphics" for at in (10, 20, 30)]
    found = kernel_log.events([*lines, "[40.0] NVRM: Xid (PCI:0000:2a:00): 13, Graphics"], now=100.0)
    assert [(event["count"], event["age_s"], event["bus"]) for event in found] == [
        (3, 70, "0000:18:00.0"),
        (1, 60, "0000:2a:00.0"),
    ]


LOST_SPLIT = [
    "[    9.1] nvidia 0000:b3:00.0: enabling device (0140 -> 0142)",
    "[    9.2] NVRM: The NVIDIA GPU 0000:b3:00.0",
    "               NVRM: (PCI ID: 10de:2330) installed in this system has",
    "               NVRM: fallen off the bus and is not responding to commands.",
    "[    9.3] nvidia: probe of 0000:b3:00.0 failed with error -1",
    "[    9.4] NVRM: The NVIDIA probe routine failed for 1 device(s).",
]


def test_a_lost_gpu_told_over_several_lines() -> None:
    found = kernel_log.events(LOST_SPLIT)
    assert [(event["kind"], event["bus"]) for event in found] == [("bus", "0000:b3:00.0"), ("probe", None)]


def test_a_lost_gpu_with_another_cpus_line_in_between() -> None:
    lines = [
        "[    9.20] NVRM: The NVIDIA GPU 0000:b3:00.0",
        "[    9.21] usb 1-1: new high-speed USB device number 2",
        "[    9.22] NVRM: (PCI ID: 10de:2330) installed in this system has",
        "[    9.23] NVRM: fallen off the bus and is not responding to commands.",
    ]
    assert one(*lines) == ("bus", None, "0000:b3:00.0")


def test_a_lost_gpu_in_one_line() -> None:
    line = "[9.0] NVRM: GPU at PCI:0000:b3:00: GPU-1; NVRM: GPU 0000:b3:00.0: GPU has fallen off the bus."
    assert one(line)[0] == "bus"


def test_a_gpu_that_does_not_wake_up() -> None:
    line = "[9.0] nvidia 0000:b3:00.0: Unable to change power state from D3cold to D0, device inaccessible"
    assert one(line) == ("bus", None, "0000:b3:00.0")
    assert kernel_log.events([line.replace("nvidia 0000", "nvme 0000")]) == []


def test_a_version_mismatch_over_four_lines() -> None:
    lines = [
        "[50.1] NVRM: API mismatch: the client has the version 570.148.08, but",
        "[50.1] NVRM: this kernel module has the version 570.148.06.  Please",
        "[50.1] NVRM: make sure that this kernel module and all NVIDIA driver",
        "[50.1] NVRM: components have the same version.",
    ]
    found = kernel_log.events(lines)
    assert [event["kind"] for event in found] == ["mismatch"]
    assert "570.148.08" in found[0]["text"] and "570.148.06" in found[0]["text"]


@pytest.mark.parametrize(
    "kind, lines",
    [
        (
            "map",
            [
                "[4.1] NVRM: This PCI I/O region assigned to your NVIDIA device is invalid:",
                "[4.1] NVRM: BAR1 is 0M @ 0x0 (PCI:0000:18:00.0)",
            ],
        ),
        (
            "flavour",
            [
                "[4.1] NVRM: The NVIDIA GPU 0000:18:00.0 (PCI ID: 10de:2b85)",
                "[4.1] NVRM: installed in this system requires use of the NVIDIA open kernel modules.",
            ],
        ),
        (
            "flavour",
            [
                "[4.1] NVRM: The NVIDIA GPU 0000:18:00.0 (PCI ID: 10de:1d01)",
                "[4.1] NVRM: installed in this system is not supported by open",
                "[4.1] NVRM: nvidia.ko because it does not include the required GPU",
            ],
        ),
        (
            "flavour",
            [
                "[4.1] NVRM: The NVIDIA GeForce GTX 780 GPU installed in this system is",
                "[4.1] NVRM:  supported through the NVIDIA 470.xx Legacy drivers. Please",
            ],
        ),
        ("unsigned", ["[4.1] Loading of module with unavailable key is rejected"]),
        (
            "unsigned",
            ["[4.1] Lockdown: modprobe: unsigned module loading is restricted; see man kernel_lockdown.7"],
        ),
        ("probe", ["[4.1] NVRM: None of the NVIDIA devices were initialized."]),
        ("probe", ["[4.1] NVRM: GPU 0000:18:00.0: RmInitAdapter failed! (0x26:0x56:1482)"]),
        ("probe", ["[4.1] NVRM: GPU 0000:18:00.0: rm_init_adapter failed, device minor number 0"]),
        (
            "gsp",
            ["[4.1] NVRM: _kgspIsHeartbeatTimedOut: Heartbeat timed out on GSP, GPU 0000:18:00.0, timeout"],
        ),
        ("oom", ["[4.1] Out of memory: Killed process 4242 (sglang::schedul) total-vm:1kB, anon-rss:2kB"]),
        ("oom", ["[4.1] Memory cgroup out of memory: Killed process 4242 (python3) total-vm:1kB"]),
        ("disk", ["[4.1] EXT4-fs (nvme0n1p2): Remounting filesystem read-only"]),
        ("disk", ["[4.1] I/O error, dev nvme1n1, sector 2048 op 0x0:(READ)"]),
        ("sxid", ["[4.1] nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 30 LTSSM Fault Up"]),
    ],
)
def test_a_fault_in_words(kind: str, lines: list[str]) -> None:
    assert {event["kind"] for event in kernel_log.events(lines)} >= {kind}


@pytest.mark.parametrize(
    "line",
    [
        "[1.0] EXT4-fs (sda1): mounted filesystem with ordered data mode. Opts: errors=remount-ro",
        "[1.0] EXT4-fs (sda1): re-mounted. Quota mode: none.",
        "[1.0] I/O error, dev sr0, sector 0 op 0x0:(READ)",
        "[1.0] Buffer I/O error on dev fd0, logical block 0, async page read",
        "[1.0] oom_reaper: reaped process 4242 (python3), now anon-rss:0kB",
        "[1.0] NVRM: Persistence mode is deprecated and will be removed in a future release.",
        "[1.0] NVRM: loading NVIDIA UNIX x86_64 Kernel Module  550.120  Fri Sep 13 10:10:01 UTC 2024",
        "[1.0] pcieport 0000:00:01.0: AER: Corrected error received: 0000:18:00.0",
        "[1.0] nvidia-nvlink: Nvlink Core is being initialized, major device number 240",
        "[1.0] NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  580.10  Release Build",
        "[1.0] nvidia: module verification failed: signature and/or required key missing - tainting kernel",
        "[1.0] Lockdown: systemd-logind: hibernation is restricted; see man kernel_lockdown.7",
        "[1.0] python3[77]: segfault at 79 ip 00007f error 4 in libcuda.so",
    ],
)
def test_a_harmless_line_is_no_event(line: str) -> None:
    assert kernel_log.events([line]) == []


def test_a_non_fatal_switch_error_is_told_as_such() -> None:
    line = "[4.1] nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 11004, Non-fatal, Link 30 Ingress invalid ACL"
    assert kernel_log.events([line])[0]["detail"] == ""


def test_journals_own_stamp_is_dmesgs() -> None:
    assert probe_kernel_log.plain("[    9.200000] ct129 kernel: NVRM: x") == "[    9.200000] NVRM: x"
    assert probe_kernel_log.plain("[    9.2] NVRM: x") == "[    9.2] NVRM: x"


def run(answers: dict[str, tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    monkeypatch.setattr(probe_kernel_log.systemd, "run", lambda argv, limit: answers[argv[0]])
    return probe_kernel_log.log(Context({}, {}, None, {}))


def test_a_closed_log_is_unreadable_and_not_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    found = run(
        {
            "journalctl": (0, "", ""),
            "dmesg": (1, "", "dmesg: read kernel buffer failed: Operation not permitted\n"),
        },
        monkeypatch,
    )
    assert (found["readable"], found["events"]) == (False, [])
    assert (
        run({"journalctl": (0, "-- No entries --\n", ""), "dmesg": (0, "", "")}, monkeypatch)["readable"]
        is False
    )


def test_dmesg_stands_in_for_the_journal(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = "[ 9.0] NVRM: Xid (PCI:0000:18:00): 62, pid=1\n"
    found = run({"journalctl": (127, "", "journalctl: missing"), "dmesg": (0, lines, "")}, monkeypatch)
    assert (found["readable"], found["source"]) == (True, "dmesg")
