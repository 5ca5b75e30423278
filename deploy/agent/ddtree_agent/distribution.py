"""What an installed distribution brought, by its RECORD: the only files of a site directory that may travel."""

import csv
import os
import re
import stat
from typing import Any, Dict, List, Optional, Tuple

from . import elf
from .package import canonical, from_record
from .wire import AgentError

#: A library of one of these families ties a binary to one build of torch or of CUDA.
_BOUND = re.compile(
    r"lib(torch|c10|cuda|cudart|cublas|cudnn|nvrtc|nccl|cusparse|cufft|curand|cusolver|nvjitlink)[a-z0-9_]*\.so",
    re.I,
)
_CUDART = re.compile(r"libcudart\.so\.(\d+)")
_SO = re.compile(r"\.so(\.\d+)*$")

Row = Tuple[str, str, Optional[str]]


def facts(name: str, version: str, info: str) -> Dict[str, Any]:
    """{name, version, local, path, requires: [text], bound, cudart: [major], pth: [file]} of a dist-info directory.

    bound: one of its binaries needs a library of torch or CUDA. Never raises: without a RECORD the lists are empty.
    """
    needs: List[str] = []
    pth: List[str] = []
    for row in _raw(info) or []:
        if row[0].endswith(".pth") and "/" not in row[0]:
            pth.append(row[0])
        if _SO.search(row[0]):
            try:
                needs += elf.needed(os.path.join(os.path.dirname(info), row[0]))
            except (OSError, ValueError):
                continue
    majors = [found.group(1) for found in map(_CUDART.match, needs) if found]
    return {
        "name": canonical(name),
        "version": version,
        "local": version.partition("+")[2] or None,
        "path": info,
        "requires": _requires(info),
        "bound": any(_BOUND.match(need) for need in needs),
        "cudart": sorted(set(majors), key=int),
        "pth": pth,
    }


def rows(info: str, prefix: str) -> List[Row]:
    """[(path below the site directory, path on disk, sha256 or None)] of what may travel of a distribution.

    Bytecode stays (each host compiles its own), and so do scripts and data beside the site directory, within the
    interpreter's `prefix`: nothing imports them. Raises AgentError for a RECORD that is missing or names what is not
    the distribution's own: an absolute path, a way out, a link, a device.
    """
    raw, label = _raw(info), os.path.basename(info)
    if raw is None:
        raise AgentError(
            "precondition",
            f"{info} has no RECORD: its files cannot be verified",
            meaning="nothing travelled",
            next="reinstall it with pip or uv, there, then type the same command again",
        )
    site, found = os.path.dirname(info), []
    for name, digest in ((row[0], row[1]) for row in raw):
        if name.endswith((".pyc", ".pyo")):
            continue
        if not _inside(name, site, prefix, label):
            continue
        path = os.path.join(site, name)
        _plain(name, site, label)
        expected = from_record(digest) if digest.startswith("sha256=") else None
        if expected is None and os.path.dirname(name) != label:
            raise _refused(label, name, "has no sha256 in RECORD, so that it cannot be verified")
        found.append((name, path, expected))
    return found


def _raw(info: str) -> Optional[List[List[str]]]:
    try:
        with open(os.path.join(info, "RECORD"), newline="", encoding="utf-8") as file:
            return [row for row in csv.reader(file) if len(row) >= 2]
    except (OSError, UnicodeDecodeError, csv.Error):
        return None


def _inside(name: str, site: str, prefix: str, label: str) -> bool:
    """Whether a RECORD path lies in the site directory; False for a script or data file of the same environment."""
    parts = name.split("/")
    if not name or name.startswith("/") or "\0" in name or "\\" in name:
        raise _refused(label, name, "is an absolute path or none at all")
    if not {"", ".", ".."} & set(parts):
        return True
    # `../../../bin/torchrun`: how installers note scripts. Only leading `..`, and only within the environment.
    rest = parts[:]
    while rest and rest[0] == "..":
        rest.pop(0)
    target = os.path.normpath(os.path.join(site, name))
    homes = [os.path.normpath(prefix)]
    if os.path.basename(site) in ("site-packages", "dist-packages", "site"):
        homes.append(os.path.normpath(os.path.join(site, "..", "..", "..")))
    within = any(target.startswith(home.rstrip("/") + "/") for home in homes)
    if {"", ".", ".."} & set(rest) or not within or target.startswith(site + os.sep):
        raise _refused(label, name, "leads out of its environment")
    return False


def _plain(name: str, site: str, label: str) -> None:
    path = site
    for part in name.split("/"):
        path = os.path.join(path, part)
        try:
            mode = os.lstat(path).st_mode
        except OSError:
            raise _refused(label, name, "is missing") from None
        if stat.S_ISLNK(mode):
            raise _refused(label, name, "is a link, or lies behind one")
    if not stat.S_ISREG(mode):
        raise _refused(label, name, "is no regular file")


def _refused(label: str, name: str, why: str) -> AgentError:
    return AgentError(
        "precondition",
        f"{label}: {name!r} {why}",
        meaning="nothing travelled",
        next=f"reinstall {label.partition('-')[0]} there (pip install --force-reinstall --no-deps), then again",
    )


def _requires(info: str) -> List[str]:
    found = []
    try:
        with open(os.path.join(info, "METADATA"), encoding="utf-8", errors="replace") as file:
            for line in file:
                if not line.strip():
                    break  # the headers end here
                if line.startswith("Requires-Dist:"):
                    found.append(line.partition(":")[2].strip())
    except OSError:
        pass
    return found
