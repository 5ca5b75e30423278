"""What we write is what systemd, and then bash, reads: quoting round trips on made-up arguments."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ddtree_ops.units.bash_eval import Scope
from ddtree_ops.units.bash_find import Reader
from ddtree_ops.units.bash_lex import TooComplex
from ddtree_ops.units.command import expand_argv
from ddtree_ops.units.environ import Variables, read_environment
from ddtree_ops.units.execline import exec_value
from ddtree_ops.units.facts import SERVER, ExecFact
from ddtree_ops.units.quote import quote_assignment
from ddtree_ops.units.raw import RawFile, RawUnit
from ddtree_ops.units.server import NotAdoptable
from ddtree_ops.units.specifiers import Specifiers
from ddtree_ops.units.unit import merge

pytestmark = pytest.mark.tier("main")
HARD = "%$\"'\\ \t\n;#{}[]()&|<>*?~`!=a1é-:/@\x07\x7f\r"
words = st.lists(st.text(alphabet=HARD, max_size=12), max_size=6)
ENV = {"KEY": "the $value\" of 'it'", "A": "1 2"}


def as_systemd_runs_it(value: str) -> list[str]:
    unit = RawUnit("x.service", RawFile("/etc/systemd/system/x.service", f"[Service]\nExecStart={value}\n"))
    meaning = merge(unit)
    assert meaning.fatal is None and len(meaning.commands["ExecStart"]) == 1
    return expand_argv(meaning.commands["ExecStart"][0].argv, ENV).argv


def filled(word: str) -> str:
    return word.replace("${KEY}", ENV["KEY"])


@settings(max_examples=400, deadline=None)
@given(words, st.booleans())
@example(["--x", "", ";", "$A", "${A}", "%h", "a\\", "#", "100%", "$$", "--"], True)
@example(["{'a': \"b\"}\n; x"], False)
def test_an_argv_survives_the_unit(args: list[str], reference: bool) -> None:
    argv = ["/opt/v/bin/python", *args, *(["--key=${KEY}", "${KEY}"] if reference else [])]
    fact = ExecFact(argv=argv, secrets={"KEY": "captured"} if reference else {})
    assert as_systemd_runs_it(exec_value(fact, argv, {}, None, "h")) == [
        filled(w) if reference else w for w in argv
    ]


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet=HARD, max_size=20))
@example("50%h $A")
def test_an_environment_value_survives_the_unit(value: str) -> None:
    into = Variables()
    read_environment(quote_assignment("NAME", value), Specifiers("x.service"), into)
    assert into.values == {"NAME": value}


@settings(max_examples=60, deadline=None)
@given(words)
@example(["%h", "$A", "it's", "", "a\nb", "\\"])
def test_an_argv_survives_the_unit_and_bash(args: list[str]) -> None:
    argv = ["/usr/bin/printf", r"%s\0", *args, "${KEY}"]
    fact = ExecFact(
        argv=argv,
        wrapper="bash -c",
        outer=["/bin/bash", "-c", f"exec {SERVER} 2>&1 # $$A"],
        secrets={"KEY": "unit"},
    )
    command = as_systemd_runs_it(exec_value(fact, argv, {}, None, "h"))
    done = subprocess.run(command, capture_output=True, env={**ENV, "PATH": "/usr/bin:/bin"}, check=True)
    assert done.stdout.decode().split("\0")[:-1] == [*args, ENV["KEY"]]


PIECES = [
    '"$A"', "$A", "${A}", '"${B:-x y}"', "${B:-z}", "${C:-}", '"${C:-}"', "${A:+set}", '"${ARR[@]}"', "${ARR[1]}",
    '"${ARR[*]}"',
    "'q r'", '""', "plain", "pre\"mid\"'end'", "\\$A", '"\\$A"', "a\\ b", "$'t\\tb'", '"$@"', "$1", "$#", '"$*"',
    "x=$A",
    '"p${ARR[@]}s"', "$C", '"$C"', "-1", "{k:1}", "\\\n", '"a\\\nb"', "$", "a#b", '"#"',
]  # fmt: skip


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    stub = tmp_path_factory.mktemp("bin") / "python"
    stub.write_text("#!/bin/sh\nprintf '%s\\0' \"$@\"\n")
    stub.chmod(0o755)
    return stub


@settings(max_examples=150, deadline=None)
@given(st.lists(st.sampled_from(PIECES), max_size=6), st.sampled_from(["A=one", "A='two words'", "A=", "export A=x"]),
       st.lists(st.sampled_from(["p", "q r", ""]), max_size=2))  # fmt: skip
@example(['"$@"', "\\\n", "$A"], "A='two words'", [])
def test_bash_is_read_as_bash_runs_it(python: Path, pieces: list[str], first: str, args: list[str]) -> None:
    script = (
        f"{first}\nARR=(1 \"two 2\" ''); true && {python} -m sglang.launch_server {' '.join(pieces)} | cat"
    )
    reader = Reader(script, Scope(positional=args, zero="sh"))
    try:
        ours = reader.find().argv[1:]
    except (TooComplex, NotAdoptable):
        return
    done = subprocess.run(
        ["bash", "-c", script, "sh", *args], capture_output=True, env={"PATH": "/usr/bin:/bin"}, check=True
    )
    assert ours == done.stdout.decode().split("\0")[:-1]
