"""The text of a log line: without what surrounds it, cut to a width, secrets blanked.

Pure, standard library only: built verbatim into the host agent.
"""

import re

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
    r"(?i)((?:api|admin|access|hf|auth)[-_]?\w*(?:key|token)['\"]?\s*[=:]\s*"
    r"|--\S*(?:key|token|passw(?:or)?d|secret)['\"]?[ =,]+"
    r"|bearer\s+|authorization['\"]?\s*[=:]\s*['\"]?\w+\s+|(?:password|passwd|secret)['\"]?\s*[=:]\s*"
    r"|[?&][\w-]*(?:token|key|secret|signature|sig)=|(?-i:\b[A-Z][A-Z0-9_]*_(?:TOKEN|KEY|SECRET))['\"]?\s*[=:]\s*)"
    r"('[^']*'|\"[^\"]*\"|[^\s,;)&]+)"
)
_TOKEN = re.compile(r"\b(?:hf_|sk-|gh[pousr]_|nvapi-|glpat-)[A-Za-z0-9_-]{16,}")
#: The password in an address: https://name:password@host.
_LOGIN = re.compile(r"(://[^/\s:@]*:)[^/\s@]+@")
_WIDTH = 400
#: Of a line longer than that (a prompt, a body, all arguments) the beginning tells what it is. Two hundred patterns
#: search each line, and some take the square of its length.
LONGEST = 4000


def plain(line: str) -> str:
    """A log line without colours and control characters."""
    return _ANSI.sub("", line).rstrip()


def bare(line: str) -> str:
    """The beginning of the line, `plain`, and without what a journal, a container or a launcher writes before it."""
    text = plain(line[:LONGEST])
    for _ in range(4):  # docker in front of torchrun in front of vLLM
        text, found = _STAMP.subn("", text, count=1)
        if not found:
            break
    return text


def clean(line: str) -> str:
    """`bare`, cut to a width that a report can hold, secrets blanked."""
    text = bare(line)
    text = _LOGIN.sub(r"\1***@", _TOKEN.sub("***", _SECRET.sub(r"\1***", text)))
    return text if len(text) <= _WIDTH else text[: _WIDTH - 1] + "…"
