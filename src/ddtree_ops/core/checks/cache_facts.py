"""What was found of the directories that compilers and downloads write to, typed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ddtree_ops.core.checks.rule import Section


@dataclass(frozen=True)
class Place:
    """One directory. base: the nearest that exists, which was tried. source: the variable that decides the path.
    execute: whether a file there can be mapped for execution; None: unknown. compiled: how many compiled kernels."""

    name: str
    path: str
    source: str
    exists: bool
    base: str
    real: str
    owner: int | None
    mode: int | None
    bytes: int | None
    inodes: int | None
    fs: str | None
    remote: bool | None
    write: bool | None
    execute: bool | None
    why: str | None
    file: bool
    dangling: bool
    files: int
    compiled: int | None
    broken: tuple[str, ...]
    broken_count: int
    locks: tuple[str, ...]
    locks_count: int
    foreign: tuple[str, ...]


@dataclass(frozen=True)
class Caches:
    """home: the HOME that the unit's process gets, None where it gets none. uid: whom it runs as."""

    home: str | None
    uid: int
    places: Mapping[str, Place]


def read(raw: Mapping[str, Any]) -> Caches:
    """The probe's section `caches`."""
    return Caches(raw["home"], raw["uid"], {name: _place(name, one) for name, one in raw["places"].items()})


def _place(name: str, raw: Mapping[str, Any]) -> Place:
    return Place(
        name=name,
        path=raw["path"],
        source=raw["from"],
        exists=raw["exists"],
        base=raw["base"],
        real=raw["real"],
        owner=raw.get("owner"),
        mode=raw.get("mode"),
        bytes=raw.get("bytes"),
        inodes=raw.get("inodes"),
        fs=raw.get("fs"),
        remote=raw.get("remote"),
        write=raw.get("write"),
        execute=raw.get("exec"),
        why=raw.get("why"),
        file=raw.get("file", False),
        dangling=raw.get("dangling", False),
        files=raw.get("files", 0),
        compiled=raw.get("compiled"),
        broken=tuple(raw.get("broken", ())),
        broken_count=raw.get("broken_count", 0),
        locks=tuple(raw.get("locks", ())),
        locks_count=raw.get("locks_count", 0),
        foreign=tuple(raw.get("foreign", ())),
    )


SECTION = Section("caches", Caches, read)
