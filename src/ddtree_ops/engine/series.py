"""A patch series as data: patches, whole new files, the pre-images they were made for, and what a mode means."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from ddtree_ops.core.errors import UsageProblem
from ddtree_ops.core.modes import Modes
from ddtree_ops.core.modes_file import read_modes
from ddtree_ops.engine.digests import sha256

_HEX = re.compile(r"[0-9a-f]{64}")
_UNWANTED = {
    "GIT binary patch": "a binary patch; put the file whole into files/",
    "rename from ": "a rename; put the new file whole into files/",
    "deleted file mode ": "a deletion; the overlay only adds and changes files",
}


@dataclass(frozen=True)
class Patch:
    """One unified diff. touches: paths relative to the package, in the order of the diff."""

    name: str
    data: bytes
    touches: tuple[str, ...]

    @property
    def sha256(self) -> str:
        """What a manifest records the patch by."""
        return sha256(self.data)


@dataclass(frozen=True)
class Series:
    """A series directory, loaded. base: pre-image sha256 by path. whole: files that go in as they are, by path."""

    directory: Path
    engine: str
    version: str
    base: Mapping[str, str]
    patches: tuple[Patch, ...]
    whole: Mapping[str, bytes]
    modes: Modes

    @property
    def name(self) -> str:
        """The directory's name, which hosts.yaml uses."""
        return self.directory.name

    @property
    def touched(self) -> tuple[str, ...]:
        """Every path that the patched tree has otherwise than the base, sorted."""
        return tuple(sorted({path for patch in self.patches for path in patch.touches} | set(self.whole)))


class _Faults:
    """Collects `file:line: sentence`, so that one run shows all of them."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def add(self, file: Path, line: int, sentence: str) -> None:
        self.lines.append(f"{file}:{line}: {sentence}")


def load_series(directory: Path) -> Series:
    """Read and validate a series directory (docs/protocol.md section 3).

    Raises: UsageProblem with every fault as `file:line: sentence`.
    """
    if not directory.is_dir():
        raise UsageProblem(
            f"{directory}: there is no such series directory", next="set series: in hosts.yaml"
        )
    faults = _Faults()
    base = _read_base(directory / "base.json", faults)
    patches = _read_patches(directory / "series", faults)
    whole = _read_whole(directory, faults)
    modes = _read_modes(directory / "modes.yaml", faults)
    _cross_check(directory, base, patches, whole, faults)
    if faults.lines:
        raise UsageProblem("\n".join(faults.lines), next=f"ddtree-ops patch check {directory} --tree PACKAGE")
    return Series(directory, base["engine"], base["version"], base["files"], tuple(patches), whole, modes)


def _read_base(file: Path, faults: _Faults) -> dict[str, Any]:
    empty: dict[str, Any] = {"engine": "", "version": "", "files": {}}
    try:
        data = json.loads(file.read_text(encoding="utf-8"), object_pairs_hook=_no_duplicates)
    except json.JSONDecodeError as error:
        faults.add(file, error.lineno, f"not JSON: {error.msg}")
        return empty
    except (OSError, UnicodeDecodeError, _DuplicateKey) as error:
        faults.add(file, 1, _why(error))
        return empty
    if not isinstance(data, dict) or not isinstance(data.get("files"), dict):
        faults.add(file, 1, 'expected {"engine": …, "version": …, "files": {path: sha256}}')
        return empty
    lines = file.read_text(encoding="utf-8").splitlines()
    for key in ("engine", "version"):
        if not isinstance(data.get(key), str):
            faults.add(file, 1, f"{key} must be a string")
    for path, digest in data["files"].items():
        line = next((n for n, text in enumerate(lines, 1) if json.dumps(path) in text), 1)
        if reason := _bad_path(path):
            faults.add(file, line, reason)
        if not isinstance(digest, str) or not _HEX.fullmatch(digest):
            faults.add(file, line, f"{path}: not a sha256: {digest}")
    return data


class _DuplicateKey(ValueError):
    pass


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    names = [name for name, _ in pairs]
    for name in names:
        if names.count(name) > 1:
            raise _DuplicateKey(f"the key {name} stands there twice")
    return dict(pairs)


def _read_patches(file: Path, faults: _Faults) -> list[Patch]:
    patches: list[Patch] = []
    for line, name in _lines(file, faults):
        path = file.parent / name
        if "/" in name or name in (".", ".."):
            faults.add(file, line, f"{name}: a patch lies beside the series file")
        elif name in {patch.name for patch in patches}:
            faults.add(file, line, f"{name}: listed twice")
        elif not path.is_file():
            faults.add(file, line, f"{name}: there is no such patch")
        else:
            patches.append(_read_patch(path, faults))
    return patches


def _read_patch(path: Path, faults: _Faults) -> Patch:
    data = path.read_bytes()
    touches: list[str] = []
    lines = data.decode("utf-8", "replace").split("\n")
    for number, text in enumerate(lines, 1):
        for start, reason in _UNWANTED.items():
            if text.startswith(start):
                faults.add(path, number, reason)
        following = lines[number] if number < len(lines) else ""
        if not (text.startswith("--- ") and following.startswith("+++ ")):
            continue
        old, new = (line.split("\t")[0][4:].strip() for line in (text, following))
        if old != f"a/{new[2:]}" or new[:2] != "b/":
            faults.add(
                path, number, f"expected a/PATH and b/PATH of one file that exists, got {old} and {new}"
            )
        elif bad := _bad_path(new[2:]):
            faults.add(path, number, bad)
        else:
            touches.append(new[2:])
    if not touches and not any(str(path) in fault for fault in faults.lines):
        faults.add(path, 1, "not a unified diff: no `--- a/PATH` line followed by `+++ b/PATH`")
    return Patch(path.name, data, tuple(touches))


def _read_whole(directory: Path, faults: _Faults) -> dict[str, bytes]:
    whole: dict[str, bytes] = {}
    root = directory / "files"
    if root.is_dir():
        for path in sorted(root.rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                whole[path.relative_to(root).as_posix()] = path.read_bytes()
    listing = directory / "files.txt"
    if listing.exists():
        for line, text in _lines(listing, faults):
            source, arrow, target = (part.strip() for part in text.partition("->"))
            if not (source and arrow and target):
                faults.add(listing, line, f"expected `FILE -> PATH`, got {text}")
            elif reason := _bad_path(target):
                faults.add(listing, line, reason)
            elif target in whole:
                faults.add(listing, line, f"{target}: two files go there")
            elif not (directory / source).is_file():
                faults.add(listing, line, f"{source}: there is no such file")
            else:
                whole[target] = (directory / source).read_bytes()
    return whole


def _read_modes(file: Path, faults: _Faults) -> Modes:
    from ddtree_ops.config.document import read_document
    from ddtree_ops.config.problems import ConfigProblem

    if not file.exists():
        return Modes(drop=(), modes={})
    try:
        document = read_document(file)
        if document.problems:
            raise ConfigProblem(file, document.problems)
        return read_modes(document.data, str(file))
    except UsageProblem as problem:
        faults.lines.append(problem.what)
        return Modes(drop=(), modes={})


def _cross_check(
    directory: Path,
    base: Mapping[str, Any],
    patches: list[Patch],
    whole: Mapping[str, bytes],
    faults: _Faults,
) -> None:
    if not patches and not whole and not faults.lines:
        faults.add(directory / "series", 1, "the series has neither a patch nor a whole file")
    for patch in patches:
        for path in patch.touches:
            if path not in base["files"]:
                faults.add(
                    directory / "base.json", 1, f"{path}: {patch.name} changes it, its sha256 is missing"
                )
            if path in whole:
                faults.add(directory / patch.name, 1, f"{path}: it is also replaced as a whole file")


def _lines(file: Path, faults: _Faults) -> list[tuple[int, str]]:
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        faults.add(file, 1, _why(error))
        return []
    numbered = ((n, line.partition("#")[0].strip()) for n, line in enumerate(text.splitlines(), 1))
    return [(n, line) for n, line in numbered if line]


def _bad_path(path: str) -> str | None:
    pure = PurePosixPath(path)
    if not path or pure.is_absolute() or ".." in pure.parts or pure.as_posix() != path:
        return f"{path}: expected a plain path relative to the engine's package"
    return None


def _why(error: Exception) -> str:
    if isinstance(error, OSError):
        return f"cannot be read: {error.strerror}"
    return "not UTF-8" if isinstance(error, UnicodeDecodeError) else str(error)
