"""Where a lab keeps its files: one directory, never under /tmp."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .problem import LabProblem

SOURCES = Path(__file__).resolve().parent.parent


def project() -> Path:
    """The checkout that this file belongs to, or the working directory for an installed wheel."""
    checkout = SOURCES.parent.parent
    return checkout if (checkout / "pyproject.toml").is_file() else Path.cwd()


def cache_dir() -> Path:
    """Directory of base images and helpers, shared by all labs of the project."""
    return Path(os.environ.get("DDTREE_LAB_CACHE") or project() / ".lab" / "cache")


def own_directory(path: Path) -> Path:
    """Create `path` for root alone, ignored by git whatever the project's .gitignore says."""
    path.mkdir(parents=True, exist_ok=True)
    path.chmod(0o700)
    marker = path / ".gitignore"
    if not marker.exists():
        marker.write_text("*\n")
    return path


@dataclass(frozen=True)
class State:
    """The files of one lab below `root` (absolute)."""

    root: Path

    @classmethod
    def resolve(cls, beside: Path | None = None) -> State:
        """`$DDTREE_LAB_STATE`, else `.lab` in `beside` (the directory of hosts.yaml), else `.lab` in the project."""
        return cls.at(Path(os.environ.get("DDTREE_LAB_STATE") or (beside or project()) / ".lab"))

    @classmethod
    def at(cls, path: Path) -> State:
        """A lab at `path`. Raises LabProblem under /tmp, which systemd-tmpfiles of any host may sweep."""
        root = path.resolve()
        if root.is_relative_to(Path("/tmp").resolve()):
            raise LabProblem(
                f"{root} is under /tmp, where a lab must not keep its state",
                usage=True,
                next="export DDTREE_LAB_STATE=/var/lib/ddtree-lab",
            )
        return cls(root)

    @property
    def hosts(self) -> Path:
        return self.root / "hosts"

    @property
    def key(self) -> Path:
        return self.root / "key"

    @property
    def known_hosts(self) -> Path:
        return self.root / "known_hosts"

    @property
    def ssh_config(self) -> Path:
        return self.root / "ssh_config"

    @property
    def active(self) -> Path:
        """Exists while the lab is up: the transport uses ssh_config beside it without being told."""
        return self.root / "active"

    @property
    def record(self) -> Path:
        """JSON {"pid": supervisor as this machine sees it, "cgroups": [directories to sweep]}."""
        return self.root / "supervisor.json"

    @property
    def log(self) -> Path:
        return self.root / "supervisor.log"

    @property
    def tag(self) -> str:
        """Name of this lab's cgroups, different for every state directory."""
        return "ddtlab-" + hashlib.sha256(str(self.root).encode()).hexdigest()[:10]

    def read_record(self) -> dict[str, Any]:
        try:
            found = json.loads(self.record.read_text())
        except (FileNotFoundError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}


def write_atomically(path: Path, text: str, mode: int = 0o600) -> None:
    """Readers (ssh, the relay) see the old text or the new one, never a part."""
    part = path.with_name(path.name + ".part")
    part.write_text(text)
    part.chmod(mode)
    part.rename(path)
