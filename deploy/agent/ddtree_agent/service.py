"""The unit under our care: stop within a bound, switch the drop-in, start, read back what is in force."""

import http.client
import os
import re
import time
import urllib.request
from typing import Any, Dict, List, Optional

from . import sockets, unitenv, unitfile
from .core.log_text import clean
from .layout import BASELINE, Layout, remove_file, write_atomic
from .systemd import ctl, run, show
from .wire import AgentError

_HEALTH_S = 25.0  # 0.5.11 waits 20 s for its scheduler before it says 503
#: After SIGKILL a process is gone in this time, or it sleeps in the kernel.
_UNKILLABLE_S = 15.0
#: systemd's own TimeoutStopSec= (90 s by default) ends a stop whose last exit it missed.
_UNNOTICED_S = 180.0
_PROPS = [
    "ActiveState",
    "SubState",
    "Result",
    "MainPID",
    "ExecMainStatus",
    "ControlGroup",
    "LoadState",
    "KillMode",
]


def facts(unit: str) -> Dict[str, str]:
    """The properties that decisions about a running unit need."""
    return show(unit, _PROPS)


def main_pid(unit: str) -> int:
    """The unit's main process, 0 where there is none."""
    return int(show(unit, ["MainPID"]).get("MainPID") or 0)


def running_release(unit: str) -> Optional[str]:
    """The release that the main process was started from, by its own environment; None for a baseline process."""
    for pair in _environ(main_pid(unit)):
        if pair.startswith(b"DDTREE_RELEASE="):
            return pair.split(b"=", 1)[1].decode()
    return None


def server_pids(unit: str) -> List[int]:
    """The unit's processes that still show the engine's own command line (a shell around it does not count)."""
    every = pids(facts(unit).get("ControlGroup", ""))
    return [pid for pid in every if _is_server(sockets.words(pid))]


def imports_from(unit: str) -> List[str]:
    """First PYTHONPATH entry of each server process: where a running server takes its package from."""
    return sorted({path[0] for path in search_paths(unit)})


def search_paths(unit: str) -> List[List[str]]:
    """PYTHONPATH of each server process, in its order.

    Only processes that have not renamed themselves: setproctitle(3) writes over what /proc shows of the environment.
    """
    found = []
    for pid in server_pids(unit):
        for pair in _environ(pid):
            if pair.startswith(b"PYTHONPATH="):
                found.append(pair.split(b"=", 1)[1].decode("utf-8", "replace").split(":"))
    return found


def headers(unit: str) -> Dict[str, str]:
    """The authorization that our own probes need, taken from the engine's command line in memory, never stored.

    0.5.11 takes its key as an argument only; the trial keeps the key of the service that it replaces.
    """
    for pid in server_pids(unit):
        key = _argument(sockets.words(pid), "--api-key")
        if key:
            return {"Authorization": f"Bearer {key}"}
    return {}


def answers(unit: str, port: int, address: str) -> bool:
    """Whether the unit's own process listens and says that it is healthy (/health generates a token; 25 s at most)."""
    ours = pids(facts(unit).get("ControlGroup", ""))
    if not any(sockets.held_by(pid) & set(sockets.listening(port)) for pid in ours):
        return False
    request = urllib.request.Request(f"http://{address}:{port}/health", headers=headers(unit))
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=_HEALTH_S) as reply:
            return bool(reply.status == 200)
    except (OSError, http.client.HTTPException):
        return False


def shutting_down() -> bool:
    """Whether the host is on its way down: systemd starts nothing any more, and /run is about to be gone."""
    return run(["systemctl", "is-system-running"], 10)[1].strip() == "stopping"


def kept_release(layout: Layout) -> str:
    """The release that the drop-in in /etc names, which is what boots; `baseline` where there is none."""
    try:
        with open(layout.kept, encoding="utf-8") as file:
            return _release_in(file.read()) or BASELINE
    except FileNotFoundError:
        return BASELINE


def stop(unit: str, limit_s: float) -> Dict[str, Any]:
    """Stop the unit and see all of its processes gone within `limit_s` seconds, by SIGKILL at the limit.

    SGLang ends by killing its own tree with SIGKILL even when it drained, so the stop is judged by what is left,
    not by Result=. Returns seconds and how it ended. Raises AgentError where processes survive even SIGKILL.
    """
    begun = time.monotonic()
    kill_mode = facts(unit).get("KillMode", "")
    ctl("stop", "--no-block", unit)
    killed = False
    while not _stopped(unit):
        spent = time.monotonic() - begun
        if spent > limit_s and not killed:
            ctl("kill", "--signal=SIGKILL", unit)
            killed = True
        if spent > limit_s + _UNKILLABLE_S and pids(facts(unit).get("ControlGroup", "")):
            raise AgentError(
                "rolled-back",
                f"{unit} has processes that survive SIGKILL: {_left(unit)}",
                meaning="a process in uninterruptible sleep (a hung GPU or disk)",
                next="dmesg | tail; a reboot is the usual way out",
            )
        if spent > limit_s + _UNNOTICED_S:
            raise AgentError(
                "rolled-back",
                f"{unit} has no process left, and systemd does not notice",
                meaning="a guest with cgroup v1: nobody tells its systemd that a unit is empty",
                next=f"systemctl status {unit}; a shorter TimeoutStopSec= ends such a stop sooner",
            )
        time.sleep(0.05)
    end = facts(unit)
    return {
        "seconds": round(time.monotonic() - begun, 2),
        "killed_at_limit": killed,
        "kill_mode": kill_mode,
        "result": end.get("Result", ""),
    }


def start(unit: str) -> None:
    """Ask for a start and return at once: the watch decides, not systemctl."""
    ctl("reset-failed", unit)
    status, out, err = ctl("start", "--no-block", unit)
    if status != 0:
        raise AgentError("rolled-back", f"systemctl start {unit} was refused", evidence=(err or out).strip())


def reload() -> None:
    """daemon-reload (systemctl(1)). Raises AgentError where systemd refuses."""
    status, out, err = ctl("daemon-reload", timeout=60)
    if status != 0:
        raise AgentError("rolled-back", "systemctl daemon-reload failed", evidence=(err or out).strip())


def put_trial(layout: Layout, text: str, ready: str = "") -> None:
    """The release on trial: one drop-in in /run, which a reboot forgets. ready: as write_atomic takes it."""
    write_atomic(layout.trial, text.encode(), ready=ready)


def drop_trial(layout: Layout) -> bool:
    """Take the trial away; False where there was none."""
    gone = remove_file(layout.trial)
    prune(layout.trial)
    return gone


def prune(dropin: str) -> None:
    """Remove the folder of a drop-in of ours, where ours was the last one in it."""
    try:
        os.rmdir(os.path.dirname(dropin))
    except OSError:
        pass


def put_kept(layout: Layout, text: Optional[str], ready: str = "") -> None:
    """The confirmed release's drop-in in /etc; None for the baseline, which needs none. ready: as write_atomic."""
    if text is not None:
        write_atomic(layout.kept, text.encode(), ready=ready)
        return
    remove_file(layout.kept)
    prune(layout.kept)


def read_back(layout: Layout, dropin: str, argv: List[str], text: str) -> None:
    """Prove that the effective unit is the planned one. Raises AgentError naming what is in force instead."""
    shown = show(layout.service, ["ExecStart", "DropInPaths", "NeedDaemonReload", "Environment"])
    if not shown:
        raise AgentError("precondition", f"systemctl show {layout.service} gave no answer")
    want = " ".join(argv)
    found = _argv_of(shown.get("ExecStart", ""))
    release = _release_in(text)
    if found != want or f"DDTREE_RELEASE={release}" not in shown.get("Environment", "").split():
        raise AgentError(
            "rolled-back",
            f"the effective unit is not the planned one although {dropin} is in place",
            evidence=clean(f"ExecStart= in force: {found or shown.get('ExecStart', '(none)')}"),
            meaning="another drop-in wins over ours: " + shown.get("DropInPaths", ""),
            next=f"systemctl cat {layout.service}",
        )
    other = overridden(text, shown.get("Environment", ""))
    if other:
        raise AgentError(
            "rolled-back",
            f"the effective unit does not set {', '.join(other)} as {dropin} does",
            meaning="another drop-in wins over ours: " + shown.get("DropInPaths", ""),
            next=f"systemctl cat {layout.service}",
        )


def overridden(text: str, effective: str) -> List[str]:
    """Names of the variables of a drop-in of ours that have another value in force. Only values that systemctl shows
    as they are written are compared: another form of the same value must not undo a deploy."""
    inforce = unitenv.shown_environment(effective)
    lines = [line for line in unitfile.parse("", text) if line.key == "Environment"]
    ours = {name: value for line in lines for name, value in unitfile.environment(line)[0]}
    plain = re.compile(r"[\w./:,@+=-]*$")
    return sorted(name for name, value in ours.items() if plain.match(value) and inforce.get(name) != value)


def wait_port_free(port: int, limit_s: float) -> Optional[str]:
    """Wait until nobody listens on a TCP port; what still holds it after `limit_s`, in words."""
    until = time.monotonic() + limit_s
    while True:
        owner = sockets.holder(port)
        if owner is None or time.monotonic() > until:
            return owner
        time.sleep(0.2)


def _environ(pid: int) -> List[bytes]:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return file.read().split(b"\0")
    except OSError:
        return []


def _is_server(words: List[str]) -> bool:
    return "sglang.launch_server" in words or (
        "serve" in words and any(word.rsplit("/", 1)[-1] == "sglang" for word in words)
    )


def _argument(words: List[str], flag: str) -> str:
    for i, word in enumerate(words):
        if word == flag and i + 1 < len(words):
            return words[i + 1]
        if word.startswith(flag + "="):
            return word.split("=", 1)[1]
    return ""


def _argv_of(exec_start: str) -> str:
    match = re.search(r"argv\[\]=(.*?) ; ignore_errors=", exec_start, re.S)
    return match.group(1) if match else ""


def _release_in(text: str) -> str:
    match = re.search(r"DDTREE_RELEASE=([0-9a-f]+)", text)
    return match.group(1) if match else ""


def _stopped(unit: str) -> bool:
    now = facts(unit)
    return now.get("ActiveState") in ("inactive", "failed") and not pids(now.get("ControlGroup", ""))


def _left(unit: str) -> str:
    return ", ".join(
        f"pid {pid} ({sockets.command(pid)})" for pid in pids(facts(unit).get("ControlGroup", ""))
    )


def pids(control_group: str) -> List[int]:
    """Processes of a unit's cgroup and those below it, on cgroup v1 and v2 (systemd's own hierarchy)."""
    found: List[int] = []
    if not control_group or control_group == "/":
        return found
    for base in ("/sys/fs/cgroup/systemd", "/sys/fs/cgroup/unified", "/sys/fs/cgroup"):
        for folder, _, names in os.walk(base + control_group):
            if "cgroup.procs" in names:
                found += _read_pids(os.path.join(folder, "cgroup.procs"))
        if found:
            break
    return sorted(set(found))


def _read_pids(path: str) -> List[int]:
    try:
        with open(path) as file:
            return [int(line) for line in file]
    except OSError:
        return []
