"""The transient unit of a rehearsal: the live unit's sandbox, the release's environment, last in line for all else."""

import json
import os
import pwd
import time
from typing import Any, Dict, List, Optional

from . import sandbox, service, smoke, systemd, unitenv
from .layout import PLACEHOLDER, Layout, remove_tree
from .wire import AgentError

#: Of the host's memory that is available, what it may take; the kernel ends it first, not the live server.
_HOST_SHARE = 0.8
_STOP_S = 20.0
_PREFIX = "rehearsal-"
#: In its folder: who wants the service back.
_WAY = "gave-way"
#: Until a rehearsal that gave way has released the lock: it stops its unit and looks at the host once more.
GIVES_WAY_S = 60.0
#: systemd-run expands `$` and `%` in arguments, so they come from a file. -I: no json.py of the working directory's.
#: A secret stands in it as `${NAME}`, which systemd would fill in from the unit's environment.
_EXEC = (
    "import json,os,re;e=os.environ;"
    "a=[re.sub(r'\\x24[{{](\\w+)[}}]',lambda m:e.get(m[1],m[0]),w) for w in json.load(open({path}))];"
    "os.execvp(a[0],a)"
)


def name(layout: Layout) -> str:
    """The unit of this service's rehearsal."""
    return f"ddtree-rehearsal-{layout.service}"


def folder(layout: Layout, txn: str) -> str:
    """What it runs from: small checkpoints, its command line, its log."""
    return layout.staged(f"{_PREFIX}{txn}")


def log(place: str) -> str:
    """Where it writes, in its folder."""
    return os.path.join(place, "log")


def environment(request: Dict[str, Any], show: Dict[str, str]) -> Dict[str, str]:
    """Variables as the release's unit will have them: the unit's own, and over them the release's drop-in's."""
    env = unitenv.shown_environment(show.get("Environment", ""))
    rest = unitenv.without_ours(env.pop("PYTHONPATH", ""))
    if rest:
        env["PYTHONPATH"] = rest
    env.update({k: v.replace(PLACEHOLDER, request["release"]) for k, v in request["environment"].items()})
    env["PYTHONDONTWRITEBYTECODE"] = "1"  # nothing is written beside the operator's packages
    return env


def variables(request: Dict[str, Any], show: Dict[str, str]) -> Dict[str, str]:
    """All that its process will see of the environment, for this host only: it holds secrets."""
    try:
        home = {"HOME": pwd.getpwnam(show.get("User") or "root").pw_dir}  # systemd.exec(5)
    except KeyError:
        home = {}
    return {**home, **unitenv.unit_environment(show), **environment(request, show)}


def start(
    layout: Layout,
    request: Dict[str, Any],
    show: Dict[str, str],
    interpreter: str,
    place: str,
    argv: List[str],
) -> None:
    """Start it; its output goes to log(place). Raises AgentError where systemd refuses."""
    env = environment(request, show)
    words = os.path.join(place, "argv.json")
    with open(words, "w", encoding="utf-8") as file:
        json.dump(argv, file)
    command = sandbox.unit_argv(name(layout), show, env, float(request["limits"]["cap"]), how=())
    command += smoke.secrets_files(layout, request["release"])
    command += [f"--property={stream}=append:{log(place)}" for stream in ("StandardOutput", "StandardError")]
    command += ["--property=Nice=10", "--property=CPUWeight=10", "--property=OOMScoreAdjust=900"]
    memory = _available()
    command += [f"--property=MemoryMax={int(memory * _HOST_SHARE)}"] if memory else []
    command += ["--", interpreter, "-I", "-c", _EXEC.format(path=json.dumps(words))]
    status, out, err = sandbox.run(command, 60, b"", env)
    if status != 0:
        raise AgentError(
            "precondition",
            "the rehearsal's unit was not started",
            evidence=(err or out).strip()[-300:],
            meaning="nothing was touched",
            next="deploy without --rehearse, or mend what the line above names",
        )


def kill(layout: Layout) -> None:
    """End its processes at once."""
    systemd.ctl("kill", "--signal=SIGKILL", name(layout))


def give_way(layout: Layout, who: str) -> bool:
    """End a rehearsal for a rollback, which waits for nobody; its agent tells its operator. Whether there was one."""
    left = _left(layout)
    for entry in left:
        try:
            with open(os.path.join(layout.staging, entry, _WAY), "w", encoding="utf-8") as file:
                file.write(who)
        except OSError:
            pass  # it ended meanwhile, or a full disk: it is killed all the same
    if left:
        kill(layout)
    return bool(left)


def gave_way(place: str) -> Optional[str]:
    """For whom a rehearsal was ended; None where for nobody."""
    try:
        with open(os.path.join(place, _WAY), encoding="utf-8") as file:
            return file.read()
    except OSError:
        return None


def end(layout: Layout) -> None:
    """End a rehearsal, ours or one whose operator was cut off, and remove what it ran from. It may run without a folder
    (gc takes what an interrupted operation left)."""
    left = _left(layout)
    unit = name(layout)
    if not left and service.facts(unit).get("ActiveState", "inactive") in ("inactive", "failed"):
        return
    kill(layout)
    systemd.ctl("stop", unit)
    until = time.monotonic() + _STOP_S
    while service.pids(service.facts(unit).get("ControlGroup", "")) and time.monotonic() < until:
        time.sleep(0.1)
    systemd.ctl("reset-failed", unit)
    for entry in left:
        remove_tree(os.path.join(layout.staging, entry), layout.staging)


def _left(layout: Layout) -> List[str]:
    """The folders of this service's rehearsals, one that runs or one whose agent was killed."""
    return [
        entry
        for entry in (os.listdir(layout.staging) if os.path.isdir(layout.staging) else [])
        if entry.startswith(_PREFIX) and entry.partition(".")[2] == layout.service
    ]


def _available() -> Optional[int]:
    """MemAvailable in bytes (proc(5), meminfo)."""
    try:
        with open("/proc/meminfo") as file:
            found = dict(line.split(":", 1) for line in file)
        return int(found["MemAvailable"].split()[0]) << 10
    except (OSError, KeyError, ValueError):
        return None
