"""Joins the observer (what the host shows) to the reducer (what it means) while a service starts."""

import time
from types import TracebackType
from typing import Any, Dict, Optional, Type

from . import evidence, guard, observe_env, service
from .core import watch as reducer
from .journal import Txn
from .observe import Observer, signatures

_TICK_S = 0.25
Failure = Dict[str, Any]


class Stopped(Exception):
    """The operator asked for the end of the rollout."""


class Watching:
    """One start under watch, a context manager. Made before the start, so that the log is followed from there."""

    def __init__(
        self,
        txn: Txn,
        intent: Dict[str, Any],
        expect: Dict[str, Any],
        host: Optional[observe_env.HostState] = None,
    ) -> None:
        self.txn = txn
        self.seconds: Dict[str, float] = {}
        self._host = host
        goal = reducer.Expect(**expect, log=intent["log"] != "none")
        self._watch = reducer.start(reducer.Limits(**intent["limits"]), goal, signatures())
        self._headers: Dict[str, str] = {}
        address = intent.get("address", "127.0.0.1")
        self._observer = Observer(
            txn.layout.service, intent["port"], intent["log"], host=address, headers=self._headers
        )
        self._patience = float(intent["timeouts"]["cap"]) + guard.SLACK_S
        guard.extend(txn, self._patience)
        # A rollback is not aborted: it is what brings the confirmed release back.
        self._abortable = txn.state != "ROLLING_BACK" and intent["kind"] == "deploy"

    def __enter__(self) -> "Watching":
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        self._observer.close()

    def verdict(self) -> Optional[Failure]:
        """Observe until the reducer decides: None for PASS, else the failure. Raises Stopped."""
        while True:
            event = self._tick()
            if event is not None:
                return None if event["verdict"] == "PASS" else event
            time.sleep(_TICK_S)

    def hold(self) -> Optional[Failure]:
        """One look at a service that passed: None while it stays up, else the failure. Raises Stopped."""
        event = self._tick()
        time.sleep(_TICK_S)
        return event if event is not None and event["verdict"] != "PASS" else None

    def _tick(self) -> Optional[Failure]:
        asked = self.txn.abort_asked() if self._abortable else None
        if asked:
            raise Stopped(asked)
        if not self._headers:
            # Known only once the started process shows its command line; the probe sends nothing before that.
            self._headers.update(service.headers(self.txn.layout.service))
        found = None
        for event in self._watch.observe(self._observer.observe()):
            if event["ev"] == "verdict":
                event = found = evidence.told(self.txn.layout, self._blamed(event))
            if event["ev"] == "phase":
                self.seconds[event["phase"]] = event["seconds"]
                guard.extend(self.txn, self._patience)
            self.txn.say(event)
        return found

    def _blamed(self, event: Failure) -> Failure:
        """A failure with the host broken meanwhile (device gone, Xid, disk full) is not the release's."""
        verdict = self._watch.verdict
        if self._host is None or verdict is None or event["verdict"] != "FAIL":
            return event
        faults = observe_env.faults(self._host, observe_env.look())
        return reducer.blame_host(verdict, faults).to_json()
