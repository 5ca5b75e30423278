"""The independent reader: the ground truth of a host over plain SSH, with none of the product's code in it."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ddtree_lab.client import LabHost
from invariants import check

__all__ = ["Read", "ReaderProblem", "check", "read", "settle"]

#: What `reader_host.main` prints, and "outside": status of /health for a client elsewhere.
Read = dict[str, Any]
SCRIPT = Path(__file__).with_name("reader_host.py")
UNIT, PORT = "sglang.service", 30000
LOCK, LOCK_LIMIT_S = f"/var/lib/ddtree/{UNIT}/lock", 20
# A timer that waits is active as well: nothing of ours may be left to act.
# An agent whose operator was killed may not have come as far as its lock or its unit: it is at work all the same, and
# quiet is what is so twice.
QUIET = (
    "busy() {{ systemctl list-units 'ddtree-*' --state=active,activating,deactivating --plain --no-legend | grep -q ."
    " || pgrep -f 'ddtree-agen[t]' >/dev/null; }};"
    " end=$(($(date +%s) + {limit})); while {{ busy || {{ sleep 0.7; busy; }}; }} && [ $(date +%s) -lt $end ];"
    " do sleep 0.2; done"
    # An agent of a session that was cut off may have to notice first.
    "; end=$(($(date +%s) + {lock})); until flock -n {path} true || [ ! -e {path} ] || [ $(date +%s) -ge $end ];"
    " do sleep 0.2; done"
)


class ReaderProblem(Exception):
    """The host could not be read."""


def read(host: LabHost, canaries: Sequence[str] = (), outside: bool = True) -> Read:
    """Ground truth of one host, in one SSH round trip (and one HTTP request from elsewhere). Raises ReaderProblem."""
    program = f"{SCRIPT.read_text()}\nmain({UNIT!r}, {PORT}, {list(canaries)!r})\n"
    done = _ssh(host, "python3 -I -", 90, program)
    if done.returncode or not done.stdout:
        raise ReaderProblem(
            f"{host.name} cannot be read: exit {done.returncode}: {done.stderr.strip()[-500:]}"
        )
    found: Read = json.loads(done.stdout)
    found["outside"] = host.http("/health")[0] if outside else None
    return found


def settle(host: LabHost, limit_s: float = 200) -> float:
    """Wait until nothing of ours runs on the host any more and its service answers clients; seconds that it took.

    At the limit it returns as well: what is wrong then, a read says.
    """
    began = time.monotonic()
    until = began + limit_s
    while _ssh(host, "true", 15).returncode and time.monotonic() < until:
        time.sleep(0.2)
    left = int(until - time.monotonic())
    if left > 0:
        _ssh(host, QUIET.format(limit=left, lock=LOCK_LIMIT_S, path=LOCK), left + LOCK_LIMIT_S + 15)
    while host.http("/health")[0] != 200 and time.monotonic() < until:
        time.sleep(0.1)
    return round(time.monotonic() - began, 2)


def _ssh(
    host: LabHost, command: str, limit_s: float, stdin: str | None = None
) -> subprocess.CompletedProcess[str]:
    words = ["ssh", "-F", str(host.lab.state.ssh_config), host.name, command]
    try:
        return subprocess.run(
            words, input=stdin or "", capture_output=True, text=True, timeout=limit_s, check=False
        )
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(words, 124, "", f"no answer in {limit_s} s")
