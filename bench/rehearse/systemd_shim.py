#!/usr/bin/env python3
"""Stands for systemd-run and systemctl on the GPU machine, which has no systemd: transient units as plain sessions.

Called by these names. SHIM_DIR holds one JSON file a unit. It knows what a rehearsal asks for and nothing else.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import Any

STATE = Path(os.environ["SHIM_DIR"])


def unit_file(unit: str) -> Path:
    return STATE / f"{unit}.json"


def load(unit: str) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(unit_file(unit).read_text())
    except FileNotFoundError:
        found = {"ActiveState": "inactive", "SubState": "dead", "LoadState": "not-found"}
    return found


def save(unit: str, facts: dict[str, Any]) -> None:
    temp = unit_file(unit).with_suffix(f".{os.getpid()}")
    temp.write_text(json.dumps(facts))
    temp.rename(unit_file(unit))


def systemd_run(words: list[str]) -> int:
    at = words.index("--")
    options, argv = words[:at], words[at + 1 :]
    props = [
        o.removeprefix("--property=").partition("=")[::2] for o in options if o.startswith("--property=")
    ]
    unit = next(o.partition("=")[2] for o in options if o.startswith("--unit="))
    env = {name: os.environ[name] for name in ("PATH", "SHIM_DIR", "LD_LIBRARY_PATH") if name in os.environ}
    env["HOME"] = os.environ.get("HOME", "/root")
    for option in options:
        if option.startswith("--setenv="):
            name, sep, value = option.removeprefix("--setenv=").partition("=")
            env[name] = value if sep else os.environ[name]
    log = next(
        (value.removeprefix("append:") for name, value in props if name == "StandardOutput"), "/dev/null"
    )
    cwd = next((value for name, value in props if name == "WorkingDirectory" and value), "/")
    kept = {name: value for name, value in props if name in ("ExecStart", "Environment")}
    if os.fork() == 0:
        os.setsid()
        nothing = os.open(os.devnull, os.O_RDWR)
        for fd in (0, 1, 2):  # or the caller would wait for our end of its pipes
            os.dup2(nothing, fd)
        keep(unit, argv, env, log, cwd, kept)
        os._exit(0)
    until = time.monotonic() + 10
    while load(unit)["ActiveState"] == "inactive" and time.monotonic() < until:
        time.sleep(0.02)
    return 0


def keep(unit: str, argv: list[str], env: dict[str, str], log: str, cwd: str, kept: dict[str, str]) -> None:
    """The unit's own keeper: starts the process, waits for it and writes down how it ended."""
    with open(log, "ab") as out:
        process = subprocess.Popen(
            argv, env=env, cwd=cwd, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
        )
    facts = {
        **kept, "LoadState": "loaded", "ActiveState": "active", "SubState": "running", "Result": "success",
        "MainPID": process.pid, "NRestarts": 0, "ControlGroup": "", "InvocationID": uuid.uuid4().hex,
    }  # fmt: skip
    save(unit, facts)
    status = process.wait()
    failed = status != 0
    save(
        unit,
        {
            **facts, "MainPID": 0, "ActiveState": "failed" if failed else "inactive",
            "SubState": "failed" if failed else "dead", "ExecMainStatus": abs(status),
            "ExecMainCode": 2 if status < 0 else 1,
            "Result": "signal" if status < 0 else "exit-code" if failed else "success",
            "ExecMainExitTimestampMonotonic": int(time.monotonic() * 1e6),
        },
    )  # fmt: skip


def systemctl(words: list[str]) -> int:
    words = [word for word in words if word != "--no-pager"]
    verb, rest = words[0], words[1:]
    units = [word for word in rest if not word.startswith("-")]
    if verb == "show":
        facts = load(units[0])
        for option in rest:
            if option.startswith("--property="):
                name = option.partition("=")[2]
                print(f"{name}={facts.get(name, '')}")
    elif verb in ("kill", "stop"):
        pid = int(load(units[0]).get("MainPID") or 0)
        if pid:
            try:
                os.killpg(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
    elif verb == "reset-failed":
        unit_file(units[0]).unlink(missing_ok=True)
    elif verb == "is-system-running":
        print("running")
    return 0


if __name__ == "__main__":
    called = {"systemd-run": systemd_run, "systemctl": systemctl}[Path(sys.argv[0]).name]
    sys.exit(called(sys.argv[1:]))
