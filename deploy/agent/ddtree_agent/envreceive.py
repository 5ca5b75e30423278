"""The host that a runtime goes to: takes what it has itself, unpacks what travelled, proves the whole and seals it.

What an interrupted sync leaves lies in staging/runtime-<digest>.<service>: the next run uses the files in it that are
whole, gc or a sync of another runtime removes it.
"""

import hashlib
import os
import tarfile
from typing import Any, BinaryIO, Dict, Iterator, List, Tuple

from . import distribution, envsend, package, runtimes
from .layout import Layout, append_history, locked, read_json, remove_tree, sync_dir, write_json
from .origin import origin
from .runtimes import MANIFEST, SITE, Progress
from .store import copy_file, file_digest
from .systemd import run
from .wire import AgentError, emit

STAGED = "runtime-"
_SLACK = 256 << 20
_BLOCK = 1 << 20
_COMPILE_LIMIT_S = 540.0
_CUT = "type the same command again: what arrived is kept"


def prepare(layout: Layout, request: Dict[str, Any]) -> Dict[str, Any]:
    """Build what this host can build of a runtime by itself; say which files must travel.

    request: {service, who, manifest, interpreter, argv?}. Returns {there: sealed already, missing: [path], reused,
    local: files, bytes: of the missing}. Raises AgentError for a manifest that names a path outside its directory.
    """
    manifest = request["manifest"]
    digest = _checked(manifest)
    with locked(layout, f"env sync by {request['who']}"):
        _sweep_others(layout, digest)
        if os.path.isdir(layout.runtime(digest)):
            try:
                runtimes.verify(layout, digest)
                remove_tree(_staged(layout, digest), layout.staging)
                return {"there": True, "missing": [], "reused": 0, "local": 0, "bytes": 0}
            except AgentError:
                pass  # a power cut, a hand: the same files make the same runtime anew
        here = _staged(layout, digest)
        os.makedirs(os.path.join(here, SITE), exist_ok=True)
        reused = _reuse(os.path.join(here, SITE), manifest["files"])
        _room(here, manifest["files"], reused)
        write_json(os.path.join(here, MANIFEST), manifest)
        local = _copy_own(layout, request, here, manifest["files"], reused)
    have = reused | local
    wanted: Dict[str, str] = {}  # sha256 -> the first path that needs it: the others are copies
    for path, entry in sorted(manifest["files"].items()):
        if path not in have:
            wanted.setdefault(entry["sha256"], path)
    missing = sorted(wanted.values())
    size = sum(manifest["files"][path]["size"] for path in missing)
    return {
        "there": False,
        "missing": missing,
        "reused": len(reused),
        "local": len(local),
        "bytes": size,
    }


def receive(layout: Layout, request: Dict[str, Any], payload: BinaryIO) -> Dict[str, Any]:
    """Unpack what travelled, prove every byte of the whole, seal it as runtimes/<digest>.

    request: {service, who, runtime: digest, interpreter, from?: the source's name}. Raises AgentError where anything
    differs; what is whole stays in staging.
    """
    digest = request["runtime"]
    with locked(layout, f"env sync by {request['who']}"):
        here = _staged(layout, digest)
        manifest = read_json(os.path.join(here, MANIFEST))
        if not isinstance(manifest, dict) or _checked(manifest) != digest:
            raise AgentError("precondition", f"what was staged of runtime {digest} is gone", next=_CUT)
        _unpack(os.path.join(here, SITE), manifest["files"], payload)
        _copies(os.path.join(here, SITE), manifest["files"])
        _compile(request["interpreter"], os.path.join(here, SITE))
        _seal(layout, here, manifest, digest)
        _note(layout, request, manifest)
    return {"runtime": digest, "files": len(manifest["files"])}


def _note(layout: Layout, request: Dict[str, Any], manifest: Dict[str, Any]) -> None:
    """A line of the host's history: who brought which packages here, and from where."""
    said = {"kind": "env-sync", "outcome": "sealed", "who": request["who"], "from": request.get("from")}
    carried = {"runtime": request["runtime"], "packages": runtimes.label(manifest)}
    try:
        append_history(layout, {**said, **carried, "origin": origin()})
    except OSError as error:  # it is sealed all the same
        emit({"ev": "note", "text": f"WARN the history could not be written: {error}"})


def _staged(layout: Layout, digest: str) -> str:
    layout.runtime(digest)  # refuses what is no digest
    return os.path.join(layout.staging, f"{STAGED}{digest}.{layout.service}")


def _checked(manifest: Dict[str, Any]) -> str:
    """The digest of a manifest that arrived. Raises AgentError where a path in it is not a plain one below it."""
    try:
        for path, entry in manifest["files"].items():
            parts = path.split("/")
            folders = ["/".join(parts[:i]) for i in range(1, len(parts))]
            compiled = "__pycache__" in parts or path.endswith((".pyc", ".pyo"))
            if {"", ".", ".."} & set(parts) or "\0" in path or compiled:
                raise AgentError("precondition", f"the runtime's manifest names {path!r}")
            if any(folder in manifest["files"] for folder in folders):
                raise AgentError("precondition", f"the runtime's manifest has {path!r} below a file")
            if not isinstance(entry["sha256"], str) or entry["size"] < 0 or entry["x"] not in (True, False):
                raise ValueError
        digest = runtimes.digest_of(manifest)
    except (KeyError, TypeError, ValueError, AttributeError):
        raise AgentError("usage", "the runtime's manifest cannot be read") from None
    if digest != manifest.get("runtime"):
        raise AgentError(
            "precondition", "the runtime's manifest arrived changed", next="type the same command again"
        )
    return digest


def _sweep_others(layout: Layout, digest: str) -> None:
    for name in os.listdir(layout.staging) if os.path.isdir(layout.staging) else []:
        mine = name.startswith(STAGED) and name.partition(".")[2] == layout.service
        if mine and name != os.path.basename(_staged(layout, digest)):
            remove_tree(os.path.join(layout.staging, name), layout.staging)


def _reuse(site: str, files: Dict[str, Any]) -> "set[str]":
    """The files of an earlier run that are whole; the others are removed."""
    good, progress = set(), Progress("looking at what an earlier run left")
    for path in list(runtimes.walk(site)):
        full = os.path.join(site, path)
        entry = files.get(path)
        if entry is not None and not os.path.islink(full) and file_digest(full) == entry["sha256"]:
            good.add(path)
            progress.add(entry["size"])
        else:
            os.unlink(full)
    return good


def _room(here: str, files: Dict[str, Any], have: "set[str]") -> None:
    stat = os.statvfs(here)
    # bytecode comes on top: about as much again for the Python files
    need = (
        sum(e["size"] * (2 if p.endswith(".py") else 1) for p, e in files.items() if p not in have) + _SLACK
    )
    if stat.f_bavail * stat.f_frsize < need or (stat.f_files and stat.f_favail < 2 * len(files)):
        raise AgentError(
            "precondition",
            f"{here} has {stat.f_bavail * stat.f_frsize >> 20} MiB and {stat.f_favail} inodes free; the runtime needs "
            f"{need >> 20} MiB and {2 * len(files)} inodes",
            meaning="no service was touched",
            next="ddtree-ops gc, or free space there, then type the same command again",
        )


def _copy_own(
    layout: Layout, request: Dict[str, Any], here: str, files: Dict[str, Any], have: "set[str]"
) -> "set[str]":
    """Copy what this host has by content, in its own packages or in another runtime, proved by the copy's own bytes."""
    wanted = {entry["sha256"] for path, entry in files.items() if path not in have}
    places: Dict[str, str] = {}
    for sha, place in _places(layout, request):
        if sha in wanted:
            places.setdefault(sha, place)
    copied, progress = set(), Progress("copying what is here already")
    for path, entry in sorted(files.items()):
        if path in have or entry["sha256"] not in places:
            continue
        target = os.path.join(here, SITE, path)
        if copy_file(places[entry["sha256"]], target) == entry["sha256"]:
            copied.add(path)
            progress.add(entry["size"])
        else:
            os.unlink(target)  # edited here: the source's own bytes travel
    return copied


def _places(layout: Layout, request: Dict[str, Any]) -> Iterator[Tuple[str, str]]:
    """(sha256, path) by this host's RECORDs and runtimes; whether a file holds what they say, its copy tells."""
    for digest, manifest in runtimes.all_of(layout):
        for path, entry in manifest.get("files", {}).items():
            full = os.path.join(runtimes.site(layout, digest), path)
            if os.path.isfile(full) and not os.path.islink(full):
                yield entry["sha256"], full
    try:
        asked = envsend.ask(request)
    except AgentError as error:
        emit({"ev": "note", "text": f"its own packages are not used: {error}"})
        return
    for _, _, info in package.first_on_path(asked):
        try:
            rows = distribution.rows(info, asked["prefix"])
        except AgentError:
            continue  # a damaged package here is no reason: its files travel
        for _, full, sha in rows:
            yield sha or file_digest(full), full  # RECORD itself has no hash


def _unpack(site: str, files: Dict[str, Any], payload: BinaryIO) -> None:
    progress = Progress("received")
    try:
        with tarfile.open(fileobj=payload, mode="r|gz") as archive:
            for member in archive:
                entry = files.get(member.name)
                if entry is None or not member.isreg() or member.size != entry["size"]:
                    raise AgentError(
                        "precondition", f"{member.name!r} arrived, which the manifest does not name so"
                    )
                source = archive.extractfile(member)
                _write(source, os.path.join(site, member.name), entry, progress)
    except (tarfile.TarError, EOFError, OSError) as error:
        raise AgentError("precondition", f"the files arrived damaged or cut: {error}", next=_CUT) from None


def _write(source: Any, target: str, entry: Dict[str, Any], progress: Progress) -> None:
    os.makedirs(os.path.dirname(target), exist_ok=True)
    part, whole = target + ".part", hashlib.sha256()
    with open(part, "wb") as file:
        for block in iter(lambda: source.read(_BLOCK), b""):
            whole.update(block)
            file.write(block)
            progress.add(len(block))
    if whole.hexdigest() != entry["sha256"]:
        os.unlink(part)
        raise AgentError(
            "precondition",
            f"{os.path.basename(target)} arrived changed: its sha256 is not the manifest's",
            meaning="it was edited on the source since it was verified, or in transit",
            next=_CUT,
        )
    os.rename(part, target)


def _copies(site: str, files: Dict[str, Any]) -> None:
    """Files of the same content travel once."""
    there: Dict[str, str] = {}
    absent: List[str] = []
    for path in sorted(files):
        if os.path.isfile(os.path.join(site, path)):
            there.setdefault(files[path]["sha256"], path)
        else:
            absent.append(path)
    for path in absent:
        source = there.get(files[path]["sha256"])
        if source is None:
            raise AgentError("precondition", f"{path} did not arrive", next=_CUT)
        copy_file(os.path.join(site, source), os.path.join(site, path))


def _compile(interpreter: str, site: str) -> None:
    """Bytecode before any start: the tree is sealed, and a service that may write would write beside the sources.

    A file that does not compile (a template, another Python's) is no fault: whoever imports it says so.
    """
    emit({"ev": "note", "text": "compiling"})
    words = [
        interpreter,
        "-I",
        "-m",
        "compileall",
        "-q",
        "-q",
        "-j",
        "0",
        "--invalidation-mode",
        "checked-hash",
    ]
    status, out, err = run([*words, site], _COMPILE_LIMIT_S)
    if status in (124, 127):
        raise AgentError(
            "precondition", f"{interpreter} cannot compile the packages", evidence=(out + err).strip()
        )


def _seal(layout: Layout, here: str, manifest: Dict[str, Any], digest: str) -> None:
    site = os.path.join(here, SITE)
    for folder, _, names in os.walk(site):
        for name in names:
            path = os.path.join(folder, name)
            entry = manifest["files"].get(os.path.relpath(path, site))
            os.chown(path, os.geteuid(), os.getegid())
            os.chmod(path, 0o555 if entry and entry["x"] else 0o444)
        os.chmod(folder, 0o555)
    runtimes.check(site, manifest, digest, {})
    write_json(os.path.join(here, MANIFEST), manifest, mode=0o444)
    runtimes.write_stamps(here, manifest["files"])
    # One sync for some ten thousand files instead of an fsync each; the rename comes after it.
    os.sync()
    os.chmod(here, 0o555)
    os.makedirs(layout.runtimes, exist_ok=True)
    final = layout.runtime(digest)
    if os.path.isdir(final):  # damaged, or another service's sync was first
        gone = os.path.join(layout.staging, f"gc-runtime-{digest}.{layout.service}")
        remove_tree(gone, layout.staging)
        os.rename(final, gone)
        os.rename(here, final)
        remove_tree(gone, layout.staging)
    else:
        os.rename(here, final)
    sync_dir(layout.runtimes)
