"""What was read of the engine's binaries, typed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ddtree_ops.core.checks.rule import Section


@dataclass(frozen=True)
class Missing:
    """source: "torch", or the file that should define the symbol."""

    symbol: str
    source: str


@dataclass(frozen=True)
class Lost:
    """A DT_NEEDED name that the loader does not find. preloaded: `import torch` loads it by path before."""

    name: str
    elsewhere: str | None
    preloaded: bool


@dataclass(frozen=True)
class Gap:
    """A version of a symbol set (GLIBC_2.38) that the file which is found does not have; has: its newest."""

    file: str
    version: str
    has: str | None


@dataclass(frozen=True)
class Group:
    """A kind of fat binary: architectures with machine code and with PTX ("80", "90a"), and how many there are."""

    cubin: tuple[str, ...]
    ptx: tuple[str, ...]
    count: int


@dataclass(frozen=True)
class Binary:
    """driver: symbols that the driver's libcuda lacks; None where no libcuda was found. groups: None where the file
    has no fat binaries that could be read."""

    package: str
    file: str
    machine: str | None
    needed: tuple[str, ...]
    missing: tuple[Missing, ...]
    missing_count: int
    lost: tuple[Lost, ...]
    driver: tuple[str, ...] | None
    versions: tuple[Gap, ...]
    groups: tuple[Group, ...] | None
    error: str | None = None

    @property
    def label(self) -> str:
        """Package and file name, as a person would say it."""
        parts = self.file.split("/")
        tail = "/".join(parts[-2:]) if parts[-2:-1] and parts[-2].startswith("sm") else parts[-1]
        return f"{self.package} ({tail})" if self.package not in ("torch", "nvidia") else tail


@dataclass(frozen=True)
class Binaries:
    """torch_lib: the directory of torch's libraries. cxx11: whether torch uses the C++11 string. left: files that the
    time limit left out."""

    torch_lib: str | None
    cxx11: bool | None
    machine: str
    glibc: str | None
    libcuda: str | None
    libs: tuple[Binary, ...]
    left: int


def read(raw: Mapping[str, Any]) -> Binaries:
    """The probe's section `binaries`."""
    torch = raw["torch"] or {}
    return Binaries(
        torch_lib=torch.get("lib"),
        cxx11=torch.get("cxx11"),
        machine=raw["host"]["machine"],
        glibc=raw["host"].get("glibc"),
        libcuda=raw.get("libcuda"),
        libs=tuple(_binary(item) for item in raw["libs"]),
        left=raw["left"],
    )


def _binary(raw: Mapping[str, Any]) -> Binary:
    groups, driver = raw.get("groups"), raw.get("driver")
    return Binary(
        package=raw["package"],
        file=raw["file"],
        machine=raw.get("machine"),
        needed=tuple(raw.get("needed", ())),
        missing=tuple(Missing(one["symbol"], one["from"]) for one in raw.get("missing", ())),
        missing_count=raw.get("missing_count", len(raw.get("missing", ()))),
        lost=tuple(Lost(one["name"], one["elsewhere"], one["preloaded"]) for one in raw.get("lost", ())),
        driver=None if driver is None else tuple(driver),
        versions=tuple(Gap(one["file"], one["version"], one["has"]) for one in raw.get("versions", ())),
        groups=None
        if groups is None
        else tuple(Group(tuple(g["cubin"]), tuple(g["ptx"]), g["count"]) for g in groups),
        error=raw.get("error"),
    )


SECTION = Section("binaries", Binaries, read)
