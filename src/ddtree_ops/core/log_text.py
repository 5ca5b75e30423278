"""The text of a log line: without what surrounds it, cut to a width, secrets blanked.

Pure, standard library only: built verbatim into the host agent.
"""

import re
from typing import Optional, Pattern

#: What writes in front of a line: journal and syslog, docker and kubernetes, dmesg, torchrun, mpirun, vLLM,
#: Talos, glog.
_STAMP = re.compile(
    r"^(?:\w{3} +\d+ [\d:]{8}(?:\.\d+)? \S+ [^\s\[:]+(?:\[\d+\])?: "
    r"|\d{4}-\d\d-\d\dT\S+ \S+ [^\s\[:]+(?:\[\d+\])?: "
    r"|\d{4}-\d\d-\d\d[T ][\d:.,]+(?:Z|[+-]\d\d:?\d\d)?(?: std(?:out|err) [FP])? (?=\s*\S)|\[?[\w.-]+\]? +\| "
    r"|\d\d/\d\d/(?:\d\d){1,2},? \d\d:\d\d(?::\d\d)?(?:[.,]\d+)?(?: \([^)]*\))? "
    r"|\[\d{4}-\d\d-\d\d,? [^\]]*\] \{[\w.]+:\d+\} "
    r"|(?:- )?[\w.]+ - (?:ERROR|WARNING|INFO|CRITICAL|DEBUG) - "
    r"|\| *(?:ERROR|WARNING|INFO|CRITICAL|DEBUG|SUCCESS) *\| [\w.:<>-]+ (?:\||-) ?|(?:ERROR|INFO|WARNING) - (?=\s*\S)"
    r"|\[ *\d+\.\d+\] |\[\w{3} \w{3} +\d+ [\d:]{8} \d{4}\] |\[[a-z]+\d+(?:\|\d+)?\]: ?"
    r"|\((?:\w[\w =.-]*\bpid=\d+[^)]*|raylet)\) ?"
    r"| *(?:Normal|Warning) +[A-Z]\w+ +(?:<\w+>|\d+\w+)(?: \([^)]*\))? +[\w-]+ +"
    r"|\[\d{4}-\d\d-\d\dT[\d:.]+Z?\] |\S+: kern: +\w+: \[[^\]]+\]: |\w{3} \w{3} +\d+ [\d:]{8} \d{4}\[\d+,\d+\]<\w+>: ?"
    r"|(?:ERROR|WARNING|INFO|CRITICAL|DEBUG) \d\d-\d\d [\d:.]+ \[?[\w./]+(?::\d+)?\] ?"
    r"|[EWIF]\d{4} [\d:.]+ +\d+ [\w./]+:\d+\] )"
)
_ANSI = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ufeff]"
)
_SECRET = re.compile(
    r"(?i)((?:api|admin|access|hf|auth)[-_]?\w*(?:key|token)['\"]?\s*[=:]\s*|--\S*(?:key|token)['\"]?[ =,]+|bearer\s+)"
    r"('[^']*'|\"[^\"]*\"|[^\s,;)]+)"
)
_TOKEN = re.compile(r"\b(?:hf_|sk-)[A-Za-z0-9_-]{16,}")
_WIDTH, _BEFORE = 400, 100
#: Punctuation of other scripts and of word processors, as a page that was copied from writes it.
_WIDE = re.compile(r"([：，；。])\s*")
_ASCII = {"：": ": ", "，": ", ", "；": "; ", "。": ". "}
_SINGLE = str.maketrans("（）“”‘’＝　\u00a0", "()\"\"''=  ")


def plain(line: str) -> str:
    """A log line without colours and control characters, its punctuation in ASCII."""
    text = _ANSI.sub("", line).rstrip()
    if not text.isascii():
        text = _WIDE.sub(lambda wide: _ASCII[wide[1]], text).translate(_SINGLE).rstrip()
    return text


def bare(line: str) -> str:
    """`plain`, and without what a journal, a container or a launcher writes in front of the line."""
    text = plain(line)
    for _ in range(4):  # docker in front of torchrun in front of vLLM
        text, found = _STAMP.subn("", text, count=1)
        if not found:
            break
    return text


def clean(line: str, at: Optional[Pattern[str]] = None) -> str:
    """`bare`, cut to a width that a report can hold (about what matches `at`), secrets blanked."""
    text = bare(line)
    text = _TOKEN.sub("***", _SECRET.sub(r"\1***", text))
    if len(text) <= _WIDTH:
        return text
    found = at.search(text) if at is not None else None
    if found is None or found.end() < _WIDTH:
        return text[: _WIDTH - 1] + "…"
    start = max(found.start() - _BEFORE, 0)
    cut = text[start : start + _WIDTH - 2]
    return ("…" if start else "") + cut + ("…" if start + len(cut) < len(text) else "")
