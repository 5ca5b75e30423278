"""The invariants I1 to I12 of design section 4 as a pure function over what the independent reader saw."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

Read = dict[str, Any]
ENDS = ("CONFIRMED", "ROLLED_BACK")
#: Exit codes after which the release that was confirmed before the command must be the one that serves.
AS_BEFORE = (3, 4, 5, 10, 13, 20)
#: Codes that say something about our own fault or the tester's: never an answer to an injected fault.
NEVER = (1, 2)
NOTICED_S = 2.0
OURS_IN_OPT = ("agent", "failed", "releases", "staging")


@dataclass(frozen=True)
class Asked:
    """What the caller knows beside the two reads.

    wanted: the release that the command asked for, where it is known. alone: nobody else acted on the host meanwhile.
    recovery_s: from the fault to an answering service; recovery_limit_s: confirm deadline + stop + start, + 15 s.
    swept: a command ran to its end after the fault, so that nothing of the interrupted one may be left.
    noticed_s: limit from a process's death to its verdict; None where a whole campaign's p95 is judged.
    info: what /get_server_info must say where the command ended with 0. said: all that the operator was shown.
    """

    wanted: str | None = None
    alone: bool = True
    recovery_s: float | None = None
    recovery_limit_s: float | None = None
    swept: bool = False
    noticed_s: float | None = NOTICED_S
    info: dict[str, Any] | None = None
    said: str = ""


def check(
    read: Read,
    before: Read | None,
    code: int | None,
    document: dict[str, Any] | None,
    asked: Asked | None = None,
    canaries: tuple[str, ...] = (),
) -> list[str]:
    """Every violated invariant as `I4: sentence`; [] where all hold.

    `read`: after the host converged (`reader.settle`). `before`: before the command, None to compare nothing.
    `code`, `document`: how the operator's command ended and what its `--json` said; None where it was killed.
    `canaries`: secret values that must stand in nothing that the operator saw (`Asked.said`: its stdout and stderr).
    """
    asked = asked or Asked()
    found = [
        *_one_release(read),
        *_named_releases(read),
        *_locks(read, asked.swept),
        *_outside(read),
        *_secrets(read, asked.said, canaries),
        *_in_time(read, before, asked),
    ]
    if before is not None:
        found += [*_confirmed_kept(read, before), *_rollbacks(read, before), *_theirs(read, before)]
    if code is not None:
        found += _told(read, before, code, document, asked)
    return found


def late(lags: Sequence[float]) -> list[str]:
    """I6 over many runs: what the p95 of the seconds from a process's death to its verdict says against it."""
    # Of fewer the 95th percentile is the slowest one, which one busy moment of the machine decides: then the median.
    share, word = (0.95, "p95") if len(lags) >= 20 else (0.5, "median")
    slow = sorted(lags)[math.ceil(share * len(lags)) - 1] if lags else 0.0
    return (
        [f"I6: dead processes were noticed after {slow} s ({word} of {len(lags)})"]
        if slow > NOTICED_S
        else []
    )


def serving(read: Read) -> str | None:
    """The release that the main process was started from; None where nothing runs."""
    return None if not read["service"]["main_pid"] else str(read["service"]["release"] or "baseline")


def _one_release(read: Read) -> Iterator[str]:
    unit, release = read["service"], str(read["confirmed"].get("release"))
    if unit["active"] != "active" or not unit["main_pid"]:
        yield f"I1: the service is {unit['active']} ({unit['sub']}): nothing serves"
    elif serving(read) != release:
        yield f"I1: the main process runs {serving(read)}, confirmed is {release}"
    if read["trial"] is not None:
        yield f"I1: a trial of {read['trial']['release']} is in /run though nothing of ours runs"
    kept = (read["kept"] or {"release": "baseline"})["release"]
    if kept != release:
        yield f"I1: the drop-in in /etc names {kept}, confirmed is {release}"
    yield from _in_force(read, release)
    yield from _lost_transactions(read)


def _in_force(read: Read, release: str) -> Iterator[str]:
    unit = read["service"]
    loaded = [path for path in unit["dropins"] if "-ddtree" in path]
    wanted = [] if release == "baseline" else ["50-ddtree.conf"]
    if [path.rsplit("/", 1)[-1] for path in loaded] != wanted:
        yield f"I1: systemd has loaded {loaded}, wanted {wanted}"
    if unit["need_reload"]:
        yield "I1: systemd has not read the unit files that are on disk"
    have = read["releases"].get(release)
    if have and have.get("patched") and unit["pythonpath"] != f"/opt/ddtree/releases/{release}/overlay":
        yield f"I1: the main process imports from {unit['pythonpath'] or 'the base package'}, not from {release}"
    if read["info"]["status"] != 200 or read["generation"]["status"] != 200:
        yield f"I1: no answer on the host: {read['info']['status']}, generation {read['generation']['status']}"
    elif have and (planned := _argument(have["argv"], "--speculative-algorithm")):
        said = read["info"]["body"].get("speculative_algorithm")
        if said != planned:
            yield f"I1: the server says it runs {said}, release {release} is {planned}"


def _lost_transactions(read: Read) -> Iterator[str]:
    for name, txn in read["transactions"].items():
        state = txn["state"] if isinstance(txn["state"], dict) else {}
        # One that a reboot ended is written down by the next call.
        if state.get("state") not in ENDS and state.get("boot") == read["boot"]:
            yield f"I1: rollout {name} is {state.get('state')} and nobody is at work on it"
    for line in read["torn_history"]:
        yield f"I1: the history has a torn line: {line!r}"


def _named_releases(read: Read) -> Iterator[str]:
    named = {
        "the trial in /run": read["trial"] and read["trial"]["release"],
        "the drop-in in /etc": read["kept"] and read["kept"]["release"],
        "confirmed": read["confirmed"].get("release"),
        "the one before it": read["confirmed"].get("undo"),
        "the main process": read["service"]["release"],
    }
    for who, release in named.items():
        if release in (None, "baseline"):
            continue
        have = read["releases"].get(release)
        if have is None:
            yield f"I2: {who} names {release}, which is not on the host"
        elif have["problems"]:
            yield f"I2: {who} names {release}, which is damaged: {have['problems'][0]}"
        elif who.startswith("the drop-in") and read["kept"]["text"] != have["dropin"]:
            yield f"I2: {who} is not the text of release {release}"


def _confirmed_kept(read: Read, before: Read) -> Iterator[str]:
    for key in ("release", "undo"):
        release = before["confirmed"].get(key)
        if release in (None, "baseline"):
            continue
        old, new = before["releases"].get(release), read["releases"].get(release)
        wanted = key == "release" or read["confirmed"].get("release") == before["confirmed"]["release"]
        if new is None and wanted:
            yield f"I3: {release} was confirmed, and is gone"
        elif new is not None and old is not None and new["sha256"] != old["sha256"]:
            yield f"I3: {release} was confirmed, and has been changed"


def _told(
    read: Read, before: Read | None, code: int, document: dict[str, Any] | None, asked: Asked
) -> Iterator[str]:
    now = read["confirmed"].get("release")
    if code in NEVER:
        yield f"I4: exit {code} is no answer to a fault on the host: {document}"
    if document is not None:
        yield from _document(read, code, document, asked.alone)
    if code == 0 and serving(read) != now:
        yield f"I4: exit 0, and {serving(read)} runs while {now} is confirmed"
    if code == 0 and asked.wanted and now != asked.wanted:
        yield f"I4: exit 0, and {now} is confirmed where {asked.wanted} was asked for"
    if code == 0 and asked.info and isinstance(read["info"]["body"], dict):
        for key, value in asked.info.items():
            if read["info"]["body"].get(key) != value:
                yield f"I4: exit 0, and {key} is {read['info']['body'].get(key)}, not {value} as asked for"
    if code in AS_BEFORE and before is not None and asked.alone:
        old = before["confirmed"].get("release")
        if now != old or serving(read) != old:
            yield f"I4: exit {code} says nothing changed, but {now} is confirmed and {serving(read)} runs, not {old}"
        same = read["boot"] == before["boot"] and code in (3, 4, 5, 13)
        if same and read["service"]["invocation"] != before["service"]["invocation"]:
            yield f"I4: exit {code} says nothing was touched, but the service was started anew"
    if code == 11 and not any(txn["failed_rollback"] for txn in read["transactions"].values()):
        yield "I4: exit 11 says that the rollback failed, and no try of one failed on the host"


def _document(read: Read, code: int, document: dict[str, Any], alone: bool) -> Iterator[str]:
    error, result = document.get("error"), document.get("result") or {}
    if (code == 0) != (error is None):
        yield f"I4: exit {code} with a document that says {'an error' if error else 'success'}"
    if error and error.get("exit_code") != code:
        yield f"I4: exit {code}, and the document says {error.get('exit_code')}"
    told = str((error or {}).get("serving") or result.get("serving") or "").split(",")[0]
    known = told == "baseline" or _digest(told)
    if known and alone and told != serving(read):
        yield f"I4: the document says that {told} serves, and {serving(read)} does"
    if code == 0 and result.get("outcome") not in (None, "confirmed", "unchanged", "rolled-back"):
        yield f"I4: exit 0 with outcome {result.get('outcome')}"


def _locks(read: Read, swept: bool) -> Iterator[str]:
    if read["lock"] is not None:
        yield f"I5: the lock is held though nothing of ours runs: {read['lock']}"
    for unit in read["units"]:
        yield f"I5: a unit of ours is left: {unit}"
    if swept:
        for what in [f"staging/{name}" for name in read["staging"]] + read["leftovers"]:
            yield f"I5: the next command left {what}"
        for name, txn in read["transactions"].items():
            state = (txn["state"] or {}).get("state")
            if state not in ENDS:
                yield f"I5: the next command left rollout {name} {state}"


def _in_time(read: Read, before: Read | None, asked: Asked) -> Iterator[str]:
    for name in _new(read, before):
        for verdict in read["transactions"][name]["verdicts"]:
            lag = verdict.get("lag_s")
            if lag is not None and asked.noticed_s is not None and lag > asked.noticed_s:
                yield f"I6: a dead process was noticed after {lag} s"
    took, limit = asked.recovery_s, asked.recovery_limit_s
    if took is not None and limit is not None and took > limit:
        yield f"I6: the service answered again after {took} s, the limit is {limit} s"


def _rollbacks(read: Read, before: Read) -> Iterator[str]:
    for name in _new(read, before):
        txn = read["transactions"][name]
        ends = [state for _, state in txn["states"] if state in ENDS]
        if len(ends) > 1:
            yield f"I7: rollout {name} ended {len(ends)} times: {', '.join(ends)}"
        lines = [entry for entry in read["history"] if entry.get("txn") == name]
        if len(lines) > 1:
            yield f"I7: rollout {name} stands {len(lines)} times in the history"
        outcome = txn["outcome"] or {}
        back = outcome.get("outcome") == "rolled-back" and outcome.get("serving")
        if back and back != txn["from"]:
            yield f"I7: rollout {name} went back to {back}, not to {txn['from']}, which was confirmed"


def _outside(read: Read) -> Iterator[str]:
    if read["gate"]:
        yield f"I8: a table of the traffic gate is left: {read['gate'][0]}"
    if read["outside"] not in (None, 200):
        yield f"I8: clients elsewhere get {read['outside']} from the port"


def _secrets(read: Read, said: str, canaries: tuple[str, ...]) -> Iterator[str]:
    for place in read["canaries"]:
        yield f"I10: a secret stands in {place}"
    if any(value in said for value in canaries):
        yield "I10: a secret stands in what the operator was shown"


def _theirs(read: Read, before: Read) -> Iterator[str]:
    if read["theirs"]["digest"] != before["theirs"]["digest"]:
        files = f"{before['theirs']['files']} files before, {read['theirs']['files']} now"
        yield f"I12: something that is not ours was changed ({files})"
    if read["service"]["enabled"] != before["service"]["enabled"]:
        yield f"I12: the unit is {read['service']['enabled']}, was {before['service']['enabled']}"
    for name in read["opt"]:
        if name not in OURS_IN_OPT:
            yield f"I12: /opt/ddtree/{name} is not in the list of what is ours"


def _new(read: Read, before: Read | None) -> list[str]:
    return [name for name in read["transactions"] if before is None or name not in before["transactions"]]


def _argument(argv: list[str], flag: str) -> str | None:
    return argv[argv.index(flag) + 1] if flag in argv[:-1] else None


def _digest(word: str) -> bool:
    return len(word) == 16 and all(c in "0123456789abcdef" for c in word)
