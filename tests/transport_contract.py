"""What callers may rely on, whatever transport carries it: import the tests beside a `transport` fixture."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import pytest

from ddtree_ops.core.errors import Unreachable
from ddtree_ops.transport.base import Transport


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
