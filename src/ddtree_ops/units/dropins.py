"""Which drop-ins count and in which order: by file name over all directories, an earlier directory masks."""

from __future__ import annotations

from typing import Protocol, TypeVar

LOOKUP = (
    "/etc/systemd/system.control", "/run/systemd/system.control", "/run/systemd/transient",
    "/run/systemd/generator.early", "/etc/systemd/system", "/etc/systemd/system.attached", "/run/systemd/system",
    "/run/systemd/system.attached", "/run/systemd/generator", "/usr/local/lib/systemd/system",
    "/usr/lib/systemd/system", "/lib/systemd/system", "/run/systemd/generator.late",
)  # fmt: skip
OURS = ("50-ddtree.conf", "60-ddtree-trial.conf")


class HasPath(Protocol):
    """Anything with the path of a file."""

    @property
    def path(self) -> str: ...


Item = TypeVar("Item", bound=HasPath)


def directories(unit: str) -> list[str]:
    """Return the names of the `.d` directories of `unit`, the most specific first (systemd.unit(5))."""
    stem, _, suffix = unit.rpartition(".")
    names = [f"{stem}.{suffix}.d"]
    prefix, at, _instance = stem.partition("@")
    if at and stem != f"{prefix}@":
        names.append(f"{prefix}@.{suffix}.d")
    parts = prefix.split("-")
    for count in range(len(parts) - 1, 0, -1):
        names.append("-".join(parts[:count]) + f"-.{suffix}.d")
    return [*names, f"{suffix}.d"]


def is_ours(path: str) -> bool:
    """Return whether `path` is one of the two drop-ins that this program writes."""
    return path.rpartition("/")[2] in OURS


def ordered(unit: str, files: list[Item]) -> list[Item]:
    """Return the files that count, in the order in which systemd applies them.

    Files in other directories, without `.conf`, or masked by a file of the same name in an earlier directory are
    left out. Ours are left out too: they are not the operator's.
    """
    names = directories(unit)
    ranks = {
        f"{root}/{name}": (name == names[-1], index, names.index(name))
        for index, root in enumerate(LOOKUP)
        for name in names
    }
    best: dict[str, tuple[tuple[bool, int, int], Item]] = {}
    for file in files:
        folder, _, base = file.path.rpartition("/")
        rank = ranks.get(folder)
        if rank is None or not base.endswith(".conf") or base.startswith(".") or is_ours(file.path):
            continue
        if base not in best or rank < best[base][0]:
            best[base] = (rank, file)
    return [best[base][1] for base in sorted(best)]
