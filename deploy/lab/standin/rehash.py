"""Write base.json of both series after an edit of the package: sha256 of each file that a patch touches."""

import hashlib
import json
import os
import re

HERE = os.path.dirname(os.path.abspath(__file__))


def pre_images(series: str) -> "dict[str, str]":
    """Path relative to the package -> sha256, for every file that the series' patches change."""
    names = [
        line for line in _read(series, "series").decode().split("\n") if line and not line.startswith("#")
    ]
    texts = [_read(series, name).decode() for name in names]
    paths = sorted({path for text in texts for path in re.findall(r"^--- a/(\S+)", text, re.M)})
    return {path: hashlib.sha256(_read("sglang", path)).hexdigest() for path in paths}


def _read(*path: str) -> bytes:
    with open(os.path.join(HERE, *path), "rb") as stream:
        return stream.read()


if __name__ == "__main__":
    for directory in ("series", "series-two-lines"):
        base = {"engine": "sglang", "version": "0.5.11", "files": pre_images(directory)}
        with open(os.path.join(HERE, directory, "base.json"), "w", encoding="utf-8") as stream:
            stream.write(json.dumps(base, indent=2) + "\n")
