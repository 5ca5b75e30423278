"""Reading of files and packages that the programs inside the unit's sandbox have in common.

It travels with them (sandbox.SHARED), so this file is whole in itself.
"""

import json
import os
import sys
from typing import Any, List, Optional

JSON_MAX = 64 << 20
#: How a weight or JSON file begins that git has not fetched.
LFS = b"version https://git-lfs"


def package_dir(name: str, skip: List[str]) -> Optional[str]:
    """The package's directory on sys.path, not looked for under `skip`."""
    for entry in sys.path:
        place = os.path.join(os.path.abspath(entry or "."), name)
        if os.path.isdir(place) and not any((place + "/").startswith(prefix) for prefix in skip):
            return place
    return None


def read_texts(directory: str) -> List[str]:
    """The Python sources of a directory; [] where it is not there."""
    try:
        names = [name for name in os.listdir(directory) if name.endswith(".py")]
    except OSError:
        return []
    return [found for found in (read_text(os.path.join(directory, name)) for name in names) if found]


def read_text(path: str) -> Optional[str]:
    """A file's text, the first 4 MiB of it; None where it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(4 << 20)
    except OSError:
        return None


def read_json(path: str) -> Any:
    """A JSON file's content. Raises OSError, ValueError (what is wrong with it)."""
    with open(path, "rb") as file:
        raw = file.read(JSON_MAX + 1)
    if raw.startswith(LFS):
        raise ValueError("is a Git LFS pointer")
    if len(raw) > JSON_MAX:
        raise ValueError("is too large")
    return json.loads(raw)


def checkpoint_place(given: Optional[str], cache: str) -> Optional[str]:
    """Where a checkpoint lies; a hub id's cached copy by its branch `main`, else the only one that is there."""
    if not given or os.path.exists(given) or given.count("/") != 1:
        return given
    base = os.path.join(cache, "models--" + given.replace("/", "--"))
    try:
        with open(os.path.join(base, "refs", "main"), encoding="ascii") as file:
            return os.path.join(base, "snapshots", file.read(64).strip())
    except (OSError, ValueError):
        pass
    try:
        return os.path.join(base, "snapshots", sorted(os.listdir(os.path.join(base, "snapshots")))[0])
    except (OSError, IndexError):
        return None
