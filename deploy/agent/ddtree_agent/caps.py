"""What this host's systemd and kernel allow us: measured, never assumed."""

import os
import re
from typing import Any, Dict, Optional

from . import gate, systemd

_TEE = re.compile(r"\|\s*tee\s+(?:-a\s+|--append\s+)?(\S+)")


def capabilities(show: Dict[str, str], measure: bool = False) -> Dict[str, Any]:
    """{systemd: int, load_credential: bool, nft: bool, log: "journal" | "file:…" | "none"}; null: unknown.

    measure: also try LoadCredential and the traffic gate: starts a transient unit, shuts and opens a gate of its own.
    """
    return {
        "systemd": systemd_version(),
        "load_credential": load_credential() if measure else None,
        "nft": gate.works() if measure else None,
        "log": log_target(show),
    }


def systemd_version() -> Optional[int]:
    """The running manager's version number, null where there is none."""
    status, out, _ = systemd.run(["systemctl", "--version"], 5)
    found = re.match(r"systemd (\d+)", out)
    return int(found.group(1)) if status == 0 and found else None


def load_credential() -> Optional[bool]:
    """Whether a unit really gets its credential (systemd.exec(5)): containers often break it. null: not root."""
    if os.geteuid() != 0:
        return None
    argv = ["systemd-run", "--wait", "--collect", "--pipe", "--quiet", f"--unit=ddtree-cap-{os.getpid()}"]
    argv += ["--property=LoadCredential=ddtree:/etc/machine-id", "--property=RuntimeMaxSec=10"]
    status, out, _ = systemd.run([*argv, "/bin/sh", "-c", 'cat "$CREDENTIALS_DIRECTORY/ddtree"'], 15)
    if status in (124, 127):
        return None
    try:
        with open("/etc/machine-id", encoding="ascii") as file:
            return status == 0 and out.strip() == file.read().strip()
    except OSError:
        return None


def log_target(show: Dict[str, str]) -> str:
    """Where the service's lines can be read: journal, a file (append:, file:, `| tee` in its shell), none."""
    stream = "StandardError" if show.get("StandardError", "inherit") != "inherit" else "StandardOutput"
    kind, _, path = show.get(stream, "").partition(":")
    if kind in ("append", "file", "truncate"):
        # systemctl show says "append" and not where to (systemd 252, seen).
        path = path or _assigned_path(show, stream)
        return "file:" + path if path else "none"
    tee = _TEE.search(show.get("ExecStart", ""))
    if tee and tee.group(1).startswith("/"):
        return "file:" + tee.group(1).rstrip("'\";")
    if kind in ("journal", "journal+console", "kmsg", "syslog"):
        return "journal"
    return "none"


def _assigned_path(show: Dict[str, str], stream: str) -> str:
    """The path of the last `StandardOutput=append:/path` in the unit's files; "" where it cannot be told."""
    path = ""
    for name in [show.get("FragmentPath", ""), *show.get("DropInPaths", "").split()]:
        try:
            with open(name, encoding="utf-8", errors="replace") as file:
                text = file.read()
        except OSError:
            continue
        for found in re.finditer(rf"^[ \t]*{stream}[ \t]*=[ \t]*(?:append|file|truncate):(/\S*)", text, re.M):
            path = found.group(1)
    unit = show.get("Id", "")
    stem = unit.rpartition(".")[0]
    for mark, value in (
        ("%n", unit),
        ("%N", stem),
        ("%p", stem.partition("@")[0]),
        ("%i", stem.partition("@")[2]),
    ):
        path = path.replace(mark, value)
    return "" if "%" in path else path
