"""How lines of a log belong together: a traceback's level and last frame, a message that goes on over several lines.

Pure, standard library only: built verbatim into the host agent.
"""

import re

#: A level below an error, in front of a traceback's header (vLLM writes it on every line of one).
_QUIET = re.compile(
    r"(?:^|[ )\]:|])(?:WARNING|INFO|DEBUG) +\d\d-\d\d [\d:.]+ \[?[\w./]+(?::\d+)?\] ?Traceback \(most"
)
_RECORD = re.compile(
    r"^(?:\[?\d{4}-\d\d-\d\d[ T]|(?:INFO|WARNING|ERROR|DEBUG|CRITICAL)[: ]|Traceback \(most|NVRM: )"
)
_FRAME = re.compile(r'^\s*File "(?P<file>[^"]*)", line (?P<line>\d+)(?:, in (?P<name>.+))?$')
_PACKAGES = re.compile(r"^.*/(?:site|dist)-packages/")
_MARKS = re.compile(r"^[\s~^.]*$")
_BARE = re.compile(r"^[A-Za-z_][\w.]*(?:Error|Exception):?$")
#: What a C++ exception that nobody caught says of itself.
THROWN = re.compile(r"^\s*what\(\):\s+\S")
#: A line that says why something did not load: what is missing later is missing for that reason.
LOADING = re.compile(r"(?i)import|\bload|undefined symbol|shared object|version `")


def is_quiet(raw: str) -> bool:
    """Whether this header of a traceback was logged as less than an error."""
    return _QUIET.search(raw[:400]) is not None


def begins(line: str) -> bool:
    """Whether the line begins a record of its own, so that the message before it is over."""
    return _RECORD.match(line) is not None


class Frames:
    """The last frame of a traceback, and the source text that stands there."""

    def __init__(self) -> None:
        self.place = self.source = ""

    def feed(self, line: str) -> None:
        """Take a line between a traceback's header and its exception."""
        found = _FRAME.match(line)
        if found is not None:
            path = _PACKAGES.sub("", found["file"])
            short = path if path != found["file"] else "/".join(path.split("/")[-3:])
            self.place = f"{short}:{found['line']}" + (f" {found['name']}" if found["name"] else "")
            self.source = ""
        elif self.place and not self.source and not _MARKS.match(line):
            self.source = line.strip()[:160]

    def read_as(self, exception: str) -> str:
        """The exception's line; where it says nothing but its name, with the source text that raised it."""
        return f"{exception} ({self.source})" if self.source and _BARE.match(exception) else exception

    def hint(self, hint: str) -> str:
        """`hint`, and where in the source it was raised."""
        if not self.place:
            return hint
        return f"{hint}; raised at {self.place}" + (f": {self.source}" if self.source else "")
