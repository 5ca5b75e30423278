"""Finds templates/, deploy/ and engine_patches/ in a checkout and in an installed wheel alike."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def data_dir(name: str) -> Path:
    """Return the directory `name` (templates, deploy or engine_patches).

    A wheel carries them under `ddtree_ops/_data/`; a checkout keeps them at its root. Raises FileNotFoundError
    where neither is there (a broken install).
    """
    for root in (_PACKAGE / "_data", _PACKAGE.parent.parent):
        if (root / name).is_dir():
            return root / name
    raise FileNotFoundError(f"ddtree-ops is installed without its {name}/ directory: reinstall it")
