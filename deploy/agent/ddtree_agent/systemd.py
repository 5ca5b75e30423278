"""systemctl, journalctl and systemd-run as functions: bounded in time, never through a shell."""

import os
import subprocess
from typing import Dict, List, Optional, Tuple

Result = Tuple[int, str, str]


def run(
    argv: List[str], timeout: float, input: Optional[bytes] = None, env: Optional[Dict[str, str]] = None
) -> Result:
    """Run a command; return (exit status, stdout, stderr). Status 124 where `timeout` (seconds) ran out, 127 where
    the program is missing: a caller that decides by status needs no try block."""
    whole = dict(os.environ, LC_ALL="C", SYSTEMD_COLORS="0", SYSTEMD_PAGER="", **(env or {}))
    try:
        done = subprocess.run(
            argv,
            input=input,
            stdin=subprocess.DEVNULL if input is None else None,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            timeout=timeout,
            env=whole,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        return 124, _text(error.stdout), _text(error.stderr) or f"no answer in {timeout:g} s"
    except OSError as error:
        return 127, "", f"{argv[0]}: {error.strerror}"
    return done.returncode, _text(done.stdout), _text(done.stderr)


def show(unit: str, props: List[str]) -> Dict[str, str]:
    """The named properties of a unit as `systemctl show` prints them (org.freedesktop.systemd1(5)); {} on failure."""
    argv = ["systemctl", "show", "--no-pager", unit] + ["--property=" + p for p in props]
    status, out, _ = run(argv, 10)
    if status != 0:
        return {}
    return properties(out, props)


def properties(text: str, props: List[str]) -> Dict[str, str]:
    """Split what `systemctl show` printed. A value may span lines (a script in ExecStart=), and a property may be
    printed several times (EnvironmentFiles): a new one begins only at a key that was asked for."""
    found: Dict[str, str] = {}
    current = ""
    for line in text.split("\n"):
        key, sep, value = line.partition("=")
        if sep and key in props:
            current = key
            found[key] = found[key] + "\n" + value if key in found else value
        elif current:
            found[current] += "\n" + line
    return {key: value.rstrip("\n") for key, value in found.items()}


def ctl(*args: str, timeout: float = 30) -> Result:
    """systemctl with arguments."""
    return run(["systemctl", "--no-pager", *args], timeout)


def _text(raw: object) -> str:
    return raw.decode("utf-8", "replace") if isinstance(raw, bytes) else ""
