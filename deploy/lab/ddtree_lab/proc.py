"""Tools run to their end, with what they said."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

from .problem import LabProblem

TIMED_OUT = 124  # as timeout(1)


def capture(words: Sequence[str | Path], timeout: float | None = None) -> tuple[int, str]:
    """Run without input; returns (exit status, stdout and stderr), status 124 after `timeout` seconds."""
    try:
        done = subprocess.run(
            words,
            check=False,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=timeout,
        )
    except subprocess.TimeoutExpired as late:
        return TIMED_OUT, (late.stdout or b"").decode(errors="replace")
    return done.returncode, done.stdout.decode(errors="replace")


def last_line(said: str) -> str:
    """The line that a failed tool ended with."""
    lines = said.strip().splitlines()
    return lines[-1] if lines else "no output"


def run(*words: str | Path) -> None:
    """Run a tool that must succeed; raises LabProblem with the line that it ended with."""
    status, said = capture(words)
    if status:
        command = " ".join(str(word) for word in words)
        raise LabProblem(f"exit {status}: {last_line(said)}", next=command)
