"""Where a secret leaked: every output, file, journal and unit text that may not hold it is searched for its value."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from rig import UNIT, Rig, Run

#: All that is ours on a host; only the 0600 files that units read their keys from may hold a value.
ROOTS = ("/opt/ddtree", "/var/lib/ddtree", "/etc/ddtree", "/run/systemd", f"/etc/systemd/system/{UNIT}.d")
MAY_HOLD = "/etc/ddtree/secrets-"


def leaks(
    rig: Rig, value: str, runs: Iterable[Run] = (), local: Iterable[Path] = (), unit: bool = True
) -> list[str]:
    """Name every place that holds `value` and must not; [] where it leaked nowhere.

    Searched: what each run printed, files below `local` on this side, our roots on the host, the journal of our own
    units, and (with `unit`: where the operator's own unit does not hold the value) systemctl cat and show.
    """
    found = [f"output of run {n}" for n, run in enumerate(runs) if value in run.out + run.err]
    found += [
        str(path)
        for root in local
        for path in ([root] if root.is_file() else root.rglob("*"))
        if path.is_file() and value in path.read_text(errors="replace")
    ]
    return found + _on_the_host(rig, value, unit)


def _on_the_host(rig: Rig, value: str, unit: bool) -> list[str]:
    quoted = "'" + value.replace("'", "'\\''") + "'"
    held = f"grep -rlF -e {quoted} {' '.join(ROOTS)} 2>/dev/null || true"
    found = [
        path
        for path in rig.host.check(["sh", "-c", held]).split("\n")
        if path and not path.startswith(MAY_HOLD)
    ]
    texts = {"journal of ddtree-*": "journalctl --no-pager -o cat -u 'ddtree-*'"}
    if unit:
        texts |= {"systemctl cat": f"systemctl cat {UNIT}", "systemctl show": f"systemctl show {UNIT}"}
    for name, command in texts.items():
        if value in rig.host.check(["sh", "-c", command]):
            found.append(name)
    return found
