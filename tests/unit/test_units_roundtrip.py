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


STATEMENTS = [
    "A=1", "true && A=2", "false && A=3", "false || A=4", "true || A=5", "if true; then A=6; fi",
    "if false; then A=7; fi",
    "A=8 | cat", "(A=9)", "unset A", "set -- x y", "shift", "shift 2", "true && shift", "f() { A=10; ARR+=(f); }",
    "type f >/dev/null 2>&1 && f", "f 2>/dev/null", "export A=11", "ARR+=(z)", "ARR=(a b)", "false && ARR=(n)",
    "A+=q", "declare A=12", "A=13 true", "cd / && A=14", ": ${A:=15}", "false && : ${A:=16}", ": ${B=17} | cat",
    "case x in a) A=18;; *) A=19;; esac", "for A in 1 2; do :; done", "while false; do A=20; done", "A=21 & wait",
    "true &&\nA=22", "true && A=23 && false; :", "eval A=24", "((A=25))", "printf -v A 26", "{ A=27; }", "A=$B",
    'B="$A$1"', "readonly C=3 2>/dev/null", "[[ -n $A && -z $Z ]] && A=28", "true && A=29 || A=30", "# A=31",
    "echo '(' >/dev/null; A=32", "let A=33", "declare -a ARR=(d e)", "A=34 ; unset A", "true && unset A",
    "B=$(echo 35)",
    "function g { A=36; }", "type g >/dev/null 2>&1 && g", "A=37 || true", "! true && A=38", "A=39 && true",
    "cat >/dev/null <<E\nA=40 '\nE", "cat <<-'E' >/dev/null; A=41\n\tx\n\tE", ": > >(cat) && A=42",
    "A=$(dirname \"$0\")",
    "B=$(cd \"/usr/../usr\" && pwd)",
]  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from(STATEMENTS), max_size=5), st.booleans())
@example(["A=1", "f() { A=10; ARR+=(f); }", "A=1", "f 2>/dev/null"], False)
@example(["true && A=23 && false; :"], False)
@example(["A=1", "true && A=2"], True)
def test_what_is_made_of_a_script_is_what_bash_makes_of_it(
    python: Path, statements: list[str], chained: bool
) -> None:
    joint = " && " if chained else "\n"
    server = f'{python} -m sglang.launch_server "--a=$A" "${{ARR[@]}}" "$@" "--b=${{B-none}}"'
    script = "\n".join(s.replace("\\n", "\n") for s in statements) + (joint if statements else "") + server
    reader = Reader(script, Scope(positional=["p", "q"], zero="sh"))
    try:
        ours = reader.find().argv[1:]
    except (TooComplex, NotAdoptable):
        return
    done = subprocess.run(
        ["bash", "-c", script, "sh", "p", "q"],
        capture_output=True,
        env={"PATH": "/usr/bin:/bin"},
        check=False,
    )
    if not done.stdout and chained:
        return  # the chain broke: no server, so nothing to compare
    assert ours == done.stdout.decode().split("\0")[:-1]
