"""A shared object's symbols and versions, from its dynamic table alone: hundreds of megabytes cost milliseconds."""

import mmap
import os
import struct
from typing import Any, Dict, List, Optional, Tuple

PT_LOAD, PT_DYNAMIC = 1, 2
DT_NEEDED, DT_HASH, DT_STRTAB, DT_SYMTAB, DT_SONAME, DT_RPATH, DT_RUNPATH = 1, 4, 5, 6, 14, 15, 29
DT_GNU_HASH, DT_VERDEF, DT_VERDEFNUM, DT_VERNEED, DT_VERNEEDNUM = (
    0x6FFFFEF5,
    0x6FFFFFFC,
    0x6FFFFFFD,
    0x6FFFFFFE,
    0x6FFFFFFF,
)
SYMBOL = struct.Struct("<IBBHQQ")
WEAK = 2
MACHINES = {62: "x86_64", 183: "aarch64", 21: "ppc64le", 243: "riscv64"}
#: A damaged file must not keep the probe busy.
MOST = 1 << 20


def gnu_hash(name: str) -> int:
    """The hash by which GNU tables find a name: 33 times what was, plus the byte."""
    value = 5381
    for byte in name.encode():
        value = (value * 33 + byte) & 0xFFFFFFFF
    return value


class Elf:
    """One little-endian 64-bit ELF file, mapped. Raises ValueError for anything else or damaged, OSError as open does.

    Section headers are not needed (strip removes them), the loader's own tables are what counts.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        with open(path, "rb") as file:
            if os.fstat(file.fileno()).st_size < 64:
                raise ValueError(f"{path}: no ELF file")
            self.map = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        if self.map[:4] != b"\x7fELF" or self.map[4:6] != b"\x02\x01":
            raise ValueError(f"{path}: no little-endian 64-bit ELF file")
        try:
            self._read()
        except (struct.error, IndexError, KeyError, OverflowError):
            raise ValueError(f"{path}: damaged ELF file") from None

    def _read(self) -> None:
        self.machine = MACHINES.get(self._at("<H", 18)[0], "unknown")
        offset, size, count = self._at("<Q", 32)[0], *self._at("<HH", 54)
        self.loads: List[Tuple[int, int, int]] = []
        self.dynamic: Dict[int, List[int]] = {}
        table = (0, 0)
        for i in range(count):
            kind, _, at, virtual, _, length, _, _ = self._at("<IIQQQQQQ", offset + i * size)
            if kind == PT_LOAD:
                self.loads.append((virtual, length, at))
            elif kind == PT_DYNAMIC:
                table = (at, length)
        for tag, value in struct.iter_unpack("<qQ", self.map[table[0] : table[0] + table[1] // 16 * 16]):
            if tag == 0:
                break
            self.dynamic.setdefault(tag, []).append(value)
        self.names = self._place(DT_STRTAB) if DT_STRTAB in self.dynamic else 0
        self.symbols = self._place(DT_SYMTAB) if DT_SYMTAB in self.dynamic else 0
        self.needed = [self.text(self.names + at) for at in self.dynamic.get(DT_NEEDED, [])]
        self.soname = self._one(DT_SONAME)
        self.rpath = self._one(DT_RPATH)
        self.runpath = self._one(DT_RUNPATH)

    def undefined(self) -> List[str]:
        """Names that must come from another library: undefined and not weak."""
        found = []
        for i in range(1, min(self._undefined_end(), MOST)):
            name, info, _, section, _, _ = SYMBOL.unpack_from(self.map, self.symbols + i * SYMBOL.size)
            if section == 0 and info >> 4 != WEAK and name:
                found.append(self.text(self.names + name))
        return found

    def defines(self, name: str, value: Optional[int] = None) -> bool:
        """Whether it exports `name`, by its hash table, as the loader looks it up. value: gnu_hash(name), if known."""
        if DT_GNU_HASH in self.dynamic:
            return self._gnu(name.encode(), gnu_hash(name) if value is None else value)
        return self._sysv(name.encode()) if DT_HASH in self.dynamic else False

    def versions_needed(self) -> Dict[str, List[str]]:
        """{soname: [version]}, for example {"libc.so.6": ["GLIBC_2.34"]}."""
        found: Dict[str, List[str]] = {}
        at = self._place(DT_VERNEED) if DT_VERNEED in self.dynamic else 0
        for _ in range(self.dynamic.get(DT_VERNEEDNUM, [0])[0] if at else 0):
            _, count, file, aux, following = self._at("<HHIII", at)
            entry = at + aux
            for _ in range(count):
                _, flags, _, name, step = self._at("<IHHII", entry)
                if not flags & WEAK:  # VER_FLG_WEAK: the loader forgives it
                    found.setdefault(self.text(self.names + file), []).append(self.text(self.names + name))
                entry += step
            at += following
        return found

    def versions_defined(self) -> List[str]:
        """Version names that it provides; [] where it has no versions (the loader then checks none)."""
        found = []
        at = self._place(DT_VERDEF) if DT_VERDEF in self.dynamic else 0
        for _ in range(self.dynamic.get(DT_VERDEFNUM, [0])[0] if at else 0):
            _, _, _, _, _, aux, following = self._at("<HHHHIII", at)
            found.append(self.text(self.names + self._at("<II", at + aux)[0]))
            at += following
        return found

    def section(self, name: str) -> Optional[Tuple[int, int]]:
        """(offset, size) of a named section; None where there is none or the headers were stripped."""
        table, size, count, index = self._at("<Q", 40)[0], *self._at("<HHH", 58)
        if not table or index >= count:
            return None
        try:
            names = self._at("<Q", table + index * size + 24)[0]
            for i in range(count):
                text, _, _, _, offset, length = self._at("<IIQQQQ", table + i * size)
                if self.text(names + text) == name:
                    return offset, length
        except (struct.error, IndexError):
            return None
        return None

    def text(self, at: int) -> str:
        """The zero-terminated string at a file offset."""
        end = self.map.find(b"\0", at)
        return self.map[at : end if end >= 0 else at].decode("ascii", "replace")

    def _at(self, form: str, at: int) -> Tuple[Any, ...]:
        return struct.unpack_from(form, self.map, at)

    def _one(self, tag: int) -> Optional[str]:
        return self.text(self.names + self.dynamic[tag][0]) if tag in self.dynamic else None

    def _place(self, tag: int) -> int:
        address = self.dynamic[tag][0]
        for virtual, length, at in self.loads:
            if virtual <= address < virtual + length:
                return address - virtual + at
        raise IndexError("address outside every segment")

    def _undefined_end(self) -> int:
        """How many symbols to look at: a GNU hash table keeps those that are not exported in front."""
        if DT_HASH in self.dynamic:
            return int(self._at("<II", self._place(DT_HASH))[1])
        if DT_GNU_HASH not in self.dynamic:
            return 0
        buckets, first = self._at("<II", self._place(DT_GNU_HASH))
        if first > 1 or buckets == 0:
            return int(first)
        # Without any export, some linkers write a first index of 0 or 1: the table then ends where the names begin.
        return (self.names - self.symbols) // SYMBOL.size if self.names > self.symbols else int(first)

    def _gnu(self, name: bytes, value: int) -> bool:
        start = self._place(DT_GNU_HASH)
        buckets, first, words, shift = self._at("<IIII", start)
        if not buckets or not words:
            return False
        bloom = self._at("<Q", start + 16 + (value // 64) % words * 8)[0]
        if not (bloom >> (value % 64)) & (bloom >> ((value >> shift) % 64)) & 1:
            return False
        table = start + 16 + words * 8
        index = self._at("<I", table + value % buckets * 4)[0]
        chain = table + buckets * 4
        while index >= first and index:
            found = self._at("<I", chain + (index - first) * 4)[0]
            if (found | 1) == (value | 1) and self._is(index, name):
                return True
            if found & 1:
                return False
            index += 1
        return False

    def _sysv(self, name: bytes) -> bool:
        value = 0
        for byte in name:
            value = (value << 4) + byte
            high = value & 0xF0000000
            value = (value ^ (high >> 24)) & ~high & 0xFFFFFFFF
        start = self._place(DT_HASH)
        buckets, chains = self._at("<II", start)
        index = self._at("<I", start + 8 + value % buckets * 4)[0] if buckets else 0
        for _ in range(chains):
            if not index:
                return False
            if self._is(index, name):
                return True
            index = self._at("<I", start + 8 + (buckets + index) * 4)[0]
        return False

    def _is(self, index: int, name: bytes) -> bool:
        at, _, _, section, _, _ = SYMBOL.unpack_from(self.map, self.symbols + index * SYMBOL.size)
        place = self.names + at
        return section != 0 and self.map[place : place + len(name) + 1] == name + b"\0"
