"""A release as data: manifest, digests, and the gzipped tar of the files that travel."""

from __future__ import annotations

import gzip
import io
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ddtree_ops.engine.digests import SHORT, canonical, sha256, tree_digest

#: Directories that a release links to instead of copying: their compiled caches are keyed by path.
LINKED = ("jit_kernel",)


@dataclass(frozen=True)
class Release:
    """What is pushed. `manifest` is written beside the sources on the host; `files` are the patched ones."""

    manifest: dict[str, Any]
    files: Mapping[str, bytes]

    @property
    def digest(self) -> str:
        """The release's name on a host."""
        return str(self.manifest["release"])

    @property
    def source_digest(self) -> str:
        """What promotion compares: sources alone, whatever the mode."""
        return str(self.manifest["source_digest"])

    def payload(self) -> bytes:
        """The files that travel, as a reproducible tar.gz (sorted, no times, no owners)."""
        sink = io.BytesIO()
        with (
            gzip.GzipFile(fileobj=sink, mode="wb", mtime=0) as zipped,
            tarfile.open(fileobj=zipped, mode="w") as archive,
        ):
            for path in sorted(self.files):
                member = tarfile.TarInfo(path)
                member.size, member.mode = len(self.files[path]), 0o644
                archive.addfile(member, io.BytesIO(self.files[path]))
        return sink.getvalue()


def make_release(
    *,
    engine: Mapping[str, Any],
    base: Mapping[str, str],
    base_bytes: int,
    files: Mapping[str, bytes],
    pre: Mapping[str, str | None],
    patches: list[tuple[str, str]],
    mode: str,
    argv: list[str],
    exec_argv: list[str],
    dropin: str,
    runtime: str | None = None,
) -> Release:
    """Compute a release. `base`: sha256 of every base file; `files`: the overlay; `argv`: the server's;
    `exec_argv`: ExecStart= as `systemctl show` must read it back; `dropin`: text with @RELEASE@ in it; `runtime`:
    digest of the packages that it imports before the host's own."""
    overlay = {
        path: {"sha256": sha256(data), "size": len(data), "pre": pre.get(path)}
        for path, data in files.items()
    }
    tree = tree_digest(base)
    # Only a release that has a runtime says so: the others keep the digest under which hosts have them.
    carried = {} if runtime is None else {"runtime": runtime}
    source = canonical(
        {"overlay": {p: e["sha256"] for p, e in overlay.items()}, "base": tree, "patches": patches, **carried}
    )[:SHORT]
    release = canonical({"source": source, "mode": mode, "argv": argv, "dropin": dropin})[:SHORT]
    links = [name for name in LINKED if _whole(name, base, files)]
    manifest = {
        "schema_version": 1,
        "release": release,
        "source_digest": source,
        "mode": mode,
        "engine": dict(engine),
        "base": {"tree": tree, "bytes": base_bytes, "files": dict(base)},
        "overlay": overlay,
        "links": links,
        "patches": [list(patch) for patch in patches],
        "argv": argv,
        "exec_argv": [word.replace("@RELEASE@", release) for word in exec_argv],
        "dropin": dropin,
        **carried,
    }
    return Release(manifest, files)


def _whole(name: str, base: Mapping[str, str], files: Mapping[str, bytes]) -> bool:
    prefix = name + "/"
    return any(path.startswith(prefix) for path in base) and not any(
        path.startswith(prefix) for path in files
    )
