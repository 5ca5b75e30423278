"""The host that a runtime comes from: lists its packages, proves their files by RECORD, sends what is asked for."""

import gzip
import io
import os
import tarfile
from typing import Any, Dict, List, Tuple

from . import distribution, package, probe, probe_unit, systemd
from .runtimes import Progress, digest_of, top_level
from .snapshot import Framed
from .store import file_digest
from .wire import AgentError, result

_CHUNK = 1 << 18


def describe(request: Dict[str, Any]) -> Dict[str, Any]:
    """What the service's interpreter imports, package by package; nothing of them is run.

    request: as the probe's (service, interpreter, argv, runtime). Returns {interpreter, python, soabi, platform, libc,
    builds: package.builds(), dists: [distribution.facts()] (first on sys.path), shadowed: {name: [dist-info]}}.
    """
    asked = ask(request)
    every: Dict[str, List[str]] = {}
    for name, _, path in asked["dists"]:
        every.setdefault(package.canonical(name), []).append(path)
    return {
        "interpreter": asked["executable"],
        "python": asked["version"],
        "soabi": asked["soabi"],
        "platform": asked["platform"],
        "libc": asked["libc"],
        "builds": package.builds(asked),
        "dists": [distribution.facts(*dist) for dist in package.first_on_path(asked)],
        "shadowed": {name: paths[1:] for name, paths in every.items() if len(paths) > 1},
    }


def ask(request: Dict[str, Any]) -> Dict[str, Any]:
    """package.query() as the unit would start its interpreter. Raises AgentError where it cannot be asked."""
    show = systemd.show(request["service"], probe_unit.properties())
    try:
        asked = probe.ask(request, show, probe.launch_of(request, show))
    except (OSError, RuntimeError) as error:
        asked = {"error": str(error)}
    if "error" in asked:
        raise AgentError(
            "precondition",
            "the engine's interpreter cannot be asked what it would import",
            evidence=asked["error"],
            meaning="nothing was touched",
            next="ddtree-ops doctor; or set interpreter: for this host in hosts.yaml",
        )
    return asked


def manifest(request: Dict[str, Any]) -> Dict[str, Any]:
    """Verify every file of the named distributions against RECORD and return the manifest of the runtime they make.

    request: describe's, and names: [canonical name]. Raises AgentError naming the first file that is damaged.
    """
    asked = ask(request)
    files: Dict[str, Dict[str, Any]] = {}
    dists, progress = [], Progress("verifying")
    for name, version, info in _chosen(asked, request["names"]):
        dists.append({"name": name, "version": version})
        for path, full, expected in distribution.rows(info, asked["prefix"]):
            found = file_digest(full)
            if expected not in (None, found):
                raise _damaged(full, expected, found)
            stat = os.stat(full)
            entry = {"sha256": found, "size": stat.st_size, "x": bool(stat.st_mode & 0o100)}
            if files.setdefault(path, entry) != entry:
                raise AgentError(
                    "precondition",
                    f"two of the packages bring {path}, and not the same one",
                    meaning="nothing travelled",
                    next=f"{asked['executable']} -m pip check, there",
                )
            progress.add(stat.st_size)
    made = {
        "schema_version": 1,
        "soabi": asked["soabi"],
        "python": asked["version"],
        "platform": asked["platform"],
        "libc": asked["libc"],
        "dists": sorted(dists, key=lambda dist: dist["name"]),
        "modules": top_level(files),
        "files": files,
    }
    return {**made, "runtime": digest_of(made)}


def send(request: Dict[str, Any]) -> None:
    """Stream the files `want` of the distributions `names` as a gzipped tar in framed chunks.

    Only a file that a RECORD of these distributions names is read. Raises AgentError for any other.
    """
    asked = ask(request)
    places = {
        path: full
        for _, _, info in _chosen(asked, request["names"])
        for path, full, _ in distribution.rows(info, asked["prefix"])
    }
    sink = Framed()
    buffered = io.BufferedWriter(sink, _CHUNK)
    # Level 1: on a LAN the host's CPU is the slow part, and most of these bytes are machine code.
    with (
        gzip.GzipFile(fileobj=buffered, mode="wb", compresslevel=1, mtime=0) as zipped,
        tarfile.open(fileobj=zipped, mode="w|", bufsize=_CHUNK) as archive,
    ):
        for path in request["want"]:
            if path not in places:
                raise AgentError("precondition", f"{path!r} is not of these packages any more")
            with open(places[path], "rb") as file:
                member = tarfile.TarInfo(path)
                member.size = os.fstat(file.fileno()).st_size
                archive.addfile(member, file)
    buffered.flush()
    result(bytes=sink.bytes)


def _chosen(asked: Dict[str, Any], names: List[str]) -> List[Tuple[str, str, str]]:
    found = {dist[0]: dist for dist in package.first_on_path(asked)}
    for name in names:
        if name not in found:
            raise AgentError(
                "precondition", f"{name} is not installed here any more", meaning="nothing travelled"
            )
    return [found[name] for name in sorted(names)]


def _damaged(path: str, expected: Any, found: str) -> AgentError:
    return AgentError(
        "precondition",
        f"{path} is damaged: it is not what its RECORD says",
        evidence=f"expected {expected}, found {found}",
        meaning="a damaged or edited file would travel; nothing did",
        next="reinstall that package there (pip install --force-reinstall --no-deps), then type the same again",
    )
