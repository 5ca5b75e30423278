"""Makes a team's own patch series from changed texts, as `diff -u` would."""

from __future__ import annotations

import difflib
import hashlib
import json
import shutil
from pathlib import Path

from rig import CHECKOUT, STANDIN_SERIES

STANDIN = CHECKOUT / "deploy" / "lab" / "standin" / "sglang"


def series_with(target: Path, path: str, old: str, new: str) -> Path:
    """The stand-in's DDTREE series with one more patch: in `path`, `old` becomes `new`."""
    shutil.copytree(STANDIN_SERIES, target)
    text = (STANDIN / path).read_text()
    assert old in text, f"{path} has no {old!r}"
    changed = text.replace(old, new, 1)
    diff = difflib.unified_diff(
        text.splitlines(keepends=True), changed.splitlines(keepends=True), f"a/{path}", f"b/{path}", n=2
    )
    (target / "0002-more.patch").write_text("".join(diff))
    with open(target / "series", "a") as file:
        file.write("0002-more.patch\n")
    base = json.loads((target / "base.json").read_text())
    base["files"][path] = hashlib.sha256(text.encode()).hexdigest()
    (target / "base.json").write_text(json.dumps(base))
    return target
