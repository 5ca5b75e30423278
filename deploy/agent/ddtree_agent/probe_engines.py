"""Facts about inference processes on the host: whose they are, and what an earlier start left behind."""

import os
import re
from typing import TYPE_CHECKING, Any, Dict, List, Optional

from . import sockets

if TYPE_CHECKING:
    from .probe_areas import Context

#: A server, or a child of one by the name that it gives itself (setproctitle).
ENGINE = re.compile(
    r"^(sglang|VLLM)::|\bsglang\.launch_server\b|/sglang/launch_server\.py|(^|/)sglang serve\b|\bsglang\.srt\.\w"
    r"|\bvllm\.entrypoints\b|(^|/)vllm serve\b"
)
_CONTAINER = re.compile(
    r"/(docker|kubepods|libpod|lxc|crio|containerd)[-/.:]|/(docker|libpod)-[0-9a-f]{12}|/lxc\.payload"
)
_MOST = 200


def collect(context: "Context") -> Dict[str, Any]:
    """{main_pid, unit_active, processes: [as describe() says], more: how many are left out}."""
    group = context.show.get("ControlGroup", "")
    found = []
    for pid in sorted(int(name) for name in os.listdir("/proc") if name.isdigit()):
        seen = describe(pid, group)
        if seen is not None:
            found.append(seen)
    main = context.show.get("MainPID") or "0"
    return {
        "main_pid": int(main) if main.isdigit() else 0,
        "unit_active": context.show.get("ActiveState") not in ("inactive", "failed"),
        "processes": found[:_MOST],
        "more": max(0, len(found) - _MOST),
    }


def describe(pid: int, group: str) -> Optional[Dict[str, Any]]:
    """One process, null where it is no engine's or is gone."""
    stat = parse_stat(_text(f"/proc/{pid}/stat"))
    if stat is None:
        return None
    name = " ".join(sockets.words(pid)[:4]).strip()
    # A zombie has no command line: its short name is all that is left.
    shown = name or stat["comm"]
    if not ENGINE.search(shown) or pid == os.getpid():
        return None
    cgroup = cgroup_path(_text(f"/proc/{pid}/cgroup"))
    return {
        "pid": pid,
        "ppid": stat["ppid"],
        "parent": (parse_stat(_text(f"/proc/{stat['ppid']}/stat")) or {}).get("comm"),
        "state": stat["state"],
        "name": short(shown),
        "cgroup": cgroup,
        "unit": unit_of(cgroup),
        "ours": bool(group) and (cgroup == group or cgroup.startswith(group + "/") or cgroup.endswith(group)),
        "container": bool(_CONTAINER.search(cgroup)) or guest(pid),
        "gpu": has_gpu(pid),
        "rss": stat["rss"] * os.sysconf("SC_PAGE_SIZE"),
    }


def parse_stat(text: str) -> Optional[Dict[str, Any]]:
    """{comm, state, ppid, rss (pages)} of /proc/PID/stat (proc(5)); the name may hold blanks and brackets."""
    head, _, rest = text.rpartition(")")
    fields = rest.split()
    if len(fields) < 22:
        return None
    return {
        "comm": head.partition("(")[2],
        "state": fields[0],
        "ppid": int(fields[1]),
        "rss": int(fields[21]),
    }


def cgroup_path(text: str) -> str:
    """The process's cgroup: of v2, else of systemd's own hierarchy in v1."""
    named = ""
    for line in text.splitlines():
        parts = line.split(":", 2)
        if len(parts) == 3 and parts[0] == "0":
            return parts[2]
        if len(parts) == 3 and parts[1] == "name=systemd":
            named = parts[2]
    return named


def unit_of(cgroup: str) -> Optional[str]:
    """The service that a cgroup belongs to; null for a login session. One of a user's own manager is named with it."""
    parts = cgroup.split("/")
    names = [part for part in parts if part.endswith(".service") and not part.startswith("user@")]
    manager = next((part for part in parts if part.startswith("user@")), None)
    return (f"{names[-1]} of {manager}" if manager else names[-1]) if names else None


def guest(pid: int) -> bool:
    """Whether it lives in a container's process namespace: its own systemd answers for it."""
    try:
        return os.readlink(f"/proc/{pid}/ns/pid") != os.readlink("/proc/self/ns/pid")
    except OSError:
        return False


def short(name: str) -> str:
    """The words that say what it is: no argument, which could be a key."""
    found = ENGINE.search(name)
    word = found.group(0).strip() if found else name
    return name.split()[0][:60] if word.endswith("::") else word.lstrip("/")[:60]


def has_gpu(pid: int) -> Optional[bool]:
    """Whether it holds a GPU device open; null where that may not be seen."""
    try:
        links = [os.readlink(f"/proc/{pid}/fd/{fd}") for fd in _fds(pid)]
    except PermissionError:
        return None
    except OSError:
        return False
    return any(re.match(r"/dev/nvidia\d|/dev/kfd", link) for link in links)


def _fds(pid: int) -> List[str]:
    return os.listdir(f"/proc/{pid}/fd")


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""
