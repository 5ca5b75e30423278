"""What crosses the line: a payload may be slow, not silent; a follow waits for the call whose line was cut."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

from ddtree_agent import follow
from ddtree_agent.journal import Txn
from ddtree_agent.layout import Layout, locked
from ddtree_agent.wire import AgentError, Patient

pytestmark = pytest.mark.tier("transaction")


def test_a_line_that_falls_silent_lets_go() -> None:
    source, sink = os.pipe()
    os.write(sink, b"begun")
    with (
        os.fdopen(source, "rb", buffering=0) as stream,
        pytest.raises(AgentError, match="said nothing") as seen,
    ):
        patient = Patient(stream, 0.2)
        assert patient.read(5) == b"begun"
        patient.read(5)
    os.close(sink)
    assert seen.value.fields["kind"] == "unreachable"


def test_a_rollout_that_is_being_begun_is_waited_for(tmp_path: Path) -> None:
    layout = Layout("sglang.service", str(tmp_path))
    held, go = threading.Event(), threading.Event()

    def begin() -> None:
        with locked(layout, "deploy by me"):
            held.set()
            go.wait(10)
            Txn.create(layout, {"txn": "abc-1", "who": "me"})

    thread = threading.Thread(target=begin)
    thread.start()
    held.wait(10)
    threading.Timer(
        3.0, go.set
    ).start()  # longer than the grace for a call that has not come as far as the lock
    follow.await_begin(Txn(layout, "abc-1"))
    assert Txn(layout, "abc-1").exists
    thread.join()


def test_nobody_at_work_is_not_waited_for_long(tmp_path: Path) -> None:
    layout = Layout("sglang.service", str(tmp_path))
    began = time.monotonic()
    follow.await_begin(Txn(layout, "abc-1"))
    assert time.monotonic() - began < 60
    assert not Txn(layout, "abc-1").exists
