"""Finds the series that hosts.yaml names: one that ships with ddtree-ops, or a directory of the team's own."""

from __future__ import annotations

from pathlib import Path

from ddtree_ops.core.errors import UsageProblem
from ddtree_ops.data import data_dir
from ddtree_ops.engine.series import Series, load_series


def find_series(name: str, base: Path) -> Series:
    """Load a series by its shipped name or by a path, relative to `base` (the directory of hosts.yaml).

    Raises UsageProblem where there is none, naming the ones that ship, and for any fault in it.
    """
    shipped = data_dir("engine_patches")
    for directory in (base / name, shipped / name):
        if (directory / "base.json").is_file():
            return load_series(directory)
    if (base / name).is_dir():
        return load_series(base / name)  # says what it lacks
    known = ", ".join(sorted(path.parent.name for path in shipped.glob("*/base.json")))
    raise UsageProblem(
        f"there is no patch series {name!r}: neither {base / name} nor one that ships ({known})",
        next="set series: in hosts.yaml",
    )
