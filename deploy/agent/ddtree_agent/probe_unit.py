"""Facts about the service: what systemd says of it, whose its port is, what we left on the host before."""

import os
import re
from typing import Any, Dict, List, Optional

from . import sandbox, sockets, systemd, unitenv
from .layout import ETC, KEPT, PLACEHOLDER, SECRETS, TRIAL, Layout, holder
from .store import file_digest

#: Told to the controller as they are; the others may hold secrets or are told in another form.
TOLD = """
LoadState ActiveState SubState Result UnitFileState Type Restart KillMode User Group WorkingDirectory
ControlGroup InvocationID
"""
HELD = """
Id LoadError MainPID FragmentPath DropInPaths NeedDaemonReload ExecStart Environment EnvironmentFiles
SupplementaryGroups RootDirectory KillSignal TimeoutStartUSec TimeoutStopUSec NRestarts StandardOutput
StandardError MemoryMax UMask LimitNOFILE LimitMEMLOCK ExecMainStatus
"""


#: Where systemd looks for drop-ins (systemd.unit(5), "System Unit Search Path").
PLACES = [
    "/etc/systemd/system.control",
    "/run/systemd/system.control",
    "/etc/systemd/system",
    "/run/systemd/system",
    "/usr/local/lib/systemd/system",
    "/usr/lib/systemd/system",
    "/lib/systemd/system",
]


def properties() -> List[str]:
    """The names of every property that we ask for."""
    soft = [name + "Soft" for name in sandbox.COPIED.split() if name.startswith("Limit")]
    return list(dict.fromkeys([*(TOLD + HELD + sandbox.COPIED).split(), *soft]))


def service(name: str) -> Dict[str, Any]:
    """The unit as systemd has it loaded. `show` holds every property (secrets too): for this host only."""
    show = systemd.show(name, properties())
    if not show:
        return {"error": f"systemctl show {name} gave no answer"}
    fragment = show.get("FragmentPath") or None
    paths = show.get("DropInPaths", "").split()
    return {
        **{_snake(key): show.get(key, "") for key in TOLD.split()},
        "main_pid": int(show.get("MainPID") or 0),
        "need_daemon_reload": show.get("NeedDaemonReload") == "yes",
        "unread": unread(name, paths),
        "fragment": _hashed(fragment) if fragment else None,
        "dropins": [_hashed(path) for path in paths if not ours(path)],
        "ours": [_hashed(path) for path in paths if ours(path)],
        "late_dropins": [_sets(p) for p in paths if not ours(p) and os.path.basename(p) > KEPT],
        "environment_files": [
            dict(_hashed(str(item["path"])), optional=item["optional"]) for item in environment_files(show)
        ],
        "masked": "masked" in (show.get("LoadState"), show.get("UnitFileState")),
        "show": show,
    }


def environment_files(show: Dict[str, str]) -> List[Dict[str, object]]:
    """[{path, optional}] of the operator's unit: without the file of secrets that our own drop-in names."""
    prefix, _, suffix = os.path.join(ETC, SECRETS).partition(PLACEHOLDER)
    found = unitenv.environment_files(show.get("EnvironmentFiles", ""))
    return [i for i in found if not (str(i["path"]).startswith(prefix) and str(i["path"]).endswith(suffix))]


def unread(name: str, loaded: List[str]) -> List[str]:
    """Drop-ins on disk that systemd has not read, and read ones that are gone.

    NeedDaemonReload stays "no" for a drop-in directory that is new (systemd 252, seen): its cache of paths does not
    know it; the next daemon-reload, ours, would bring it in.
    """
    known = {os.path.basename(path) for path in loaded}
    found = [path for path in loaded if not os.path.exists(path)]
    for place in PLACES:
        for folder in dropin_folders(name):
            try:
                names = sorted(os.listdir(os.path.join(place, folder)))
            except OSError:
                continue
            for conf in names:
                if conf.endswith(".conf") and conf not in known:
                    known.add(conf)
                    path = os.path.join(place, folder, conf)
                    if os.path.realpath(path) != "/dev/null":
                        found.append(path)
    return found


def dropin_folders(name: str) -> List[str]:
    """Directory names that may hold drop-ins of a unit: its own, its template's, its dash prefixes', its type's."""
    stem, _, kind = name.rpartition(".")
    folders = [name + ".d"]
    prefix, at, _instance = stem.partition("@")
    if at:
        folders.append(f"{prefix}@.{kind}.d")
    parts = prefix.split("-")
    folders += ["-".join(parts[:i]) + f"-.{kind}.d" for i in range(len(parts) - 1, 0, -1)]
    return [*folders, f"{kind}.d"]


def ours(path: str) -> bool:
    """Whether a drop-in is one that we write."""
    return os.path.basename(path) in (KEPT, TRIAL)


def state(name: str) -> Dict[str, Any]:
    """What we left on the host, and what is no longer as we left it.

    {confirmed, argv (of the confirmed release; null for the baseline), running: {release, mode}, open: {id, state,
    who, mode} | null, releases: [digest], lock: who | null, drift, unknown: sentences, hold: hold.standing()}.
    """
    from . import decided, drift, status, store
    from .guard import at_work
    from .hold import standing
    from .journal import open_txn

    layout = Layout(name)
    pending = open_txn(layout)
    intent = pending.intent if pending else {}
    record = decided.confirmed(layout)
    unknown = [] if pending else drift.unknown(layout)
    return {
        "confirmed": record if os.path.exists(layout.confirmed) else None,
        "argv": store.find(layout, str(record["release"])).get("argv"),
        "running": status.running(layout),
        "open": {
            "id": pending.id,
            "state": pending.state,
            "running": at_work(pending),
            **{k: intent.get(k) for k in ("who", "mode")},
        }
        if pending
        else None,
        "releases": sorted(os.listdir(layout.releases)) if os.path.isdir(layout.releases) else [],
        "lock": holder(layout),
        "drift": drift.drift(layout, unknown),
        "unknown": unknown,
        "hold": standing(layout),
    }


def listeners(port: int, cgroup: str) -> Dict[str, Any]:
    """Who listens on a TCP port: {port, owners: [{pid, command, cgroup, ours}], unknown}.

    unknown: listening sockets without a process that we can see.
    """
    inodes = set(sockets.listening(port))
    owners: List[Dict[str, Any]] = []
    seen = set()
    for pid in (int(name) for name in os.listdir("/proc") if name.isdigit()):
        held = sockets.held_by(pid) & inodes
        if held:
            seen |= held
            own = _cgroup(pid)
            inside = bool(cgroup) and any(p == cgroup or p.endswith(cgroup) or cgroup + "/" in p for p in own)
            owners.append(
                {
                    "pid": pid,
                    "command": sockets.command(pid)[:120],
                    "cgroup": (own or [""])[0],
                    "ours": inside,
                }
            )
    return {"port": port, "owners": owners, "unknown": len(inodes - seen)}


def _cgroup(pid: int) -> List[str]:
    try:
        with open(f"/proc/{pid}/cgroup", encoding="utf-8") as file:
            return [line.rstrip("\n").split(":", 2)[2] for line in file]
    except OSError:
        return []


def _sets(path: str) -> Dict[str, Any]:
    """The names that a drop-in sets, never their values; PYTHONPATH counts as one."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            text = file.read()
    except OSError:
        return {"path": path, "sets": None}
    found = set(re.findall(r"^[ \t]*([A-Za-z]+)[ \t]*=", text, re.M))
    return {"path": path, "sets": sorted(found | ({"PYTHONPATH"} if "PYTHONPATH" in text else set()))}


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def _hashed(path: str) -> Dict[str, Any]:
    try:
        digest: Optional[str] = file_digest(path)
    except OSError:
        digest = None
    return {"path": path, "sha256": digest}


def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()
