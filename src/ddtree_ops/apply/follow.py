"""Follows a transaction on the host to its end, over as many connections as it takes, and confirms it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from ddtree_ops.apply.agent import AgentClient
from ddtree_ops.core.errors import (
    Detached,
    OpsError,
    OutcomeUnknown,
    PreconditionFailed,
    RollbackFailed,
    RolledBack,
    Unreachable,
    UsageProblem,
)

OnEvent = Callable[[dict[str, Any]], None]
Connect = Callable[[], AbstractContextManager[AgentClient]]
#: The agent beats every 3 s: this much silence is a dead line.
_SILENCE_S = 15.0
_RETRY_S = (0.5, 1.0, 2.0, 4.0, 8.0, 8.0, 8.0)


@dataclass
class Following:
    """One transaction as an operator sees it. `connect` opens a fresh connection each time it is called; `begun` is
    False where the reply of `begin` was lost, so that the host may not know the transaction at all; `owed`: the host
    could not take the confirm, `abort_owed`: the wish to go back did not reach it."""

    connect: Connect
    host: str
    txn: str
    nonce: str
    on_event: OnEvent
    who: str
    begun: bool = True
    deadline: str = ""
    seen: int = 0
    last_state: str = "STAGED"
    aborting: bool = False
    owed: bool = False
    abort_owed: bool = False

    def to_the_end(self) -> dict[str, Any]:
        """Follow until the transaction ends; confirm when it is gated. Returns its outcome.

        A first interrupt asks the host to roll back and waits for it; a second raises Detached. Raises
        OutcomeUnknown where the line stays cut.
        """
        retries = iter(_RETRY_S)
        while True:
            try:
                outcome = self._once()
                if outcome is not None:
                    return outcome
                retries = iter(_RETRY_S)
            except (Unreachable, PreconditionFailed) as error:
                # Whatever keeps us from looking, a full disk there included, the rollout goes on without us.
                self._pause(retries, error)
            except UsageProblem as error:
                if self.begun:
                    raise
                if self.aborting:
                    raise KeyboardInterrupt from None  # the host never took it on
                raise self._never_begun(error) from None
            except KeyboardInterrupt:
                self.interrupt()

    def _never_begun(self, error: OpsError) -> Unreachable:
        ended = "" if self.nonce else "; a rollout that was on its way may have been ended by it"
        return Unreachable(
            "the line was cut before the host took the rollout on",
            host=self.host,
            evidence=error.what,
            meaning=f"nothing changed{ended}",
            next="type the same command again" if self.nonce else f"ddtree-ops status --host {self.host}",
        )

    def _once(self) -> dict[str, Any] | None:
        if self.last_state == "GATED" and self.nonce and not self.aborting:
            self._confirm()  # the first one, or its reply, was lost with the line; a repeat is harmless
        if self.abort_owed:
            self._abort()
        with self.connect() as client:
            events = client.events("follow", {"txn": self.txn, "skip": self.seen}, timeout=_SILENCE_S)
            for event in events:
                if event["ev"] == "result":
                    return self._result(event)
                if event["ev"] == "beat":
                    if self.owed and not self.aborting:
                        self._confirm()
                    continue
                self.seen += 1
                self.begun = True
                self._note(event)
        return None

    def _note(self, event: dict[str, Any]) -> None:
        self.on_event(event)
        if event["ev"] != "state":
            return
        self.last_state = str(event["state"])
        if self.last_state == "GATED" and self.nonce and not self.aborting:
            self.deadline = time.strftime("%H:%M:%S", time.gmtime(event["t"] + event["deadline_s"]))
            self._confirm()

    def _confirm(self) -> None:
        # Over a fresh connection: that the operator still reaches the host is what a confirm proves.
        self.owed = False
        try:
            with self.connect() as fresh:
                fresh.call("confirm", {"txn": self.txn, "nonce": self.nonce})
        except Unreachable:
            raise
        except OpsError as error:
            # It ended meanwhile, and the events to come say how; or the host could not write, and soon can.
            self.owed = isinstance(error, PreconditionFailed)
            self.on_event({"ev": "note", "text": f"not confirmed: {error.what}"})

    def _result(self, event: dict[str, Any]) -> dict[str, Any]:
        self.on_event(event)
        if event.get("orphan"):
            raise OutcomeUnknown(
                f"the rollout {self.txn} has no runner any more and is {event['state']}",
                host=self.host,
                meaning="the guard on the host decides",
                next="ddtree-ops status",
            )
        outcome: dict[str, Any] = event["outcome"]
        return outcome

    def _pause(self, retries: Iterator[float], error: OpsError) -> None:
        cut = isinstance(error, Unreachable)
        said = "the line is cut" if cut else "the rollout cannot be followed"
        self.on_event({"ev": "note", "text": f"{said} ({error.what.splitlines()[0]}); trying again"})
        try:
            time.sleep(next(retries))
        except StopIteration:
            raise OutcomeUnknown(
                "the line to the host is cut and stays cut" if cut else "the rollout cannot be followed",
                host=self.host,
                evidence=error.what,
                meaning=f"the rollout goes on without us; it was {self.last_state}. {self._alone()}",
                next=f"ddtree-ops status --host {self.host}",
            ) from None
        except KeyboardInterrupt:
            self.interrupt()

    def interrupt(self) -> None:
        """The operator's SIGINT: the first asks the host to go back, the second raises Detached."""
        if self.aborting:
            raise self._detached()
        self.aborting = True
        self.on_event(
            {"ev": "note", "text": "interrupted: asking the host to roll back; interrupt again to detach"}
        )
        self._abort()

    def _abort(self) -> None:
        try:
            with self.connect() as client:
                client.call("abort", {"txn": self.txn, "who": self.who})
            self.abort_owed = False
        except KeyboardInterrupt:
            raise self._detached() from None
        except OpsError as error:
            self.abort_owed = isinstance(error, Unreachable)
            said = f"the host did not take it ({error.what.splitlines()[0]})"
            self.on_event({"ev": "note", "text": said + ("; asking again" if self.abort_owed else "")})

    def _alone(self) -> str:
        """What the host does where nobody tells it anything any more."""
        if not self.nonce:
            return "A rollback needs no confirm: the host carries it out"
        if not self.deadline:
            return "Unconfirmed, it rolls back when its start has been judged"
        return f"Unconfirmed at {self.deadline} UTC, it rolls back"

    def _detached(self) -> Detached:
        return Detached(
            "detached by a second interrupt",
            host=self.host,
            meaning=f"the host goes on by itself. {self._alone()}",
            next=f"ddtree-ops status --host {self.host}",
        )


def judge(host: str, outcome: dict[str, Any], wanted: str) -> None:
    """Return where the transaction did what was asked, else raise what the operator must read."""
    if outcome["outcome"] == wanted:
        return
    failure = outcome.get("failure") or {}
    serving = outcome.get("serving")
    # the release did nothing wrong there: its log has nothing to say
    again = failure.get("reason") in ("unconfirmed", "aborted")
    fields = {
        "host": host,
        "evidence": failure.get("line"),
        "meaning": failure.get("hint"),
        "next": "type the same command again" if again else f"ddtree-ops logs --host {host}",
    }
    if outcome.get("touched") is False and outcome.get("undrain"):
        raise PreconditionFailed(
            f"the rollout ended before anything was stopped: {failure.get('hint')}",
            host=host,
            evidence=outcome["undrain"],
            meaning="the server is still out of its router: drain.undo of hosts.yaml failed as well",
            serving=f"{serving or 'nothing'}, but the router sends it no requests",
            next=f"run drain.undo on {host} by hand; then correct `drain` in hosts.yaml and deploy again",
        )
    if outcome.get("touched") is False:
        raise PreconditionFailed(
            f"the rollout ended before anything was touched: {failure.get('hint')}",
            **{
                **fields,
                "meaning": "the old service was not stopped",
                "serving": f"{serving or 'nothing'}, as before",
            },
        )
    if outcome["outcome"] == "rolled-back":
        as_before = (
            f"{serving}, as before" if serving else "nothing: the service was not running before either"
        )
        raise RolledBack(_sentence(failure, outcome), serving=as_before, **fields)
    problem = outcome.get("problem") or {}
    said = f"{problem.get('reason')}: {problem.get('line') or problem.get('hint')}"
    raise RollbackFailed(
        f"the rollback failed: the old service did not come back ({said})",
        serving="nothing; the host keeps trying the confirmed release",
        **fields,
    )


def _sentence(failure: dict[str, Any], outcome: dict[str, Any]) -> str:
    lag = failure.get("lag_s")
    noticed = f", noticed {lag:.1f} s after the process died" if lag is not None else ""
    took = outcome.get("rollback_s")
    back = f" in {took} s" if took is not None else ""
    return f"failed in {failure.get('phase')} ({failure.get('reason')}){noticed}; rolled back{back}"
