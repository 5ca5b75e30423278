"""Small distributions as an installer leaves them, with RECORD, and binaries that only name what they need."""

from __future__ import annotations

import base64
import hashlib
import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

from ddtree_agent import envreceive, envsend
from ddtree_agent.layout import Layout

ROOT = Path(__file__).resolve().parents[2]


def _installer() -> ModuleType:
    spec = importlib.util.spec_from_file_location("standin_install", ROOT / "deploy/lab/standin/install.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def binary(*needed: str) -> bytes:
    """A shared object that needs these libraries."""
    made: bytes = _installer().shared_object(list(needed))
    return made


def install(
    site: Path, name: str, version: str, files: dict[str, bytes], requires: tuple[str, ...] = ()
) -> Path:
    """Write a distribution into a site directory; returns its dist-info."""
    info = site / f"{name.replace('-', '_')}-{version}.dist-info"
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
    lines += [f"Requires-Dist: {text}" for text in requires]
    everything = {
        **files,
        f"{info.name}/METADATA": ("\n".join(lines) + "\n").encode(),
        f"{info.name}/INSTALLER": b"pip\n",
    }
    rows = [f"{info.name}/RECORD,,"]
    for path, data in everything.items():
        (site / path).parent.mkdir(parents=True, exist_ok=True)
        (site / path).write_bytes(data)
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
        rows.append(f"{path},sha256={digest},{len(data)}")
    (info / "RECORD").write_text("\n".join(rows) + "\n")
    return info


def stack(site: Path, tag: str, kernel: str, torch: str = "2.11.0") -> None:
    """torch and what is built against it: `cu130`, `cu128`."""
    cuda = f"{tag[2:4]}.{tag[4:]}"
    text = f"__version__ = '{torch}+{tag}'\ncuda = '{cuda}'\n"
    install(
        site,
        "torch",
        torch,
        {
            "torch/__init__.py": b"from torch.version import __version__\n",
            "torch/version.py": text.encode(),
            "torch/lib/libtorch.so": binary(f"libcudart.so.{tag[2:4]}") + b"\0" * 3000,
            "torch/bin/ptxas": b"#!/bin/sh\n",
        },
        ("filelock", "sympy>=1.13", 'optree>=0.13; extra == "optree"'),
    )
    (site / "torch/bin/ptxas").chmod(0o755)
    needs = (f"libcudart.so.{kernel[2:4]}", "libc10.so", "libtorch.so")
    files = {"sgl_kernel/__init__.py": b"", "sgl_kernel/common_ops.abi3.so": binary(*needs)}
    install(site, "sglang-kernel", f"0.4.2+{kernel}", files)
    install(site, "sglang", "0.5.11", {"sglang/__init__.py": b"", "sglang/srt/args.py": b"A = 1\n"})
    install(site, "filelock", "3.16.0", {"filelock/__init__.py": b"# same everywhere\n"})
    install(site, "sympy", "1.13.1", {"sympy/__init__.py": b"# symbols\n"})


class Host:
    """One host's files under a directory of its own, asked as the agent's verbs ask."""

    def __init__(self, root: Path, interpreter: str) -> None:
        self.root, self.site, self.interpreter = root, root / "env/site-packages", interpreter
        self.site.mkdir(parents=True)
        self.layout = Layout("sglang.service", str(root))

    @property
    def request(self) -> dict[str, Any]:
        return {
            "service": "sglang.service",
            "interpreter": self.interpreter,
            "who": "me",
            "host": str(self.root),
        }

    def describe(self, runtime: str | None = None) -> dict[str, Any]:
        return envsend.describe({**self.request, "runtime": runtime})

    def manifest(self, *names: str) -> dict[str, Any]:
        return envsend.manifest({**self.request, "names": list(names)})

    def prepare(self, manifest: dict[str, Any]) -> dict[str, Any]:
        return envreceive.prepare(self.layout, {**self.request, "manifest": manifest})

    def receive(self, manifest: dict[str, Any], payload: Any) -> dict[str, Any]:
        request = {**self.request, "runtime": manifest["runtime"], "from": "ct129"}
        return envreceive.receive(self.layout, request, payload)
