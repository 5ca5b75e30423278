"""Where a traceback is while its lines come: the last frame with its source line, so that an exception can be placed.

Standard library only, no I/O: built verbatim into the host agent.
"""

import re
from dataclasses import dataclass

_FRAME = re.compile(r'\s*File "(?P<file>[^"]*)", line \d+(?:, in (?P<function>\S+))?')
_BOXED = ("│", "╭", "╰", "|")
_PACKAGES = re.compile(r".*/(?:site-packages|dist-packages)/|.*/python\d?[\d.]*/|.*/(?=(?:[^/]+/){3}[^/]+$)")
_LONGEST = 160
#: Between an exception's own words and the line of source that raised it, in the text that some signatures match.
BESIDE = "<- "
#: Before the file and function that raised it, which stand between the two.
AT = "<@ "
_ERRNO = re.compile(r"\[Errno -?\d+\] [A-Z][\w ]+$")
#: Exceptions that mostly say only that something was looked up in vain; one that follows from them says more.
_LOOKUPS = ("KeyError", "StopIteration", "Empty", "CancelledError", "AttributeError", "IndexError")


@dataclass
class Place:
    """The frame that the lines of a traceback have come to."""

    file: str = ""
    function: str = ""
    source: str = ""
    has_frames: bool = False
    _awaits_source: bool = False

    def takes(self, line: str) -> bool:
        """Whether this line is a frame or its source text, also where the paste lost its indent."""
        frame = _FRAME.match(line)
        if frame:
            self.file = _PACKAGES.sub("", frame["file"])
            self.function, self.source = frame["function"] or "", ""
            self.has_frames = True
            self._awaits_source = not self.file.startswith("<")  # <stdin>, <frozen ...>: no source to show
            return True
        inside = line[:1].isspace() or line.startswith(_BOXED)
        if self._awaits_source and line.strip():
            self.source, self._awaits_source = line.strip(), False
            return True
        return inside

    def forget(self) -> None:
        """Another traceback begins."""
        self.file = self.function = self.source = ""
        self._awaits_source = self.has_frames = False

    def told(self, line: str) -> str:
        """An exception with the line of source that raised it."""
        return f"{line} {BESIDE}{self.source}"

    def placed(self, line: str) -> str:
        """The same with the file and the function."""
        return f"{line} {AT}{self.file} {self.function} {BESIDE}{self.source}"

    def hint(self, line: str) -> str:
        """What can be said of an exception that no rule knows: its own words and its place."""
        name, _, words = line.partition(": ")
        said = (words or self.source)[:_LONGEST].rstrip()
        where = (
            f", raised in {self.file}" + (f" ({self.function})" if self.function else "") if self.file else ""
        )
        return (
            f"an exception that no rule knows{where}: {name.rpartition('.')[2]}"
            + (f": {said}" if said else "")
            + "; the lines around it say what asked for it"
        )


def has_no_words(line: str) -> bool:
    """Whether an exception has no words of its own, or only the system's for an error number."""
    words = line.partition(": ")[2].strip()
    return not words or _ERRNO.match(words) is not None


def says_little(line: str) -> bool:
    """Whether an exception has no words of its own, or only names what was looked up."""
    name, _, words = line.partition(": ")
    return not words.strip() or name.rpartition(".")[2] in _LOOKUPS
