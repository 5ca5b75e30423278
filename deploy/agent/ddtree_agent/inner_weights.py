"""The weight files of target and draft: is each whole, what do they hold, by their headers alone.

Runs in the unit's sandbox as the service's user, with inner_files alone beside it. Reads no weights.
"""

import json
import os
import re
import stat
import struct
import time
from typing import Any, Dict, List, Optional, Tuple

from .inner_files import LFS, checkpoint_place, read_json

HEADER_MAX = 100 << 20  # the safetensors format's own limit
SHARDS = 500
SECONDS = 8.0
NAMED = 8


def collect(argument: Dict[str, Any]) -> Dict[str, Any]:
    """argument: {target, draft: a directory, a GGUF file or a hub id, cache: the hub's}.

    Returns {target, draft: what the weights are, null where there are none to look at}.
    """
    end = time.monotonic() + SECONDS
    found: Dict[str, Any] = {}
    for name in ("target", "draft"):
        place = checkpoint_place(argument.get(name), argument.get("cache") or "")
        if place and os.path.isfile(place):
            size, why = _size(place)
            why = why or _gguf(place)
            faults = [{"file": os.path.basename(place), "why": why}] if why else []
            found[name] = {**_answer("gguf", 1, size, faults), "largest": size}
        elif place and os.path.isdir(place):
            try:
                found[name] = weights(place, sorted(os.listdir(place)), end)
            except OSError as error:
                found[name] = _answer(
                    None, 0, 0, [{"file": place, "why": f"cannot be read: {error.strerror}"}]
                )
        else:
            found[name] = None
    return found


def weights(place: str, names: List[str], end: float) -> Dict[str, Any]:
    """The weight files: {format, files, bytes, largest, by_dtype, shapes, faults: [{file, why}], unchecked}."""
    index = next(
        (n for n in ("model.safetensors.index.json", "pytorch_model.bin.index.json") if n in names), None
    )
    mapped: Dict[str, List[str]] = {}
    faults: List[Dict[str, str]] = []
    if index:
        try:
            for tensor, name in read_json(os.path.join(place, index))["weight_map"].items():
                mapped.setdefault(str(name), []).append(str(tensor))
        except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
            faults.append({"file": index, "why": f"cannot be read: {error}"})
    kind, files = _choose(names, sorted(mapped))
    total = largest = unchecked = 0
    by_dtype: Dict[str, int] = {}
    shapes: Dict[str, List[int]] = {}
    for name in files:
        path = os.path.join(place, name)
        if unchecked or len(faults) > 50 or time.monotonic() > end:
            unchecked += 1
            continue
        size, why = _size(path)
        total, largest = total + size, max(largest, size)
        if why is None and kind == "safetensors":
            why, tensors = header(path, size)
            lacking = (
                [tensor for tensor in mapped.get(name, []) if tensor not in tensors] if why is None else []
            )
            if lacking:
                why = f"lacks {len(lacking)} tensors that the index says it has, {lacking[0]} among them"
            for tensor, (dtype, shape, count) in tensors.items():
                by_dtype[dtype] = by_dtype.get(dtype, 0) + count
                if re.fullmatch(r"(.*\.)?(fc|embed_tokens|lm_head)\.weight", tensor) and len(shapes) < 6:
                    shapes[tensor] = shape
        elif why is None:
            why = _gguf(path) if kind == "gguf" else _torch_file(path, size)
        if why:
            faults.append({"file": name, "why": why})
    answer = _answer(kind, len(files), total, faults)
    answer.update(largest=largest, by_dtype=by_dtype, shapes=shapes, unchecked=unchecked)
    return answer


def header(path: str, size: int) -> "Tuple[Optional[str], Dict[str, Any]]":
    """(what is wrong with a safetensors file, {tensor: (dtype, shape, bytes)}): 8 bytes of length, JSON, then data."""
    with open(path, "rb") as file:
        head = file.read(64)
        if head.startswith(LFS):
            return "is a Git LFS pointer, not the weights", {}
        if size < 8:
            return f"has {size} bytes", {}
        length = struct.unpack("<Q", head[:8])[0]
        if length > HEADER_MAX:
            return "does not begin like a safetensors file", {}
        if 8 + length > size:
            return f"is truncated: {size} bytes, its header alone is {8 + length}", {}
        file.seek(8)
        raw = file.read(length)
    try:
        parsed = json.loads(raw)
        tensors = {
            str(name): (
                str(one["dtype"]),
                list(one["shape"]),
                one["data_offsets"][1] - one["data_offsets"][0],
            )
            for name, one in parsed.items()
            if name != "__metadata__"
        }
        ends = [one["data_offsets"][1] for name, one in parsed.items() if name != "__metadata__"]
    except (ValueError, KeyError, TypeError, AttributeError, IndexError):
        return "has a header that is no JSON of tensors", {}
    whole = 8 + length + max(ends, default=0)
    if size < whole:
        return f"is truncated: {size} of {whole} bytes", tensors
    if size > whole:
        return f"is longer than its header says: {size} against {whole} bytes", tensors
    return None, tensors


def _choose(names: List[str], mapped: List[str]) -> "Tuple[Optional[str], List[str]]":
    """The weight files that a loader takes: those of the index, else all of the first format that is there."""
    if mapped:
        return ("safetensors" if mapped[0].endswith(".safetensors") else "bin"), mapped[:SHARDS]
    for kind, pattern in (
        ("safetensors", r"(?!consolidated|adapter)\S+\.safetensors"),
        ("safetensors", r"consolidated\S*\.safetensors"),
        ("bin", r"(?!training_args|optimizer|adapter)\S+\.(bin|pt|pth)"),
        ("gguf", r"\S+\.gguf"),
    ):
        files = [name for name in names if re.fullmatch(pattern, name)]
        for name in list(files):
            part = re.fullmatch(r"(.*-)(\d+)-of-(\d+)(\.\w+)", name)
            if part and int(part[3]) <= SHARDS:
                width, count = len(part[2]), part[3]
                whole = [f"{part[1]}{i:0{width}d}-of-{count}{part[4]}" for i in range(1, int(count) + 1)]
                files = sorted(set(files) | set(whole))
                break
        if files:
            return kind, files[:SHARDS]
    return None, []


def _answer(kind: Optional[str], files: int, total: int, faults: List[Dict[str, str]]) -> Dict[str, Any]:
    return {
        "format": kind, "files": files, "bytes": total, "largest": 0, "by_dtype": {}, "shapes": {},
        "faults": faults[:NAMED], "faulty": len(faults), "unchecked": 0,
    }  # fmt: skip


def _size(path: str) -> "Tuple[int, Optional[str]]":
    try:
        found = os.stat(path)
    except FileNotFoundError:
        broken = os.path.islink(path)
        return 0, "is a link to nothing (the cache's blob is gone)" if broken else "is missing"
    except OSError as error:
        return 0, f"cannot be read: {error.strerror}"
    if not stat.S_ISREG(found.st_mode):
        return 0, "is no regular file"
    if found.st_size == 0:
        return 0, "is empty (0 bytes)"
    if not os.access(path, os.R_OK):
        return found.st_size, "cannot be read by the service's user: permission denied"
    return found.st_size, None


def _torch_file(path: str, size: int) -> Optional[str]:
    """A torch.save file is a zip, whose directory stands at its end."""
    with open(path, "rb") as file:
        head = file.read(64)
        if head.startswith(LFS):
            return "is a Git LFS pointer, not the weights"
        if head.startswith(b"PK"):
            file.seek(max(0, size - 65557))
            if b"PK\x05\x06" not in file.read():
                return "is truncated: the zip's directory is missing"
    return None


def _gguf(path: str) -> Optional[str]:
    with open(path, "rb") as file:
        head = file.read(64)
    if head.startswith(LFS):
        return "is a Git LFS pointer, not the weights"
    return None if head.startswith(b"GGUF") else "does not begin like a GGUF file"
