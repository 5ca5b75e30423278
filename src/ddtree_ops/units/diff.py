"""Unified diffs of unit texts."""

from __future__ import annotations

import difflib


def unified(old: str, new: str, name_old: str, name_new: str) -> str:
    """Return the unified diff of two texts, `` where they are equal. A missing last newline is marked as git does."""
    out: list[str] = []
    for line in difflib.unified_diff(
        old.splitlines(keepends=True), new.splitlines(keepends=True), name_old, name_new
    ):
        out.append(line if line.endswith("\n") else line + "\n\\ No newline at end of file\n")
    return "".join(out)
