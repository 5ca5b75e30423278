"""One set of scenarios over every transport: what callers may rely on, whatever carries it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from transport_sshd import SSHD, Site, Sshd

from ddtree_ops.core.errors import Unreachable
from ddtree_ops.transport.base import Stream, Transport
from ddtree_ops.transport.fake import FakeTransport, Fault, Reply
from ddtree_ops.transport.local import LocalTransport

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


def test_outputs_and_exit_status_are_kept_apart(transport: Transport) -> None:
    done = transport.run(["sh", "-c", "echo out; echo err >&2; exit 7"])
    assert (done.rc, done.out, done.err) == (7, b"out\n", b"err\n")


def test_words_arrive_as_they_were_given(transport: Transport) -> None:
    words = ["a b", "$HOME", "`id`", "'", '"', "*", "", "x\ny", "\\", ";", "ü"]
    done = transport.run(["printf", r"%s\0", *words])
    assert done.out.decode().split("\0")[:-1] == words


def test_megabytes_both_ways_do_not_deadlock(transport: Transport) -> None:
    piece = bytes(range(256)) * 4096
    done = transport.run(["cat"], [piece] * 8)
    assert hashlib.sha256(done.out).digest() == hashlib.sha256(piece * 8).digest()


def test_a_loud_stderr_does_not_block_the_output(transport: Transport) -> None:
    done = transport.run(["sh", "-c", "head -c 6000000 /dev/zero >&2; echo end"])
    assert done.out == b"end\n"
    assert 0 < len(done.err) < 6000000


def test_the_input_ends_and_the_command_goes_on(transport: Transport) -> None:
    stream = transport.stream(["sh", "-c", "wc -c; echo after"], [b"abc", b"", b"de"])
    assert list(stream) == [b"5", b"after"]
    assert stream.rc == 0


def test_without_input_the_command_sees_its_end_at_once(transport: Transport) -> None:
    assert transport.run(["wc", "-c"]).out.strip() == b"0"


def test_a_command_need_not_read_its_input(transport: Transport) -> None:
    done = transport.run(["sh", "-c", "echo no >&2; exit 3"], [b"x" * 4_000_000])
    assert (done.rc, done.err) == (3, b"no\n")


def test_lines_of_megabytes_and_a_last_one_without_an_end(transport: Transport) -> None:
    stream = transport.stream(["sh", "-c", "head -c 3000000 /dev/zero | tr '\\0' x; echo; echo; printf tail"])
    first, second, third = list(stream)
    assert (len(first), second, third) == (3_000_000, b"", b"tail")


def test_lines_come_while_the_command_runs(transport: Transport) -> None:
    """The second line is only written once the first was answered: buffering to the end would never finish."""
    hold: list[bytes] = []

    def answers() -> Iterator[bytes]:
        while not hold:
            pass
        yield b"go\n"

    stream = transport.stream(["sh", "-c", "echo first; read x; echo $x"], answers(), idle_timeout=20)
    lines = iter(stream)
    hold.append(next(lines))
    assert [hold[0], *lines] == [b"first", b"go"]


def test_an_overlong_command_is_unreachable(transport: Transport) -> None:
    with pytest.raises(Unreachable, match=r"did not end within 0\.3 s") as caught:
        transport.run(["sh", "-c", "while :; do echo x; sleep 0.05; done"], timeout=0.3)
    assert caught.value.exit_code == 13
    assert caught.value.next


def test_a_silent_command_is_unreachable(transport: Transport) -> None:
    stream = transport.stream(["sh", "-c", "echo one; sleep 50"], idle_timeout=0.6)
    assert next(stream) == b"one"
    with pytest.raises(Unreachable, match=r"was silent for 0\.6 s"):
        next(stream)


def test_a_command_that_closes_its_output_and_stays_is_overlong(transport: Transport) -> None:
    with pytest.raises(Unreachable, match="did not end within"):
        transport.run(["sh", "-c", "exec >&- 2>&-; sleep 50"], timeout=0.5)


def test_a_failing_input_is_the_callers_error(transport: Transport) -> None:
    def broken() -> Iterator[bytes]:
        yield b"x"
        raise ValueError("the archive is gone")

    with pytest.raises(ValueError, match="the archive is gone"):
        transport.run(["cat"], broken())


def test_a_signal_is_no_success(transport: Transport) -> None:
    assert transport.run(["sh", "-c", "kill -9 $$"]).rc > 128


def test_leaving_early_and_closing_twice_is_harmless(transport: Transport) -> None:
    stream = transport.stream(["sh", "-c", "yes"])
    assert next(stream) == b"y"
    stream.close()
    assert list(stream) == []
    transport.close()
    transport.close()


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
