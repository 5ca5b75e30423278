"""Where the dynamic loader would find a library: ld.so(8)'s order, over files alone, nothing is loaded."""

import functools
import os
import re
import subprocess
from typing import Dict, Iterable, List, Optional, Tuple

from .elf_symbols import Elf

DEFAULT = ("/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu", "/lib64", "/usr/lib64", "/lib", "/usr/lib")


def cache() -> Dict[str, str]:
    """{soname: path} of ld.so.cache, as `ldconfig -p` prints it; {} where it cannot be read."""
    for program in ("/sbin/ldconfig", "/usr/sbin/ldconfig"):
        try:
            out = subprocess.run([program, "-p"], capture_output=True, timeout=5, check=False).stdout
            return read_cache(out.decode("utf-8", "replace"))
        except (OSError, subprocess.TimeoutExpired):
            continue
    return {}


def read_cache(text: str) -> Dict[str, str]:
    """`ldconfig -p`'s lines; the first of a name wins, 32-bit entries (without a 64-bit mark) do not count."""
    found: Dict[str, str] = {}
    for name, flags, path in re.findall(r"^\s+(\S+) \((.*?)\) => (\S+)$", text, re.M):
        if "64" in flags:
            found.setdefault(name, path)
    return found


class Loader:
    """Finds libraries for one process. executable: its program file; its DT_RPATH counts for every library.

    loaded: {soname: path} of what the process has loaded before; such a name is not looked for again.
    """

    def __init__(self, executable: str, library_path: str, known: Dict[str, str]) -> None:
        self.known = known
        self.loaded: Dict[str, str] = {}
        # An empty word in LD_LIBRARY_PATH is the working directory: never a place to judge by.
        self.library_path = [os.path.abspath(p) for p in re.split("[:;]", library_path) if p]
        self.program: Tuple[str, ...] = ()
        self.files: Dict[str, Optional[Elf]] = {}
        program = self.open(os.path.realpath(executable))
        if program is not None and program.runpath is None:
            self.program = _expanded(program.rpath, program.path)

    def open(self, path: str) -> Optional[Elf]:
        """The file, read once; None where it is no ELF file or cannot be read."""
        if path not in self.files:
            try:
                self.files[path] = Elf(path)
            except (OSError, ValueError):
                self.files[path] = None
        return self.files[path]

    def find(self, name: str, asking: Elf, above: Iterable[str] = ()) -> Optional[str]:
        """The path that `asking`'s DT_NEEDED entry `name` would load. above: directories of the DT_RPATH of those
        that asked for `asking`."""
        if "/" in name:
            return name if os.path.exists(name) else None
        if name in self.loaded:
            return self.loaded[name]
        places: List[str] = []
        if asking.runpath is None:
            places += [*_expanded(asking.rpath, asking.path), *above, *self.program]
        places += self.library_path
        if asking.runpath is not None:
            places += _expanded(asking.runpath, asking.path)
        for place in places:
            path = self._fits(os.path.join(place, name), asking)
            if path:
                return path
        for path in (self.known.get(name), *(os.path.join(place, name) for place in DEFAULT)):
            if path and self._fits(path, asking):
                return path
        return None

    def closure(self, paths: Iterable[str]) -> Dict[str, str]:
        """{soname: path} of all that loading `paths` loads, but for `loaded`; what is not found is left out."""
        found: Dict[str, str] = {}
        queue: List[Tuple[str, Tuple[str, ...]]] = [(path, ()) for path in paths]
        while queue and len(found) < 400:
            path, above = queue.pop(0)
            elf = self.open(path)
            if elf is None or (elf.soname or os.path.basename(path)) in found:
                continue
            found[elf.soname or os.path.basename(path)] = path
            below = (*(_expanded(elf.rpath, path) if elf.runpath is None else ()), *above)
            for name in elf.needed:
                if name in self.loaded:
                    continue  # with everything that it needs
                place = found.get(name) or self.find(name, elf, above)
                if place and name not in found:
                    queue.append((place, below))
        return found

    def _fits(self, path: str, asking: Elf) -> Optional[str]:
        """The loader passes over a file of another machine, and one that is none."""
        if not os.path.exists(path):
            return None
        elf = self.open(path)
        return path if elf is not None and elf.machine == asking.machine else None


@functools.lru_cache(maxsize=1024)
def _expanded(text: Optional[str], path: str) -> Tuple[str, ...]:
    origin = os.path.dirname(os.path.realpath(path))
    words = (text or "").replace("${ORIGIN}", "$ORIGIN").replace("$ORIGIN", origin).split(":")
    return tuple(os.path.normpath(word) for word in words if word)
