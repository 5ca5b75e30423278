"""One set of scenarios over every transport: what callers may rely on, whatever carries it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from transport_sshd import SSHD, Site, Sshd

from ddtree_ops.core.errors import Unreachable
from ddtree_ops.transport.base import Stream, Transport
from ddtree_ops.transport.fake import FakeTransport, Fault, Reply
from ddtree_ops.transport.local import LocalTransport
from transport_contract import *  # noqa: F403  # the scenarios, over the fixture below

pytestmark = [pytest.mark.tier("main"), pytest.mark.timeout(60)]


@pytest.fixture(scope="module")
def sshd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    if SSHD is None:
        pytest.skip("no sshd on this machine")
    server = Sshd(tmp_path_factory.mktemp("sshd"))
    yield server
    server.stop()


@pytest.fixture(params=["local", "ssh"])
def transport(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Transport]:
    made: Transport = LocalTransport()
    if request.param == "ssh":
        made = Site(tmp_path, request.getfixturevalue("sshd")).transport()
    yield made
    made.close()


def test_all_keep_the_protocol() -> None:
    for made in (LocalTransport(), FakeTransport([Reply()])):
        assert isinstance(made, Transport)
    assert isinstance(FakeTransport([Reply()]).stream(["x"]), Stream)
    assert isinstance(LocalTransport().stream(["true"]), Stream)


def test_the_fake_answers_and_records() -> None:
    fake = FakeTransport([Reply(b"a\nb", b"e", 4), Reply(b"z")])
    stream = fake.stream(["one", "two"], [b"in", b"put"])
    assert (list(stream), stream.rc, stream.err) == ([b"a", b"b"], 4, b"e")
    assert fake.run(["three"]).out == b"z"
    assert [(c.argv, c.stdin) for c in fake.calls] == [(("one", "two"), b"input"), (("three",), b"")]
    with pytest.raises(AssertionError, match="unexpected command"):
        fake.run(["four"])


@pytest.mark.parametrize("fault", [Fault.RESET, Fault.BLACK_HOLE])
def test_a_fake_that_breaks_gives_what_came_before(fault: Fault) -> None:
    stream = FakeTransport([Reply(b"one\ntwo\n", fault=fault, after=6)]).stream(["x"])
    assert next(stream) == b"one"
    with pytest.raises(Unreachable):
        list(stream)
    assert stream.rc is None


def test_a_fake_that_truncates_ends_as_if_well() -> None:
    stream = FakeTransport([Reply(b"one\ntwo\n", fault=Fault.TRUNCATE, after=6)]).stream(["x"])
    assert (list(stream), stream.rc) == ([b"one", b"tw"], 0)


def test_a_fake_that_refuses_was_never_called() -> None:
    fake = FakeTransport([Reply(fault=Fault.REFUSE)])
    with pytest.raises(Unreachable):
        fake.run(["x"], [b"secret"])
    assert fake.calls == []
