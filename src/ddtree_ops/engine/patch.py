"""Applies a series to a tree without writing to it, and says whether a tree has it already."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ddtree_ops.core.errors import PreconditionFailed
from ddtree_ops.engine.digests import sha256
from ddtree_ops.engine.series import Patch, Series

State = Literal["unpatched", "patched", "partly", "foreign"]


@dataclass(frozen=True)
class Patched:
    """What a series makes of a tree. files: changed and new files; pre: sha256 before, None for a new file."""

    files: dict[str, bytes]
    pre: dict[str, str | None]
    patches: list[tuple[str, str]]


@dataclass(frozen=True)
class Status:
    """Where a tree stands. file, expected, found: the first file that says so; found None: it is missing."""

    state: State
    file: str | None = None
    expected: str | None = None
    found: str | None = None

    def __str__(self) -> str:
        if self.file is None:
            return self.state
        found = f"has sha256 {self.found}" if self.found else "is missing"
        return f"{self.state}: {self.file} {found}, the series expects {self.expected or 'no such file'}"


def apply_series(series: Series, tree: Path, work_dir: Path | None = None) -> Patched:
    """Apply every patch to copies of the files it touches; `tree` (the engine's package) is only read.

    work_dir: where the copies lie (default: a temporary directory that is gone afterwards).
    Raises: PreconditionFailed naming file, expected and found sha256 where a pre-image differs, or the patch that
    does not apply and git's words.
    """
    pre: dict[str, str | None] = {path: _check_pre_image(series, tree, path) for path in sorted(series.base)}
    for path in series.whole:
        pre.setdefault(path, _check_pre_image(series, tree, path))
    patched = {path for patch in series.patches for path in patch.touches}
    with _scratch(tree, sorted(patched), work_dir) as scratch:
        for patch in series.patches:
            _git_apply(scratch, patch, series, tree)
        files = {path: (scratch / path).read_bytes() for path in sorted(patched)}
    files |= series.whole
    return Patched(files, {path: pre[path] for path in files}, [(p.name, p.sha256) for p in series.patches])


def status(series: Series, tree: Path) -> Status:
    """Compare a tree with what the series is for and makes.

    unpatched: every file is its pre-image. patched: every file is the series' result. partly: some of both.
    foreign: a file is neither; it is named with the pre-image's sha256 and its own.
    """
    seen: dict[str, Status] = {}
    for path in sorted(set(series.touched) | set(series.base)):
        found = _digest(tree / path)
        expected = series.base.get(path)
        if _is_result(series, tree, path):
            seen.setdefault("patched", Status("partly", path, expected, found))
        elif found == expected:
            if path in series.touched:
                seen.setdefault("unpatched", Status("partly", path, expected, found))
        else:
            return Status("foreign", path, expected, found)
    if len(seen) == 2:
        return seen["patched"]
    return Status("patched" if "patched" in seen else "unpatched")


def _is_result(series: Series, tree: Path, path: str) -> bool:
    """Whether the file is what the series makes: taking its patches back gives the pre-image, to the byte."""
    if path in series.whole:
        return _digest(tree / path) == sha256(series.whole[path])
    patches = [patch for patch in reversed(series.patches) if path in patch.touches]
    if not patches or not (tree / path).is_file():
        return False
    with _scratch(tree, [path], None) as scratch:
        for patch in patches:
            if _git(scratch, ["-R", f"--include={path}"], patch).returncode:
                return False
        return _digest(scratch / path) == series.base[path]


def _check_pre_image(series: Series, tree: Path, path: str) -> str | None:
    expected, found = series.base.get(path), _digest(tree / path)
    if found == expected:
        return found
    raise PreconditionFailed(
        f"{tree / path} is not the file that series {series.name} was made for",
        evidence=f"expected {_named(expected)}, found {_named(found)}",
        meaning=f"the series is for {series.engine} {series.version} as released; this tree was changed or is another",
        next=f"ddtree-ops patch check {series.directory} --tree {tree}",
    )


def _named(digest: str | None) -> str:
    return f"sha256 {digest}" if digest else "no such file"


def _digest(path: Path) -> str | None:
    return sha256(path.read_bytes()) if path.is_file() else None


@contextmanager
def _scratch(tree: Path, paths: list[str], work_dir: Path | None) -> Iterator[Path]:
    """A directory with copies of just these files."""
    with tempfile.TemporaryDirectory(prefix="series-", dir=work_dir) as name:
        for path in paths:
            copy = Path(name) / path
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(tree / path, copy)
        yield Path(name)


def _git_apply(scratch: Path, patch: Patch, series: Series, tree: Path) -> None:
    for check in (["--check"], []):
        done = _git(scratch, check, patch)
        if done.returncode:
            raise PreconditionFailed(
                f"{series.directory / patch.name} does not apply to {tree}",
                evidence=next(iter(done.stderr.decode("utf-8", "replace").splitlines()), "git said nothing"),
                meaning="a patch must apply with no fuzz, on top of those before it in the series",
                next=f"ddtree-ops patch check {series.directory} --tree {tree}",
            )


def _git(scratch: Path, options: list[str], patch: Patch) -> subprocess.CompletedProcess[bytes]:
    """`git apply -p1` in the scratch directory, out of reach of the user's configuration and repositories.

    Inside a repository git applies only what lies under its current directory, and skips the rest without a word.
    Raises: PreconditionFailed when there is no git here.
    """
    quiet = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1", "LC_ALL": "C"}
    environment = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    try:
        return subprocess.run(
            ["git", "apply", "-p1", *options, "-"],
            input=patch.data,
            cwd=scratch,
            env={**environment, **quiet, "GIT_CEILING_DIRECTORIES": str(scratch.resolve().parent)},
            capture_output=True,
            check=False,
        )
    except FileNotFoundError:
        raise PreconditionFailed("git is not installed here; series are applied with git apply") from None
