"""The engine's sources of a host, fetched once, verified, and kept by content under the user's state directory."""

from __future__ import annotations

import base64
import io
import os
import shutil
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

from ddtree_ops.core.errors import PreconditionFailed
from ddtree_ops.engine.digests import tree_digest, tree_hashes


class Caller(Protocol):
    """What a snapshot needs of an agent client."""

    def events(self, op: str, request: dict[str, Any]) -> Iterator[dict[str, Any]]: ...


def state_dir() -> Path:
    """Where snapshots are kept: $XDG_STATE_HOME/ddtree-ops, by default ~/.local/state/ddtree-ops."""
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(base) / "ddtree-ops"


def stored(tree: str) -> Path | None:
    """The snapshot with this tree digest, if it is here and still is what its name says."""
    path = state_dir() / "snapshots" / tree
    if not path.is_dir():
        return None
    if tree_digest(tree_hashes(path)) != tree:
        shutil.rmtree(path)  # edited or torn by hand: fetch it again rather than build on it
        return None
    return path


def fetch(client: Caller, host: str, package: str, tree: str) -> Path:
    """Return the snapshot of `package` whose tree digest is `tree`, over the line only where it is not here yet.

    Raises PreconditionFailed where the sources that arrive are not those that the probe saw.
    """
    found = stored(tree)
    if found is not None:
        return found
    target = state_dir() / "snapshots" / tree
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".fetch-") as scratch:
        here = Path(scratch) / "tree"
        here.mkdir()
        _unpack(_chunks(client, package), here)
        arrived = tree_digest(tree_hashes(here))
        if arrived != tree:
            raise PreconditionFailed(
                f"the engine's sources changed while they were fetched from {package}",
                host=host,
                evidence=f"expected tree {tree[:16]}, got {arrived[:16]}",
                meaning="somebody edits or upgrades the package right now; nothing was touched",
                next="type the same command again",
            )
        try:
            here.rename(target)
        except OSError:
            if not target.is_dir():  # a second deploy may have stored the same tree meanwhile
                raise
    return target


def _chunks(client: Caller, package: str) -> Iterator[bytes]:
    for event in client.events("snapshot", {"package": package}):
        if event.get("ev") == "chunk":
            yield base64.b64decode(event["data"])


def _unpack(chunks: Iterator[bytes], target: Path) -> None:
    with tarfile.open(fileobj=io.BytesIO(b"".join(chunks)), mode="r:gz") as archive:
        archive.extractall(target, filter="data")
