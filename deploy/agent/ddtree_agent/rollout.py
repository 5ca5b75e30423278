"""The runner of one rollout: arm, stop, switch, start, watch, wait for the confirm; back on any failure."""

import os
import threading
import time
from typing import Any, Dict, Optional

from . import (
    capacity,
    drain,
    drift,
    gate,
    gpu_return,
    guard,
    hold,
    install,
    observe_env,
    rehearsal_unit,
    room,
    runtimes,
    service,
    status,
    store,
)
from .core.txn import FORWARD, is_open
from .decided import (
    confirmed,
    ready_confirmed,
    ready_trial,
    set_confirmed,
    sweep_ready,
    undo_of,
)
from .journal import Txn, open_txn
from .layout import Layout, locked
from .origin import origin
from .outcome import (
    HEALTHY,
    Failure,
    failure_of,
    finish_confirm,
    measures,
    open_gate,
    restore,
    rolled_back,
    stopwatch,
)
from .watching import Stopped, Watching
from .wire import AgentError

#: The runner beats this often; without a beat for so long it hangs (SIGSTOP, a debugger).
_BEAT_S, _HUNG_S = 2.0, 30.0
_ABANDONED_STOP_S = 30.0


def run(layout: Layout, txn_id: str, archive: str) -> None:
    """Run a transaction to its end. Every failure ends in the confirmed release."""
    txn = Txn(layout, txn_id)
    intent = txn.intent
    threading.Thread(target=_beat, args=(txn,), name="beat", daemon=True).start()
    with locked(layout, f"{intent['kind']} {txn_id} by {intent['who']}", wait_s=15):
        failure = _attempt(txn, intent, archive)
        if failure is not None:
            restore(txn, failure, archive)


def close(layout: Layout, txn_id: str, archive: str) -> None:
    """What the guard does: finish a begun confirm, else bring the confirmed release back."""
    txn = Txn(layout, txn_id)
    if not txn.exists:
        _abandon(txn)
        return
    if not is_open(txn.state):
        guard.disarm(txn)
        return
    if guard.RUNNER_ENDED not in os.environ:
        if guard.at_work(txn) and not guard.overdue(txn) and not _hangs(txn):
            return
        guard.kill_runner(txn)
    threading.Thread(target=_beat, args=(txn,), name="beat", daemon=True).start()
    with locked(layout, f"guard of {txn_id}", wait_s=20):
        _finish(txn, archive, "the runner of this rollout ended or overran its time")


def stopped(layout: Layout) -> None:
    """A unit of a rollout was stopped. A soft reboot (systemd 254 and newer) keeps /run and nft's tables, so a host
    that goes down forgets trial and gate here."""
    if service.shutting_down():
        service.drop_trial(layout)
        gate.open_(layout.service)


def settle(layout: Layout) -> None:
    """Close what a reboot left open. The caller holds the lock.

    Raises AgentError(locked) where a rollout is on its way, or where its guard brings the old service back.
    """
    txn = open_txn(layout)
    if txn is None:
        gate.open_(layout.service)  # one that no rollout speaks for
        return
    if txn.rebooted and not os.path.exists(layout.trial):
        _close_by_reboot(txn)
        return
    _see_guarded(txn)
    raise AgentError(
        "locked",
        f"rollout {txn.id} by {txn.intent['who']} is not ended yet ({txn.state})",
        meaning="its runner or its guard is at work; it is not disturbed",
        next="ddtree-ops status, then type the same command again when it has ended",
    )


def note_reboot(layout: Layout) -> None:
    """Write down that a reboot ended a rollout, where it did, and see that an open one has somebody to end it.

    Any call may: a soft reboot, or a hand, can have taken runner and guard away.
    """
    txn = open_txn(layout)
    if txn is None:
        return
    gone = txn.rebooted and not os.path.exists(layout.trial)
    try:
        # Under the lock: a rollout between its record and its runner is not one that lost its guard.
        with locked(layout, "the record of a reboot", wait_s=0.5 if gone else 0.0):
            if gone:
                _close_by_reboot(txn)
            elif is_open(txn.state):
                _see_guarded(txn)
    except AgentError:
        pass  # whoever holds the lock is at work on it right now


def begin(layout: Layout, request: Dict[str, Any], archive: str) -> Txn:
    """Create a transaction and hand it to its runner. Raises AgentError where a precondition moved."""
    # Going back waits for nobody's rehearsal, which may go on for minutes and holds the lock.
    waits = request["kind"] == "undo" and rehearsal_unit.give_way(layout, request["who"])
    with locked(
        layout, f"{request['kind']} by {request['who']}", rehearsal_unit.GIVES_WAY_S if waits else 0.5
    ):
        if request["kind"] == "deploy":
            hold.refuse(layout)
        settle(layout)
        rehearsal_unit.end(layout)  # one whose agent was killed holds memory that the trial needs
        now = confirmed(layout)["release"]
        if now != request["from"]:
            raise AgentError(
                "precondition",
                f"the confirmed release of {layout.service} is {now}, not {request['from']} as planned",
                meaning="somebody else changed this host after the plan",
                next="ddtree-ops status",
            )
        _unmoved(request.get("unit_files", {}))
        if request["kind"] == "deploy":
            drift.must_be_known(layout, request.get("adopted") or [])
            if request.get("adopted"):
                drift.take_over(layout)
        if request.get("proven_by"):
            _proven(layout, request)
        active = _is_active(layout)
        undoes = request["kind"] == "undo"
        intent = {**request, "was_active": active or undoes, "archive": archive, "origin": origin()}
        txn = _create(layout, intent)
        try:
            _step(txn, "STAGED")
            # Inside the lock: whoever comes next sees either the lock or the living runner.
            guard.launch(txn, archive)
        except AgentError as error:
            rolled_back(txn, failure_of(txn, "step", error.fields["what"]), touched=False)
            raise
    return txn


def _is_active(layout: Layout) -> bool:
    """Whether there is a service to bring back. Raises AgentError where systemd does not say."""
    state = service.facts(layout.service).get("ActiveState")
    if not state:
        raise AgentError(
            "precondition",
            f"systemctl show {layout.service} gave no answer",
            meaning="nothing was stopped",
            next="systemctl status, on the host; then type the same command again",
        )
    return state in ("active", "activating", "reloading")


def _see_guarded(txn: Txn) -> None:
    if guard.at_work(txn) or guard.armed(txn):
        return
    agents = [str(txn.intent.get("archive")), *reversed(install.whole_agents(txn.layout))]
    for archive in filter(os.path.exists, agents):
        guard.arm(txn, archive, 0)
        return


def _create(layout: Layout, intent: Dict[str, Any]) -> Txn:
    """The transaction's record. A full disk refuses a deploy; going back may use what is held in reserve."""
    txn = Txn(layout, intent["txn"])
    try:
        sweep_ready(layout)
        if intent["kind"] == "deploy":
            room.reserve(layout)
            Txn.create(layout, intent)
        else:
            room.spend(layout, lambda: Txn.create(layout, intent))
    except OSError as error:
        raise no_room(error) from None
    return txn


def _beat(txn: Txn) -> None:
    while True:
        txn.beat()
        time.sleep(_BEAT_S)


def _hangs(txn: Txn) -> bool:
    """Whether the runner lives and does nothing. Asked twice: a host that slept wakes guard and runner together."""
    if txn.silent_s() < _HUNG_S:
        return False
    time.sleep(3 * _BEAT_S)
    return txn.silent_s() >= _HUNG_S


def _abandon(txn: Txn) -> None:
    """The rollout's own record is gone: all that is known is that its trial must not stay."""
    with locked(txn.layout, f"guard of {txn.id}", wait_s=20):
        if service.drop_trial(txn.layout):
            service.reload()
            service.stop(txn.layout.service, _ABANDONED_STOP_S)
            gate.open_(txn.layout.service)
            service.start(txn.layout.service)
    guard.disarm(txn)


def _finish(txn: Txn, archive: str, why: str) -> None:
    if txn.rebooted and not os.path.exists(txn.layout.trial):
        _close_by_reboot(txn)
    elif txn.state == "CONFIRMING":
        finish_confirm(txn)
    elif is_open(txn.state):
        restore(txn, failure_of(txn, "guard", why), archive)


def _close_by_reboot(txn: Txn) -> None:
    """/run is gone, so the boot itself decided: only the record is missing."""
    layout, release = txn.layout, txn.intent["release"]
    if not is_open(txn.state):
        return
    open_gate(txn)  # a network namespace may outlive the boot of a container
    begun = txn.state == "CONFIRMING" or (txn.intent["kind"] == "undo" and txn.state in FORWARD)
    if begun and service.kept_release(layout) == release:
        # The drop-in in /etc was changed already: what boots is what was being confirmed.
        for state in FORWARD[FORWARD.index(txn.state) + 1 : FORWARD.index("CONFIRMED")]:
            txn.to(state)
        finish_confirm(txn)
        return
    rolled_back(txn, failure_of(txn, "reboot", "the host rebooted during the trial"))


def _attempt(txn: Txn, intent: Dict[str, Any], archive: str) -> Optional[Failure]:
    try:
        return (_deploy if intent["kind"] == "deploy" else _undo)(txn, intent, archive)
    except AgentError as error:
        return failure_of(txn, "step", error.fields["what"], error.fields["evidence"])
    except Stopped as stopped:
        return failure_of(txn, "aborted", str(stopped))
    except Exception as error:  # a full disk, a missing program: the service must come back whatever it is
        return failure_of(txn, "step", f"{type(error).__name__}: {error}")


def _deploy(txn: Txn, intent: Dict[str, Any], archive: str) -> Optional[Failure]:
    layout = txn.layout
    manifest = store.manifest_of(layout, intent["release"])
    store.verify(layout, intent["release"])
    _arm(txn, intent, archive)
    text = store.dropin_text(manifest)
    trial = _write_ahead(txn, text)
    least = capacity.bounds(
        intent["port"], intent.get("address", "127.0.0.1"), service.headers(layout.service)
    )
    host = observe_env.look()
    _stop(txn, intent)
    _shut_gate(txn, intent)  # before the trial: a hand that starts the service from here on opens nothing
    service.put_trial(layout, text, trial)
    service.reload()
    service.read_back(layout, layout.trial, manifest["exec_argv"], text)
    _step(txn, "SWITCHED")
    with Watching(txn, intent, {**least, **intent["expect"]}, host) as watching:
        failure = _start(txn, watching)
        if failure is not None:
            return failure
        _step(txn, "READY")
        _prove_origin(layout, manifest)
        service.read_back(layout, layout.trial, manifest["exec_argv"], text)
        guard.extend(txn, intent["timeouts"]["confirm"] + guard.SLACK_S)
        _step(txn, "GATED", deadline_s=intent["timeouts"]["confirm"])
        problem = open_gate(txn)
        if problem is not None:
            return failure_of(txn, "gate", problem)
        return _await_confirm(txn, intent, watching)


def _undo(txn: Txn, intent: Dict[str, Any], archive: str) -> Optional[Failure]:
    layout, target = txn.layout, intent["release"]
    if target != "baseline":
        store.verify(layout, target)
    _arm(txn, intent, archive)
    undo = undo_of(layout, target, "undo")
    _reserve(txn, target, undo)
    _stop(txn, intent)
    # From here a reboot boots the target as well: the operator asked for it, nothing is on trial.
    service.drop_trial(layout)
    set_confirmed(layout, target, undo, txn.id)
    service.reload()
    _step(txn, "SWITCHED")
    with Watching(txn, intent, HEALTHY) as watching:
        failure = _start(txn, watching)
    if failure is not None:
        return failure
    for state in ("READY", "GATED", "CONFIRMING"):
        _step(txn, state)
    finish_confirm(txn)
    return None


def _arm(txn: Txn, intent: Dict[str, Any], archive: str) -> None:
    guard.arm(txn, archive, drain.limit_s(intent) + intent["timeouts"]["stop"] + guard.SLACK_S)
    _step(txn, "ARMED")


def _write_ahead(txn: Txn, text: str) -> str:
    """Everything that switch and confirm will put in place; returns the trial's readied path. Raises AgentError."""
    release = txn.intent["release"]
    _reserve(txn, release, undo_of(txn.layout, release))
    try:
        return ready_trial(txn.layout, text, txn.id)
    except OSError as error:
        raise no_room(error) from None


def _reserve(txn: Txn, release: str, undo: Optional[str]) -> None:
    """Before anything stops: what the end of this transaction needs on the disk is there. Raises AgentError."""
    layout = txn.layout
    try:
        files = txn.intent.get("unit_files")
        room.spend(layout, lambda: ready_confirmed(layout, release, undo, txn.id, files))
    except OSError as error:
        raise no_room(error) from None


def no_room(error: OSError, meaning: str = "nothing was stopped") -> AgentError:
    """What an operator reads of a disk that is full or read-only."""
    return AgentError(
        "precondition",
        f"the host takes no write: {error.strerror}",
        evidence=error.filename and str(error.filename),
        meaning=meaning,
        next="df, mount, on the host; then type the same command again",
    )


def _stop(txn: Txn, intent: Dict[str, Any]) -> None:
    gpu_return.look(txn)
    asked = txn.abort_asked() if intent["kind"] == "deploy" else None
    if asked:  # the last moment at which it costs nobody anything
        raise Stopped(asked)
    drain.drain(txn)
    _step(txn, "DRAINED")
    begun = time.time()
    stopped = service.stop(txn.layout.service, intent["timeouts"]["stop"])
    stopwatch(txn, stop=stopped, down_since=begun)
    _step(txn, "STOPPED", **stopped)
    gpu_return.wait(txn)


def _shut_gate(txn: Txn, intent: Dict[str, Any]) -> None:
    if not intent.get("gate"):
        text = f"no traffic gate on this host: port {intent['port']} answers everyone before its gates pass"
        txn.say({"ev": "note", "text": text})
        return
    gate.shut(txn.layout.service, intent["port"])
    text = (
        f"traffic gate shut: port {intent['port']} answers only this host's root and the service's own user"
    )
    txn.say({"ev": "note", "text": text})


def _start(txn: Txn, watching: Watching) -> Optional[Failure]:
    service.start(txn.layout.service)
    _step(txn, "STARTING")
    failure = watching.verdict()
    stopwatch(txn, phases=watching.seconds)
    if failure is None:
        down = round(time.time() - float(measures(txn).get("down_since", time.time())), 2)
        stopwatch(txn, downtime_s=down)
    return failure


def _prove_origin(layout: Layout, manifest: Dict[str, Any]) -> None:
    """The running server takes its package from the release, as the smoke saw it do before the stop."""
    overlay = os.path.join(layout.release(manifest["release"]), "overlay")
    others = [path for path in service.imports_from(layout.service) if path != overlay]
    if manifest["overlay"] and others:
        raise AgentError(
            "rolled-back",
            "the running server does not import the release's package",
            evidence=f"PYTHONPATH of the process begins with {others[0]}, not {overlay}",
        )
    if not manifest.get("runtime"):
        return
    site = runtimes.site(layout, manifest["runtime"])
    before = {overlay} if manifest["overlay"] else set()
    for path in service.search_paths(layout.service):
        first = next((entry for entry in path if entry not in before), None)
        if first != site:
            raise AgentError(
                "rolled-back",
                "the running server does not import the packages of the release's runtime first",
                evidence=f"PYTHONPATH of the process has {first or 'nothing'} where {site} belongs",
            )


def _await_confirm(txn: Txn, intent: Dict[str, Any], watching: Watching) -> Optional[Failure]:
    until = guard.boottime() + intent["timeouts"]["confirm"]  # a host that slept has used its time up
    while guard.boottime() < until:
        if txn.state != "GATED":
            return None  # confirmed, or the guard took over
        failure = watching.hold()
        if failure is not None and txn.state == "GATED":
            return failure
    return failure_of(txn, "unconfirmed", "no confirm came within the deadline: the operator's line was cut")


def _step(txn: Txn, state: str, **fields: Any) -> None:
    if not txn.to(state, **fields):
        raise AgentError("rolled-back", f"the rollout cannot go on to {state}: it is {txn.state}")


def _proven(layout: Layout, request: Dict[str, Any]) -> None:
    """The plan's proof, asked again of the host itself: its own history decides, whatever the controller saw."""
    source, by = store.manifest_of(layout, request["release"]).get("source_digest"), request["proven_by"]
    if not any((proof["mode"], proof["source_digest"]) == (by, source) for proof in status.proven(layout)):
        raise AgentError(
            "precondition",
            f"mode {request['mode']} needs a {by} of the same sources first: source_digest {source} was never "
            f"confirmed in mode {by} on this host",
            meaning="nothing was stopped",
            next=f"ddtree-ops deploy --mode {by}",
        )


def _unmoved(files: Dict[str, str]) -> None:
    for path, sha in files.items():
        found = store.file_digest(path) if os.path.isfile(path) else "missing"
        if found != sha:
            raise AgentError(
                "precondition",
                f"{path} changed since the plan was made",
                evidence=f"expected {sha}, found {found}",
                meaning="nothing was stopped",
                next="ddtree-ops adopt, to take the new unit in, or put the old text back",
            )
