"""Runs small programs as the service would run: its user, sandbox, environment, interpreter and working directory.

A login shell is not the unit: PATH, HOME, limits, device rules and the loader's path differ there.
"""

import inspect
import json
import os
import re
import subprocess
import time
from types import ModuleType
from typing import Any, Dict, List, Tuple

from . import caps, inner_files, systemd, unitenv

#: Properties that decide whether an import works; the others (restart, limits of time, sockets) are not the smoke's.
COPIED = """
User Group SupplementaryGroups UMask NoNewPrivileges PrivateTmp PrivateDevices ProtectSystem ProtectHome
ReadWritePaths ReadOnlyPaths InaccessiblePaths DevicePolicy DeviceAllow RootDirectory LimitNOFILE
LimitMEMLOCK LimitNPROC LimitAS MemoryMax DynamicUser AmbientCapabilities MemoryDenyWriteExecute
RestrictAddressFamilies BindPaths BindReadOnlyPaths TemporaryFileSystem PrivateNetwork PrivateUsers
ProtectKernelTunables ProtectControlGroups ProtectClock RestrictNamespaces LockPersonality UnsetEnvironment
SystemCallFilter SystemCallArchitectures CapabilityBoundingSet
"""
_LOADER = re.compile(r"LD_|PATH$")
#: What the programs may import: `from .inner_files import …`.
SHARED = (inner_files,)


def collect(
    show: Dict[str, str], launch: unitenv.Launch, jobs: "List[Any]", limit: float = 60.0
) -> Dict[str, Dict[str, Any]]:
    """{section: its facts, or {"error": why}} of programs that run in the unit's place, side by side.

    jobs: [(section, module, argument, limit in seconds)]. A module has `collect(argument) -> dict`, imports
    the standard library and SHARED alone (its text travels over stdin), and prints nothing. show: properties of the
    unit (probe_unit.properties() and COPIED). Never raises.
    """
    names = [name for name, _, _, _ in jobs]
    unit = f"ddtree-probe-{os.getpid()}-{int(time.monotonic() * 1000) % 1000000}.service"
    env = unitenv.shown_environment(show.get("Environment", ""))
    env["PYTHONDONTWRITEBYTECODE"] = "1"
    argv = [*unit_argv(unit, show, env, limit), "--", *_command(launch)]
    try:
        status, out, err = run(argv, limit + 15, _program(jobs), env)
    finally:
        systemd.ctl("kill", "--signal=KILL", unit, timeout=10)  # a no-op where it ended by itself
    found = _read(out)
    why = (err.strip().splitlines() or [f"its process ended with {status}"])[-1][:300]
    return {name: found.get(name, {"error": f"not run in the unit's sandbox: {why}"}) for name in names}


def unit_argv(
    unit: str,
    show: Dict[str, str],
    env: Dict[str, str],
    limit: float,
    how: Tuple[str, ...] = ("--wait", "--collect", "--pipe"),
) -> List[str]:
    """systemd-run with the unit's own identity and sandbox. It ends by itself even if we die (RuntimeMaxSec=)."""
    argv = ["systemd-run", *how, "--quiet", "--service-type=exec", f"--unit={unit}"]
    argv += [
        f"--property=RuntimeMaxSec={limit:g}",
        "--property=KillSignal=SIGKILL",
        "--property=TimeoutStopSec=5",
    ]
    for name in COPIED.split():
        value = show.get(name, "")
        if name.startswith("Limit") and value:
            # systemctl shows the hard limit under the name and the soft one beside it; the manager's own default is
            # another than "infinity".
            value = f"{show.get(name + 'Soft') or value}:{value}"
        elif value in ("[not set]", "infinity", "~"):
            continue
        # DeviceAllow= is shown as a line for each device
        argv += [f"--property={name}={line}" for line in value.splitlines()]
    directory = show.get("WorkingDirectory", "")
    if directory:
        argv.append("--property=WorkingDirectory=" + re.sub(r"^!", "-", directory))
    for item in unitenv.environment_files(show.get("EnvironmentFiles", "")):
        argv.append(f"--property=EnvironmentFile={'-' if item['optional'] else ''}{item['path']}")
    by_name = (caps.systemd_version() or 0) >= 248
    for name, value in sorted(env.items()):
        # By name alone (systemd 248) systemd-run takes the value from its own environment: no key shows in its
        # argv. The loader's and the search path must not act on systemd-run itself.
        alone = by_name and not _LOADER.match(name)
        argv.append(f"--setenv={name}" if alone else f"--setenv={name}={value}")
    return argv


def run(argv: List[str], limit: float, data: bytes, env: Dict[str, str]) -> Tuple[int, str, str]:
    names = {name: value for name, value in env.items() if not _LOADER.match(name)}
    try:
        done = subprocess.run(
            argv, input=data, capture_output=True, timeout=limit, env=dict(os.environ, **names), check=False
        )
    except subprocess.TimeoutExpired as error:
        return 124, (error.stdout or b"").decode("utf-8", "replace"), f"no end in {limit:g} s"
    except OSError as error:
        return 127, "", f"{argv[0]}: {error.strerror}"
    return done.returncode, done.stdout.decode("utf-8", "replace"), done.stderr.decode("utf-8", "replace")


def _command(launch: unitenv.Launch) -> List[str]:
    return [launch.interpreter, *launch.flags, "-c", "import sys; exec(sys.stdin.read())"]


def _program(jobs: "List[Any]") -> bytes:
    parts = {name: [_source(module), argument, limit] for name, module, argument, limit in jobs}
    shared = {module.__name__.rpartition(".")[2]: _source(module) for module in SHARED}
    said = f"JOBS = {json.dumps(json.dumps(parts))}\nSHARED = {json.dumps(json.dumps(shared))}\n"
    return (said + _MAIN).encode()


def _source(module: ModuleType) -> str:
    return inspect.getsource(module)


def _read(out: str) -> Dict[str, Dict[str, Any]]:
    """The framed lines; everything else there is noise of imports."""
    found: Dict[str, Dict[str, Any]] = {}
    for line in out.splitlines():
        at = line.find("@probe ")
        if at < 0:
            continue
        try:
            answer = json.loads(line[at + 7 :])
        except ValueError:
            continue
        if isinstance(answer, dict):
            found.update(answer)
    return found


# A section that hangs is left behind: os._exit ends the process with its threads.
_MAIN = """
import json, os, sys, threading, time, types
sys.modules["ddtree_inside"] = types.ModuleType("ddtree_inside")
for name, source in json.loads(SHARED).items():
    module = sys.modules["ddtree_inside." + name] = types.ModuleType("ddtree_inside." + name)
    exec(compile(source, "<%s>" % name, "exec"), module.__dict__)
out, sys.stdout = os.fdopen(os.dup(1), "w"), sys.stderr
answers, began, lock = {}, time.monotonic(), threading.Lock()
def one(name, source, argument):
    started, space = time.monotonic(), {"__name__": "ddtree_" + name, "__package__": "ddtree_inside"}
    try:
        exec(compile(source, "<%s>" % name, "exec"), space)
        value = space["collect"](argument)
    except BaseException as error:
        value = {"error": "%s: %s" % (type(error).__name__, error)}
    value = dict(value, ms=int((time.monotonic() - started) * 1000))
    with lock:
        if name not in answers:
            answers[name] = value
            out.write("\\n@probe " + json.dumps({name: value}) + "\\n")
            out.flush()
jobs = json.loads(JOBS)
threads = [(n, l, threading.Thread(target=one, args=(n, s, a), daemon=True)) for n, (s, a, l) in jobs.items()]
for _, _, thread in threads:
    thread.start()
for name, limit, thread in threads:
    thread.join(max(0.0, began + limit - time.monotonic()))
    with lock:
        if name not in answers:
            answers[name] = {"error": "no answer in %g s" % limit}
            out.write("\\n@probe " + json.dumps({name: answers[name]}) + "\\n")
            out.flush()
os._exit(0)
"""
