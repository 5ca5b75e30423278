"""The release store: built from the host's own base, proved byte for byte, sealed, refused when anything differs."""

from __future__ import annotations

import copy
import io
import os
import random
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

from ddtree_agent import store
from ddtree_agent.layout import Layout, remove_tree
from ddtree_agent.wire import AgentError
from ddtree_ops.engine.digests import sha256, tree_digest, tree_hashes
from ddtree_ops.engine.release import Release, make_release

pytestmark = pytest.mark.tier("main")
DROPIN = "[Service]\nEnvironment=DDTREE_RELEASE=@RELEASE@\n"


@pytest.fixture
def base(tmp_path: Path) -> Path:
    package = tmp_path / "site-packages" / "sglang"
    for path, text in {
        "__init__.py": "",
        "srt/args.py": "A = 1\n",
        "srt/data.json": "{}",
        "jit_kernel/k.cu": "// kernel\n",
    }.items():
        (package / path).parent.mkdir(parents=True, exist_ok=True)
        (package / path).write_text(text)
    (package / "__pycache__").mkdir()
    (package / "__pycache__" / "x.cpython-311.pyc").write_bytes(b"old")
    return package


def release_of(package: Path, files: dict[str, bytes] | None = None) -> Release:
    files = files if files is not None else {"srt/args.py": b"A = 2\n", "srt/new.py": b"B = 1\n"}
    return make_release(
        engine={"name": "sglang", "version": "1", "package": str(package), "interpreter": sys.executable},
        base=tree_hashes(package),
        base_bytes=100,
        files=files,
        pre={},
        patches=[("0001", "aa")],
        mode="shadow",
        argv=["x"],
        exec_argv=["x"],
        dropin=DROPIN,
    )


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return Layout("sglang.service", str(tmp_path / "host"))


def stage(layout: Layout, release: Release, payload: bytes | None = None) -> None:
    manifest: dict[str, Any] = copy.deepcopy(release.manifest)
    store.stage(layout, "abc-1", manifest, io.BytesIO(release.payload() if payload is None else payload))


def test_a_release_is_the_base_with_the_patched_files_in_it(layout: Layout, base: Path) -> None:
    release = release_of(base)
    stage(layout, release)
    overlay = Path(layout.release(release.digest)) / "overlay" / "sglang"
    assert (overlay / "srt/args.py").read_text() == "A = 2\n"
    assert (overlay / "srt/new.py").read_text() == "B = 1\n"
    assert (overlay / "srt/data.json").read_text() == "{}"
    assert (overlay / "jit_kernel").is_symlink()
    assert list(overlay.rglob("args.*.pyc"))  # compiled before anything stops
    assert not list(overlay.rglob("x.cpython-311.pyc"))  # the base's bytecode is not ours
    assert (Path(layout.release(release.digest)) / "dropin.conf").read_text() == DROPIN.replace(
        "@RELEASE@", release.digest
    )
    assert (base / "srt/args.py").read_text() == "A = 1\n"
    store.verify(layout, release.digest)


def test_the_copy_shares_no_inode_with_the_base(layout: Layout, base: Path) -> None:
    release = release_of(base)
    stage(layout, release)
    overlay = Path(layout.release(release.digest)) / "overlay" / "sglang"
    assert os.stat(overlay / "srt/data.json").st_ino != os.stat(base / "srt/data.json").st_ino


def test_sealed_files_are_read_only(layout: Layout, base: Path) -> None:
    release = release_of(base)
    stage(layout, release)
    for path in Path(layout.release(release.digest)).rglob("*"):
        if not path.is_symlink():
            assert not path.stat().st_mode & 0o222, path


@pytest.mark.parametrize("victim", ["srt/args.py", "srt/data.json", "../../dropin.conf"])
def test_a_flipped_bit_in_a_sealed_release_is_named(layout: Layout, base: Path, victim: str) -> None:
    release = release_of(base)
    stage(layout, release)
    path = Path(layout.release(release.digest)) / "overlay" / "sglang" / victim
    raw = bytearray(path.read_bytes())
    raw[0] ^= 1
    path.chmod(0o644)
    path.write_bytes(raw)
    with pytest.raises(AgentError, match=Path(victim).name.replace(".", r"\.")):
        store.verify(layout, release.digest)


@pytest.mark.parametrize("where", ["overlay/sglang/srt/__pycache__", "."])
def test_a_flipped_bit_in_bytecode_or_in_its_list_is_named(layout: Layout, base: Path, where: str) -> None:
    """Checked-hash bytecode vouches for its source, not for itself, and it is what runs."""
    release = release_of(base)
    stage(layout, release)
    here = Path(layout.release(release.digest))
    path = here / "bytecode.sha256" if where == "." else next((here / where).glob("args.*.pyc"))
    raw = bytearray(path.read_bytes())
    raw[-1 if where != "." else 0] ^= 1
    path.chmod(0o644)
    path.write_bytes(raw)
    with pytest.raises(AgentError, match=r"args\..*\.pyc" if where != "." else "damaged"):
        store.verify(layout, release.digest)


def test_a_flipped_bit_in_a_manifest_that_still_reads_is_named(layout: Layout, base: Path) -> None:
    release = release_of(base)
    stage(layout, release)
    path = Path(layout.release(release.digest)) / "manifest.json"
    path.chmod(0o644)
    path.write_text(path.read_text().replace('"mode": "', '"mode": "s'))
    with pytest.raises(AgentError, match=r"manifest\.json"):
        store.verify(layout, release.digest)


def test_an_extra_and_a_missing_file_in_a_sealed_release_are_named(layout: Layout, base: Path) -> None:
    release = release_of(base)
    stage(layout, release)
    folder = Path(layout.release(release.digest)) / "overlay" / "sglang" / "srt"
    folder.chmod(0o755)
    (folder / "evil.py").write_text("")
    with pytest.raises(AgentError, match=r"evil\.py"):
        store.verify(layout, release.digest)
    (folder / "evil.py").unlink()
    (folder / "data.json").unlink()
    with pytest.raises(AgentError, match=r"data\.json"):
        store.verify(layout, release.digest)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ("edit", "srt/args.py"),
        ("add", "srt/extra.py"),
        ("remove", "srt/data.json"),
        ("edit-linked", "jit_kernel/k.cu"),
    ],
)
def test_sources_that_moved_since_the_snapshot_are_refused(
    layout: Layout, base: Path, change: str, named: str
) -> None:
    release = release_of(base)
    target = base / named
    if change == "remove":
        target.unlink()
    else:
        target.write_text("moved\n")
    with pytest.raises(AgentError, match=named.replace(".", r"\.")):
        stage(layout, release)
    assert not os.path.exists(layout.release(release.digest))
    assert os.listdir(layout.staging) == []


def hostile(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> bytes:
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w:gz") as archive:
        member = tarfile.TarInfo(name)
        member.type, member.linkname = kind, link
        archive.addfile(member, io.BytesIO(b""))
    return sink.getvalue()


@pytest.mark.parametrize(
    ("name", "kind", "link"),
    [
        ("../escape.py", tarfile.REGTYPE, ""),
        ("/etc/escape", tarfile.REGTYPE, ""),
        ("srt/args.py", tarfile.SYMTYPE, "/etc/passwd"),
        ("srt/args.py", tarfile.LNKTYPE, "srt/new.py"),
        ("srt/args.py", tarfile.CHRTYPE, ""),
        ("srt/unknown.py", tarfile.REGTYPE, ""),
    ],
)
def test_a_hostile_archive_writes_nothing(
    layout: Layout, base: Path, tmp_path: Path, name: str, kind: bytes, link: str
) -> None:
    with pytest.raises(AgentError, match="bundle"):
        stage(layout, release_of(base), hostile(name, kind, link))
    assert not list(tmp_path.rglob("escape*"))
    assert os.listdir(layout.staging) == []


@pytest.mark.parametrize("share", [0.0, 0.25, 0.5, 0.99])
def test_a_cut_transfer_leaves_no_release_and_no_staging(layout: Layout, base: Path, share: float) -> None:
    rng = random.Random(1)
    release = release_of(base, {f"srt/f{i}.py": b"#" + rng.randbytes(600).hex().encode() for i in range(40)})
    payload = release.payload()
    with pytest.raises(AgentError):
        stage(layout, release, payload[: int(len(payload) * share)])
    assert not os.path.exists(layout.release(release.digest))
    assert os.listdir(layout.staging) == []


def test_a_changed_byte_in_transit_is_named(layout: Layout, base: Path) -> None:
    good, other = release_of(base), release_of(base, {"srt/args.py": b"A = 3\n", "srt/new.py": b"B = 1\n"})
    with pytest.raises(AgentError, match=r"srt/args\.py"):
        stage(layout, good, other.payload())


def test_a_patched_file_that_does_not_compile_is_refused(layout: Layout, base: Path) -> None:
    with pytest.raises(AgentError, match="cannot compile"):
        stage(layout, release_of(base, {"srt/args.py": b"def (\n"}))


def test_a_release_that_must_be_kept_is_never_retired(layout: Layout, base: Path) -> None:
    release = release_of(base)
    stage(layout, release)
    store.retire(layout, release.digest, "abc-1", {"why": "smoke"}, keep=(release.digest,))
    store.verify(layout, release.digest)
    store.retire(layout, release.digest, "abc-2", {"why": "smoke"})
    assert not os.path.exists(layout.release(release.digest))
    left = sorted(p.name for p in (Path(layout.failed) / f"{release.digest}-abc-2").iterdir())
    assert left == ["manifest.json", "report.json"]


def test_what_a_power_cut_left_of_a_release_is_built_anew(layout: Layout, base: Path) -> None:
    release = release_of(base)
    stage(layout, release)
    folder = Path(layout.release(release.digest))
    folder.chmod(0o755)
    (folder / "manifest.json").unlink()
    assert store.releases(layout) == []
    stage(layout, release)
    store.verify(layout, release.digest)


def test_only_directories_of_ours_are_deleted(layout: Layout, tmp_path: Path) -> None:
    os.makedirs(layout.staging)
    outside = tmp_path / "precious"
    outside.mkdir()
    os.symlink(outside, os.path.join(layout.staging, "link"))
    with pytest.raises(AgentError, match="refused"):
        remove_tree(os.path.join(layout.staging, "link"), layout.staging)
    with pytest.raises(AgentError, match="refused"):
        remove_tree(layout.staging, layout.staging)
    assert outside.is_dir()


def test_both_sides_compute_the_same_tree_digest(base: Path) -> None:
    hashes = {path: store.file_digest(str(base / path)) for path in store.walk(str(base))}
    assert store.tree_digest(hashes) == tree_digest(tree_hashes(base))


def test_the_same_inputs_give_the_same_release_and_every_input_counts(base: Path) -> None:
    release = release_of(base)
    assert release_of(base).payload() == release.payload()
    assert release_of(base).digest == release.digest
    assert release_of(base, {"srt/args.py": b"A = 9\n"}).source_digest != release.source_digest
    assert sha256(release.payload()) == sha256(release_of(base).payload())
