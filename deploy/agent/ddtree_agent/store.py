"""The release store: stage a pushed release, prove every byte of it, seal it.

A release is the base package copied on the host with only the patched files sent over; it is content-addressed and
read-only, and it is complete before anything of the running service is touched.
"""

import fcntl
import glob
import hashlib
import os
import shutil
import tarfile
from typing import Any, BinaryIO, Collection, Dict, Iterator, List, Tuple

from .layout import PLACEHOLDER, Layout, read_json, remove_tree, sync_dir, write_json
from .systemd import run
from .wire import AgentError

_FICLONE = 0x40049409  # ioctl_ficlone(2): share the blocks where the filesystem can
#: sha256 of the bytecode as the host compiled it, in the form of sha256sum(1).
_BYTECODE = "bytecode.sha256"
#: The sha256 of manifest.json, which holds that of every other file, and of the list of bytecode.
_SEAL = "manifest.sha256"
_SEALED = ("manifest.json", _BYTECODE)
_SLACK = 64 << 20
_COMPILE_LIMIT = 120.0


def tree_digest(files: Dict[str, str]) -> str:
    """One sha256 over a package: its sorted (relative path, sha256) pairs."""
    whole = hashlib.sha256()
    for path in sorted(files):
        whole.update(f"{path}\0{files[path]}\n".encode())
    return whole.hexdigest()


def walk(package: str) -> Iterator[str]:
    """Relative paths of a package's files, without bytecode."""
    for folder, dirs, names in os.walk(package):
        dirs[:] = sorted(d for d in dirs if d != "__pycache__")
        for name in sorted(names):
            if not name.endswith((".pyc", ".pyo")):
                yield os.path.relpath(os.path.join(folder, name), package)


def file_digest(path: str) -> str:
    """sha256 of a file's content, hex."""
    whole = hashlib.sha256()
    with open(path, "rb") as file:
        for block in iter(lambda: file.read(1 << 20), b""):
            whole.update(block)
    return whole.hexdigest()


def stage(layout: Layout, txn_id: str, manifest: Dict[str, Any], payload: BinaryIO) -> None:
    """Build releases/<digest> from the host's own base package and the files that travel. Raises AgentError, and
    leaves nothing of ours behind, where a byte is not what the manifest says."""
    final = layout.release(manifest["release"])
    damaged = False
    if os.path.isdir(final):
        try:
            verify(layout, manifest["release"])
            return
        except AgentError:
            damaged = True  # a power cut, a hand: built anew from the same sources it is the same release
    _room(layout, manifest)
    os.makedirs(layout.staging, exist_ok=True)
    os.makedirs(layout.releases, exist_ok=True)
    here = layout.staged(txn_id)
    remove_tree(here, layout.staging)
    try:
        _fill(here, manifest, payload)
        _seal(here)
        aside = _aside(layout, manifest["release"], txn_id) if damaged else None
        os.rename(here, final)
        sync_dir(layout.releases)
        if aside:  # only now: a drop-in may name it, and the host may boot at any moment
            _strip(aside)
    except BaseException:
        remove_tree(here, layout.staging)
        raise


def sweep(layout: Layout) -> None:
    """Remove what an interrupted push left, and keys of releases that are gone. The caller holds the lock."""
    for path in glob.glob(layout.secrets("*")):
        digest = os.path.basename(path)[len("secrets-") : -len(".env")]
        if not os.path.isdir(layout.release(digest)):
            os.unlink(path)
    if os.path.isdir(layout.staging):
        for name in os.listdir(layout.staging):
            if name.partition(".")[2] != layout.service:
                continue
            remove_tree(os.path.join(layout.staging, name), layout.staging)


def manifest_of(layout: Layout, digest: str) -> Dict[str, Any]:
    """A release's manifest. Raises AgentError where the host has no such release."""
    found = read_json(os.path.join(layout.release(digest), "manifest.json"))
    if not isinstance(found, dict):
        raise AgentError(
            "precondition",
            f"release {digest} is not on this host",
            next="ddtree-ops history, to see the releases that are",
        )
    return found


def find(layout: Layout, digest: str) -> Dict[str, Any]:
    """A release's manifest, {} where the host has no such release or it cannot be read."""
    try:
        return manifest_of(layout, digest)
    except AgentError:
        return {}


def verify(layout: Layout, digest: str) -> None:
    """Hash a sealed release against its manifest. Raises AgentError naming the first file that differs."""
    manifest = manifest_of(layout, digest)
    if not _is_sealed(layout.release(digest)):
        raise _damaged(digest, "manifest.json")
    overlay = os.path.join(layout.release(digest), "overlay", manifest["engine"]["name"])
    expected = dict(manifest["base"]["files"])
    expected.update({path: entry["sha256"] for path, entry in manifest["overlay"].items()})
    links = tuple(link + "/" for link in manifest["links"])
    expected = {path: sha for path, sha in expected.items() if not path.startswith(links)}
    for path in walk(overlay):
        if path.startswith(links):
            continue
        if expected.pop(path, None) != file_digest(os.path.join(overlay, path)):
            raise _damaged(digest, path)
    for path in expected:
        raise _damaged(digest, path)
    with open(os.path.join(layout.release(digest), _BYTECODE), encoding="utf-8") as file:
        for line in file:
            want, path = line.rstrip("\n").split("  ", 1)
            if (
                not os.path.isfile(os.path.join(overlay, path))
                or file_digest(os.path.join(overlay, path)) != want
            ):
                raise _damaged(digest, path)
    with open(os.path.join(layout.release(digest), "dropin.conf"), encoding="utf-8") as file:
        if file.read() != dropin_text(manifest):
            raise _damaged(digest, "dropin.conf")


def _is_sealed(release: str) -> bool:
    """Whether the lists of digests are the ones that were sealed."""
    try:
        with open(os.path.join(release, _SEAL), encoding="ascii", errors="replace") as file:
            return file.read().split() == [file_digest(os.path.join(release, name)) for name in _SEALED]
    except FileNotFoundError:
        return False


def _compiled(overlay: str) -> Iterator[str]:
    """Relative paths of a package's bytecode: it is what runs, and it vouches for its source, not for itself."""
    for folder, dirs, names in os.walk(overlay):
        dirs.sort()
        for name in sorted(names):
            if name.endswith(".pyc"):
                yield os.path.relpath(os.path.join(folder, name), overlay)


def dropin_text(manifest: Dict[str, Any]) -> str:
    """The release's drop-in with its own digest filled in."""
    return str(manifest["dropin"]).replace(PLACEHOLDER, manifest["release"])


def retire(
    layout: Layout, digest: str, txn_id: str, report: Dict[str, Any], keep: Collection[str] = ()
) -> None:
    """Keep a failed release's manifest and report as evidence and free its bytes; `keep` names releases that stay
    whole whatever happened (the confirmed one and the one before it)."""
    target = evidence_dir(layout, digest, txn_id)
    os.makedirs(target, mode=0o755, exist_ok=True)
    write_json(os.path.join(target, "report.json"), report, mode=0o600)
    if digest not in keep and os.path.isdir(layout.release(digest)):
        set_aside(layout, digest, txn_id)


def evidence_dir(layout: Layout, digest: str, txn_id: str) -> str:
    """Where what is kept of a failed release lies."""
    return os.path.join(layout.failed, f"{digest}-{txn_id}")


def set_aside(layout: Layout, digest: str, txn_id: str) -> None:
    """Take a release out of the store in one rename, then delete all of it but its manifest."""
    aside = _aside(layout, digest, txn_id)
    sync_dir(layout.releases)
    _strip(aside)


def _aside(layout: Layout, digest: str, txn_id: str) -> str:
    target = evidence_dir(layout, digest, txn_id)
    whole = os.path.join(target, "release")
    os.makedirs(target, mode=0o755, exist_ok=True)
    remove_tree(whole, target)
    os.rename(layout.release(digest), whole)
    return whole


def _strip(whole: str) -> None:
    """Delete all of a release that was set aside but its manifest."""
    target = os.path.dirname(whole)
    manifest = os.path.join(whole, "manifest.json")
    if os.path.isfile(manifest):
        kept = os.path.join(target, "manifest.json")
        shutil.copyfile(manifest, kept)
        os.chmod(kept, 0o600)
    remove_tree(whole, target)


def _room(layout: Layout, manifest: Dict[str, Any]) -> None:
    anchor = layout.releases
    while not os.path.isdir(anchor):
        anchor = os.path.dirname(anchor)
    stat = os.statvfs(anchor)
    need = 2 * int(manifest["base"]["bytes"]) + sum(e["size"] for e in manifest["overlay"].values()) + _SLACK
    if stat.f_bavail * stat.f_frsize < need or (
        stat.f_files and stat.f_favail < 2 * len(manifest["base"]["files"])
    ):
        raise AgentError(
            "precondition",
            f"{anchor} has {stat.f_bavail * stat.f_frsize >> 20} MiB and {stat.f_favail} inodes free; "
            f"the release needs {need >> 20} MiB and {2 * len(manifest['base']['files'])} inodes",
            meaning="nothing was written",
            next=f"free space on {anchor}, then type the same command again",
        )


def _fill(here: str, manifest: Dict[str, Any], payload: BinaryIO) -> None:
    overlay = os.path.join(here, "overlay", manifest["engine"]["name"])
    os.makedirs(overlay)
    _copy_base(manifest, overlay)
    _unpack(manifest, overlay, payload)
    interpreter = manifest["engine"]["interpreter"]
    status, out, err = run(
        [
            interpreter,
            "-I",
            "-m",
            "compileall",
            "-q",
            "-j",
            "0",
            "--invalidation-mode",
            "checked-hash",
            overlay,
        ],
        _COMPILE_LIMIT,
    )
    if status != 0:
        raise AgentError(
            "precondition",
            f"{interpreter} cannot compile the patched sources",
            evidence=(out + err).strip().splitlines()[0] if (out + err).strip() else f"exit status {status}",
            meaning="a patched file is not valid for this Python",
        )
    write_json(os.path.join(here, "manifest.json"), manifest)
    with open(os.path.join(here, _BYTECODE), "w", encoding="utf-8") as file:
        file.writelines(
            f"{file_digest(os.path.join(overlay, path))}  {path}\n" for path in _compiled(overlay)
        )
    with open(os.path.join(here, _SEAL), "w", encoding="ascii") as file:
        file.writelines(f"{file_digest(os.path.join(here, name))}\n" for name in _SEALED)
    with open(os.path.join(here, "dropin.conf"), "w", encoding="utf-8") as file:
        file.write(dropin_text(manifest))


def _copy_base(manifest: Dict[str, Any], overlay: str) -> None:
    package, expected = manifest["engine"]["package"], dict(manifest["base"]["files"])
    for link in manifest["links"]:
        # Compiled-kernel caches are keyed by path: a new directory a release would recompile everything.
        os.symlink(os.path.join(package, link), os.path.join(overlay, link))
    links = tuple(link + "/" for link in manifest["links"])
    for path in walk(package):
        want = expected.pop(path, None)
        if want is None:
            raise _drifted(package, path, "not part of the snapshot", "present")
        if path.startswith(links):
            found = file_digest(os.path.join(package, path))
        else:
            found = _copy(os.path.join(package, path), os.path.join(overlay, path))
        if found != want:
            raise _drifted(package, path, want, found)
    for path, want in expected.items():
        raise _drifted(package, path, want, "missing")


def _copy(source: str, target: str) -> str:
    os.makedirs(os.path.dirname(target), exist_ok=True)
    with open(source, "rb") as reader, open(target, "wb") as writer:
        try:
            fcntl.ioctl(writer.fileno(), _FICLONE, reader.fileno())
        except OSError:
            shutil.copyfileobj(reader, writer, 1 << 20)
    # Hash what was written, not what was read: a release is proved by its own bytes.
    return file_digest(target)


def _unpack(manifest: Dict[str, Any], overlay: str, payload: BinaryIO) -> None:
    missing = dict(manifest["overlay"])
    try:
        with tarfile.open(fileobj=payload, mode="r|gz") as archive:
            for member in archive:
                entry = missing.pop(member.name, None)
                if entry is None or not _plain(member):
                    raise AgentError(
                        "precondition", f"the bundle holds {member.name!r}, which its manifest does not"
                    )
                _write_member(archive, member, entry, os.path.join(overlay, member.name))
    except (tarfile.TarError, EOFError, OSError) as error:
        raise AgentError(
            "precondition", f"the bundle arrived damaged or cut: {error}", next="type the same command again"
        ) from None
    if missing:
        raise AgentError(
            "precondition", f"the bundle lacks {sorted(missing)[0]}", next="type the same command again"
        )


def _plain(member: tarfile.TarInfo) -> bool:
    parts = member.name.split("/")
    return member.isreg() and not member.name.startswith("/") and not {"", ".", ".."} & set(parts)


def _write_member(
    archive: tarfile.TarFile, member: tarfile.TarInfo, entry: Dict[str, Any], target: str
) -> None:
    source = archive.extractfile(member)
    data = source.read() if source else b""
    if hashlib.sha256(data).hexdigest() != entry["sha256"]:
        raise AgentError("precondition", f"{member.name} arrived changed: its sha256 is not the manifest's")
    os.makedirs(os.path.dirname(target), exist_ok=True)
    with open(target, "wb") as file:
        file.write(data)


def _seal(here: str) -> None:
    for folder, _, names in os.walk(here):
        for name in names:
            path = os.path.join(folder, name)
            if not os.path.islink(path):
                os.chmod(path, 0o444)
        os.chmod(folder, 0o555)
    # One sync for some thousand files instead of an fsync each; the rename into releases/ comes after it.
    os.sync()


def _drifted(package: str, path: str, expected: str, found: str) -> AgentError:
    return AgentError(
        "precondition",
        f"the engine's sources on this host are not what the release was made for: {os.path.join(package, path)}",
        evidence=f"expected {expected}, found {found}",
        meaning="somebody edited or upgraded the package after the snapshot",
        next="ddtree-ops snapshot, then deploy again",
    )


def _damaged(digest: str, path: str) -> AgentError:
    return AgentError(
        "precondition",
        f"release {digest} on this host is damaged: {path} is not what its manifest says",
        meaning="it will not be started",
        next="ddtree-ops status, for the releases that are there",
    )


def releases(layout: Layout) -> List[Tuple[str, Dict[str, Any]]]:
    """Every sealed release with its manifest; what has none is no release."""
    found = []
    for name in sorted(os.listdir(layout.releases)) if os.path.isdir(layout.releases) else []:
        try:
            found.append((name, manifest_of(layout, name)))
        except AgentError:
            continue
    return found
