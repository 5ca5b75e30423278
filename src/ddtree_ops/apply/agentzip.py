"""Builds the host agent: a reproducible zip of deploy/agent and the core modules that the host shares with us."""

from __future__ import annotations

import hashlib
import io
import zipfile
from functools import cache
from pathlib import Path

import ddtree_ops.core
from ddtree_ops.data import data_dir

#: What the host runs verbatim from ddtree_ops.core: one truth for both sides.
SHARED = (
    "txn.py",
    "watch.py",
    "watch_facts.py",
    "watch_info.py",
    "watch_motion.py",
    "watch_unit.py",
    "signatures.py",
    "scanner.py",
    "log_record.py",
    "log_text.py",
    "raised.py",
    "xid.py",
    "signatures.json",
)
_EPOCH = (1980, 1, 1, 0, 0, 0)


@cache
def build() -> bytes:
    """The agent as a zip that `python3 -I FILE VERB` runs. The same sources give the same bytes."""
    package = data_dir("deploy") / "agent" / "ddtree_agent"
    core = Path(ddtree_ops.core.__file__).parent
    files = {f"ddtree_agent/{path.name}": path for path in package.glob("*.py")}
    files["__main__.py"] = files.pop("ddtree_agent/__main__.py")
    files["ddtree_agent/core/__init__.py"] = package / "core" / "__init__.py"
    files |= {f"ddtree_agent/core/{name}": core / name for name in SHARED}
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in sorted(files):
            archive.writestr(zipfile.ZipInfo(name, _EPOCH), files[name].read_bytes(), zipfile.ZIP_DEFLATED)
    return sink.getvalue()


def digest() -> str:
    """The agent's name on a host: the first 16 hex digits of its sha256."""
    return hashlib.sha256(build()).hexdigest()[:16]
