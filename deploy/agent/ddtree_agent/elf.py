"""What a shared object asks its loader for: a reader of ELF's DT_NEEDED entries, small enough to trust."""

import struct
from typing import BinaryIO, Dict, List, Tuple

PT_LOAD, PT_DYNAMIC = 1, 2
DT_NULL, DT_NEEDED, DT_STRTAB = 0, 1, 5


def needed(path: str) -> List[str]:
    """The DT_NEEDED names of a little-endian 64-bit ELF file, in file order (elf(5)).

    Raises ValueError for anything that is not one, OSError where it cannot be read.
    """
    try:
        with open(path, "rb") as file:
            return _needed(file)
    except (struct.error, IndexError, KeyError, OverflowError):
        raise ValueError(f"{path}: damaged ELF file") from None


def _needed(file: BinaryIO) -> List[str]:
    head = file.read(64)
    if head[:4] != b"\x7fELF" or head[4:6] != b"\x02\x01":
        raise ValueError(f"{file.name}: no little-endian 64-bit ELF file")
    offset, size, count = struct.unpack_from("<Q", head, 32)[0], *struct.unpack_from("<HH", head, 54)
    file.seek(offset)
    table = file.read(size * count)
    loads: List[Tuple[int, int, int]] = []
    dynamic = b""
    for i in range(count):
        kind, _, at, virtual, _, length = struct.unpack_from("<IIQQQQ", table, i * size)
        if kind == PT_LOAD:
            loads.append((virtual, length, at))
        elif kind == PT_DYNAMIC:
            file.seek(at)
            dynamic = file.read(length)
    entries: Dict[int, List[int]] = {}
    for tag, value in struct.iter_unpack("<qQ", dynamic[: len(dynamic) // 16 * 16]):
        if tag == DT_NULL:
            break
        entries.setdefault(tag, []).append(value)
    if DT_NEEDED not in entries:
        return []
    names = _file_offset(entries[DT_STRTAB][0], loads)
    return [_string(file, names + value) for value in entries[DT_NEEDED]]


def _file_offset(address: int, loads: List[Tuple[int, int, int]]) -> int:
    for virtual, length, at in loads:
        if virtual <= address < virtual + length:
            return address - virtual + at
    raise IndexError("address outside every segment")


def _string(file: BinaryIO, at: int) -> str:
    file.seek(at)
    return file.read(4096).split(b"\0", 1)[0].decode("ascii", "replace")
