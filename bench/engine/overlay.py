"""Writes the files that our series makes of an unmodified sglang package, and nothing else, for the GPU machine."""

from __future__ import annotations

import ast
import hashlib
import json
import shutil
import sys
from pathlib import Path

from ddtree_ops.data import data_dir
from ddtree_ops.engine.patch import apply_series
from ddtree_ops.engine.series import load_series


def write_overlay(package: Path, out: Path, commit: str) -> str:
    """Put the series' files at out/sglang/..., and in digest.json their joint sha256, which it also returns."""
    files = apply_series(load_series(data_dir("engine_patches") / "sglang-0.5.11"), package).files
    check_imports(files, package)
    shutil.rmtree(out, ignore_errors=True)
    joint = hashlib.sha256()
    for path, content in sorted(files.items()):
        target = out / "sglang" / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
        joint.update(path.encode() + b"\0" + hashlib.sha256(content).digest())
    digest = joint.hexdigest()
    (out / "digest.json").write_text(
        json.dumps({"series": "sglang-0.5.11", "commit": commit, "sha256": digest})
    )
    return digest


def check_imports(files: dict[str, bytes], package: Path) -> None:
    """Every module of ours that one of ours imports is in the series. Raises: SystemExit.

    Seen once on the device machine: the kernels are imported on CUDA only, so no test had missed the file.
    """
    for path, content in files.items():
        for node in ast.walk(ast.parse(content)):
            if not isinstance(node, ast.ImportFrom) or "ddtree" not in (node.module or ""):
                continue
            parent = Path(path).parent if node.level else Path()
            name = (node.module or "").removeprefix("sglang.").replace(".", "/")
            wanted = (parent / f"{name}.py").as_posix()
            if wanted not in files and not (package / wanted).exists():
                sys.exit(f"{path}:{node.lineno} imports {wanted}, which the series does not bring")


if __name__ == "__main__":
    print("overlay", write_overlay(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]))
