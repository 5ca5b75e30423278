"""Reads the kernel's log since boot; in a container it is often closed, which is said and not taken for quiet."""

from typing import TYPE_CHECKING, Any, Dict, Optional

from . import kernel_log, systemd

if TYPE_CHECKING:
    from .probe_areas import Context


def log(context: "Context") -> Dict[str, Any]:
    """{readable, source, why, lines, events}: events as kernel_log.events gives them. readable is False where neither
    the journal nor the ring buffer shows the kernel's lines."""
    why = ""
    for source, argv in (
        ("journal", ["journalctl", "-k", "-b", "-q", "--no-pager", "-o", "short-monotonic", "-n", "20000"]),
        ("dmesg", ["dmesg"]),
    ):
        status, out, err = systemd.run(argv, 5)
        lines = out.splitlines()
        # A container's journal has no kernel lines and no error either: empty is not quiet.
        if status == 0 and lines and not lines[0].startswith("-- No entries"):
            return {
                "readable": True,
                "source": source,
                "why": None,
                "lines": len(lines),
                "events": kernel_log.events(map(plain, lines), uptime()),
            }
        said = (err or out).strip().splitlines()
        why = why or (said[-1] if said else f"{source} shows no line of the kernel")
    return {"readable": False, "source": None, "why": why[:200], "lines": 0, "events": []}


def plain(line: str) -> str:
    """journalctl's short-monotonic as dmesg writes it: `[    0.506364] host kernel: text` without its middle."""
    head, mark, text = line.partition(" kernel: ")
    return head.partition("]")[0] + "] " + text if mark and head.startswith("[") else line


def uptime() -> Optional[float]:
    """Seconds since boot, which the stamps count too."""
    try:
        with open("/proc/uptime", encoding="ascii") as file:
            return float(file.read().split()[0])
    except (OSError, ValueError):
        return None
