"""Joins the observer (what the host shows) to the reducer (what it means) while a service starts."""

import time
from typing import Any, Dict, Optional

from .core import watch as reducer
from .journal import Txn
from .observe import Observer

_TICK_S = 0.25


class Stopped(Exception):
    """The operator asked for the end of the rollout."""


class Watching:
    """One start under watch. Made before the start, so that the log is followed from there."""

    def __init__(self, txn: Txn, intent: Dict[str, Any], expect: Dict[str, Any]) -> None:
        self.txn = txn
        self.seconds: Dict[str, float] = {}
        self._observer = Observer(txn.layout.service, intent["port"], intent["log"])
        self._watch = reducer.start(reducer.Limits(**intent["limits"]), reducer.Expect(**expect))
        self._abortable = txn.state != "ROLLING_BACK"

    def verdict(self) -> Optional[Dict[str, Any]]:
        """Observe until the reducer decides: None for PASS, else the failure. Raises Stopped on the operator's word."""
        try:
            while True:
                failure = self._tick()
                if failure is not None:
                    return failure or None
                time.sleep(_TICK_S)
        finally:
            self._observer.close()

    def _tick(self) -> Optional[Dict[str, Any]]:
        asked = self.txn.abort_asked() if self._abortable else None
        if asked:
            raise Stopped(asked)
        for event in self._watch.observe(self._observer.observe()):
            self.txn.say(event)
            if event["ev"] == "phase":
                self.seconds[event["phase"]] = event["seconds"]
            if event["ev"] == "verdict":
                return {} if event["verdict"] == "PASS" else event
        return None
