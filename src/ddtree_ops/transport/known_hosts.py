"""Host keys: which are known, in which file and line, and what a server's key means against them."""

from __future__ import annotations

import base64
import fnmatch
import hashlib
import hmac
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class KnownKey:
    """A line of known_hosts that is about our host. `marker` is "", "@revoked" or "@cert-authority"."""

    file: Path
    line: int
    marker: str
    kind: str
    blob: bytes


def fingerprint(blob: bytes) -> str:
    """Return `SHA256:…` as `ssh-keygen -lf` prints it."""
    return "SHA256:" + base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip("=")


def known_keys(files: tuple[Path, ...], name: str) -> list[KnownKey]:
    """Return the lines about `name`, in file order. A file that is not there, and a broken line, count as nothing."""
    found = []
    for file in files:
        try:
            text = file.read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        for number, line in enumerate(text.splitlines(), 1):
            key = _parse(line, file, number, name)
            if key is not None:
                found.append(key)
    return found


def _parse(line: str, file: Path, number: int, name: str) -> KnownKey | None:
    fields = line.split()
    if not fields or fields[0].startswith("#"):
        return None
    marker = fields.pop(0) if fields[0].startswith("@") else ""
    if len(fields) < 3 or not _matches(fields[0], name):
        return None
    try:
        blob = base64.b64decode(fields[2], validate=True)
    except ValueError:
        return None
    return KnownKey(file, number, marker, fields[1], blob)


def _matches(patterns: str, name: str) -> bool:
    """sshd(8): comma-separated globs, `!` excludes, or one hashed name."""
    if patterns.startswith("|1|"):
        return _hashed(patterns, name)
    wanted = False
    for pattern in patterns.lower().split(","):
        negated = pattern.startswith("!")
        if _glob(pattern.lstrip("!"), name.lower()):
            if negated:
                return False
            wanted = True
    return wanted


def _glob(pattern: str, name: str) -> bool:
    # Only * and ? are special there; `[` begins `[host]:port`.
    return fnmatch.fnmatchcase(name, pattern.replace("[", "[[]"))


def _hashed(text: str, name: str) -> bool:
    try:
        _, _, salt, digest = text.split("|")
        made = hmac.new(base64.b64decode(salt), name.encode(), hashlib.sha1).digest()
        return hmac.compare_digest(made, base64.b64decode(digest))
    except ValueError:
        return False


def remember(file: Path, name: str, kind: str, blob: bytes) -> None:
    """Append a key in one write. Raises OSError."""
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    line = f"{name} {kind} {base64.b64encode(blob).decode()}\n"
    if file.exists() and file.stat().st_size and not file.read_bytes().endswith(b"\n"):
        line = "\n" + line
    with file.open("a", encoding="ascii") as out:
        out.write(line)
