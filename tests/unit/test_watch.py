"""The watch reducer: real logs, deaths, stalls, ports, mode and capacity, with units and probes made up around them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ddtree_ops.core.signatures import PHASES, load
from ddtree_ops.core.watch import (
    Expect,
    Limits,
    Observation,
    Probe,
    UnitState,
    Verdict,
    Watch,
    blame_host,
    replay,
    start,
)

pytestmark = pytest.mark.tier("main")

ROOT = Path(__file__).resolve().parents[2]
LOGS = ROOT / "tests/fixtures/logs"
SIGNATURES = load((ROOT / "src/ddtree_ops/core/signatures.json").read_text())
ALIVE = UnitState("active", "running", main_pid=100, invocation="new")
TICK = 0.25
INFO = {
    "speculative_algorithm": "DFLASH",
    "max_total_num_tokens": 32768,
    "max_running_requests": 8,
    "version": "0.5.11",
}

# file: reason, phase, start of the first fatal line, a word of the hint; None: a healthy start
GOLDEN: dict[str, tuple[str, str, str, str] | None] = {
    "nospec_warm": None,
    "dflash": None,
    "hybrid_dflash": None,
    "bad_draft_layers": ("draft-model", "weights", "ValueError: DFLASH target_layer_ids contains", "draft"),
    "bad_draft_path": ("model-path", "weights", "huggingface_hub.errors.HFValidationError: Repo id", "path"),
    "busy_port": ("port-taken", "serve", "[2026-11-29 14:40:55] ERROR:    [Errno 98] error while", "port"),
    "float32_capture_failed": ("dtype", "graphs", "RuntimeError: rmsnorm(at::Tensor&", "bfloat16"),
    "missing_kernel_fa3": (
        "kernel-missing",
        "graphs",
        "ImportError: cannot import name 'flash_ops'",
        "backend",
    ),
    "no_draft_path": ("draft-model", "import", "ValueError: DFLASH speculative decoding requires", "draft"),
    "not_enough_memory": ("memory-pool", "weights", "RuntimeError: Not enough memory.", "fraction"),
    "unknown_algorithm": (
        "unknown-argument",
        "import",
        "sglang serve: error: argument --speculative-alg",
        "flag",
    ),
    "detokenizer_sigkill": ("child-killed", "serve", "[2026-11-29 14:39:52] Subprocess detokenizer", "OOM"),
    "scheduler_sigkill": ("child-killed", "serve", "[2026-11-29 14:39:53] Subprocess scheduler_0", "OOM"),
    "cpu_dflash_killed": ("child-killed", "serve", "[2026-11-29 16:23:04] Subprocess scheduler_0", "OOM"),
    "scheduler_sigstop": ("terminated", "serve", "[2026-11-29 14:41:46] SIGTERM received", "signal"),
    "gpu_nearly_full": ("terminated", "serve", "[2026-11-29 14:51:11] SIGTERM received", "signal"),
    "nospec_cold": ("terminated", "serve", "[2026-11-29 14:30:33] SIGTERM received", "signal"),
    "sigint": ("terminated", "serve", "[2026-11-29 14:49:58] INFO:     Shutting down", "signal"),
    "sigterm": ("terminated", "serve", "[2026-11-29 14:39:52] SIGTERM received", "signal"),
    "watchdog_timeout": ("watchdog", "serve", "[2026-11-29 14:29:59] Scheduler watchdog timeout", "watchdog"),
}
STARTS_THAT_DIE = [
    name
    for name, golden in GOLDEN.items()
    if golden is not None and golden[0] not in ("terminated", "child-killed", "watchdog")
]
ENDED_LATER = (
    "SIGTERM received",
    "Shutting down",
    "crashed with exit code",
    "SIGQUIT received",
    "watchdog timeout",
)


def text_of(name: str) -> str:
    return (LOGS / f"{name}.txt").read_text()


def ticks(name: str, upto_ready: bool = False) -> Iterator[tuple[float, list[str]]]:
    """The log as an observer would have got it: (seconds since the first stamp, lines of that tick)."""
    t, first, batch = 0.0, None, []
    for line in text_of(name).splitlines():
        if upto_ready and any(word in line for word in ENDED_LATER):
            break
        stamp = re.match(r"\[\d{4}-\d\d-\d\d (\d\d):(\d\d):(\d\d)", line)
        if stamp:
            hours, minutes, seconds = (int(part) for part in stamp.groups())
            at = hours * 3600.0 + minutes * 60 + seconds
            first = at if first is None else first
            while t < at - first:
                yield t, batch
                t, batch = t + TICK, []
        batch.append(line)
    yield t, batch


class Drive:
    """Feeds a Watch tick by tick and keeps what it said."""

    def __init__(self, expect: Expect | None = None, limits: Limits | None = None) -> None:
        self.watch: Watch = start(limits or Limits(), expect or Expect(), SIGNATURES)
        self.events: list[dict[str, Any]] = []
        self.t = 1000.0
        self.cpu = 0
        self.base = Observation(t=0, unit=ALIVE, procs=3)

    def tick(self, seconds: float = TICK, busy: bool = False, **changes: Any) -> Verdict | None:
        for _ in range(max(1, round(seconds / TICK))):
            self.t += TICK
            self.cpu += 25 if busy else 0
            now = replace(self.base, t=self.t, cpu_ticks=self.cpu, **changes)
            self.events += self.watch.observe(now)
            if self.watch.verdict is not None:
                break
            changes.pop("lines", None)
        return self.watch.verdict

    def phases(self) -> list[str]:
        return [event["phase"] for event in self.events if event["ev"] == "phase"]

    def start_up(self, name: str = "dflash") -> None:
        for _, lines in ticks(name, upto_ready=True):
            assert self.tick(lines=lines, busy=True) is None, self.watch.verdict
            if any("fired up" in line for line in lines):
                break
        self.base = replace(self.base, probe=Probe(200, "ours", 0))


@pytest.mark.parametrize("name", GOLDEN)
def test_a_whole_log_is_read_as_what_it_was(name: str) -> None:
    verdict, golden = replay(text_of(name), SIGNATURES), GOLDEN[name]
    if golden is None:
        assert verdict.kind == "PASS", verdict
        return
    reason, phase, line, hint = golden
    assert (verdict.kind, verdict.reason, verdict.phase) == ("FAIL", reason, phase)
    assert verdict.line.startswith(line)
    assert hint in verdict.hint
    assert verdict.line in verdict.context


def test_every_log_of_the_collection_has_a_golden_reading() -> None:
    assert {path.stem for path in LOGS.glob("*.txt")} == set(GOLDEN)


@pytest.mark.parametrize("name", STARTS_THAT_DIE)
def test_a_start_that_dies_is_told_within_two_seconds_with_its_first_fatal_line(name: str) -> None:
    drive, golden = Drive(), GOLDEN[name]
    assert golden is not None
    for _, lines in ticks(name):
        if drive.tick(lines=lines, busy=True):
            break
    died = drive.t + 0.1
    dead = UnitState("failed", "failed", "signal", 0, 9, 2, 0, "new", exited_at=died)
    verdict = drive.tick(5, unit=dead)
    assert verdict is not None and verdict.kind == "FAIL"
    assert (verdict.reason, verdict.phase) == golden[:2]
    assert verdict.line.startswith(golden[2])
    assert verdict.lag_s is None or verdict.lag_s <= 2.0


@pytest.mark.parametrize("late", [0.0, 0.25, 0.5, 0.75, 1.0])
def test_a_log_that_arrives_after_the_death_still_names_the_cause(late: float) -> None:
    drive = Drive()
    drive.tick(3, busy=True)
    dead = UnitState("failed", "failed", "exit-code", 0, 1, 1, 0, "new", exited_at=drive.t + 0.2)
    if late:
        assert drive.tick(late, unit=dead) is None
    verdict = drive.tick(5, unit=dead, lines=text_of("no_draft_path").splitlines())
    assert verdict is not None and verdict.reason == "draft-model"
    assert verdict.lag_s is not None and verdict.lag_s <= 2.0


@pytest.mark.parametrize("name", ["nospec_warm", "nospec_cold", "dflash", "hybrid_dflash", "gpu_nearly_full"])
def test_a_healthy_start_passes_every_phase_in_order(name: str) -> None:
    drive = Drive(
        Expect(state={"speculative_algorithm": "DFLASH"}, min_tokens=30000, min_requests=8, min_context=2048)
    )
    drive.start_up(name)
    for count in range(1, 5):
        drive.tick(probe=Probe(200, "ours", count), server_info=INFO if count == 4 else None)
    verdict = drive.watch.verdict
    assert verdict is not None and verdict.kind == "PASS", verdict
    assert drive.phases() == list(PHASES)
    assert not any(event.get("skipped") for event in drive.events)


def test_graphs_are_skipped_where_the_engine_captures_none() -> None:
    drive = Drive()
    lines = [
        line for line in text_of("dflash").splitlines() if "Captur" not in line and "Capture" not in line
    ]
    drive.tick(lines=lines)
    graphs = [event for event in drive.events if event.get("phase") == "graphs"]
    assert graphs and graphs[-1]["skipped"] is True


def test_a_small_pool_passes_its_start_and_fails_its_capacity() -> None:
    drive = Drive(Expect(min_tokens=6_000_000))
    drive.start_up("gpu_nearly_full")
    verdict = drive.tick(probe=Probe(200, "ours", 4), server_info={})
    assert verdict is not None
    assert (verdict.kind, verdict.phase, verdict.reason) == ("FAIL", "capacity", "capacity")
    assert "5473936" in verdict.line and "6000000" in verdict.line


@pytest.mark.parametrize(("said", "bad"), [({}, "absent"), ({"speculative_algorithm": "NEXTN"}, "NEXTN")])
def test_the_wrong_mode_fails(said: dict[str, Any], bad: str) -> None:
    drive = Drive(Expect(state={"speculative_algorithm": "DFLASH"}))
    drive.start_up()
    verdict = drive.tick(probe=Probe(200, "ours", 4), server_info=said)
    assert verdict is not None and (verdict.phase, verdict.reason) == ("mode", "mode-mismatch")
    assert bad in verdict.line


@pytest.mark.parametrize(
    ("planned", "told", "same"), [(True, True, True), (True, None, False), (16, "16", True)]
)
def test_mode_compares_values_and_reads_the_schedulers_own_part(planned: Any, told: Any, same: bool) -> None:
    drive = Drive(Expect(state={"x": planned}))
    drive.start_up()
    verdict = drive.tick(probe=Probe(200, "ours", 4), server_info={"internal_states": [{"x": told}]})
    assert verdict is not None and (verdict.kind == "PASS") is same


def test_a_taken_port_fails_although_health_says_200() -> None:
    drive = Drive()
    drive.tick(2, busy=True, lines=["server_args=ServerArgs("])
    verdict = drive.tick(3, busy=True, probe=Probe(200, "other", 0, holder="pid 77 (nc -l)"))
    assert verdict is not None and verdict.reason == "port-taken"
    assert "pid 77 (nc -l)" in verdict.line
    assert "serve" not in drive.phases()


def test_answers_of_another_process_pass_no_phase_even_for_a_moment() -> None:
    drive = Drive()
    drive.tick(0.5, busy=True, probe=Probe(200, "other", 9), server_info=INFO)
    drive.tick(0.5, busy=True, probe=Probe(200, "none", 9), server_info=INFO)
    assert drive.phases() == ["process"]


def test_a_port_that_another_holds_for_a_moment_is_forgiven() -> None:
    drive = Drive()
    assert drive.tick(0.5, busy=True, probe=Probe(None, "other")) is None
    assert drive.tick(5, busy=True, probe=Probe(None, "none")) is None


def test_a_taken_port_in_the_log_names_its_holder() -> None:
    drive = Drive()
    drive.tick(lines=text_of("busy_port").splitlines(), probe=Probe(200, "other", 0, holder="pid 77 (nc)"))
    verdict = drive.tick(3, probe=Probe(200, "other", 0, holder="pid 77 (nc)"))
    assert verdict is not None and "[Errno 98]" in verdict.line and "pid 77 (nc)" in verdict.hint


def test_an_answer_of_ours_is_needed_whatever_the_log_says() -> None:
    drive = Drive()
    drive.start_up()
    assert drive.tick(20, busy=True, probe=Probe(503, "ours", 0)) is None
    assert "serve" not in drive.phases()


DEATHS = {
    "exit 0": (UnitState("inactive", "dead", "success", 0, 0, 1, 0, "new"), "exited-0"),
    "exit 1": (UnitState("failed", "failed", "exit-code", 0, 1, 1, 0, "new"), "exit-1"),
    "auto-restart": (UnitState("activating", "auto-restart", "exit-code", 0, 3, 1, 0, "new"), "exit-3"),
    "restarted": (UnitState("active", "running", "success", 222, 0, 0, 1, "newer"), "restarted"),
    "counted": (UnitState("activating", "start-pre", "success", 222, 0, 0, 1, "new"), "restarted"),
    "killed": (UnitState("failed", "failed", "signal", 0, 9, 2, 0, "new"), "signal-9"),
    "oom": (UnitState("failed", "failed", "oom-kill", 0, 9, 2, 0, "new"), "oom-kill"),
    "exec": (UnitState("failed", "failed", "exit-code", 0, 203, 1, 0, "new"), "exec-failed"),
    "limit": (UnitState("failed", "failed", "timeout", 0, 15, 2, 0, "new"), "start-timeout"),
    "stopped": (UnitState("deactivating", "stop-sigterm", "success", 100, 0, 0, 0, "new"), "stopped"),
    "remains": (UnitState("active", "exited", "success", 0, 0, 1, 0, "new"), "exited-0"),
}


@pytest.mark.parametrize("kind", DEATHS)
def test_every_way_to_die_is_seen_in_two_seconds_and_named(kind: str) -> None:
    unit, reason = DEATHS[kind]
    drive = Drive()
    drive.tick(3, busy=True)
    begun = drive.t
    verdict = drive.tick(5, unit=unit)
    assert verdict is not None and (verdict.kind, verdict.reason) == ("FAIL", reason)
    assert verdict.died_at == begun + TICK  # no time of death from systemd: when it was first seen
    assert verdict.lag_s is not None and verdict.lag_s <= 1.75  # + one tick before it could be seen


def test_an_oom_kill_known_to_systemd_beats_the_consequences_in_the_log() -> None:
    drive = Drive()
    drive.tick(
        lines=["Subprocess scheduler_0 (pid=7) crashed with exit code -9. Triggering SIGQUIT for cleanup..."]
    )
    verdict = drive.tick(5, unit=DEATHS["oom"][0])
    assert verdict is not None and verdict.reason == "oom-kill" and "scheduler_0" in verdict.line


def test_where_the_log_has_only_consequences_the_end_of_the_unit_is_the_reason() -> None:
    drive = Drive()
    drive.tick(lines=["x.service: Main process exited, code=killed, status=9/KILL"])
    verdict = drive.tick(5, unit=DEATHS["killed"][0])
    assert verdict is not None and verdict.reason == "signal-9" and "status=9/KILL" in verdict.line


def test_a_run_that_never_begins_is_a_stall_of_the_process_phase() -> None:
    drive = Drive(limits=Limits(process=5))
    verdict = drive.tick(30, unit=None)
    assert verdict is not None and (verdict.phase, verdict.reason) == ("process", "stall")


def test_a_slow_start_that_moves_never_stalls() -> None:
    drive = Drive()
    drive.tick(lines=["server_args=ServerArgs("])
    assert drive.tick(900, busy=True) is None
    for hour in range(400):
        assert drive.tick(2, io_bytes=hour) is None


@pytest.mark.parametrize("moving", ["cpu_ticks", "io_bytes", "gpu_bytes", "compilers", "procs"])
def test_any_one_kind_of_motion_is_enough(moving: str) -> None:
    drive = Drive(limits=Limits(imports=10))
    for step in range(400):
        value = 1 if moving == "compilers" else step * (2 << 20)
        now = replace(drive.base, t=drive.t + step * TICK, **{moving: value})
        assert not [event for event in drive.watch.observe(now) if event["ev"] == "verdict"], step


@pytest.mark.parametrize(
    ("begun", "counter"),
    [
        ("server_args=ServerArgs(", "Multi-thread loading shards: {}% Completed | {}/400"),
        ("Capture cuda graph begin.", "Capturing batches (bs=8 avail_mem=1.0 GB): {}% | {}/400"),
    ],
    ids=["shards", "graphs"],
)
def test_a_counter_that_moves_extends_even_where_nothing_else_does(begun: str, counter: str) -> None:
    drive = Drive(limits=Limits(imports=10, weights=10, graphs=10))
    drive.tick(lines=["server_args=ServerArgs(", begun])
    for step in range(1, 60):
        assert drive.tick(5, lines=[counter.format(step // 4, step)]) is None, step
    verdict = drive.tick(30)
    assert verdict is not None and verdict.reason == "stall"


def test_silence_alone_does_not_kill_where_the_host_can_say_nothing_else() -> None:
    drive = Drive(limits=Limits(imports=10, cap=300))
    blind = {"cpu_ticks": None, "io_bytes": None, "gpu_bytes": None}
    for step in range(1, 3000):
        drive.events += drive.watch.observe(replace(drive.base, t=drive.t + step * TICK, **blind))
        if drive.watch.verdict is not None:
            break
    assert drive.watch.verdict is not None and drive.watch.verdict.reason == "cap"
    assert step * TICK > 295


@pytest.mark.parametrize("order", [1, -1])
def test_the_innermost_symbol_is_the_verdict_of_a_death_in_any_order_of_arrival(order: int) -> None:
    drive = Drive()
    symbol = "ImportError: /x/common_ops.abi3.so: undefined symbol: _ZN3c1013MessageLoggerC1EPKcib"
    lines = [
        "Could not load any common_ops library!",
        symbol,
        "RuntimeError: CUDA error: no kernel image is available for execution on the device",
        "Received sigquit from a child process. It usually means the child failed.",
    ]
    drive.tick(lines=lines[::order], busy=True)
    verdict = drive.tick(5, unit=DEATHS["killed"][0])
    assert verdict is not None and (verdict.reason, verdict.line) == ("abi-torch", symbol)


@pytest.mark.parametrize(("phase", "limit"), [("import", 30), ("weights", 120), ("graphs", 180)])
def test_a_silent_hang_stalls_at_the_limit_of_its_phase_and_not_before(phase: str, limit: float) -> None:
    reached = {
        "import": [],
        "weights": ["server_args=ServerArgs("],
        "graphs": [
            "server_args=ServerArgs(",
            "Capture cuda graph begin. This can take up to several minutes.",
        ],
    }
    drive = Drive()
    drive.tick(1, busy=True)
    drive.tick(busy=True, lines=reached[phase])
    begun = drive.t
    verdict = drive.tick(600)
    assert verdict is not None and (verdict.reason, verdict.phase) == ("stall", phase)
    assert limit <= drive.t - begun <= limit + 1


@pytest.mark.parametrize(
    "sentence", ["Waiting for 1 local, 0 remote core engine proc(s) to start.", "Still here"]
)
def test_a_sentence_that_repeats_is_no_progress(sentence: str) -> None:
    drive = Drive(limits=Limits(imports=10))
    for second in range(60):
        line = f"[2026-11-29 14:00:{second:02d}] {sentence}"
        if drive.tick(1, lines=[line]):
            break
    verdict = drive.watch.verdict
    assert verdict is not None and verdict.reason == "stall" and sentence in verdict.line


def test_a_watchdog_thread_that_wakes_now_and_then_is_no_motion() -> None:
    drive = Drive(limits=Limits(imports=10))
    for _ in range(60):
        drive.cpu += 1  # one percent of a core
        if drive.tick(1):
            break
    assert drive.watch.verdict is not None and drive.watch.verdict.reason == "stall"


def test_a_pause_of_the_watcher_itself_is_not_counted() -> None:
    drive = Drive()
    drive.tick(2)
    drive.t += 300
    assert drive.tick(2) is None


def test_a_busy_scheduler_that_answers_nobody_stalls_in_serve() -> None:
    drive = Drive()
    drive.start_up()
    drive.tick(probe=Probe(200, "ours", 1))
    begun = drive.t
    verdict = drive.tick(120, busy=True, probe=Probe(200, "ours", 1))
    assert verdict is not None and (verdict.phase, verdict.reason) == ("serve", "stall")
    assert 29 <= drive.t - begun <= 31


def test_the_cap_bounds_a_phase_that_moves_for_ever() -> None:
    drive = Drive(limits=Limits(cap=60))
    verdict = drive.tick(120, busy=True)
    assert verdict is not None and verdict.reason == "cap"


def test_a_failed_request_is_a_verdict_unless_the_log_knows_better() -> None:
    drive = Drive()
    drive.start_up()
    bad = Probe(200, "ours", 1, ("POST /generate: HTTP 500: boom",))
    verdict = drive.tick(10, probe=bad)
    assert verdict is not None and verdict.reason == "generation-failed" and "HTTP 500: boom" in verdict.line

    drive = Drive()
    drive.start_up()
    drive.tick(1, probe=bad)
    verdict = drive.tick(
        10, probe=bad, lines=["torch.OutOfMemoryError: CUDA out of memory. Tried to allocate"]
    )
    assert verdict is not None and verdict.reason == "cuda-oom"


def test_without_a_log_the_port_of_our_own_process_is_the_milestone() -> None:
    drive = Drive(Expect(log=False))
    assert drive.tick(100) is None  # longer than the import limit: nothing says that the import is over
    verdict = drive.tick(probe=Probe(200, "ours", 4), server_info=INFO)
    assert verdict is not None and verdict.kind == "PASS"


def test_it_goes_on_guarding_after_pass() -> None:
    drive = Drive()
    drive.start_up()
    drive.tick(probe=Probe(200, "ours", 4), server_info=INFO)
    assert drive.watch.verdict is not None and drive.watch.verdict.kind == "PASS"
    for step in range(8):
        dead = replace(DEATHS["killed"][0], exited_at=drive.t)
        drive.watch.observe(replace(drive.base, t=drive.t + step * TICK, unit=dead))
    assert drive.watch.verdict.kind == "FAIL"


def test_a_fault_of_the_host_is_not_blamed_on_the_release() -> None:
    verdict = replay("server_args=\nRuntimeError: CUDA unknown error - this may be due to\n", SIGNATURES)
    assert verdict.kind == "ENV"
    failed = Verdict("FAIL", "weights", "cuda-oom", "line", (), "hint")
    assert blame_host(failed, []) is failed
    assert blame_host(failed, ["GPU 3 is gone"]).kind == "ENV"
    assert "GPU 3 is gone" in blame_host(failed, ["GPU 3 is gone"]).hint


def test_an_unfinished_log_is_inconclusive() -> None:
    assert (
        replay("server_args=ServerArgs(\nInit torch distributed begin.\n", SIGNATURES).kind == "INCONCLUSIVE"
    )


def test_progress_is_told_once_per_step() -> None:
    drive = Drive()
    drive.tick(lines=text_of("nospec_cold").splitlines()[:120])
    steps = [event["text"] for event in drive.events if event["ev"] == "progress"]
    assert steps == ["0/1", "1/1", "0/4", "1/4", "4/4"]


def test_the_verdict_event_has_the_shape_of_the_protocol() -> None:
    event = Verdict("FAIL", "import", "abi", "line", ("a",), "hint", died_at=1.0, t=2.5).to_json()
    assert event == {
        "ev": "verdict",
        "verdict": "FAIL",
        "phase": "import",
        "reason": "abi",
        "line": "line",
        "context": ["a"],
        "hint": "hint",
        "lag_s": 1.5,
    }
