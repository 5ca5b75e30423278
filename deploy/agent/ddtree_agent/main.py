"""The agent's verbs. The operator's controller calls them over SSH; a person may type most of them on the host."""

import argparse
import errno
import os
import sys
import traceback
from typing import Any, BinaryIO, Callable, Dict, List, Optional, cast

from . import (
    collect,
    decided,
    drift,
    envreceive,
    envsend,
    hold,
    install,
    outcome,
    probe,
    readunit,
    rehearsal,
    rehearsal_unit,
    rejoin,
    rollout,
    runtimes,
    service,
    smoke,
    snapshot,
    status,
    store,
    undo,
)
from . import follow as following
from . import layout as paths
from .journal import Txn, open_txn
from .layout import Layout, locked, write_atomic
from .wire import REFUSED, AgentError, Patient, emit, read_request, result

Op = Callable[[Dict[str, Any], BinaryIO], None]


def main(argv: List[str], stdin: Optional[BinaryIO] = None) -> int:
    """Run one verb; the answer is framed on stdout. Returns the exit status."""
    os.umask(0o022)
    parser = argparse.ArgumentParser(prog="ddtree-agent", description=__doc__)
    parser.add_argument("--service", default="sglang.service")
    parser.add_argument("--txn", default="")
    parser.add_argument("op", choices=[*sorted(OPS), "run", "guard", "stopped"])
    args = parser.parse_args(argv)
    try:
        if args.op == "run":
            rollout.run(Layout(args.service), args.txn, archive())
        elif args.op == "guard":
            rollout.close(Layout(args.service), args.txn, archive())
        elif args.op == "stopped":
            rollout.stopped(Layout(args.service))
        else:
            # Without a request on stdin a person types this, on the host itself.
            typed = {"service": args.service, "txn": args.txn, "follow": True}
            request = read_request(stdin) if stdin else typed
            OPS[args.op](request, stdin or sys.stdin.buffer)
    except AgentError as error:
        emit({"ev": "result", "ok": False, "error": error.fields})
        return REFUSED
    except Exception as error:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS):
            emit(
                {
                    "ev": "result",
                    "ok": False,
                    "error": rollout.no_room(error, _WITHOUT_ROOM.get(args.op, _GOES_ON)).fields,
                }
            )
            return REFUSED
        # The frame must close whatever happens: an operator's line without an answer says nothing.
        _crashed(error)
        return 1
    return 0


def archive() -> str:
    """The zip that this code was loaded from."""
    return str(getattr(__loader__, "archive", ""))  # type: ignore[name-defined]


def _layout(request: Dict[str, Any]) -> Layout:
    if os.geteuid() != 0:
        raise AgentError(
            "precondition", "the agent needs root on the host", next="set user: root, or allow sudo -n"
        )
    return Layout(request["service"])


def _push(request: Dict[str, Any], payload: BinaryIO) -> None:
    layout, manifest = _layout(request), request["manifest"]
    line = cast(BinaryIO, Patient(payload))  # the lock is ours while it travels
    with locked(layout, f"push by {request['who']}"):
        hold.refuse(layout)
        install.installed(layout, archive(), request["agent"])
        rollout.settle(layout)
        rehearsal_unit.end(layout)
        store.sweep(layout)
        if manifest.get("runtime"):
            runtimes.verify(layout, manifest["runtime"])  # every byte of it, before anything is built on it
        keep = decided.keep_all(layout)
        store.stage(layout, request["txn"], manifest, line)
        os.utime(layout.release(manifest["release"]))  # the newest one: gc leaves it alone until it is begun
        if request.get("secrets"):
            write_secrets(layout, manifest["release"], request["secrets"])
        about = {
            "release": manifest["release"],
            "runtime": manifest.get("runtime"),
            "service": layout.service,
        }
        report = smoke.smoke({**request["smoke"], **about})
        if not report["ok"]:
            _refuse_going_down()
            store.retire(layout, manifest["release"], request["txn"], {"smoke": report}, keep)
            raise AgentError(
                "precondition",
                f"the new release does not pass the import smoke ({report['stage']})",
                evidence=report["first_fatal"],
                meaning="it would die at its start; the running service was not touched",
                next="correct the patch series, or the environment that the line above names; then deploy again",
            )
    result(release=manifest["release"], smoke=report)


def _refuse_going_down() -> None:
    """A host on its way down ends whatever runs on it: that says nothing of the release, which stays where it is."""
    if service.shutting_down():
        raise AgentError(
            "unreachable",
            "the host is shutting down: the import smoke was ended with it",
            meaning="nothing was touched; the release lies there, not yet judged",
            next="deploy again when the host is back",
        )


def write_secrets(layout: Layout, release: str, new: Dict[str, str]) -> None:
    """The 0600 file from which the release's unit reads its keys."""
    quoted = {name: value.replace("\\", "\\\\").replace('"', '\\"') for name, value in new.items()}
    text = "".join(f'{name}="{value}"\n' for name, value in sorted(quoted.items()))
    write_atomic(layout.secrets(release), text.encode(), mode=0o600)


def _rehearse(request: Dict[str, Any], _: BinaryIO) -> None:
    layout = _layout(request)
    with locked(layout, f"rehearsal by {request['who']}"):
        hold.refuse(layout)
        rollout.settle(layout)
        found = rehearsal.rehearse(layout, request, decided.keep_all(layout))
    result(rehearsal=found)


def _begin(request: Dict[str, Any], _: BinaryIO) -> None:
    layout = _layout(request)
    txn = rollout.begin(layout, request, install.installed(layout, archive(), request["agent"]))
    result(txn=txn.id)


def _current(request: Dict[str, Any]) -> Layout:
    """The layout, with a reboot written down that ended a rollout: nobody may act on what is no more."""
    layout = _layout(request)
    rollout.note_reboot(layout)
    return layout


def _follow(request: Dict[str, Any], _: BinaryIO) -> None:
    txn = Txn(_current(request), request["txn"])
    following.await_begin(txn)
    following.follow(txn, int(request.get("skip", 0)))


def _confirm(request: Dict[str, Any], _: BinaryIO) -> None:
    result(outcome=outcome.confirm(Txn(_current(request), request["txn"]), request["nonce"]))


def _abort(request: Dict[str, Any], _: BinaryIO) -> None:
    layout = _current(request)
    txn = Txn(layout, request["txn"]) if request.get("txn") else open_txn(layout)
    if txn is not None:
        txn.ask_abort(request.get("who", "someone"))
    result(txn=txn.id if txn else None)


def _attach(request: Dict[str, Any], _: BinaryIO) -> None:
    result(**rejoin.rejoin(_current(request)))


def _hold(request: Dict[str, Any], _: BinaryIO) -> None:
    result(**hold.put(_layout(request), request))


def _unhold(request: Dict[str, Any], _: BinaryIO) -> None:
    result(lifted=hold.lift(_layout(request)))


def _gc(request: Dict[str, Any], _: BinaryIO) -> None:
    names = ("who", "agent", "keep", "failed_bytes", "dry_run")
    result(**collect.collect(_layout(request), **{name: request[name] for name in names}))


def _rollback(request: Dict[str, Any], _: BinaryIO) -> None:
    layout = _layout(request)
    agent = install.for_rollback(layout, archive(), request["agent"]) if "agent" in request else archive()
    begun = undo.rollback(layout, request, agent)
    if request.get("follow") and "txn" in begun:
        following.follow(Txn(layout, begun["txn"]))
    else:
        result(**begun)


def _status(request: Dict[str, Any], _: BinaryIO) -> None:
    layout = _current(request)
    result(status=status.status(layout))


def _history(request: Dict[str, Any], _: BinaryIO) -> None:
    layout = _current(request)
    result(history=status.history(layout, int(request.get("limit", 20))), proven=status.proven(layout))


def _logs(request: Dict[str, Any], _: BinaryIO) -> None:
    result(lines=status.logs(_layout(request), int(request.get("lines", 50)), request.get("log", "journal")))


def _adopt(request: Dict[str, Any], _: BinaryIO) -> None:
    layout, unit = _layout(request), request.get("facts", {}).get("unit") or {}
    with locked(layout, "adopt"):
        record = decided.confirmed(layout)
        if not os.path.exists(layout.confirmed):
            record = {**record, "schema_version": 1, "baseline": unit}
        # What the operator has just read is what later edits are told from.
        record = {key: value for key, value in record.items() if key != "damaged"}
        paths.write_json(layout.confirmed, {**record, "files": drift.hashes(unit)})
    result(confirmed=decided.confirmed(layout))


def _probe(request: Dict[str, Any], _: BinaryIO) -> None:
    result(facts=probe.probe(request))


def _read_unit(request: Dict[str, Any], _: BinaryIO) -> None:
    result(**readunit.read_unit(request))


def _env(request: Dict[str, Any], _: BinaryIO) -> None:
    _layout(request)
    result(env=envsend.describe(request))


def _env_manifest(request: Dict[str, Any], _: BinaryIO) -> None:
    _layout(request)
    result(manifest=envsend.manifest(request))


def _env_send(request: Dict[str, Any], _: BinaryIO) -> None:
    _layout(request)
    envsend.send(request)


def _env_prepare(request: Dict[str, Any], _: BinaryIO) -> None:
    result(**envreceive.prepare(_layout(request), request))


def _env_receive(request: Dict[str, Any], payload: BinaryIO) -> None:
    result(**envreceive.receive(_layout(request), request, payload))


def _snapshot(request: Dict[str, Any], _: BinaryIO) -> None:
    snapshot.snapshot(request)


OPS: Dict[str, Op] = {
    "probe": _probe,
    "read-unit": _read_unit,
    "adopt-baseline": _adopt,
    "snapshot": _snapshot,
    "env": _env,
    "env-manifest": _env_manifest,
    "env-send": _env_send,
    "env-prepare": _env_prepare,
    "env-receive": _env_receive,
    "push": _push,
    "rehearse": _rehearse,
    "begin": _begin,
    "follow": _follow,
    "confirm": _confirm,
    "abort": _abort,
    "attach": _attach,
    "hold": _hold,
    "unhold": _unhold,
    "gc": _gc,
    "rollback": _rollback,
    "status": _status,
    "history": _history,
    "logs": _logs,
}


#: What a write that failed means, by the call that failed of it.
_GOES_ON = "the call changed nothing; a rollout that is on its way goes on, and what serves says `status`"
_WITHOUT_ROOM = dict.fromkeys(
    ("push", "rehearse", "begin", "hold", "unhold", "adopt-baseline"), "nothing was stopped"
)


def _crashed(error: Exception) -> None:
    last = traceback.extract_tb(error.__traceback__)[-1]
    where = f"{os.path.basename(last.filename)}:{last.lineno}, in {last.name}"
    fields = {
        "kind": "bug",
        "what": f"the agent failed: {type(error).__name__}: {error}",
        "evidence": where,
        "meaning": "a fault in ddtree-ops, not in what you typed; what was touched says `status`",
        "next": "ddtree-ops status",
    }
    emit({"ev": "result", "ok": False, "error": fields})
