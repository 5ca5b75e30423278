"""Runs `systemd-analyze verify` offline on a scratch tree, where it is installed."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

_NOISE = re.compile(
    r"is not executable: |Failed to (?:load|open|add|prepare) |Cannot add dependency|bind mount"
)


def available() -> bool:
    """Return whether systemd-analyze can be run here."""
    return shutil.which("systemd-analyze") is not None


def verify(files: Mapping[str, str], unit: str, limit_s: float = 20) -> list[str]:
    """Verify `unit` in a tree that holds `files` (path on the host → text); return what systemd complains of.

    Exit status 0 means little (unknown keys pass), so every line counts but those on what the scratch tree lacks.
    """
    with tempfile.TemporaryDirectory(prefix="ddtree-verify-") as scratch:
        root = Path(scratch)
        for path, text in files.items():
            target = root / path.lstrip("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text, encoding="utf-8", errors="surrogateescape")
        try:
            done = subprocess.run(
                ["systemd-analyze", "verify", "--recursive-errors=no", "--man=no", f"--root={root}", unit],
                capture_output=True, text=True, timeout=limit_s, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return [f"systemd-analyze verify did not end within {limit_s:g} s"]
        lines = done.stderr.replace(str(root), "").splitlines()
    return list(_relevant(lines))


def _relevant(lines: Iterable[str]) -> Iterable[str]:
    return (line for line in lines if line.strip() and not _NOISE.search(line))
