"""Sends the engine's sources to the operator, as a gzipped tar in framed chunks."""

import base64
import gzip
import io
import os
import tarfile
from typing import Any, Dict

from .store import walk
from .wire import AgentError, result, send

_CHUNK = 1 << 18


class Framed(io.RawIOBase):
    """A file whose writes become frames."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        raw = bytes(data)
        self.bytes += len(raw)
        send({"ev": "chunk", "data": base64.b64encode(raw).decode()})
        return len(raw)


def snapshot(request: Dict[str, Any]) -> None:
    """Stream `request["package"]`. Raises AgentError where it is not a directory."""
    package = request["package"]
    if not os.path.isdir(package):
        raise AgentError("precondition", f"there is no package {package} on this host")
    sink = Framed()
    buffered = io.BufferedWriter(sink, _CHUNK)
    # Level 3: on a LAN the host's CPU is the slow part, not the line.
    with (
        gzip.GzipFile(fileobj=buffered, mode="wb", compresslevel=3, mtime=0) as zipped,
        tarfile.open(fileobj=zipped, mode="w|", bufsize=_CHUNK, dereference=True) as archive,
    ):
        for path in walk(package):
            archive.add(os.path.join(package, path), arcname=path, recursive=False)
    buffered.flush()
    result(bytes=sink.bytes)
