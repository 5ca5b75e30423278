"""Our reader of unit files against systemd's own parsers, on made-up text."""

from __future__ import annotations

import pytest
import systemd_oracle as oracle
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ddtree_ops.units import dropins
from ddtree_ops.units.command import expand_argv
from ddtree_ops.units.environ import NAME, read_environment_file
from ddtree_ops.units.syntax import parse
from ddtree_ops.units.values import seconds
from ddtree_ops.units.words import RELAXED, STRICT, BadWord, next_word

pytestmark = [
    pytest.mark.tier("main"),
    pytest.mark.skipif(oracle.library() is None, reason="libsystemd-shared-252 is not installed"),
]
MANY = settings(max_examples=300, deadline=None)
PIECES = [
    " ", "\t", '"', "'", "\\", "\\n", "\\x41", "\\xff", "\\xe2\\x82\\xac", "\\101", "\\777", "\\u20ac", "\\s", "\\;",
    "\\ ", "\\q", "a", "b", "=", ";", "#", "$", "{", "}", "$$", "${A}", "$A", "é", "%",
]  # fmt: skip
text_of = st.lists(st.sampled_from(PIECES), max_size=14).map("".join)


@MANY
@given(text_of, st.booleans())
def test_words_are_cut_as_systemd_cuts_them(text: str, relaxed: bool) -> None:
    got, value, used = oracle.word(text.encode(), relaxed)
    try:
        word, at = next_word(text, 0, RELAXED if relaxed else STRICT)
    except BadWord:
        assert got < 0
        return
    assert got >= 0
    assert (None if word is None else word.encode("utf-8", "surrogateescape")) == value
    if word is not None:
        assert len(text[:at].encode()) == used


@MANY
@given(
    st.lists(st.lists(st.sampled_from(["$", "{", "}", "A", "B", ":", "-", "x", "$$", "${A}", "$B", " "]), max_size=9)
             .map("".join), min_size=1, max_size=4),
    st.fixed_dictionaries({}, optional={"A": st.sampled_from(["", "one", "one two", ' "q r" s', "a\\ b"]),
                                        "B": st.sampled_from(["", "'x y' z", "b\\\\c"])}),
)  # fmt: skip
@example(["${A:-y}", "$A", "x$A", "${A}${B}", "$"], {"A": "1 2"})
def test_variables_expand_as_systemd_expands_them(argv: list[str], env: dict[str, str]) -> None:
    theirs = oracle.expand([a.encode() for a in argv], {k.encode(): v.encode() for k, v in env.items()})
    assert [a.encode() for a in expand_argv(tuple(argv), env).argv] == theirs


LINES = [
    "[Service]", "[Unit]", "[X-Mine]", "[Bad", "[Other]", "A=1", "A = b c ", "B=x \\", "  y \\", "# no \\", "; no",
    "\\",
    "", "  ", "C", "=d", "D=\\\\", "E=e\\\\\\", "\tF=f", "G=g;h #i", " # k", "H='a \\", "\ufeff",
    "\ufeffA=2", "\ufeff# m \\", "\ufeff[Unit]",
]  # fmt: skip


@MANY
@given(
    st.lists(
        st.tuples(st.sampled_from(LINES), st.sampled_from(["\n", "\n", "\r\n", "\n\n", "\r"])), max_size=14
    )
)
@example(
    [("[Service]", "\n"), ("A=\\", "\n"), ("# c", "\n"), ("B=2 \\", "\r\n"), ("; d \\", "\n"), ("e", "\n")]
)
@example([("[Unit]", "\n"), ("H='a \\", "\r"), ("\ufeff", "\n"), ("A=1", "\n")])
def test_lines_are_joined_as_systemd_joins_them(lines: list[tuple[str, str]]) -> None:
    text = "".join(line + end for line, end in lines)
    accepted, theirs = oracle.assignments(text.encode())
    # A key of one's own is ignored with a note in a unit: take these as assignments for the comparison.
    parsed = parse(text.replace("A", "After").replace("B", "Nice"), "x")
    assert (parsed.fatal is None) == accepted
    seen = [(a.key, a.value) for a in parsed.assignments]
    wanted = [
        ({"A": "After", "B": "Nice"}[k], v.replace("A", "After").replace("B", "Nice"))
        for s, k, v in theirs
        if (s, k) in (("Unit", "A"), ("Service", "B"))
    ]
    assert seen == wanted


@MANY
@given(st.lists(st.sampled_from(
    ["A", "B", "=", " ", "\n", "\r", "\\", '"', "'", "#", ";", "x", "$", "`", "export ", "A=1\n", "\\\n", "é", "\t"]
), max_size=16).map("".join))  # fmt: skip
def test_environment_files_are_read_as_systemd_reads_them(text: str) -> None:
    theirs = oracle.env_file(text.encode())
    assert theirs is not None
    valid = [a.decode() for a in theirs if NAME.fullmatch(a.decode().partition("=")[0])]
    ours = read_environment_file(text).values
    assert ours == dict(a.split("=", 1) for a in valid)


@MANY
@given(st.lists(st.sampled_from(["5", "1.5", ".5", " ", "min", "s", "h", "infinity", "ms", "-", "x", "90"]), max_size=6)
       .map("".join))  # fmt: skip
def test_time_spans_are_those_of_systemd(text: str) -> None:
    theirs, ours = oracle.seconds(text.encode()), seconds(text)
    assert (theirs is None) == (ours is None)
    if ours is not None and ours != float("inf"):
        assert ours == pytest.approx(theirs, abs=1e-6)


NAMES = ["10-a.conf", "9-b.conf", "B.conf", "a.conf", "x.txt", ".h.conf"]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 20), st.sampled_from(NAMES)),
                max_size=8, unique=True))  # fmt: skip
def test_dropins_are_ordered_and_masked_as_systemd_does(
    tmp_path_factory: pytest.TempPathFactory, chosen: list[tuple[int, str]]
) -> None:
    unit = "sg-lang@a.service"
    names = dropins.directories(unit)
    dirs = [f"{root}/{name}" for root in dropins.LOOKUP for name in names[:-1]]
    dirs += [f"{root}/{names[-1]}" for root in dropins.LOOKUP]
    placed = [(dirs[(i * 7) % len(dirs)], name) for i, name in chosen]
    placed = list(dict.fromkeys(placed))
    theirs = oracle.conf_files(placed, tmp_path_factory.mktemp("root"), dirs)
    files = [_File(f"{folder}/{name}") for folder, name in placed]
    assert [f.path for f in dropins.ordered(unit, files)] == theirs


class _File:
    def __init__(self, path: str) -> None:
        self.path = path
