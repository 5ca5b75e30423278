"""A unit as the agent's probe sends it: file texts and hashes, nothing interpreted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class RawFile:
    """One file of the host. text None: it is missing, or (with a hash) was not sent."""

    path: str
    text: str | None = field(default=None, repr=False)
    sha256: str | None = None
    optional: bool = False


@dataclass(frozen=True)
class RawUnit:
    """What `read-unit` reports. fragment None: the host has no such service. specifiers: letter → value there."""

    unit: str
    fragment: RawFile | None
    dropins: tuple[RawFile, ...] = ()
    environment_files: tuple[RawFile, ...] = ()
    scripts: Mapping[str, str] = field(default_factory=dict, repr=False)
    enabled: str = ""
    show: Mapping[str, str] = field(default_factory=dict, repr=False)
    specifiers: Mapping[str, str] = field(default_factory=dict)
    systemd: int = 252


def from_wire(data: Mapping[str, Any], unit: str = "", systemd: int = 252) -> RawUnit:
    """Build a RawUnit from the agent's JSON (protocol, `read-unit`)."""
    fragment = data.get("fragment") or {}
    show = data.get("show") or {}
    path = fragment.get("path")
    name = unit or data.get("service") or show.get("Id") or (path or "sglang.service").rpartition("/")[2]
    return RawUnit(
        unit=name,
        fragment=_file(fragment) if path else None,
        dropins=tuple(_file(f) for f in data.get("dropins") or ()),
        environment_files=tuple(_file(f) for f in data.get("environment_files") or ()),
        scripts=dict(data.get("scripts") or {}),
        enabled=data.get("enabled") or "",
        show=show,
        specifiers=dict(data.get("specifiers") or {}),
        systemd=systemd,
    )


def _file(data: Mapping[str, Any]) -> RawFile:
    return RawFile(data["path"], data.get("text"), data.get("sha256"), bool(data.get("optional", False)))
