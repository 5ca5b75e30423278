"""One look at the host: every fact that a deploy needs, each section alone under its own time limit.

A section that fails says {"error": "…"}: unknown, which no rule may read as fine.
"""

import os
import socket
import threading
import time
from typing import Any, Callable, Dict, List, Optional, Tuple

from . import caps, package, probe_areas, probe_host, probe_model, probe_unit, runtimes, unitenv
from .layout import Layout

Section = Dict[str, Any]
Job = Tuple[str, Callable[[], Section]]
#: Seconds that a section may take; "ask" is what the engine's interpreter says of itself.
LIMITS: Dict[str, float] = {
    "service": 20,
    "session": 10,
    "gpu": 60,
    "model": 20,
    "port": 10,
    "state": 60,
    "memory": 5,
    "user": 5,
    "capabilities": 40,
    "ask": 30,
    "engine": 120,
    "abi": 60,
    "storage": 10,
}


def probe(request: Dict[str, Any]) -> Dict[str, Any]:
    """Collect the facts.

    request: {service: str, interpreter?: str, argv?: [str], port?: int, files?: [relpath] | "all",
    model?: str, draft?: str, measure?: bool = true, runtime?: digest}; argv is the server's where the unit hides it (a
    wrapper), runtime the packages of ours that the next release would import before the host's own.
    Returns one object a section: session, service, launch, state, engine, abi, model, storage, port, memory,
    user, gpu, capabilities, and those of probe_areas.
    """
    service = request.get("service") or "sglang.service"
    found: Dict[str, Any] = {"service": _section(lambda: probe_unit.service(service), LIMITS["service"])}
    show = found["service"].get("show") or {}
    launch = launch_of(request, show)
    show = unitenv.with_runtime(show, runtime_site(request))
    port = request.get("port") or _number(launch.value("--port") if launch else None) or 30000
    # Nothing here waits for another: a section that hangs (a frozen nvidia-smi) costs its own limit only.
    alone: List[Job] = [
        ("session", probe_host.session),
        ("gpu", probe_host.gpu),
        ("model", lambda: probe_model.models(request, launch, show)),
        ("port", lambda: probe_unit.listeners(port, show.get("ControlGroup", ""))),
        ("state", lambda: probe_unit.state(service)),  # hashes the confirmed release
        ("memory", lambda: probe_host.memory(show)),
        ("user", lambda: probe_host.user(show)),
        ("capabilities", lambda: caps.capabilities(show, request.get("measure", True))),
    ]
    first = _begin([(work, LIMITS[name]) for name, work in alone])
    asked = _section(lambda: ask(request, show, launch), LIMITS["ask"])
    after: List[Job] = [
        ("engine", lambda: _engine(asked, request)),
        ("abi", lambda: _known(asked) or package.builds(asked)),
        ("storage", lambda: probe_host.storage(asked)),
    ]
    areas = probe_areas.jobs(
        probe_areas.Context(request, show, launch, asked, unitenv.unit_environment(show))
    )
    second = _begin([*[(work, LIMITS[name]) for name, work in after], *[job[1:] for job in areas]])
    found.update(zip([name for name, _ in alone], first()))
    answers = second()
    found.update(zip([name for name, _ in after], answers))
    for (names, _, _), answer in zip(areas, answers[len(after) :]):
        for name in names:
            took = {"ms": answer["ms"]} if "ms" in answer else {}
            found[name] = {**took, **(answer.get(name) or {"error": answer.get("error", "no answer")})}
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
    return _begin(jobs)()


def _begin(jobs: "List[Any]") -> Callable[[], List[Section]]:
    """Start sections, [(function, limit in seconds)], side by side; the function returned waits for their answers.

    A thread that hangs (a dead mount) is left: it dies with the agent.
    """
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

    def wait() -> List[Section]:
        for thread, (_, limit) in zip(threads, jobs):
            thread.join(max(0.0, started + limit - time.monotonic()))
        return list(answers)

    return wait


def _cmdline(show: Dict[str, str]) -> List[str]:
    try:
        with open(f"/proc/{int(show.get('MainPID', '0'))}/cmdline", "rb") as file:
            return [word.decode("utf-8", "replace") for word in file.read().split(b"\0") if word]
    except (OSError, ValueError):
        return []


def _number(text: Optional[str]) -> Optional[int]:
    return int(text) if text and text.isdigit() else None
