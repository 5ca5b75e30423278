"""Unit files and environment files as a lint sees them: which line says what, with no value that may hold a key."""

import json
import re
from typing import Any, Dict, Iterator, List, Optional, Set, Tuple

#: Values of these may hold secrets: only their shape is told.
_HUSH = re.compile(r"Environment$|Exec[A-Z]|SetCredential|StandardInput|X-")
_COMMAND = re.compile(r"Exec(Condition|Start|StartPre|StartPost|Reload|Stop|StopPost)$")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*$")
_SPECIFIER = re.compile(r"%(.)", re.S)
#: systemd.unit(5), "Specifiers", systemd 252.
_KNOWN = set("aAbBCdEfgGhHiIjJlLmMnNopPqsStTuUvVwWyY")
#: A date format: in a unit its letters are machine id, credentials directory and so on.
_DATE = re.compile(r"%[YymdjbHMSFT][-:_./T ]?%[YmdHMSs]")
_VARIABLE = re.compile(r"\$\$|\$\{([A-Za-z_][A-Za-z0-9_]*)\}|^\$([A-Za-z_][A-Za-z0-9_]*)$")
#: systemd takes the whole of such a word for a variable's name (env-util.c, replace_env_argv).
_GLUED = re.compile(r"\$([A-Za-z_][A-Za-z0-9_]*)[^A-Za-z0-9_]")
#: A path that is built from another variable: in Environment= and its files systemd expands none.
_PATHS = re.compile(r"(?:PATH|HOME|DIR|CACHE|ROOT)\w*$")
_USED = re.compile(r"\$(?:\{[A-Za-z_]\w*\}|[A-Za-z_]\w*)")
_QUOTED = re.compile(r"'[^']*'|\"(?:\\.|[^\"\\])*\"")
_ESCAPES = {"n": "\n", "t": "\t", "s": " ", "r": "\r"}


#: What joins commands, and a redirection; the file behind it is not told.
_SHELL = re.compile(r"(&&|\|\|?|&|&?\d*>>?(?:&\d)?|<)(?=$|/)")


def may_hold_secret(key: str) -> bool:
    """Whether a setting's value stays on the host."""
    return bool(_HUSH.match(key))


class Line:
    """`key=value` of a section, with the file and the number of the line where it begins."""

    def __init__(self, path: str, number: int, section: str, key: str, value: str) -> None:
        self.path, self.number, self.section, self.key, self.value = path, number, section, key, value

    def told(self) -> Dict[str, Any]:
        """The line for the controller; the value is null where it may hold a secret."""
        # What is no setting at all is the rest of a command whose continuation was lost.
        plain = re.match(r"[A-Za-z][A-Za-z0-9]*$", self.key)
        hush = not plain or self.section not in ("Unit", "Service", "Install") or may_hold_secret(self.key)
        found = {
            "file": self.path,
            "line": self.number,
            "section": self.section[:40],
            "key": self.key if plain else "",
        }
        return dict(found, value=None if hush else self.value[:400])


def parse(path: str, text: str) -> List[Line]:
    """The assignments of a unit file or drop-in, continuations joined, comments left out (conf-parser.c)."""
    found: List[Line] = []
    section = ""
    for number, line in _logical(text):
        if line.startswith("["):
            section = line.strip("[]")
            continue
        key, sep, value = line.partition("=")
        found.append(Line(path, number, section, key.strip() if sep else "", value.strip()))
    return found


def _logical(text: str) -> Iterator[Tuple[int, str]]:
    held, began = "", 0
    for number, raw in enumerate(text.splitlines(), 1):
        if raw.lstrip()[:1] in ("#", ";"):
            continue
        if not held:
            began = number
        whole = held + raw
        if (len(whole) - len(whole.rstrip("\\"))) % 2:
            held = whole[:-1] + " "
            continue
        held = ""
        if whole.strip():
            yield began, whole.strip()
    if held.strip():
        yield began, held.strip()


def is_command(key: str) -> bool:
    """Whether a key names a program to run."""
    return bool(_COMMAND.match(key))


def words(value: str) -> Tuple[List[Tuple[str, bool]], bool]:
    """([(word without quotes, whether it was quoted whole)], whether a quote was left open): systemd.syntax(7)."""
    found: List[Tuple[str, bool]] = []
    at, word, quote, begun, bare = 0, "", "", False, False
    while at < len(value):
        char = value[at]
        if char == "\\" and at + 1 < len(value) and quote != "'":
            word, begun, at = word + _ESCAPES.get(value[at + 1], value[at + 1]), True, at + 2
            continue
        if quote:
            quote, word = ("", word) if char == quote else (quote, word + char)
        elif char in "\"'":
            quote, begun = char, True
        elif char.isspace():
            if begun:
                found.append((word, not bare))
            word, begun, bare = "", False, False
        else:
            word, begun, bare = word + char, True, True
        at += 1
    if begun:
        found.append((word, not bare))
    return found, bool(quote)


def command(line: Line, names: "Set[str]") -> Dict[str, Any]:
    """The shape of an Exec…= line: {file, line, key, program, prefixes, unset, optional_unset, specifiers, json,
    open_quote, glued, shell}.

    names: variables that are set. unset: used inside a word or braced and set by nobody, so that a hole is left;
    optional_unset: whole words of that kind, which vanish; glued: variables that a word begins with and goes on after.
    """
    split, open_quote = words(line.value)
    first = split[0][0] if split else ""
    program = first.lstrip("-@:+!")
    expands = ":" not in first[: len(first) - len(program)]
    holes: List[str] = []
    vanish: List[str] = []
    glued: List[str] = []
    for word, _ in split[1:] if expands else []:
        for match in _VARIABLE.finditer(word):
            braced, whole = match.group(1), match.group(2)
            if braced and braced not in names:
                holes.append(braced)
            elif whole and whole not in names:
                vanish.append(whole)
        begun = _GLUED.match(word)
        if begun:
            glued.append(begun.group(1))
    return {
        "file": line.path,
        "line": line.number,
        "key": line.key,
        "program": program[:200],
        "prefixes": first[: len(first) - len(program)],
        "unset": sorted(set(holes)),
        "optional_unset": sorted(set(vanish)),
        "specifiers": specifiers(line.value),
        "json": [was for was, (word, whole) in _flagged(split) if not whole and _broken_json(word)],
        "open_quote": open_quote,
        "glued": sorted(set(glued)),
        "shell": shell_words(program, split),
    }


def shell_words(program: str, split: List[Tuple[str, bool]]) -> List[str]:
    """Words that only a shell would act on (&&, |, >, 2>&1), given to a program as they stand."""
    if re.search(r"(^|/)(ba|da|z|k)?sh$", program):
        return []
    found = [_SHELL.match(word) for word, whole in split[1:] if not whole]
    return sorted({match.group(1) for match in found if match})


def _flagged(split: List[Tuple[str, bool]]) -> Iterator[Tuple[str, Tuple[str, bool]]]:
    """Each word with the flag that it belongs to."""
    flag = ""
    for word, whole in split[1:]:
        name, sep, value = word.partition("=")
        if word.startswith("--"):
            flag = name
            if sep:
                yield flag, (value, whole)
        else:
            yield flag, (word, whole)


def _broken_json(word: str) -> bool:
    """`{"a": 1}` without quotes around it loses its own: `{a:` arrives."""
    if not word.startswith(("{", "[{")) or word.startswith("{{") or ":" not in word:
        return False
    try:
        json.loads(word)
    except ValueError:
        return True
    return False


def specifiers(value: str) -> List[Dict[str, Any]]:
    """[{letter, known, joined}] of a value's %-specifiers. joined: stuck to a letter or digit, or part of a date
    format, so that it was meant as text."""
    found: Dict[str, Dict[str, Any]] = {}
    date = bool(_DATE.search(value.replace("%%", "")))
    at = 0
    while True:
        match = _SPECIFIER.search(value, at)
        if match is None:
            return [found[letter] for letter in sorted(found)]
        at = match.end()
        letter = match.group(1)
        if not (letter.isascii() and letter.isalnum()):
            continue
        before, after = value[max(0, match.start() - 1) : match.start()], value[at : at + 1]
        item = found.setdefault(letter, {"letter": letter, "known": letter in _KNOWN, "joined": False})
        if date or before.isalnum() or after.isalnum():
            item["joined"] = True


def environment(line: Line) -> Tuple[List[Tuple[str, str]], int]:
    """([(name, value)], number of words that systemd drops) of an Environment= line. Values are secrets."""
    split, open_quote = words(line.value)
    pairs = [(word.partition("=")[0], word.partition("=")[2]) for word, _ in split if "=" in word]
    good = [(name, value) for name, value in pairs if _NAME.match(name)]
    return good, len(split) - len(good) + (1 if open_quote else 0)


def unexpanded(name: str, value: str) -> str:
    """The variable that a path's value is built from, which stays as it is written; "" where there is none."""
    found = _USED.search(value) if _PATHS.search(name) else None
    return found.group(0) if found else ""


def environment_file(text: str) -> Dict[str, Any]:
    """{names, ignored: [{line, why}]} of an EnvironmentFile=: no shell file, only NAME=VALUE counts. ignored: also
    what a shell would leave out or replace and systemd keeps."""
    names: List[str] = []
    ignored: List[Dict[str, Any]] = []
    number, open_quote = 0, ""
    for number, raw in enumerate(text.split("\n"), 1):
        if open_quote:  # a quoted value may span lines
            open_quote = "" if _unescaped(raw, open_quote) else open_quote
            continue
        line = raw.strip()
        if not line or line[0] in "#;":
            continue
        name, sep, value = line.partition("=")
        name = name.strip()
        if sep and _NAME.match(name):
            names.append(name)
            quote = value.lstrip()[:1]
            if quote in ("'", '"') and quote and not _unescaped(value.lstrip()[1:], quote):
                open_quote = quote
            elif re.search(r"\s#", _QUOTED.sub("", value)):
                why = (
                    f"the # behind the value of {name} begins no comment: systemd makes it part of the value"
                )
                ignored.append({"line": number, "why": why})
            elif unexpanded(name, value):
                why = f"{name} uses {unexpanded(name, value)}: systemd expands no variable in it"
                ignored.append({"line": number, "why": why})
        else:
            ignored.append({"line": number, "why": _why(line, name, sep)})
    if open_quote:
        ignored.append({"line": number, "why": "a quote is never closed"})
    return {"names": names, "ignored": ignored[:20]}


def _unescaped(text: str, quote: str) -> bool:
    return bool(re.search(r"(?<!\\)" + quote, text))


def _why(line: str, name: str, sep: str) -> str:
    if re.match(r"export\s", line):
        return "export is shell: systemd drops the line"
    if not sep:
        return "no NAME=VALUE: systemd skips the line"
    return "the name before = is no variable name" + (" (a blank in it)" if re.search(r"\s", name) else "")


def read(path: str) -> Optional[str]:
    """A file's text, None where it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(1 << 20)
    except OSError:
        return None
