"""Digests that say "the same": a source tree, a release's sources, a release."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

#: Hex digits of a digest where it names a directory; manifests hold the files' whole sha256.
SHORT = 16


def sha256(data: bytes) -> str:
    """sha256, hex."""
    return hashlib.sha256(data).hexdigest()


def tree_files(package: Path) -> Iterator[str]:
    """Relative paths of a package's files, sorted within each directory, without bytecode."""
    for path in sorted(package.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts and path.suffix not in (".pyc", ".pyo"):
            yield path.relative_to(package).as_posix()


def tree_hashes(package: Path) -> dict[str, str]:
    """sha256 of every file of a package, by relative path."""
    return {path: sha256((package / path).read_bytes()) for path in tree_files(package)}


def tree_digest(hashes: Mapping[str, str]) -> str:
    """One sha256 over a package's (path, sha256) pairs; the agent computes the same one on the host."""
    return sha256("".join(f"{path}\0{hashes[path]}\n" for path in sorted(hashes)).encode())


def canonical(value: Any) -> str:
    """A digest of JSON data that does not depend on key order."""
    return sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode())
