"""The signature table: complete, mapped, mute on healthy starts; the scanner: first cause, whatever follows."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from ddtree_ops.core.log_text import clean
from ddtree_ops.core.scanner import Scanner
from ddtree_ops.core.signatures import PHASES, ROLE_OF, Signature, load, match

pytestmark = pytest.mark.tier("main")

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "src/ddtree_ops/core/signatures.json").read_text()
LOGS = ROOT / "tests/fixtures/logs"
SIGNATURES = load(TEXT)

CONSEQUENCES = [
    "[2026-11-29 14:40:52] Received sigquit from a child process. It usually means the child failed.",
    "[2026-11-29 14:40:52] SIGQUIT received. signum=None, frame=None. It usually means one child failed.",
    "[2026-11-29 14:40:52] Initialization failed. warmup error: Traceback (most recent call last):",
    "requests.exceptions.ConnectionError: [Errno 111] Connection refused",
    "[2026-11-29 14:40:53] Subprocess scheduler_0 (pid=12) crashed with exit code -9. Triggering SIGQUIT",
    "sglang.service: Main process exited, code=killed, status=9/KILL",
]
CAUSES = [
    "ImportError: /x/common_ops.abi3.so: undefined symbol: _ZN3c1013MessageLogger6streamB5cxx11Ev",
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
    "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.",
    "RuntimeError: CUDA error: no kernel image is available for execution on the device",
    "sglang serve: error: unrecognized arguments: --speculative-ddtree-budget 16",
    "[Errno 98] error while attempting to bind on address ('0.0.0.0', 30000): address already in use",
    "safetensors_rust.SafetensorError: Error while deserializing header: MetadataIncompleteBuffer",
]


def scan(lines: list[str], phase: str = "import") -> Scanner:
    scanner = Scanner(SIGNATURES)
    for line in lines:
        scanner.feed(line, phase)
    return scanner


def test_every_entry_is_mapped_and_says_something() -> None:
    for signature in SIGNATURES:
        assert signature.phases, signature.id
        if signature.role not in ("passed", "entered"):
            assert signature.reason and signature.hint, signature.id


@pytest.mark.parametrize(
    "change",
    [{"phase": "lunch"}, {"verdict": "SHRUG"}, {"role": "hero"}, {"regex": "("}, {"hint": None}],
    ids=lambda change: next(iter(change)),
)
def test_an_entry_that_cannot_be_placed_is_refused_by_name(change: dict[str, str | None]) -> None:
    entry = {
        "id": "X1",
        "regex": "x",
        "verdict": "FAILFAST",
        "phase": "start",
        "reason": "r",
        "hint": "h",
    } | change
    text = json.dumps([{key: value for key, value in entry.items() if value is not None}])
    with pytest.raises(ValueError, match="X1"):
        load(text)


def test_two_entries_of_one_id_are_refused() -> None:
    entry = {"id": "X1", "regex": "x", "verdict": "WARN", "phase": "start", "reason": "r", "hint": "h"}
    with pytest.raises(ValueError, match="share an id"):
        load(json.dumps([entry, entry]))


def test_verdicts_of_the_collection_are_all_mapped() -> None:
    assert {entry["verdict"] for entry in json.loads(TEXT)} <= set(ROLE_OF)


@pytest.mark.parametrize("name", ["nospec_warm", "dflash", "hybrid_dflash"])
def test_no_line_of_a_healthy_start_is_a_cause_in_any_phase(name: str) -> None:
    lines = (LOGS / f"{name}.txt").read_text().splitlines()
    for phase in (*PHASES, "hold"):
        scanner = scan(lines, phase)
        assert scanner.best is None, (phase, scanner.best)
        assert not scanner.fatal


def test_a_benign_line_is_no_match_even_where_a_fatal_one_would_be() -> None:
    line = "Ignore import error when loading sglang.srt.models.x: No module named 'flashinfer.gemm'"
    assert match(line, "weights", SIGNATURES) is None
    found = match("ModuleNotFoundError: No module named 'flashinfer.gemm'", "weights", SIGNATURES)
    assert found is not None and found.reason == "import"


@pytest.mark.parametrize("cause", CAUSES)
@pytest.mark.parametrize("seed", range(4))
def test_consequences_in_any_order_and_number_never_hide_the_first_cause(cause: str, seed: int) -> None:
    alone = scan([cause]).best
    assert alone is not None
    shuffled = CONSEQUENCES * 2
    random.Random(seed).shuffle(shuffled)
    later = [line for line in CAUSES if "undefined symbol" not in line and line != cause]
    found = scan([cause, *shuffled, *later, *shuffled]).best
    assert found is not None
    assert (found.line, found.reason, found.hint, found.host) == (
        alone.line,
        alone.reason,
        alone.hint,
        alone.host,
    )


@pytest.mark.parametrize("cause", CAUSES)
def test_a_cause_wins_over_consequences_that_the_journal_delivered_first(cause: str) -> None:
    found = scan([*CONSEQUENCES, cause]).best
    assert found is not None and found.line == cause


def test_the_innermost_undefined_symbol_wins_over_the_lines_that_wrap_it() -> None:
    symbol = "OSError: /x/common_ops.abi3.so: undefined symbol: _ZN2at4_ops5zeros4callE"
    lines = [
        "[2026-11-29 14:40:52] Scheduler hit an exception: Traceback (most recent call last):",
        '  File "/x/sgl_kernel/__init__.py", line 3, in <module>',
        "    ctypes.CDLL(path)",
        "ImportError: [sgl_kernel] CRITICAL: Could not load any common_ops library!",
        symbol,
        "ImportError: something else: undefined symbol: _ZN4later",
        CONSEQUENCES[0],
    ]
    found = scan(lines).best
    assert found is not None and found.line == symbol and found.reason == "abi-torch"


def test_of_a_chain_of_exceptions_the_first_is_quoted_with_its_frames() -> None:
    lines = (LOGS / "float32_capture_failed.txt").read_text().splitlines()
    found = scan(lines, "graphs").best
    assert found is not None
    assert found.line.startswith("RuntimeError: rmsnorm(")
    assert any("rmsnorm.default" in line for line in found.context)
    assert found.reason == "dtype"


def test_a_request_that_the_engine_refuses_neither_kills_nor_hides_what_kills_later() -> None:
    refused = "[x] DFLASH speculative decoding does not support return_logprob yet., self.rid='1'"  # HTTP 400, 0.5.11
    assert not scan([refused], "serve").fatal
    for cause in (
        CAUSES[1],
        "SIGTERM received. signum=None frame=None. Draining requests and shutting down...",
    ):
        found = scan([refused, cause, *CONSEQUENCES], "serve")
        assert found.fatal and found.best is not None and found.best.line == cause


def test_an_exception_that_the_scheduler_died_of_is_fatal_and_beats_one_that_was_only_logged() -> None:
    logged = ["Traceback (most recent call last):", '  File "/x.py"', "KeyError: 'only logged'"]
    died = [
        "[x] Scheduler hit an exception: Traceback (most recent call last):",
        '  File "/y.py"',
        "KeyError: 'died of it'",
    ]
    found = scan(logged)
    assert not found.fatal and found.best is not None and found.best.line == "KeyError: 'only logged'"
    found = scan([*logged, *died])
    assert found.fatal and found.best is not None and found.best.line == "KeyError: 'died of it'"


def test_an_exception_nobody_knows_is_the_cause_when_its_process_dies_of_it() -> None:
    lines = [
        "Process SpawnProcess-1:",
        "Traceback (most recent call last):",
        '  File "/x.py", line 1, in run',
        "    raise Odd('no such luck')",
        "x.OddError: no such luck",
        CONSEQUENCES[0],
    ]
    found = scan(lines)
    assert found.best is not None and found.best.line == "x.OddError: no such luck"
    assert found.fatal


def test_a_traceback_that_the_engine_only_mentions_is_not_fatal() -> None:
    lines = [
        "[x] Can not initialize OpenAIServingResponses, error: Traceback (most recent call last):",
        '  File "/x.py", line 1, in run',
        "    import openai_harmony",
        "ModuleNotFoundError: No module named 'openai_harmony'",
    ]
    found = scan(lines, "serve")
    assert found.best is None and not found.fatal


def test_source_text_in_a_traceback_is_no_evidence() -> None:
    lines = [
        "Traceback (most recent call last):",
        '  File "/x.py", line 1, in run',
        '    raise RuntimeError("CUDA out of memory")',
        "ValueError: another thing",
    ]
    found = scan(lines).best
    assert found is not None and found.line == "ValueError: another thing"


@pytest.mark.parametrize(
    "line",
    [
        "server_args=ServerArgs(port=1, api_key='s3cr3tvalue', x=2)",
        "python -m sglang.launch_server --api-key s3cr3tvalue --port 1",
        "['--api-key', 's3cr3tvalue']",
        '{"admin_api_key": "s3cr3tvalue"}',
        "Authorization: Bearer s3cr3tvalue",
        "HF_TOKEN=hf_s3cr3tvaluexxxxxxxxxxxxxx",
        'HUGGING_FACE_HUB_TOKEN="s3cr3tvalue two"',
        "Authorization: Basic s3cr3tvalue=",
        "'authorization': 'Token s3cr3tvalue'",
        "ConnectionError: https://me:s3cr3tvalue@hub.example/api is not reached",
        "401 Client Error for url: https://hub.example/x?revision=main&token=s3cr3tvalue&a=1",
        "403 Forbidden: https://cdn.example/x?X-Amz-Signature=s3cr3tvalue",
        "MYSQL password=s3cr3tvalue, host=db",
        "ServerArgs(ssl_keyfile_password='s3cr3tvalue')",
        "--ssl-keyfile-password s3cr3tvalue",
        "fatal: ghp_s3cr3tvaluexxxxxxxxxxxx is not accepted",
        "ssl_keyfile_password='s3cr3tvalue', x=2",
        "POSTGRES_PASSWORD=s3cr3tvalue",
        '{"client_secret": "s3cr3tvalue"}',
        "Authorization: Basic s3cr3tvalue",
        "Looking in indexes: https://me:s3cr3tvalue@pypi.example/simple",
    ],
)
def test_no_secret_survives_quoting(line: str) -> None:
    assert "s3cr3tvalue" not in clean(line)


@pytest.mark.parametrize(
    "line",
    [
        "max_total_num_tokens=32768, chunked_prefill_size=8192, max_running_requests=8",
        "sudo: a terminal is required to read the password; either use the -S option",
        "Permission denied (publickey,password).",
        "couldn't find key HF_TOKEN in Secret default/hub",
        "KeyError: 'model.layers.0.mlp.gate.weight'",
        "GET http://127.0.0.1:30000/health 200, then http://[::1]:30000/v1/models?limit=1",
        "speculative_eagle_topk=4, eos_token_id=[1, 2], bos_token: 7, num_key_value_heads=8",
    ],
)
def test_what_is_no_secret_is_quoted_whole(line: str) -> None:
    assert clean(line) == line


@pytest.mark.parametrize(
    "line",
    [
        "sudo: a password is required",
        "Permission denied (publickey,password).",
        "basic scheduling of requests; http://[::1]:30000/generate",
    ],
)
def test_words_about_secrets_are_none(line: str) -> None:
    assert clean(line) == line


def test_prefixes_of_a_pasted_journal_and_colours_do_not_matter() -> None:
    line = "Nov 29 14:40:52 ct129 python3[77]: \x1b[31mtorch.OutOfMemoryError: CUDA out of memory.\x1b[0m"
    found = scan([line], "weights").best
    assert found is not None and found.line == "torch.OutOfMemoryError: CUDA out of memory."


def test_host_faults_are_marked_as_such() -> None:
    found: Signature | None = match(
        "CUDA error: CUDA unknown error - this may be due to", "import", SIGNATURES
    )
    assert found is not None and found.host


@pytest.mark.parametrize(
    "line",
    [
        "Receive: obj=GenerateReqInput(text='why RuntimeError: CUDA error: out of memory')",
        'Receive OpenAI: obj={"messages": [{"role": "user", "content": "torch.OutOfMemoryError: CUDA out of memory"}]}',
        '{"timestamp": "2026-11-30T10:00:00", "event": "request.received", "obj": {"text": "CUDA out of memory"}}',
        '{"timestamp": "2026-11-30T10:00:00", "event":"request.finished", "out": "CUDA error: device-side assert"}',
    ],
)
def test_what_a_user_writes_rolls_no_release_back(line: str) -> None:
    """--log-requests, in either format, between the gates and the confirm."""
    scanner = Scanner(SIGNATURES)
    scanner.feed(line, "hold")
    assert not scanner.fatal
    scanner.feed("torch.OutOfMemoryError: CUDA out of memory.", "hold")
    assert scanner.fatal
