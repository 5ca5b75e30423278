"""`diagnose`: silent on healthy starts and on a host in good health, sure about failed ones, any shape of paste."""

from __future__ import annotations

import io
import json
import time
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from ddtree_ops.cli.app import run
from ddtree_ops.cli.diagnose import lines_of
from ddtree_ops.core.diagnose import Diagnosis, diagnose
from ddtree_ops.core.signatures import load

pytestmark = pytest.mark.tier("preflight")

ROOT = Path(__file__).resolve().parents[2]
H200, CPU = ROOT / "tests/fixtures/logs", ROOT / "tests/fixtures/preflight/logs"
SIGNATURES = load((ROOT / "src/ddtree_ops/core/signatures.json").read_text())

# file: (what it varies, the verdict where it is another than OK)
HEALTHY: dict[Path, tuple[str, str]] = {
    H200 / "nospec_warm.txt": ("H200, no speculation, warm caches", "OK"),
    H200 / "nospec_cold.txt": ("H200, cold caches: minutes of graph capture; stopped by SIGTERM later", "OK"),
    H200 / "dflash.txt": ("H200, a DFLASH draft beside the target", "OK"),
    H200 / "hybrid_dflash.txt": ("H200, a hybrid model: Mamba cache, GDN kernels", "OK"),
    H200 / "gpu_nearly_full.txt": ("H200 with another process on it: a small pool", "OK"),
    H200 / "sigint.txt": ("H200, served, then ended by a person (SIGINT)", "OK"),
    H200 / "sigterm.txt": ("H200, served, then drained by SIGTERM", "OK"),
    CPU / "cpu_plain.txt": ("CPU engine, no speculation", "OK"),
    CPU / "cpu_dflash.txt": ("CPU engine, DFLASH", "OK"),
    CPU / "cpu_target_traffic.txt": ("CPU engine under hundreds of requests", "OK"),
    CPU / "cpu_full_no_radix.txt": ("CPU engine, DDTREE full, radix cache off", "OK"),
    CPU / "cpu_full_radix.txt": ("CPU engine, DDTREE full with the radix cache", "OK"),
    CPU / "cpu_full_tp2.txt": ("CPU engine, two ranks: their lines carry TP0 and TP1", "OK"),
    CPU / "cpu_full_short.txt": ("CPU engine, a random draft that nothing is accepted of, few steps", "WARN"),
    CPU / "cpu_sigint.txt": ("CPU engine, ended by SIGINT", "OK"),
    CPU / "cpu_sigterm.txt": ("CPU engine, ended by SIGTERM", "OK"),
    CPU / "cpu_refused_requests.txt": ("CPU engine that refused logprobs and a grammar under DFLASH", "WARN"),
}

QUIET: dict[str, str] = {
    entry["varies"]: entry["log"]
    for entry in YAML(typ="safe").load((ROOT / "tests/fixtures/preflight/quiet.yaml").read_text())
}

FAILED = {
    "bad_draft_layers": ("draft-model", "ValueError: DFLASH target_layer_ids contains"),
    "bad_draft_path": ("model-path", "huggingface_hub.errors.HFValidationError: Repo id"),
    "busy_port": ("port-taken", "[2026-11-29 14:40:55] ERROR:    [Errno 98] error while"),
    "float32_capture_failed": ("dtype", "RuntimeError: rmsnorm(at::Tensor&"),
    "missing_kernel_fa3": ("kernel-missing", "ImportError: cannot import name 'flash_ops'"),
    "no_draft_path": ("draft-model", "ValueError: DFLASH speculative decoding requires"),
    "not_enough_memory": ("memory-pool", "RuntimeError: Not enough memory."),
    "unknown_algorithm": ("unknown-argument", "sglang serve: error: argument --speculative-alg"),
    "detokenizer_sigkill": ("child-killed", "[2026-11-29 14:39:52] Subprocess detokenizer"),
    "scheduler_sigkill": ("child-killed", "[2026-11-29 14:39:53] Subprocess scheduler_0"),
    "cpu_dflash_killed": ("child-killed", "[2026-11-29 16:23:04] Subprocess scheduler_0"),
    "watchdog_timeout": ("watchdog", "[2026-11-29 14:29:59] Scheduler watchdog timeout"),
}


def read(text: str) -> Diagnosis:
    return diagnose(text.split("\n"), SIGNATURES)


@pytest.mark.parametrize("path", HEALTHY, ids=lambda path: path.stem)
def test_a_healthy_start_never_fails(path: Path) -> None:
    said = read(path.read_text())
    assert said.verdict == HEALTHY[path][1], said


@pytest.mark.parametrize("path", HEALTHY, ids=lambda path: path.stem)
@pytest.mark.parametrize("share", [0.3, 0.6])
def test_nor_does_a_healthy_start_that_the_paste_cuts(path: Path, share: float) -> None:
    lines = path.read_text().split("\n")
    for part in (lines[: int(len(lines) * share)], lines[int(len(lines) * share) :]):
        assert diagnose(part, SIGNATURES).verdict != "FAIL"


@pytest.mark.parametrize("what", QUIET)
def test_other_logs_in_good_health_mean_nothing(what: str) -> None:
    said = read(QUIET[what])
    assert said.verdict == "OK" and said.hint and not said.reason, said


@pytest.mark.parametrize("name", FAILED)
def test_a_failed_start_is_named_by_its_first_fatal_line(name: str) -> None:
    said, (reason, line) = read((H200 / f"{name}.txt").read_text()), FAILED[name]
    assert (said.verdict, said.reason.split(" ")[1]) == ("FAIL", reason)
    assert said.line.startswith(line) and said.line in said.context and said.hint


@pytest.mark.parametrize(
    "name", ["busy_port", "not_enough_memory", "float32_capture_failed", "no_draft_path"]
)
def test_what_writes_in_front_of_a_line_does_not_matter(name: str) -> None:
    plain = (H200 / f"{name}.txt").read_text().split("\n")
    wanted = diagnose(plain, SIGNATURES)
    for front in (
        "sglang-1  | ",
        "Nov 21 10:00:00 ct129 python3[77]: ",
        "2026-11-21T10:00:00.123456789Z stderr F ",
    ):
        said = diagnose([front + line for line in plain], SIGNATURES)
        assert (said.verdict, said.reason) == (wanted.verdict, wanted.reason), front
    records = [json.dumps({"log": line + "\n", "stream": "stderr"}) for line in plain]
    assert diagnose(records, SIGNATURES).reason == wanted.reason


def test_a_stopped_scheduler_is_busy_until_somebody_knows_better() -> None:
    said = read((H200 / "scheduler_sigstop.txt").read_text())
    assert (said.verdict, said.reason) == ("WAIT", "S50 health-busy")


def test_the_innermost_symbol_wins_over_what_wraps_it_and_over_consequences() -> None:
    symbol = "OSError: /x/common_ops.abi3.so: undefined symbol: _ZN2at4_ops5zeros4callE"
    said = read(
        "[x] Scheduler hit an exception: Traceback (most recent call last):\n"
        '  File "/x/__init__.py", line 3, in <module>\n    load()\n'
        "ImportError: [sgl_kernel] CRITICAL: Could not load any common_ops library!\n"
        f"{symbol}\n"
        "RuntimeError: CUDA error: no kernel image is available\n"
        "[x] Received sigquit from a child process. It usually means the child failed.\n"
    )
    assert (said.reason, said.line) == ("S02 abi-torch", symbol)


def test_a_specific_line_is_the_cause_though_a_fatal_one_follows() -> None:
    said = read(
        "PermissionError: [Errno 13] Permission denied: '/root/.cache/flashinfer'\n"
        "RuntimeError: Capture cuda graph failed: see above\n"
    )
    assert said.reason == "J07 cache-permission"


def test_a_paste_that_begins_inside_a_traceback_takes_no_source_text_for_evidence() -> None:
    said = read(
        '  File "/v/x.py", line 7, in f\n    raise RuntimeError("CUDA out of memory")\nValueError: another thing\n'
    )
    assert (said.verdict, said.line) == ("FAIL", "ValueError: another thing")


def test_a_counter_waits_until_it_is_full() -> None:
    begun = "[x] Load weight begin. avail mem=139 GB\nLoading shards: 10% | 1/9\n"
    said = read(begun)
    assert (said.verdict, said.reason.split(" ")[1]) == ("WAIT", "loading") and "1/9" in said.line
    assert read(begun + "Loading shards: 100% | 9/9\n[x] Load weight end.\n").verdict == "OK"


def test_the_first_failure_of_a_crash_loop_counts_and_a_start_that_came_up_makes_it_a_warning() -> None:
    start = "[x] server_args=ServerArgs(\n"
    first = start + "torch.OutOfMemoryError: CUDA out of memory.\n"
    second = start + "OSError: [Errno 98] address already in use\n"
    assert read(first + second).reason == "S36 cuda-oom"
    up = read(first + start + "The server is fired up and ready to roll!\n")
    assert (up.verdict, up.reason) == ("WARN", "S36 cuda-oom")


def test_what_a_start_survived_is_no_cause() -> None:
    text = "[x] server_args=ServerArgs(\nModuleNotFoundError: No module named 'x'\n"
    assert read(text).verdict == "FAIL"
    assert read(text + "The server is fired up and ready to roll!\n").verdict == "OK"


def test_stopped_from_outside_is_a_wait_before_it_was_ready_and_nothing_after() -> None:
    early = "[x] server_args=ServerArgs(\n[x] SIGTERM received. signum=None frame=None.\n"
    assert read(early).verdict == "WAIT"
    late = early.replace("\n", "\nThe server is fired up and ready to roll!\n", 1)
    assert read(late).verdict == "OK"


def test_stuck_statistics_fail_and_one_moment_of_it_does_not() -> None:
    stuck = "Avg generation throughput: 0.0 tokens/s, Running: 2 reqs, Waiting: 0 reqs\n"
    moving = stuck.replace("0.0", "61.3")
    assert read(moving + stuck).reason == "S80 wedged"
    assert read(stuck + moving).verdict == "OK"


@pytest.mark.parametrize(
    ("lengths", "verdict"), [([1.0] * 8, "FAIL"), ([1.0] * 4, "WARN"), ([1.0] * 7 + [1.4], "OK")]
)
def test_acceptance_is_judged_over_many_batches(lengths: list[float], verdict: str) -> None:
    lines = [
        f"[x] Decode batch, #running-req: 1, accept len: {n:.2f}, gen throughput (token/s): 9.1"
        for n in lengths
    ]
    assert diagnose(lines, SIGNATURES).verdict == verdict


def test_xid_decides_by_its_number_in_both_forms_of_the_kernel_log() -> None:
    for front in (
        "[ 8123.550001] ",
        "[Sat Nov 21 10:00:00 2026] ",
        "Nov 21 10:00:00 ct129 kernel: [ 81.550001] ",
    ):
        fatal = read(
            front + "NVRM: Xid (PCI:0000:3b:00): 79, pid=1, name=python3, GPU has fallen off the bus."
        )
        assert (fatal.verdict, fatal.reason) == ("FAIL", "S24 gpu-fault")
        own = read(front + "NVRM: Xid (PCI:0000:3b:00): 31, pid=1, name=python3, MMU Fault")
        assert (own.verdict, own.reason) == ("WARN", "S81 gpu-fault")
        other = read(front + "NVRM: Xid (PCI:0000:3b:00): 1079, pid=1")
        assert (other.verdict, other.reason) == ("WARN", "G06 gpu-xid")


def test_the_phase_is_read_from_the_log_and_unknown_where_it_is_not_told() -> None:
    assert read((H200 / "float32_capture_failed.txt").read_text()).phase == "graphs"
    assert read("ImportError: x.so: undefined symbol: _ZN3c10").phase == ""


def test_secrets_are_blanked_in_line_and_context() -> None:
    said = read(
        "run --api-key s3cr3tvalue\nRuntimeError: Bearer s3cr3tvalue is no token: CUDA out of memory\n"
    )
    assert said.verdict == "FAIL" and "s3cr3tvalue" not in json.dumps(said.to_json())


def test_bytes_that_are_no_text_and_lines_without_end_are_read() -> None:
    junk = b"\xff\xfe\x00\x80 junk \x1b[31m\r\n" + b"x" * 900_000 + b"\nCUDA error: out of memory\xff"
    said = diagnose(lines_of(io.BytesIO(junk)), SIGNATURES)
    assert (said.verdict, said.reason) == ("FAIL", "S36 cuda-oom")


def test_a_huge_log_is_streamed() -> None:
    batch = b'[2026-11-21 10:00:00] INFO:     127.0.0.1:1 - "POST /generate HTTP/1.1" 200 OK\n'

    class Endless(io.RawIOBase):
        left = 20

        def read(self, size: int = -1) -> bytes:
            self.left -= 1
            return (batch * (size // len(batch) + 1))[:size] if self.left >= 0 else b""

    begun = time.process_time()
    said = diagnose(lines_of(Endless()), SIGNATURES)  # type: ignore[arg-type]
    assert said.verdict == "OK" and said.lines > 15_000
    assert time.process_time() - begun < 40


def answer(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, Any], str]:
    code = run(["diagnose", *words])
    out, err = capsys.readouterr()
    return code, json.loads(out) if out else {}, err


def test_the_verb_prints_one_document(capsys: pytest.CaptureFixture[str]) -> None:
    code, said, err = answer(capsys, "--json", str(H200 / "not_enough_memory.txt"))
    assert code == 0 and not err
    assert (said["schema_version"], said["verdict"], said["reason"]) == (1, "FAIL", "S35 memory-pool")
    assert said["line"].startswith("RuntimeError: Not enough memory.") and said["line"] in said["context"]
    assert said["phase"] == "weights" and said["lines"] > 40 and "--mem-fraction-static" in said["hint"]


def test_the_verb_says_it_to_a_person_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    code, said, err = answer(capsys, str(H200 / "not_enough_memory.txt"))
    assert code == 0 and not said
    assert err.startswith("FAIL: S35 memory-pool (in phase weights)") and "\n  hint: " in err


def test_standard_input_and_an_empty_log(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"")))
    code, said, _ = answer(capsys, "--json", "-")
    assert (code, said["verdict"], said["reason"], said["line"]) == (0, "OK", None, None)
    assert "empty" in said["hint"]


@pytest.mark.parametrize("name", ["missing.log", "."])
def test_what_cannot_be_read_is_exit_2(capsys: pytest.CaptureFixture[str], tmp_path: Path, name: str) -> None:
    code, said, err = answer(capsys, "--json", str(tmp_path / name))
    assert code == 2 and said["ok"] is False and name.strip(".") in err
