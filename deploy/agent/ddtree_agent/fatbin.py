"""Which GPU architectures a library carries code for: the headers of its CUDA fat binaries, the code is not read."""

import struct
import time
from typing import Dict, List, Optional, Tuple

from .elf_symbols import Elf

MAGIC = 0xBA55ED50
PTX, CUBIN = 1, 2
#: An `a` variant (sm_90a) runs on exactly that GPU. Seen in nvcc 13.0's output, beside sm_80 in one file.
EXACT = 0x100000
SECTIONS = (".nv_fatbin", "__nv_relfatbin")
Group = Tuple[Tuple[str, ...], Tuple[str, ...]]


def groups(elf: Elf, most: int = 4000, seconds: float = 2.0) -> Optional[List[Dict[str, object]]]:
    """[{cubin: ["80", "90a"], ptx: ["90"], count}]: each kind of fat binary in the file, and how many of it.

    Only the first `most`, or as many as `seconds` allow, are looked at: files of one build repeat themselves. None
    where the file has none or its section headers are gone.
    """
    found: Dict[Group, int] = {}
    deadline = time.monotonic() + seconds
    for name in SECTIONS:
        place = elf.section(name)
        if place is None:
            continue
        at, end, seen = place[0], sum(place), 0
        try:
            while at + 16 <= end and seen < most and time.monotonic() < deadline:
                magic, _, head, size = struct.unpack_from("<IHHQ", elf.map, at)
                if magic != MAGIC:
                    at += 8  # padding between two
                    continue
                kind = _group(elf, at + head, at + head + size)
                found[kind] = found.get(kind, 0) + 1
                at, seen = at + head + size, seen + 1
        except struct.error:
            pass
    if not found:
        return None
    ordered = sorted(found.items(), key=lambda item: -item[1])[:32]
    return [{"cubin": list(cubin), "ptx": list(ptx), "count": count} for (cubin, ptx), count in ordered]


def _group(elf: Elf, at: int, end: int) -> Group:
    cubin, ptx = set(), set()
    while at + 48 <= end:
        kind, _, head, size = struct.unpack_from("<HHIQ", elf.map, at)
        arch, flags = (
            struct.unpack_from("<I", elf.map, at + 28)[0],
            struct.unpack_from("<Q", elf.map, at + 40)[0],
        )
        name = f"{arch}{'a' if flags & EXACT else ''}"
        if kind == PTX:
            ptx.add(name)
        elif kind == CUBIN:
            cubin.add(name)
        if head + size <= 0:
            break
        at += head + size
    return tuple(sorted(cubin)), tuple(sorted(ptx))
