"""Tries a sealed release beside the live server before anything stops: few layers, dummy weights, a share of the GPU.

Imports, kernels, graph capture, NCCL and a few answers are those of the release, in the unit's own sandbox; what it
compiled stays in the caches for the real start.
"""

import errno
import os
import socket
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException
from typing import Any, Dict, NamedTuple, Optional, Tuple, Union

from . import (
    evidence,
    probe,
    probe_gpu,
    probe_unit,
    rehearsal_answers,
    rehearsal_live,
    rehearsal_model,
    rehearsal_room,
    rehearsal_unit,
    smoke,
    store,
    systemd,
    unitenv,
)
from .core import watch as reducer
from .layout import Layout
from .observe import Observer, signatures
from .wire import AgentError, send

#: Failures that say no more than that there was too little memory beside the live server (core.signatures' reasons);
#: "gpu-shared": the engine refuses GPUs whose free memory differs by a tenth, as beside another server it may.
NO_ROOM = ("cuda-oom", "memory-pool", "state-pool", "oom-kill", "host-memory", "gpu-shared", "memory-taken")
#: Where its port is looked for: below the ephemeral range, which is other programs' for their connections.
PORTS = (31000, 32000)
_TICK_S, _BEAT_S = 0.25, 2.0
#: A process that answers no more: so long for the watch to see that it died, and of what.
_AFTERMATH_S = 6.0
Found = Dict[str, Any]


class Case(NamedTuple):
    """One rehearsal. request: as `rehearse` takes it; show: the live unit's properties; folder: what it runs from."""

    layout: Layout
    request: Found
    show: Dict[str, str]
    launch: unitenv.Launch
    variables: Dict[str, str]
    folder: str

    @property
    def takes(self) -> rehearsal_room.Takes:
        asked = probe_gpu.asked_for(self.launch)
        one_by_one = self.launch.value("--gpu-id-step") in (None, "1")
        return rehearsal_room.Takes(
            self.variables.get("CUDA_VISIBLE_DEVICES"), asked["base"], asked["need"] if one_by_one else None
        )


def rehearse(layout: Layout, request: Found, keep: Tuple[str, ...]) -> Found:
    """Rehearse a release; the caller holds the lock. Notes go out as they come.

    request: {release, txn, argv: with {target} {draft} {port} {fraction}, models: {target, draft?}, environment,
    expect: {state}, limits, interpreter?}; keep: releases that are never retired. Returns {verdict: PASSED, layers,
    seconds, phases, answers, memory}, or {verdict: DOES_NOT_FIT | NOT_POSSIBLE, why}: neither blames the release.
    Raises AgentError(precondition) where the release fails, and keeps its evidence; where the host or the live server
    broke; BrokenPipeError where the operator went away.
    """
    send({"ev": "beat"})  # from now on a line that ends was cut: the agent did start
    store.verify(layout, request["release"])
    rehearsal_unit.end(layout)
    show = systemd.show(layout.service, probe_unit.properties())
    launch = probe.launch_of(request, show)
    if launch is None:
        raise AgentError("usage", "no Python interpreter found in the release's command line")
    place = rehearsal_unit.folder(layout, request["txn"])
    case = Case(layout, request, show, launch, rehearsal_unit.variables(request, show), place)
    cpu = launch.value("--device") == "cpu"
    room = rehearsal_room.Room(None, None) if cpu else rehearsal_room.look(case.takes)
    if room is None:
        return _not(
            "NOT_POSSIBLE", "nvidia-smi gives no answer, so what is free beside the live server is unknown"
        )
    if room.why_not() is not None:
        return _not("DOES_NOT_FIT", str(room.why_not()), room)
    if not cpu and rehearsal_room.split():
        return _not(
            "NOT_POSSIBLE", "a GPU is split (MIG): what is free of the live server's slice is unknown"
        )
    try:
        try:
            made = _checkpoints(case)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS):
                raise
            made = f"the small checkpoint cannot be made: {error}"
        return _not("NOT_POSSIBLE", made) if isinstance(made, str) else _run(case, room, made, keep)
    finally:
        rehearsal_unit.end(layout)


def _checkpoints(case: Case) -> Union[Found, str]:
    """{target, draft?: directory, layers}; why there can be none, in words."""
    configs = {}
    for which, given in case.request["models"].items():
        place = rehearsal_model.directory(given, case.variables) or given
        try:
            configs[which] = (place, rehearsal_model.read(place))
        except (OSError, ValueError) as error:
            return f"the {which}'s config.json cannot be read: {given}: {error}"
    place, config = configs["target"]
    draft = configs.get("draft")
    least = max(rehearsal_model.TARGET_LAYERS, rehearsal_model.reads(draft[1]) + 1 if draft else 0)
    count = rehearsal_model.layers(config, least)
    if not count:
        return f"{place}/config.json does not say how many layers it has"
    made: Found = {"layers": count, "target": os.path.join(case.folder, "target")}
    rehearsal_model.make(made["target"], rehearsal_model.cut(config, count), place)
    if draft:
        few = rehearsal_model.layers(draft[1], rehearsal_model.DRAFT_LAYERS)
        small = rehearsal_model.reading(rehearsal_model.cut(draft[1], few), count)
        made["draft"] = os.path.join(case.folder, "draft")
        rehearsal_model.make(made["draft"], small, draft[0])
    return made


def _run(case: Case, room: rehearsal_room.Room, made: Found, keep: Tuple[str, ...]) -> Found:
    layout, port = case.layout, free_port(case.layout.service)
    before, began = rehearsal_live.look(layout), time.monotonic()
    words = {**made, "port": port, "fraction": room.fraction()}
    argv = [
        str(words[word[1:-1]]) if word[:1] == "{" and word[1:-1] in words else word
        for word in case.request["argv"]
    ]
    observer = Observer(rehearsal_unit.name(layout), port, f"file:{rehearsal_unit.log(case.folder)}")
    limits = reducer.Limits(**case.request["limits"])
    watch = reducer.start(limits, reducer.Expect(**case.request["expect"]), signatures())
    answers: Optional[Found] = None
    try:
        with rehearsal_room.Guard(room, case.takes, lambda: rehearsal_unit.kill(layout)) as guard:
            rehearsal_unit.start(layout, case.request, case.show, case.launch.interpreter, case.folder, argv)
            verdict, phases = _watch(case, observer, watch)
            if verdict["verdict"] == "PASS":
                answers, verdict = _ask(port, verdict)
                if answers is None:  # a scheduler that ran out of memory says so in its log alone
                    verdict = _watch(case, observer, watch, _AFTERMATH_S)[0] or verdict
    finally:
        observer.close()
        lines = _tail(case)
        wanted_back = rehearsal_unit.gave_way(case.folder)
        rehearsal_unit.end(layout)
    if wanted_back is not None:
        raise AgentError(
            "locked",
            f"the rehearsal was ended for a rollback by {wanted_back}",
            meaning="nothing was stopped by the rehearsal; the release lies there, not yet judged",
            next="ddtree-ops status, then type the same command again when it has ended",
        )
    verdict = smoke.redacted(verdict, _held(case))
    rehearsal_live.see_unharmed(layout, before, verdict)
    memory = {"free": room.free, "least_free": guard.least}
    if guard.ended or verdict.get("reason") in NO_ROOM:
        said = "the live server's share was touched" if guard.ended else verdict.get("line")
        return _not("DOES_NOT_FIT", f"does not fit beside the live server: {said}", room, memory)
    if verdict.get("reason") == "port-taken":  # we chose it: no fault of the release
        return _not("NOT_POSSIBLE", f"its port was taken meanwhile: {verdict.get('line')}", room, memory)
    if verdict.get("reason") == "start-timeout":  # RuntimeMaxSec=: `cap` is a phase's limit in a real start
        return _not(
            "NOT_POSSIBLE", f"it took longer than timeouts.cap ({limits.cap:g} s) in all", room, memory
        )
    if verdict["verdict"] != "PASS":
        _refuse(case, verdict, lines, keep)
    seconds = round(time.monotonic() - began, 1)
    passed = {"verdict": "PASSED", "layers": made["layers"], "seconds": seconds, "phases": phases}
    return {**passed, "answers": answers, "memory": memory}


def _watch(
    case: Case, observer: Observer, watch: reducer.Watch, most: Optional[float] = None
) -> Tuple[Found, Dict[str, float]]:
    """The watch's next verdict on this start, and the seconds of its phases; {} where none came in `most` seconds."""
    phases: Dict[str, float] = {}
    begun = beat = time.monotonic()
    while most is None or time.monotonic() - begun < most:
        for event in watch.observe(observer.observe()):
            if event["ev"] == "verdict":
                return evidence.told(case.layout, event), phases
            if event["ev"] == "phase":
                phases[event["phase"]] = event["seconds"]
                send(
                    {"ev": "note", "text": f"rehearsal: {event['phase']} passed in {event['seconds']:.1f} s"}
                )
        beat = _beat(beat)
        time.sleep(_TICK_S)
    return {}, phases


def _beat(last: float) -> float:
    """When the last beat went out. An operator who went away is noticed here (BrokenPipeError)."""
    if time.monotonic() - last <= _BEAT_S:
        return last
    send({"ev": "beat"})
    return time.monotonic()


def _ask(port: int, verdict: Found) -> Tuple[Optional[Found], Found]:
    send({"ev": "note", "text": "rehearsal: a few answers, each token against the target's own"})
    pool, beat = ThreadPoolExecutor(1), time.monotonic()
    try:
        asked = pool.submit(rehearsal_answers.compare, rehearsal_answers.over_http(port))
        while not asked.done():
            beat = _beat(beat)
            time.sleep(_TICK_S)
    finally:
        pool.shutdown(wait=False)  # its requests end with the server
    try:
        answers = asked.result()
    except (OSError, ValueError, HTTPException) as error:
        line = f"{type(error).__name__}: {error}"
        return None, _failed(verdict, "generation-failed", line, "it does not answer requests")
    if answers["ok"]:
        return answers, verdict
    line = (
        f"{answers['same']} of {answers['tokens']} tokens are the target's own next token; {answers['first']}"
    )
    return answers, _failed(
        verdict, "answers", line, "the draft's or tree's path commits other tokens than the target"
    )


def _failed(verdict: Found, reason: str, line: str, hint: str) -> Found:
    return {**verdict, "verdict": "FAIL", "phase": "serve", "reason": reason, "line": line, "hint": hint}


def _refuse(case: Case, verdict: Found, lines: "list[str]", keep: Tuple[str, ...]) -> None:
    if verdict["verdict"] == "ENV":
        raise AgentError(
            "precondition",
            f"the host, not the release, ended the rehearsal in phase {verdict['phase']} ({verdict['reason']})",
            evidence=verdict.get("line") or None,
            meaning=f"{verdict['hint']}; the running service was not touched, and the release stays",
            next="mend what the line above names; then deploy again",
        )
    report = {"rehearsal": verdict, "log": lines}
    store.retire(case.layout, case.request["release"], case.request["txn"], report, keep)
    raise AgentError(
        "precondition",
        f"the release fails its rehearsal in phase {verdict['phase']} ({verdict['reason']})",
        evidence=verdict.get("line") or None,
        meaning=f"{verdict['hint']}; the running service was not touched",
        next="correct the patch series, or the environment that the line above names; then deploy again",
    )


def _not(
    verdict: str, why: str, room: Optional[rehearsal_room.Room] = None, memory: Optional[Found] = None
) -> Found:
    return {"verdict": verdict, "why": why, "memory": memory or ({"free": room.free} if room else {})}


def free_port(service: str = "") -> int:
    """A port of 127.0.0.1 that nobody listens on. SGLang 0.5.11 also wants 10000 above it to be a port, and takes some
    more within 1000; it listens at the end of its start, so two services' rehearsals begin to look at different places.
    Raises AgentError where there is none."""
    first, end = PORTS
    begin = zlib.crc32(service.encode()) % (end - first)
    ports: "list[int]" = [*range(first + begin, end), *range(first, first + begin)]
    for port in ports:
        with socket.socket() as made:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                made.bind(("127.0.0.1", port))
                return port
            except OSError:
                continue
    raise AgentError("precondition", f"no port of 127.0.0.1 from {PORTS[0]} to {PORTS[1]} is free")


def _tail(case: Case) -> "list[str]":
    """The last lines of its log, without secrets."""
    try:
        with open(rehearsal_unit.log(case.folder), "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - (64 << 10)))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return []
    for value in _held(case):
        text = text.replace(value, "***")
    return evidence.scrub(case.layout, text).splitlines()[-200:]


def _held(case: Case) -> "list[str]":
    """Values of the operator's own files of secrets, which we neither keep nor know by another way."""
    return smoke.secrets(case.variables, case.launch.args)
