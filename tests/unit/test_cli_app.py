"""The command line's shell: light help, sentences for errors, exit codes, nothing leaked."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from ddtree_ops.cli import app as cli
from ddtree_ops.config import Secret
from ddtree_ops.core.errors import PreconditionFailed

pytestmark = pytest.mark.tier("main")
HEAVY = ["fabric", "invoke", "paramiko", "httpx", "ruamel", "pydantic", "torch", "jinja2", "rich.live"]


def run(*words: str, cwd: Path | None = None, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "ddtree_ops", *words],
        cwd=cwd,
        env={**os.environ, **env},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )


@pytest.fixture
def verb(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], None]], None]:
    """Make `ddtree-ops status` call a function of the test."""

    def install(function: Callable[[], None]) -> None:
        module = ModuleType("ddtree_ops.cli.made_up")
        module.status = function  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, module.__name__, module)
        monkeypatch.setitem(cli.Verbs.table, "status", (module.__name__, "status", "Made up."))

    return install


@pytest.mark.parametrize("words", [["--help"], ["--version"], ["deplyo"]])
def test_help_and_typing_errors_import_nothing_heavy(words: list[str]) -> None:
    script = (
        "import sys\nfrom ddtree_ops.cli.app import run\n"
        f"rc = run({words!r})\n"
        f"print('HEAVY', [m for m in {HEAVY!r} if m in sys.modules], 'VERBS',"
        " [m for m in sys.modules if m.startswith('ddtree_ops.cli.') and '._' not in m and not m.endswith('.app')])\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    expected = "HEAVY [] VERBS []" if words[0].startswith("--") else "VERBS []"
    assert expected in done.stdout, done.stdout


def test_help_lists_every_verb_with_a_line() -> None:
    text = run("--help", COLUMNS="100").stdout
    for name, (_, _, line) in cli.Verbs.table.items():
        assert f"  {name} " in text
        assert f"{line}\n" in text  # whole, not cut to the terminal's width


@pytest.mark.parametrize("name", list(cli.Verbs.table))
def test_every_verb_has_its_own_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run([name, "--help"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert f"Usage: ddtree-ops {name}" in out


@pytest.mark.parametrize(
    ("words", "said", "step"),
    [
        (["deplyo"], "no such command 'deplyo'; did you mean deploy?", "ddtree-ops --help"),
        (["xyzzy"], "no such command 'xyzzy'", "ddtree-ops --help"),
        (["--verison"], "no such option: --verison; did you mean --version?", "ddtree-ops --help"),
        (["init", "--jsno"], "no such option: --jsno; did you mean --json?", "ddtree-ops init --help"),
        (["schema", "extra"], "got unexpected extra argument(s) (extra)", "ddtree-ops schema --help"),
    ],
)
def test_a_mistyped_command_is_exit_2_with_a_hint(words: list[str], said: str, step: str) -> None:
    done = run(*words)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"ddtree-ops: {said}\n  next: {step}\n"


def test_no_verb_shows_the_help_but_is_not_success() -> None:
    done = run()
    assert (done.returncode, done.stdout) == (2, "")
    assert "Commands:" in done.stderr


def test_an_error_is_a_sentence_a_document_and_a_code(
    verb: Callable[[Callable[[], None]], None], capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> None:
        raise PreconditionFailed(
            "the port is taken", host="ct129", evidence="pid 7 holds 30000", next="kill 7"
        )

    verb(fail)
    assert cli.run(["status"]) == 3
    out, err = capsys.readouterr()
    assert out == ""
    first, *more = err.splitlines()
    assert first == "ddtree-ops: ct129: the port is taken"
    assert "pid 7 holds 30000" in more[0]
    assert more[1] == "  next: kill 7"


@pytest.mark.parametrize(("flag", "lines"), [("--json", None), ("--events", 1)])
def test_a_machine_reads_the_error_on_stdout(
    verb: Callable[[Callable[..., None]], None],
    capsys: pytest.CaptureFixture[str],
    flag: str,
    lines: int | None,
) -> None:
    def fail(json: bool = False, events: bool = False) -> None:
        raise PreconditionFailed("the port is taken", host="ct129")

    verb(fail)
    assert cli.run(["status", flag]) == 3
    out = capsys.readouterr().out
    document = json.loads(out)
    assert (document["schema_version"], document["ok"]) == (1, False)
    assert (document["error"]["kind"], document["error"]["exit_code"]) == ("precondition", 3)
    assert lines is None or len(out.splitlines()) == lines


def test_json_is_one_document_even_where_the_verb_printed_it_and_then_failed(
    verb: Callable[[Callable[..., None]], None], capsys: pytest.CaptureFixture[str]
) -> None:
    def partly(json: bool = False) -> None:
        from ddtree_ops.cli._sinks import document

        document({"hosts": {"a": "down"}})
        raise PreconditionFailed("not every host answered")

    verb(partly)
    for _ in range(2):
        assert cli.run(["status", "--json"]) == 3
        assert json.loads(capsys.readouterr().out) == {"schema_version": 1, "hosts": {"a": "down"}}


def test_a_usage_error_is_a_document_too() -> None:
    document = json.loads(run("deplyo", "--json").stdout)
    assert (document["error"]["kind"], document["error"]["exit_code"]) == ("usage", 2)


def test_a_bug_is_one_line_and_a_file_without_secrets(
    verb: Callable[[Callable[[], None]], None],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    secret = Secret("canary-in-a-bug")

    def fail() -> None:
        raise ZeroDivisionError(f"could not use {secret.reveal()}\nsecond line")

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    verb(fail)
    assert cli.run(["status", "--json"][:1]) == 1
    err = capsys.readouterr().err
    assert "a bug in ddtree-ops: ZeroDivisionError: could not use ***" in err
    assert "Traceback" not in err
    (file,) = tmp_path.glob("*.traceback")
    assert str(file) in err
    text = file.read_text()
    assert "Traceback" in text and "in fail" in text
    assert "canary" not in text.replace("secret.reveal()", "") + err
    assert file.stat().st_mode & 0o077 == 0


def test_an_interrupt_is_130(
    verb: Callable[[Callable[[], None]], None], capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> None:
        raise KeyboardInterrupt

    verb(fail)
    assert cli.run(["status"]) == 130
    assert "interrupted" in capsys.readouterr().err


def test_a_verbs_number_is_the_exit_code(verb: Callable[[Callable[[], object]], None]) -> None:
    verb(lambda: 5)
    assert cli.run(["status"]) == 5
    verb(lambda: None)
    assert cli.run(["status"]) == 0


def test_a_reader_that_leaves_is_no_error() -> None:
    done = subprocess.run(
        ["sh", "-c", '"$0" -m ddtree_ops schema | head -1', sys.executable], capture_output=True, text=True
    )
    assert (done.stdout, done.stderr) == ("{\n", "")


def test_faults_of_hosts_yaml_open_their_lines_and_are_listed_for_machines(tmp_path: Path) -> None:
    (tmp_path / "hosts.yaml").write_text("version: 2\nhosts: {a: {prot: 1}}\n")
    done = run("status", "--json", cwd=tmp_path)
    assert done.returncode == 2
    assert [line.split(": ")[0] for line in done.stderr.splitlines()] == [
        "hosts.yaml:1:10",
        "hosts.yaml:2:13",
        "  next",
    ]
    problems = json.loads(done.stdout)["error"]["problems"]
    assert [(p["line"], p["column"], p["path"]) for p in problems] == [
        (1, 10, "version"),
        (2, 13, "hosts.a.prot"),
    ]


def test_a_missing_hosts_yaml_and_an_unknown_host(tmp_path: Path) -> None:
    done = run("status", "--config", "nope.yaml", cwd=tmp_path)
    assert (done.returncode, "next: ddtree-ops init" in done.stderr) == (2, True)
    (tmp_path / "hosts.yaml").write_text("version: 1\nhosts: {ct129: {address: nowhere.invalid}}\n")
    done = run("status", "--host", "ct192", cwd=tmp_path)
    assert (done.returncode, "did you mean ct129?" in done.stderr) == (2, True)


# init and schema


def test_init_writes_a_file_that_loads_and_never_overwrites(tmp_path: Path) -> None:
    done = run("init", "--json", cwd=tmp_path)
    assert (done.returncode, json.loads(done.stdout)["path"]) == (0, "hosts.yaml")
    from ddtree_ops.config import load_inventory

    load_inventory(tmp_path / "hosts.yaml")
    (tmp_path / "hosts.yaml").write_text("mine")
    again = run("init", cwd=tmp_path)
    assert again.returncode == 2
    assert "hosts.yaml is there already and was left as it is" in again.stderr
    assert (tmp_path / "hosts.yaml").read_text() == "mine"


def test_init_into_nowhere_says_what_to_make(tmp_path: Path) -> None:
    done = run("init", "sub/hosts.yaml", cwd=tmp_path)
    assert done.returncode == 2
    assert "next: mkdir -p sub" in done.stderr


def test_schema_prints_the_shipped_file() -> None:
    shipped = (Path(__file__).resolve().parents[2] / "hosts.schema.json").read_text(encoding="utf-8")
    assert run("schema").stdout == shipped


# Completion


def complete(words: str, cwd: Path, **env: str) -> list[str]:
    count = len(words.split(" ")) - 1
    done = run(
        cwd=cwd,
        _DDTREE_OPS_COMPLETE="complete_bash",
        COMP_WORDS=words,
        COMP_CWORD=str(count),
        **env,
    )
    return done.stdout.split()


def test_completion_knows_verbs_and_hosts(tmp_path: Path) -> None:
    (tmp_path / "hosts.yaml").write_text(
        "version: 1\ngroups: {cgroup: {}}\nhosts: {ct129: {address: nowhere.invalid}, ct200: {}, db: {}}\n"
    )
    (tmp_path / "other.yaml").write_text("version: 1\nhosts: {cother: {}}\n")
    assert {"deploy", "doctor"} <= set(complete("ddtree-ops d", tmp_path))
    assert complete("ddtree-ops status --host c", tmp_path) == ["ct129", "ct200", "cgroup"]
    assert complete("ddtree-ops status --config other.yaml --host c", tmp_path) == ["cother"]


def test_completion_over_a_broken_file_is_silent(tmp_path: Path) -> None:
    (tmp_path / "hosts.yaml").write_text("version: [")
    assert complete("ddtree-ops status --host c", tmp_path) == []
