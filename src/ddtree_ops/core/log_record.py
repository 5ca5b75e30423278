"""How lines of a log belong together: the level of a traceback, a message that goes on over several lines.

Pure, standard library only: built verbatim into the host agent.
"""

import re

#: A level below an error, in front of a traceback's header (vLLM writes it on every line of one).
_QUIET = re.compile(
    r"(?:^|[ )\]:|])(?:WARNING|INFO|DEBUG) +\d\d-\d\d [\d:.]+ \[?[\w./]+(?::\d+)?\] ?Traceback \(most"
)
_LOW = re.compile(r"(?:^|[ )\]:|])(?:WARNING|INFO|DEBUG) +\d\d-\d\d [\d:.]+ | - (?:WARNING|INFO|DEBUG) - ")
_RECORD = re.compile(
    r"^(?:\[?\d{4}-\d\d-\d\d[ T]\S*\s|(?:INFO|WARNING|ERROR|DEBUG|CRITICAL)[: ]|Traceback \(most|NVRM: )"
)
#: Where frames have come, the next line is the exception, whatever it is called.
NAMED = re.compile(r"^(?:[A-Za-z_]\w*\.)*[A-Z]\w*[a-z]\w*(?:: |:?$)")
#: What a C++ exception that nobody caught says of itself.
THROWN = re.compile(r"^\s*what\(\):\s+\S")
#: A line that says why something did not load: what is missing later is missing for that reason.
LOADING = re.compile(r"(?i)import|\bload|undefined symbol|shared object|version `")


def is_low(raw: str) -> bool:
    """Whether the record that this line belongs to says itself that it is less than an error."""
    return _LOW.search(raw[:200]) is not None


def is_quiet(raw: str) -> bool:
    """Whether this header of a traceback was logged as less than an error."""
    return _QUIET.search(raw[:400]) is not None


def begins(line: str) -> bool:
    """Whether the line begins a record of its own, so that the message before it is over."""
    return _RECORD.match(line) is not None
