"""The store of runtimes: packages carried over from another host, content-addressed and sealed under our own root.

runtimes/<digest>/{site/, manifest.json, stamps.json}. A release names the runtime that it runs on; the host's own
site-packages are never written.
"""

import hashlib
import json
import os
import stat
import time
from typing import Any, Dict, Iterator, List, Tuple

from .layout import Layout, read_json, write_json
from .store import file_digest
from .wire import AgentError, emit

SITE = "site"
MANIFEST = "manifest.json"
#: What each file's inode looked like when it was last hashed: a look that hashes only what was touched since.
STAMPS = "stamps.json"
#: Seconds between two signs of life of a long read.
_BEAT_S = 2.0


class Progress:
    """Says now and then how far a long read or copy is, so that the operator's line is never silent."""

    def __init__(self, verb: str) -> None:
        self.verb, self.bytes, self._said = verb, 0, time.monotonic()

    def add(self, count: int) -> None:
        self.bytes += count
        if time.monotonic() - self._said >= _BEAT_S:
            self._said = time.monotonic()
            emit({"ev": "note", "text": f"{self.verb}: {self.bytes >> 20} MiB"})


def digest_of(manifest: Dict[str, Any]) -> str:
    """A runtime's name: what it holds and the interpreter ABI that it is for; not where it came from or when."""
    told = {key: manifest[key] for key in ("soabi", "dists", "modules", "files")}
    return hashlib.sha256(json.dumps(told, sort_keys=True, separators=(",", ":")).encode()).hexdigest()[:16]


def top_level(files: Dict[str, Any]) -> List[str]:
    """Names that the files of a site directory make importable: packages with an __init__.py, and modules."""
    found = set()
    for path in files:
        first, _, rest = path.partition("/")
        if rest == "__init__.py":
            found.add(first)
        elif not rest and first.endswith((".py", ".so")):
            found.add(first.partition(".")[0])
    return sorted(found)


def site(layout: Layout, digest: str) -> str:
    """The directory of a runtime that comes on PYTHONPATH."""
    return os.path.join(layout.runtime(digest), SITE)


def manifest_of(layout: Layout, digest: str) -> Dict[str, Any]:
    """A runtime's manifest. Raises AgentError where the host has no such runtime."""
    found = read_json(os.path.join(layout.runtime(digest), MANIFEST))
    if not isinstance(found, dict):
        raise AgentError(
            "precondition",
            f"runtime {digest} is not on this host",
            meaning="a release that runs on it would import the host's own packages",
            next="carry it over (ddtree-ops env sync --from HOST --to this one), or take runtime: out of hosts.yaml",
        )
    return found


def verify(layout: Layout, digest: str, quick: bool = False) -> Dict[str, Any]:
    """Hash a runtime against its manifest, and return that. Raises AgentError naming the first file that differs.

    quick: files whose inode is as it was when last hashed are not read again (a change of content changes ctime).
    """
    manifest = manifest_of(layout, digest)
    try:
        if digest_of(manifest) != digest:
            raise _damaged(digest, MANIFEST)
        check(site(layout, digest), manifest, digest, _stamps(layout, digest) if quick else {})
    except (KeyError, TypeError, AttributeError):
        raise _damaged(digest, MANIFEST) from None
    return manifest


def check(folder: str, manifest: Dict[str, Any], digest: str, stamps: Dict[str, List[int]]) -> None:
    """Compare a site directory with a manifest, both ways. Raises AgentError."""
    missing, progress = dict(manifest["files"]), Progress(f"verifying runtime {digest}")
    for path in walk(folder):
        entry = missing.pop(path, None)
        full = os.path.join(folder, path)
        info = os.lstat(full)
        if entry is None or not stat.S_ISREG(info.st_mode) or bool(info.st_mode & 0o100) != entry["x"]:
            raise _damaged(digest, path)
        if stamps.get(path) != stamp(info) and file_digest(full) != entry["sha256"]:
            raise _damaged(digest, path)
        progress.add(info.st_size)
    for path in sorted(missing):
        raise _damaged(digest, path)


def write_stamps(here: str, files: Dict[str, Any]) -> None:
    """Note the inodes of files that were just hashed."""
    stamps = {path: stamp(os.lstat(os.path.join(here, SITE, path))) for path in files}
    write_json(os.path.join(here, STAMPS), stamps, mode=0o444)


def stamp(info: os.stat_result) -> List[int]:
    return [info.st_size, info.st_mtime_ns, info.st_ctime_ns, info.st_ino]


def walk(folder: str) -> Iterator[str]:
    """Relative paths of everything but directories and bytecode; links are told, not followed."""
    for at, dirs, names in os.walk(folder):
        links = [name for name in dirs if os.path.islink(os.path.join(at, name))]
        dirs[:] = sorted(name for name in dirs if name != "__pycache__" and name not in links)
        for name in sorted([*names, *links]):
            if not name.endswith((".pyc", ".pyo")):
                yield os.path.relpath(os.path.join(at, name), folder)


def all_of(layout: Layout) -> List[Tuple[str, Dict[str, Any]]]:
    """Every sealed runtime with its manifest."""
    found = []
    for name in sorted(os.listdir(layout.runtimes)) if os.path.isdir(layout.runtimes) else []:
        try:
            found.append((name, manifest_of(layout, name)))
        except AgentError:
            continue
    return found


def label(manifest: Dict[str, Any]) -> List[str]:
    """`name version` of each distribution in a runtime."""
    return [f"{dist['name']} {dist['version']}" for dist in manifest.get("dists", [])]


def _stamps(layout: Layout, digest: str) -> Dict[str, List[int]]:
    try:
        found = read_json(os.path.join(layout.runtime(digest), STAMPS), {})
    except AgentError:
        return {}  # then every file is hashed
    return found if isinstance(found, dict) else {}


def _damaged(digest: str, path: str) -> AgentError:
    return AgentError(
        "precondition",
        f"runtime {digest} on this host is damaged: {path} is not what its manifest says",
        meaning="no release that runs on it is started",
        next="carry it over again (ddtree-ops env sync --from HOST --to this one), which builds it anew",
    )
