"""One look at the host: every fact that a deploy needs, each section alone under its own time limit.

A section that fails says {"error": "…"}: unknown, which no rule may read as fine.
"""

import os
import socket
import threading
import time
from typing import Any, Callable, Dict, List, Optional

from . import caps, package, probe_areas, probe_host, probe_model, probe_unit, runtimes, unitenv
from .layout import Layout

Section = Dict[str, Any]


def probe(request: Dict[str, Any]) -> Dict[str, Any]:
    """Collect the facts.

    request: {service: str, interpreter?: str, argv?: [str], port?: int, files?: [relpath] | "all",
    model?: str, draft?: str, measure?: bool = true, runtime?: digest}; argv is the server's where the unit hides it (a
    wrapper), runtime the packages of ours that the next release would import before the host's own.
    Returns one object a section: session, service, launch, state, engine, abi, model, storage, port, memory,
    user, gpu, capabilities, and those of probe_areas.
    """
    service = request.get("service") or "sglang.service"
    found: Dict[str, Any] = {}
    found["service"], found["session"], found["gpu"] = _together(
        [
            (lambda: probe_unit.service(service), 20),
            (probe_host.session, 10),
            (probe_host.gpu, 60),
        ]
    )
    show = found["service"].get("show") or {}
    launch = launch_of(request, show)
    show = unitenv.with_runtime(show, runtime_site(request))
    asked = _section(lambda: ask(request, show, launch), 30)
    port = request.get("port") or _number(launch.value("--port") if launch else None) or 30000
    areas = probe_areas.jobs(
        probe_areas.Context(request, show, launch, asked, unitenv.unit_environment(show))
    )
    found["engine"], found["abi"], found["model"], found["port"], found["storage"], *more = _together(
        [
            (lambda: _engine(asked, request), 120),
            (lambda: _known(asked) or package.builds(asked), 60),
            (lambda: probe_model.models(request, launch, show), 20),
            (lambda: probe_unit.listeners(port, show.get("ControlGroup", "")), 10),
            (lambda: probe_host.storage(asked), 10),
            *[(work, limit) for _, work, limit in areas],
        ]
    )
    for (names, _, _), answer in zip(areas, more):
        for name in names:
            found[name] = answer.get(name) or {"error": answer.get("error", "no answer")}
    found["state"] = _section(lambda: probe_unit.state(service), 60)  # hashes the confirmed release
    found["memory"] = _section(lambda: probe_host.memory(show), 5)
    found["user"] = _section(lambda: probe_host.user(show), 5)
    found["capabilities"] = _section(lambda: caps.capabilities(show, request.get("measure", True)), 40)
    found["launch"] = describe(launch)
    for section in found.values():
        if isinstance(section, dict):
            section.pop("show", None)  # holds Environment=, which may hold keys: not ours to send
    found["schema_version"] = 1
    found["host"] = socket.gethostname()
    return found


def launch_of(request: Dict[str, Any], show: Dict[str, str]) -> Optional[unitenv.Launch]:
    """The server's command line: the request's, else the unit's ExecStart, else the main process's."""
    for argv in (request.get("argv") or [], unitenv.exec_argv(show.get("ExecStart", "")), _cmdline(show)):
        launch = unitenv.split_launch(argv)
        if launch:
            if request.get("interpreter"):
                launch.interpreter = request["interpreter"]
            return launch
    return unitenv.Launch(request["interpreter"], [], "cwd", []) if request.get("interpreter") else None


def ask(request: Dict[str, Any], show: Dict[str, str], launch: Optional[unitenv.Launch]) -> Dict[str, Any]:
    """package.query() as the unit would start its interpreter, without the overlays of our own releases and with the
    runtime that the request names."""
    if launch is None:
        return {"error": "no Python interpreter found in the unit's command line"}
    if not os.access(launch.interpreter, os.X_OK) and os.path.isabs(launch.interpreter):
        return {"error": f"{launch.interpreter} does not exist or is not executable", "missing": True}
    env = unitenv.unit_environment(show)
    env.setdefault("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
    first = runtime_site(request)
    rest = unitenv.without_ours(env.get("PYTHONPATH", ""))
    env["PYTHONPATH"] = os.pathsep.join(path for path in (first, rest) if path)
    if not env["PYTHONPATH"]:
        del env["PYTHONPATH"]
    cwd = working_directory(show)
    return package.query(launch.interpreter, launch.flags, env, cwd, launch.path0, probe_host.identity(show))


def runtime_site(request: Dict[str, Any]) -> Optional[str]:
    """Where the packages of the runtime lie that the request names; None for none."""
    if not request.get("runtime"):
        return None
    return runtimes.site(Layout(request.get("service") or "sglang.service"), request["runtime"])


def working_directory(show: Dict[str, str]) -> str:
    """The unit's WorkingDirectory where it exists, else /."""
    path = show.get("WorkingDirectory", "").lstrip("!-")
    if path == "~":
        path = os.path.expanduser("~" + show.get("User", ""))
    return path if os.path.isdir(path) else "/"


def describe(launch: Optional[unitenv.Launch]) -> Section:
    """What may be told of a command line: never its arguments, which may hold keys."""
    if launch is None:
        return {"error": "no Python server found in the unit's command line"}
    return {
        "interpreter": launch.interpreter,
        "exists": os.access(launch.interpreter, os.X_OK),
        "flags": launch.flags,
        "path0": launch.path0,
        "device": launch.value("--device"),
        "tp": _number(launch.value("--tp", "--tp-size", "--tensor-parallel-size")) or 1,
    }


def _engine(asked: Dict[str, Any], request: Dict[str, Any]) -> Section:
    known = _known(asked)
    if known:
        return known
    found = package.engine(asked, request.get("files"))
    found["interpreter"] = asked["executable"]
    found["python"] = asked["version"]
    found["ignores_pythonpath"] = asked["ignore_environment"]
    return found


def _known(asked: Dict[str, Any]) -> Section:
    """The error of the interpreter's section, for those that need its answer; {} where there is none."""
    return {k: asked[k] for k in ("error", "missing") if k in asked} if "error" in asked else {}


def _section(work: Callable[[], Section], limit: float) -> Section:
    return _together([(work, limit)])[0]


def _together(jobs: "List[Any]") -> List[Section]:
    """Run sections side by side. A thread that hangs (a dead mount) is left: it dies with the agent."""
    answers: List[Section] = [{"error": f"no answer in {limit:g} s"} for _, limit in jobs]

    def one(i: int, work: Callable[[], Section]) -> None:
        started = time.monotonic()
        try:
            value = work()
        except Exception as error:  # a probe's own fault must not empty the other sections
            value = {"error": f"{type(error).__name__}: {error}"}
        answers[i] = dict(value, ms=int((time.monotonic() - started) * 1000))

    threads = [threading.Thread(target=one, args=(i, job[0]), daemon=True) for i, job in enumerate(jobs)]
    started = time.monotonic()
    for thread in threads:
        thread.start()
    for thread, (_, limit) in zip(threads, jobs):
        thread.join(max(0.0, started + limit - time.monotonic()))
    return list(answers)


def _cmdline(show: Dict[str, str]) -> List[str]:
    try:
        with open(f"/proc/{int(show.get('MainPID', '0'))}/cmdline", "rb") as file:
            return [word.decode("utf-8", "replace") for word in file.read().split(b"\0") if word]
    except (OSError, ValueError):
        return []


def _number(text: Optional[str]) -> Optional[int]:
    return int(text) if text and text.isdigit() else None
