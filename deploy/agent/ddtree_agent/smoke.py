"""Import smoke of a staged release, as the service would run it, while the old service goes on serving."""

import inspect
import json
import os
import re
import time
from typing import Any, Dict, List, Optional, Tuple

from . import evidence, probe, probe_unit, runtimes, sandbox, smoke_inner, systemd, unitenv
from .layout import PLACEHOLDER, Layout
from .wire import AgentError

MODULES = ("sglang.launch_server", "sglang.srt.entrypoints.http_server", "sglang.srt.managers.scheduler")
BOOT = "import sys; R = sys.stdin.readline(); S = sys.stdin.read(); exec(compile(S, '<smoke>', 'exec'), {G})"
LIMIT_S = 180.0
_SECRET = re.compile(
    r"(?i)(api|secret|access|auth|private)[-_]?key$|(^|[-_])(token|secret|passw(or)?d)$|credential"
)


def smoke(request: Dict[str, Any]) -> Dict[str, Any]:
    """Prove origin, imports and arguments of a release without touching the service.

    request: {service, release: digest, argv: the server's whole argv, modules?: names that the release patches,
    environment?: {NAME: value} of the release's drop-in, runtime?: digest, interpreter?, limit_s?}.
    Returns {ok, stage, first_fatal, note, seconds, origin: {main, child}, tail: [line]}; stage says where it ended:
    "systemd-run", "main|child origin", "main|child import", "arguments", "timeout" or "died". Raises AgentError(usage)
    for a request without a Python server in argv.
    """
    show = systemd.show(request["service"], probe_unit.properties())
    launch = probe.launch_of(request, show)
    layout = Layout(request["service"])
    overlay = os.path.realpath(os.path.join(layout.release(request["release"]), "overlay"))
    if launch is None:
        raise AgentError("usage", "no Python interpreter found in the release's command line")
    limit = float(request.get("limit_s") or LIMIT_S)
    unit = f"ddtree-smoke-{os.getpid()}.service"
    values = {
        k: v.replace(PLACEHOLDER, request["release"]) for k, v in (request.get("environment") or {}).items()
    }
    env = environment(values, show, overlay)
    argv = [
        *sandbox.unit_argv(unit, show, env, limit),
        *secrets_files(layout, request["release"]),
        "--",
        *command(launch),
    ]
    started = time.monotonic()
    try:
        status, out, err = sandbox.run(argv, limit + 15, stdin(request, launch, overlay), env)
    finally:
        systemd.ctl("kill", "--signal=KILL", unit, timeout=10)  # a no-op where it ended by itself
    report = judge(status, out, err, time.monotonic() - started >= limit)
    report["seconds"] = round(time.monotonic() - started, 1)
    told = secrets(dict(_held(layout, request["release"], show), **env), launch.args)
    return redacted(report, [*told, *evidence.hidden(layout)])


def secrets_files(layout: Layout, release: str) -> List[str]:
    """Our own file of secrets, which the release's drop-in reads too."""
    path = layout.secrets(release)
    return [f"--property=EnvironmentFile={path}"] if os.path.exists(path) else []


def _held(layout: Layout, release: str, show: Dict[str, str]) -> Dict[str, str]:
    """Every variable that the process gets from files and the unit, to be kept out of the report."""
    held = unitenv.unit_environment(show)
    if os.path.exists(layout.secrets(release)):
        with open(layout.secrets(release), encoding="utf-8", errors="replace") as file:
            held.update(unitenv.read_environment_file(file.read()))
    return held


def command(launch: unitenv.Launch) -> List[str]:
    """The interpreter with the service's own flags. `-c` puts the working directory first, just as `-m` does.

    The program comes over stdin: systemd-run expands `$` and `%` in arguments.
    """
    return [launch.interpreter, *launch.flags, "-c", BOOT.replace("{G}", "dict(RAW=R, SOURCE=S)")]


def stdin(request: Dict[str, Any], launch: unitenv.Launch, overlay: str) -> bytes:
    """One line of JSON, then the program."""
    modules = list(MODULES) + [m for m in request.get("modules") or [] if m not in MODULES]
    job = {
        "overlay": overlay,
        "modules": modules,
        "argv": launch.args,
        "path0": launch.path0,
        "runtime": _runtime(request),
    }
    return (json.dumps(job) + "\n" + inspect.getsource(smoke_inner)).encode()


def _runtime(request: Dict[str, Any]) -> Optional[Dict[str, Any]]:
    """{site, modules} of the runtime that the release names: where these top-level names must come from."""
    if not request.get("runtime"):
        return None
    layout = Layout(request["service"])
    manifest = runtimes.manifest_of(layout, request["runtime"])
    site = os.path.realpath(runtimes.site(layout, request["runtime"]))
    return {"site": site, "modules": manifest["modules"]}


def environment(release: Dict[str, str], show: Dict[str, str], overlay: str) -> Dict[str, str]:
    """Environment= of the unit with the release's over it. EnvironmentFile= is copied as such and wins."""
    env = unitenv.shown_environment(show.get("Environment", ""))
    rest = unitenv.without_ours(env.get("PYTHONPATH", ""))
    env["PYTHONPATH"] = overlay + (os.pathsep + rest if rest else "")
    env.update(release)
    # A mode that patches nothing has no overlay on its path; what is proved here are the bytes of the release.
    if env["PYTHONPATH"].split(os.pathsep)[0] != overlay:
        env["PYTHONPATH"] = overlay + os.pathsep + env["PYTHONPATH"]
    # The tree is sealed and this may run as root: write no bytecode beside the sources.
    env["PYTHONDONTWRITEBYTECODE"] = "1"
    return env


def judge(status: int, out: str, err: str, late: bool) -> Dict[str, Any]:
    """What the run means. Its last step names the culprit where it died without a report."""
    steps, done = read(out)
    tail = err.strip().splitlines()[-20:]
    report: Dict[str, Any] = {"ok": False, "stage": "died", "first_fatal": None, "note": None, "origin": {}}
    report["tail"] = [] if done and done["ok"] else tail
    if done:
        report.update(done)
        if not done["ok"]:
            return report
        report["stage"] = "done"
        return report
    own = [step for step in steps if not step.startswith("child: ")] or steps
    at = f"at step “{own[-1]}”" if own else "before its first step"
    if status == 127 or (not steps and "systemd-run" in err.split(":")[0]):
        report.update(stage="systemd-run", first_fatal=tail[-1] if tail else "systemd-run is missing")
    elif late:
        report.update(stage="timeout", first_fatal=f"no end within the time limit, {at}")
    else:
        crash = [line for line in err.splitlines() if line.startswith("Fatal Python error")]
        said = crash or [line for line in tail if "Error" in line or "error" in line]
        report["first_fatal"] = (
            f"{said[0]} ({at})" if said else f"the interpreter ended with status {status} {at}"
        )
    return report


def read(out: str) -> Tuple[List[str], Optional[Dict[str, Any]]]:
    """(steps, report) from the framed lines; everything else there is noise of the imports."""
    steps: List[str] = []
    done: Optional[Dict[str, Any]] = None
    for line in out.splitlines():
        at = line.find("@smoke ")
        if at < 0:
            continue
        try:
            fields = json.loads(line[at + 7 :])
        except ValueError:
            continue  # main and child write side by side: a torn line is noise
        if "step" in fields:
            steps.append(str(fields["step"]))
        done = fields.get("done", done)
    return steps, done


def secrets(env: Dict[str, str], args: List[str]) -> List[str]:
    """Values that must not be told: of secret-looking variables and flags."""
    found = [value for name, value in env.items() if _SECRET.search(name) and len(value) > 3]
    for name, value in zip(args, args[1:]):
        if name.startswith("--") and _SECRET.search(name) and not value.startswith(("-", "${")):
            found.append(value)
    return found


def redacted(report: Dict[str, Any], values: List[str]) -> Dict[str, Any]:
    """The report without these values."""
    text = json.dumps(report)
    for value in values:
        text = text.replace(json.dumps(value)[1:-1], "***")
    clean: Dict[str, Any] = json.loads(text)
    return clean
