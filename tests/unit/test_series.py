"""Series directories, ours and a user's: loaded with every fault named, applied exactly, or refused."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ddtree_ops.cli.patch import app
from ddtree_ops.core.errors import PreconditionFailed, UsageProblem
from ddtree_ops.core.modes import rewrite
from ddtree_ops.data import data_dir
from ddtree_ops.engine.patch import apply_series, status
from ddtree_ops.engine.series import load_series

pytestmark = pytest.mark.tier("main")

BEFORE = "one\ntwo\nthree\nfour\nfive\n"
AFTER = "one\ntwo\n3\nfour\nfive\n"
DIFF = "Why.\n\n--- a/srt/a.py\n+++ b/srt/a.py\n@@ -2,3 +2,3 @@\n two\n-three\n+3\n four\n"


def sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """An engine's package of two files."""
    root = tmp_path / "site-packages" / "sglang"
    (root / "srt").mkdir(parents=True)
    (root / "srt" / "a.py").write_text(BEFORE)
    (root / "srt" / "b.py").write_text("untouched\n")
    return root


Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """write(name=text, …) -> the series directory; the default is a user's own two-line series."""

    def build(**extra: str) -> Path:
        directory = tmp_path / "mine"
        directory.mkdir(exist_ok=True)
        base = {"engine": "sglang", "version": "0.5.11", "files": {"srt/a.py": sha(BEFORE)}}
        texts = {"series": "0001-three.patch\n", "0001-three.patch": DIFF, "base.json": json.dumps(base)}
        for name, text in {**texts, **extra}.items():
            path = directory / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return directory

    return build


def snapshot(tree: Path) -> dict[str, bytes]:
    return {str(p.relative_to(tree)): p.read_bytes() for p in tree.rglob("*") if p.is_file()}


def test_a_users_two_line_series_applies_and_leaves_the_tree_alone(tree: Path, write: Write) -> None:
    before = snapshot(tree)
    patched = apply_series(load_series(write()), tree)
    assert patched.files == {"srt/a.py": AFTER.encode()}
    assert patched.pre == {"srt/a.py": sha(BEFORE)}
    assert patched.patches == [("0001-three.patch", sha(DIFF))]
    assert snapshot(tree) == before


def test_whole_files_new_and_replaced(tree: Path, write: Write) -> None:
    base = {
        "engine": "sglang",
        "version": "0.5.11",
        "files": {"srt/a.py": sha(BEFORE), "srt/b.py": sha("untouched\n")},
    }
    files = {
        "files/srt/b.py": "replaced\n",
        "shared.py": "new\n",
        "files.txt": "shared.py -> srt/new.py  # ours\n",
        "base.json": json.dumps(base),
    }
    patched = apply_series(load_series(write(**files)), tree)
    assert patched.files == {"srt/a.py": AFTER.encode(), "srt/b.py": b"replaced\n", "srt/new.py": b"new\n"}
    assert patched.pre["srt/b.py"] == sha("untouched\n")
    assert patched.pre["srt/new.py"] is None


def test_a_new_file_never_overwrites_one_that_the_series_does_not_know(tree: Path, write: Write) -> None:
    series = load_series(write(**{"files/srt/b.py": "replaced\n"}))
    with pytest.raises(PreconditionFailed, match=r"srt/b\.py"):
        apply_series(series, tree)


def test_a_different_pre_image_is_refused_by_name_and_both_hashes(tree: Path, write: Write) -> None:
    edited = BEFORE.replace("five", "5")  # the patch would apply: the hash alone tells
    (tree / "srt" / "a.py").write_text(edited)
    with pytest.raises(PreconditionFailed) as caught:
        apply_series(load_series(write()), tree)
    assert str(tree / "srt" / "a.py") in caught.value.what
    assert sha(BEFORE) in str(caught.value.evidence)
    assert sha(edited) in str(caught.value.evidence)


def test_no_fuzz(tree: Path, write: Write) -> None:
    fuzzy = DIFF.replace(" four", " 4")  # `patch` would take this with fuzz 1
    with pytest.raises(PreconditionFailed) as caught:
        apply_series(load_series(write(**{"0001-three.patch": fuzzy})), tree)
    assert "does not apply" in caught.value.what
    assert "srt/a.py" in str(caught.value.evidence)


@pytest.mark.parametrize("setting", ["home", "GIT_DIR", "inside"])
def test_no_repository_and_no_configuration_of_the_user_changes_the_outcome(
    setting: str, tree: Path, write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each would: apply.whitespace=fix edits the result, and a repository around the copies makes git skip them."""
    repository = tmp_path / "repo"
    subprocess.run(["git", "init", "-q", str(repository)], check=True)
    subprocess.run(["git", "-C", str(repository), "config", "apply.whitespace", "fix"], check=True)
    work = tmp_path / "work"
    if setting == "home":
        monkeypatch.setenv("HOME", str(tmp_path))
        (tmp_path / ".gitconfig").write_text("[apply]\n\twhitespace = fix\n")
    elif setting == "GIT_DIR":
        monkeypatch.setenv("GIT_DIR", str(repository / ".git"))
    else:
        work = repository / "state"
    work.mkdir()
    spaced = DIFF.replace("+3\n", "+3  \n").replace("--- a", "diff --git a/srt/a.py b/srt/a.py\n--- a")
    patched = apply_series(load_series(write(**{"0001-three.patch": spaced})), tree, work)
    assert patched.files["srt/a.py"] == AFTER.replace("3\n", "3  \n").encode()
    assert list(work.iterdir()) == []


def test_status(tree: Path, write: Write) -> None:
    series = load_series(write(**{"files/srt/new.py": "new\n"}))
    assert status(series, tree).state == "unpatched"
    (tree / "srt" / "a.py").write_text(AFTER)
    partly = status(series, tree)
    assert (partly.state, partly.file, partly.found) == ("partly", "srt/a.py", sha(AFTER))
    (tree / "srt" / "new.py").write_text("new\n")
    assert status(series, tree).state == "patched"
    (tree / "srt" / "a.py").write_text(AFTER + "edited\n")
    foreign = status(series, tree)
    assert (foreign.state, foreign.file, foreign.expected) == ("foreign", "srt/a.py", sha(BEFORE))
    (tree / "srt" / "a.py").unlink()
    assert status(series, tree).found is None


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"series": "# none\n\nmissing.patch\n"}, "series:3: missing.patch: there is no such patch"),
        ({"series": "0001-three.patch\n0001-three.patch\n"}, "series:2: 0001-three.patch: listed twice"),
        ({"series": "../x.patch\n"}, "series:1: ../x.patch: a patch lies beside"),
        ({"0001-three.patch": "nothing\n"}, "0001-three.patch:1: not a unified diff"),
        (
            {"0001-three.patch": DIFF.replace("srt/", "../")},
            "0001-three.patch:3: ../a.py: expected a plain path",
        ),
        (
            {"0001-three.patch": DIFF.replace("--- a/srt/a.py", "--- /dev/null")},
            "0001-three.patch:3: expected a/PATH",
        ),
        ({"0001-three.patch": "GIT binary patch\n"}, "0001-three.patch:1: a binary patch"),
        ({"base.json": '{\n  "files": oops\n}'}, "base.json:2: not JSON"),
        (
            {"base.json": '{"engine": "x", "version": "1",\n "files": {"srt/a.py": "12"}}'},
            "base.json:2: srt/a.py: not a sha256",
        ),
        (
            {"base.json": '{"engine": "x", "version": "1", "files": {}}'},
            "base.json:1: srt/a.py: 0001-three.patch changes",
        ),
        ({"base.json": '{"engine": "x", "engine": "y"}'}, "base.json:1: the key engine stands there twice"),
        ({"files.txt": "x.py\n"}, "files.txt:1: expected `FILE -> PATH`"),
        ({"files.txt": "\nx.py -> srt/x.py\n"}, "files.txt:2: x.py: there is no such file"),
        ({"files.txt": "series -> /etc/x\n"}, "files.txt:1: /etc/x: expected a plain path"),
        ({"files/srt/a.py": "x"}, "srt/a.py: it is also replaced as a whole file"),
        ({"modes.yaml": "modes: {\n"}, "modes.yaml:2"),
        ({"modes.yaml": "modes: {shadow: {sets: {}}}\n"}, "modes.yaml: modes.shadow: unknown key sets"),
    ],
)
def test_a_faulty_series_is_named_by_file_and_line(write: Write, files: dict[str, str], said: str) -> None:
    with pytest.raises(UsageProblem) as caught:
        load_series(write(**files))
    assert said in caught.value.what


def test_all_faults_at_once(write: Write) -> None:
    with pytest.raises(UsageProblem) as caught:
        load_series(write(series="missing.patch\n", **{"files.txt": "x\n", "base.json": "{"}))
    assert len(caught.value.what.splitlines()) == 3


def test_no_such_directory(tmp_path: Path) -> None:
    with pytest.raises(UsageProblem, match="no such series directory"):
        load_series(tmp_path / "nowhere")


def test_patch_check_says_whether_a_series_fits(tree: Path, write: Write) -> None:
    directory = write()
    words = ["check", str(directory), "--tree", str(tree), "--json"]
    fits = json.loads(CliRunner().invoke(app, words, catch_exceptions=False).stdout)
    assert (fits["state"], fits["files"]) == ("unpatched", ["srt/a.py"])
    (tree / "srt" / "a.py").write_text(AFTER)
    there = CliRunner().invoke(app, words[:-1], catch_exceptions=False)
    assert "in the tree already: srt/a.py" in there.stdout
    (tree / "srt" / "a.py").write_text("else\n")
    with pytest.raises(PreconditionFailed, match="not what series mine was made for"):
        CliRunner().invoke(app, words, catch_exceptions=False)


def test_our_series_loads_and_says_what_each_mode_means() -> None:
    series = load_series(data_dir("engine_patches") / "sglang-0.5.11")
    assert (series.engine, series.version) == ("sglang", "0.5.11")
    assert "srt/speculative/ddtree_worker.py" in series.whole
    shadow = series.modes.get("shadow")
    assert shadow.patched
    assert dict(shadow.set)["--speculative-ddtree-shadow-linear"] is None
    assert shadow.state["ddtree_mode"] == "shadow-linear"
    assert not series.modes.get("dflash").patched
    full = series.modes.get("full")
    assert full.patched and full.proven_by == "shadow" and full.state["ddtree_mode"] == "full"
    assert full.state["speculative_ddtree_shadow_linear"] is False
    assert not [flag for flag, _ in full.set if "shadow" in flag]


def test_every_module_that_ours_import_travels_with_them() -> None:
    """On a CPU nothing imports the kernels, so a forgotten one would show on the GPU host alone."""
    whole = load_series(data_dir("engine_patches") / "sglang-0.5.11").whole
    named = {
        name
        for content in whole.values()
        for name in re.findall(r"(?:from \.|speculative\.)(ddtree_\w+) import", content.decode())
    }
    assert len(named) > 10
    assert {f"srt/speculative/{name}.py" for name in named} <= set(whole)


def test_shadow_on_a_hybrid_nextn_unit_keeps_what_the_operator_set() -> None:
    modes = load_series(data_dir("engine_patches") / "sglang-0.5.11").modes
    kept = ["--model-path", "/m/27b", "--tp", "2", "--port", "30000"]
    nextn = ["--speculative-algorithm", "NEXTN", "--speculative-num-steps", "3"]
    values: dict[str, str | int | None] = {"draft": "/m/draft", "budget": 16, "topk": 4, "shadow_every": 8}
    done = rewrite(["python3", "-m", "x", *kept, *nextn], 3, modes, modes.get("shadow"), values, hybrid=True)
    assert done.argv[: 3 + len(kept)] == ["python3", "-m", "x", *kept]
    assert [flag for flag, _ in done.added] == ["--disable-radix-cache"]
    assert "NEXTN" not in done.argv
    assert done.state["speculative_ddtree_budget"] == 16
    extra = [*kept, "--mamba-scheduler-strategy", "extra_buffer"]
    buffered = rewrite(["x", *extra], 1, modes, modes.get("shadow"), values, hybrid=True)
    assert buffered.added == []
    with pytest.raises(PreconditionFailed, match="one pipeline stage"):
        rewrite(["x", "--pp-size", "2"], 1, modes, modes.get("dflash"), values, hybrid=False)
    with pytest.raises(PreconditionFailed, match="recurrent state"):
        rewrite(["x"], 1, modes, modes.get("full"), values, hybrid=True)
