"""The engine's package as the probe reads it: RECORD, tree digest, origin, CUDA builds, by real files and binaries."""

from __future__ import annotations

import base64
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ddtree_agent import elf, package
from ddtree_ops.engine import digests

pytestmark = pytest.mark.tier("main")
ENGINE = Path(__file__).resolve().parents[2] / ".venv-engine"


def install(site: Path, name: str, version: str, files: dict[str, str], record: bool = True) -> Path:
    """A distribution as an installer leaves it."""
    info = site / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    rows = [f"{info.name}/RECORD,,"]
    for path, text in files.items():
        (site / path).parent.mkdir(parents=True, exist_ok=True)
        (site / path).write_text(text)
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).decode().rstrip("=")
        rows.append(f'"{path}",sha256={digest},{len(text)}')
    if record:
        (info / "RECORD").write_text("\n".join(rows) + "\n")
    return info


@pytest.fixture
def site(tmp_path: Path) -> Path:
    files = {"sglang/__init__.py": "", "sglang/srt/args.py": "A = 1\n", "sglang/srt/odd, name.json": "{}"}
    install(tmp_path / "site", "sglang", "0.5.11", files)
    return tmp_path / "site"


def ask(site: Path, cwd: Path, *flags: str) -> dict[str, Any]:
    env = {"PYTHONPATH": str(site), "PATH": os.environ["PATH"]}
    return package.query(sys.executable, list(flags), env, str(cwd))


def engine(site: Path, cwd: Path, files: Any = None) -> dict[str, Any]:
    return package.engine(ask(site, cwd), files)


def test_an_intact_package_is_intact(site: Path, tmp_path: Path) -> None:
    found = engine(site, tmp_path, ["srt/args.py", "srt/new.py"])
    assert found["version"] == "0.5.11"
    assert found["package"] == str(site / "sglang")
    assert found["record"] == {
        "present": True, "files": 3, "edited": [], "missing": [], "extra": [], "other": [],
    }  # fmt: skip
    assert found["files"] == {"srt/args.py": hashlib.sha256(b"A = 1\n").hexdigest(), "srt/new.py": None}


def test_the_tree_digest_is_the_controllers(site: Path, tmp_path: Path) -> None:
    (site / "sglang" / "__pycache__").mkdir()
    (site / "sglang" / "__pycache__" / "x.cpython-311.pyc").write_bytes(b"x")
    (site / "sglang" / "old.pyc").write_bytes(b"x")
    found = engine(site, tmp_path, "all")
    hashes = digests.tree_hashes(site / "sglang")
    assert found["files"] == hashes
    assert found["tree"] == digests.tree_digest(hashes)


def test_an_edited_file_is_named_with_both_hashes(site: Path, tmp_path: Path) -> None:
    (site / "sglang/srt/args.py").write_text("A = 2\n")
    assert engine(site, tmp_path)["record"]["edited"] == [
        {
            "file": "srt/args.py",
            "expected": hashlib.sha256(b"A = 1\n").hexdigest(),
            "found": hashlib.sha256(b"A = 2\n").hexdigest(),
        }
    ]


def test_missing_and_extra_files_are_named(site: Path, tmp_path: Path) -> None:
    (site / "sglang/srt/args.py").unlink()
    (site / "sglang/srt/ddtree.py").write_text("")
    found = engine(site, tmp_path)["record"]
    assert found["missing"] == ["srt/args.py"]
    assert found["extra"] == ["srt/ddtree.py"]


def test_without_a_record_nothing_is_claimed(tmp_path: Path) -> None:
    install(tmp_path / "site", "sglang", "0.5.11", {"sglang/__init__.py": ""}, record=False)
    assert engine(tmp_path / "site", tmp_path)["record"]["present"] is False


def test_a_folder_in_the_working_directory_shadows(site: Path, tmp_path: Path) -> None:
    work = tmp_path / "work"
    (work / "sglang").mkdir(parents=True)
    (work / "sglang" / "__init__.py").write_text("")
    found = engine(site, work)
    assert found["package"] == str(work / "sglang")
    assert found["version"] is None
    assert found["elsewhere"] == [str(site / "sglang-0.5.11.dist-info")]


def test_no_engine_is_said_to_be_missing(tmp_path: Path) -> None:
    assert engine(tmp_path, tmp_path)["missing"] is True


def test_flag_e_ignores_pythonpath_and_is_reported(site: Path, tmp_path: Path) -> None:
    asked = ask(site, tmp_path, "-E")
    assert asked["ignore_environment"] is True
    assert package.engine(asked)["missing"] is True


def test_the_query_writes_nothing(site: Path, tmp_path: Path) -> None:
    (site / "sitecustomize.py").write_text("")  # what every start of that interpreter imports
    before = sorted(p.relative_to(site) for p in site.rglob("*"))
    engine(site, tmp_path)
    assert sorted(p.relative_to(site) for p in site.rglob("*")) == before


def test_a_broken_interpreter_says_its_own_last_line(tmp_path: Path) -> None:
    bad = tmp_path / "python3"
    bad.write_text("#!/bin/sh\necho libpython is gone >&2\nexit 3\n")
    bad.chmod(0o755)
    with pytest.raises(RuntimeError, match="ended with 3: libpython is gone"):
        package.query(str(bad), [], {}, "/")


def test_builds_read_version_py_tags_and_duplicates(tmp_path: Path) -> None:
    site, other = tmp_path / "site", tmp_path / "other"
    text = "from typing import Optional\n__version__ = '2.9.1'\ncuda: Optional[str] = '12.8'\n"
    install(site, "torch", "2.9.1", {"torch/__init__.py": "", "torch/version.py": text})
    install(site, "sgl-kernel", "0.3.16+cu130", {"sgl_kernel/__init__.py": ""})
    install(site, "nvidia-cublas-cu12", "12.8.1", {})
    install(other, "torch", "2.6.0", {})
    env = {"PYTHONPATH": f"{site}{os.pathsep}{other}"}
    found = package.builds(package.query(sys.executable, [], env, str(tmp_path)))
    assert found["torch"]["version"] == "2.9.1"
    assert found["torch"]["cuda"] == "12.8"
    assert {d["name"]: d["local"] for d in found["dists"]}["sgl-kernel"] == "cu130"
    assert "nvidia-cublas-cu12" in {d["name"] for d in found["dists"]}
    assert len(found["duplicates"]["torch"]) == 2


@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")
def test_needed_names_the_cuda_runtime_of_a_real_binary(tmp_path: Path) -> None:
    site = tmp_path / "site"
    install(site, "sglang-kernel", "0.4.2", {"sgl_kernel/__init__.py": ""})
    (tmp_path / "stub.c").write_text("int cudaMalloc(void) { return 0; }\n")
    (tmp_path / "ops.c").write_text("int cudaMalloc(void); int op(void) { return cudaMalloc(); }\n")
    stub = tmp_path / "libcudart.so.13"
    ops = site / "sgl_kernel" / "common_ops.abi3.so"
    subprocess.run(
        ["gcc", "-shared", "-fPIC", "-Wl,-soname,libcudart.so.13", "-o", stub, tmp_path / "stub.c"],
        check=True,
    )
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", ops, tmp_path / "ops.c", stub], check=True)
    found = package.builds(ask(site, tmp_path))
    assert [k["file"] for k in found["kernels"]] == [str(ops)]
    assert "libcudart.so.13" in found["kernels"][0]["needed"]


def test_a_file_that_is_no_library_is_an_error(tmp_path: Path) -> None:
    for data in (b"", b"!<arch>", b"\x7fELF\x02\x01" + b"\xff" * 58):
        (tmp_path / "x.so").write_bytes(data)
        with pytest.raises(ValueError):
            elf.needed(str(tmp_path / "x.so"))


@pytest.mark.engine
@pytest.mark.skipif(not (ENGINE / "bin/python").exists(), reason="needs .venv-engine")
def test_the_real_wheel_is_intact() -> None:
    asked = package.query(str(ENGINE / "bin/python"), [], {}, "/")
    found = package.engine(asked, ["srt/server_args.py"])
    assert found["version"] == "0.5.11"
    assert found["record"]["present"] and not found["record"]["edited"]
    assert not found["record"]["missing"]
    assert package.builds(asked)["torch"]["cuda"] is None
