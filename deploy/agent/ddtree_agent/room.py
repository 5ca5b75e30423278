"""Disk that a service's rollouts hold in reserve, so that one can end, or be undone, where no block is left."""

import os
from typing import Any, Callable

from .layout import Layout, is_full, sync_dir

#: A transaction's directory of small files, a line of history and an evidence report.
_BYTES = 256 << 10


def reserve(layout: Layout) -> None:
    """Take the blocks, where they are not held already. Raises OSError where they are not there."""
    path = _path(layout)
    if os.path.exists(path) and os.stat(path).st_blocks * 512 >= _BYTES:
        return
    os.makedirs(layout.state, exist_ok=True)
    with open(path, "wb") as file:
        file.write(b"\0" * _BYTES)
        file.flush()
        os.fsync(file.fileno())


def spend(layout: Layout, write: Callable[[], Any]) -> None:
    """Run a write; on a full disk once more, with the reserve given back. Raises OSError where that does not help."""
    try:
        write()
    except OSError as error:
        if not is_full(error) or not _release(layout):
            raise
        write()


def _release(layout: Layout) -> bool:
    try:
        os.unlink(_path(layout))
        sync_dir(layout.state)  # ext4 hands freed blocks out again only behind a commit of its journal
    except OSError:
        return False
    return True


def _path(layout: Layout) -> str:
    return os.path.join(layout.state, "reserve")
