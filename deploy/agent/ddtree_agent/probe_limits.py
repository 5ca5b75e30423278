"""Facts about memory and the cgroups above the service: what may kill or throttle it, and what already did."""

import os
from typing import TYPE_CHECKING, Any, Dict, List, Optional

if TYPE_CHECKING:
    from .probe_areas import Context

ROOT = "/sys/fs/cgroup"
#: cgroup v1 says "no limit" by a number near 2^63.
_NONE_V1 = 1 << 60


def collect(context: "Context") -> Dict[str, Any]:
    """{memory: bytes of /proc/meminfo, cgroup}."""
    return {"memory": meminfo(_text("/proc/meminfo")), "cgroup": cgroup(context.show.get("ControlGroup", ""))}


def inside(context: "Context") -> Dict[str, Any]:
    """The argument of inner_limits: paths that the service must be able to read."""
    flag = context.launch.value if context.launch else lambda *names: None
    package = (context.asked.get("modules") or {}).get("sglang")
    paths = {
        "chat template": flag("--chat-template"),
        "TLS key": flag("--ssl-keyfile"),
        "TLS certificate": flag("--ssl-certfile"),
        "engine package": os.path.dirname(package) if package and package.endswith(".py") else package,
    }
    tmp = os.stat("/tmp") if os.path.isdir("/tmp") else None
    named = {what: path for what, path in paths.items() if path and path.startswith("/")}
    return {"paths": named, "tmp": [tmp.st_dev, tmp.st_ino] if tmp else None}


def meminfo(text: str) -> Dict[str, Optional[int]]:
    """Bytes: {total, available, swap_total, swap_free}; null where the kernel does not say."""
    found: Dict[str, int] = {}
    for line in text.splitlines():
        name, _, rest = line.partition(":")
        if rest.split()[:1] and rest.split()[0].isdigit():
            found[name] = int(rest.split()[0]) * 1024
    return {
        "total": found.get("MemTotal"),
        "available": found.get("MemAvailable"),
        "swap_total": found.get("SwapTotal"),
        "swap_free": found.get("SwapFree"),
    }


def cgroup(path: str, root: str = ROOT) -> Dict[str, Any]:
    """The tightest limits on the way from the service's cgroup up to what we can see.

    {version, memory_max, memory_high, swap_max, pids_max: {value, at} | null for none, memory_current, pids_current,
    oom_kills}; a number is null where nobody says it.
    """
    two = os.path.exists(os.path.join(root, "cgroup.controllers"))
    base = root if two else os.path.join(root, "memory")
    if not two and not os.path.isdir(base):
        return {"version": None, **_limits([], {}, root)}
    chain = _chain(path)
    names = (
        {
            "memory_max": "memory.max",
            "memory_high": "memory.high",
            "swap_max": "memory.swap.max",
            "pids_max": "pids.max",
        }
        if two
        else {"memory_max": "memory.limit_in_bytes"}
    )
    folder = os.path.join(base, path.strip("/"))
    current = "memory.current" if two else "memory.usage_in_bytes"
    events = "memory.events" if two else "memory.oom_control"
    return {
        "version": 2 if two else 1,
        **_limits(chain, names, base),
        "memory_current": _number(_text(os.path.join(folder, current))) if path else None,
        "pids_current": _number(_text(os.path.join(folder, "pids.current"))) if path else None,
        "oom_kills": _field(_text(os.path.join(folder, events)), "oom_kill") if path else None,
    }


def _chain(path: str) -> List[str]:
    """/a/b → [/a/b, /a, /]."""
    found = []
    here = "/" + path.strip("/")
    while True:
        found.append(here)
        if here == "/":
            return found
        here = os.path.dirname(here)


def _limits(chain: List[str], names: Dict[str, str], base: str) -> Dict[str, Any]:
    found: Dict[str, Any] = dict.fromkeys(("memory_max", "memory_high", "swap_max", "pids_max"))
    for name, file in names.items():
        for here in chain:
            value = _number(_text(os.path.join(base, here.strip("/"), file)))
            if value is None or value >= _NONE_V1:
                continue
            if found[name] is None or value < found[name]["value"]:
                found[name] = {"value": value, "at": here}
    return found


def _number(text: str) -> Optional[int]:
    return int(text) if text.strip().isdigit() else None


def _field(text: str, name: str) -> Optional[int]:
    for line in text.splitlines():
        key, _, value = line.partition(" ")
        if key == name:
            return _number(value)
    return None


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""
