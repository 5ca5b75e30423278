"""People read stderr, machines read stdout, and a pipe gets neither colour nor spinner."""

from __future__ import annotations

import io
import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from ddtree_ops.cli import _common, _sinks
from ddtree_ops.core import events as ev
from ddtree_ops.core.errors import UsageProblem

pytestmark = pytest.mark.tier("main")
RAW = [
    {"ev": "state", "t": 12.5, "state": "STOPPED"},
    {"ev": "phase", "phase": "import", "seconds": 3.1},
    {"ev": "progress", "phase": "weights", "text": "shard 3/11"},
    {"ev": "log", "line": "[bold]not markup[/bold]"},
    {
        "ev": "verdict",
        "verdict": "FAIL",
        "phase": "import",
        "reason": "import failed",
        "line": "ImportError: x",
        "context": ["a", "b"],
        "hint": "look",
        "lag_s": 0.4,
    },
    {"ev": "note", "text": "the old service is being stopped"},
    {"ev": "result", "ok": True, "release": "abc"},
    {"ev": "new-kind", "x": 1},
]


@pytest.mark.parametrize("raw", RAW, ids=lambda r: str(r["ev"]))
def test_events_survive_the_round_trip(raw: dict[str, object]) -> None:
    assert ev.event_json(ev.parse_event(raw)) == raw


def test_newer_and_broken_events_are_no_error() -> None:
    assert ev.parse_event({"ev": "state", "state": "READY", "extra": 1}) == ev.StateChanged("READY")
    assert isinstance(ev.parse_event({"ev": "state"}), ev.Other)
    assert isinstance(ev.parse_event({}), ev.Other)
    assert ev.parse_event({"ev": "result"}) == ev.Result(False, {"ev": "result"})


def test_the_start_of_a_rollback_is_not_taken_for_the_new_releases(
    capsys: pytest.CaptureFixture[str],
) -> None:
    told = [*RAW[1:2], RAW[4], {"ev": "state", "state": "ROLLING_BACK"}, *RAW[1:2]]
    with _sinks.open_sink(stream=io.StringIO()) as sink:
        for raw in told:
            sink("ct129", ev.parse_event(raw))
            sink("ct200", ev.parse_event(RAW[1]))
    passed = [line for line in capsys.readouterr().err.splitlines() if "import passed" in line]
    own = ["ct129  import passed in 3.1 s", "ct200  import passed in 3.1 s"]
    assert passed == [
        *own,
        *own[1:] * 2,
        "ct129  the service as before: import passed in 3.1 s",
        own[1],
    ]


def test_plain_lines_go_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    with _sinks.open_sink(stream=io.StringIO()) as sink:
        for raw in RAW:
            sink("ct129", ev.parse_event(raw))
    out, err = capsys.readouterr()
    assert out == ""
    assert err == (
        "ct129  STOPPED\n"
        "ct129  import passed in 3.1 s\n"
        "ct129  FAIL in import: import failed (seen 0.4 s after the process died)\n"
        "  first fatal line: ImportError: x\n"
        "  hint: look\n"
        "ct129  the old service is being stopped\n"
    )


def test_verbose_shows_the_log_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    with _sinks.open_sink(verbose=1, stream=io.StringIO()) as sink:
        for raw in RAW[2:4]:
            sink("ct129", ev.parse_event(raw))
    assert capsys.readouterr().err == "ct129  weights: shard 3/11\nct129  log: [bold]not markup[/bold]\n"


def test_json_lines_go_to_stdout_each_with_its_host(capsys: pytest.CaptureFixture[str]) -> None:
    with _sinks.open_sink(events=True, quiet=True) as sink:
        for raw in RAW:
            sink("ct129", ev.parse_event(raw))
    out, err = capsys.readouterr()
    assert err == ""
    assert [json.loads(line) for line in out.splitlines()] == [{"host": "ct129", **raw} for raw in RAW]


def test_a_document_carries_its_version(capsys: pytest.CaptureFixture[str]) -> None:
    _sinks.document({"ok": True, "name": "ü"})
    assert json.loads(capsys.readouterr().out) == {"schema_version": 1, "ok": True, "name": "ü"}


def test_a_log_line_with_a_key_is_shown_without_it(capsys: pytest.CaptureFixture[str]) -> None:
    line = ev.LogLine("server_args=ServerArgs(api_key='canary-1', hf=hf_canary000000000000000)")
    with _sinks.open_sink(events=True, verbose=1, stream=io.StringIO()) as sink:
        sink("ct129", line)
        sink("ct129", ev.VerdictGiven("FAIL", line="--api-key canary-2"))
    _sinks.document({"argv": ["--api-key", "canary-3"]})
    out, err = capsys.readouterr()
    assert "canary" not in out + err
    assert "api_key=***" in err


SCRIPT = """
import json, sys, time
from ddtree_ops.cli._sinks import open_sink
from ddtree_ops.core.events import parse_event
with open_sink(events=True) as sink:
    for raw in json.loads(sys.argv[1]):
        sink("ct129", parse_event(raw))
        time.sleep(0.3)
print("END", file=sys.stderr)
"""


def on_a_terminal(**env: str) -> tuple[str, str]:
    """Run SCRIPT with a terminal as stderr; return what the terminal and what stdout got."""
    ours, theirs = pty.openpty()
    words = [sys.executable, "-c", SCRIPT, json.dumps(RAW)]
    base = {k: v for k, v in os.environ.items() if k not in ("CI", "NO_COLOR", "FORCE_COLOR")}
    child = subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=theirs, env={**base, "TERM": "xterm", "COLUMNS": "100", **env}
    )
    os.close(theirs)
    seen = b""
    while True:
        try:
            data = os.read(ours, 65536)
        except OSError:  # the last writer closed the terminal
            break
        if not data:
            break
        seen += data
    assert child.stdout is not None
    out = child.stdout.read().decode()
    assert child.wait() == 0
    os.close(ours)
    return seen.decode(), out


def test_a_terminal_gets_a_moving_line_and_stdout_stays_clean() -> None:
    seen, out = on_a_terminal()
    assert "\x1b[?25l" in seen and seen.rindex("\x1b[?25h") < seen.index("END")  # cursor hidden, then back
    assert "weights: shard 3/11" in seen
    assert "ct129  FAIL in import" in seen
    assert len(out.splitlines()) == len(RAW)
    assert "\x1b" not in out


@pytest.mark.parametrize("env", [{"TERM": "dumb"}, {"CI": "true"}])
def test_no_moving_line_where_nothing_moves(env: dict[str, str]) -> None:
    assert "\x1b" not in on_a_terminal(**env)[0]


def test_no_color_is_honoured() -> None:
    import re

    colours = re.compile(r"\x1b\[(?:3[0-9]|9[0-9]|38;)[;0-9]*m")
    assert not colours.search(on_a_terminal(NO_COLOR="1")[0])


# Questions


def test_without_a_terminal_nothing_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    with pytest.raises(UsageProblem, match="no terminal to ask on") as caught:
        _common.ask("restart ct129?", yes=False)
    assert (caught.value.exit_code, caught.value.next) == (2, "add --yes")
    _common.ask("restart ct129?", yes=True)


class Typed(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("answer", "agreed"), [("y\n", True), ("YES\n", True), ("n\n", False), ("\n", False)]
)
def test_only_yes_is_yes(answer: str, agreed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", Typed(answer))
    monkeypatch.setattr("sys.stderr", Typed())
    if agreed:
        _common.ask("go?", yes=False)
        return
    with pytest.raises(UsageProblem, match="nothing was done"):
        _common.ask("go?", yes=False)


def test_machines_are_never_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", Typed("y\n"))
    monkeypatch.setattr("sys.stderr", Typed())
    with pytest.raises(UsageProblem):
        _common.ask("go?", yes=False, machine=True)


def test_one_document_or_lines(tmp_path: Path) -> None:
    with pytest.raises(UsageProblem):
        _common.check_output(json=True, events=True)
    (tmp_path / "h.yaml").write_text("version: 1\nhosts: {a: {}, b: {}}\n")
    with pytest.raises(UsageProblem, match="one host at a time"):
        _common.one_host(tmp_path / "h.yaml", ["*"])
    assert [h.name for h in _common.select(tmp_path / "h.yaml", None, everything=True)[1]] == ["a", "b"]
