"""Reads Environment= and environment files as systemd does (load-fragment.c, env-file.c)."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from ddtree_ops.units.specifiers import BadSpecifier, Specifiers
from ddtree_ops.units.words import WHITESPACE, BadWord, next_word

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NEWLINE = "\n\r"


@dataclass
class Variables:
    """Variables in order of assignment. invalid: words that systemd drops, as written."""

    values: dict[str, str] = field(default_factory=dict)
    invalid: list[str] = field(default_factory=list)

    def put(self, assignment: str, shown: str) -> None:
        """Add `NAME=value`, or note it as invalid under `shown`."""
        name, equals, value = assignment.partition("=")
        if equals and NAME.fullmatch(name) and not re.search("[\udc80-\udcff]", value):
            self.values.pop(name, None)
            self.values[name] = value
        else:
            self.invalid.append(shown)


def read_environment(value: str, specifiers: Specifiers, into: Variables) -> None:
    """Apply one Environment= assignment; an empty one clears. `$` is literal here.

    A quote left open, or an unknown escape, drops the rest of this assignment only. Raises UnknownHere.
    """
    if not value:
        into.values.clear()
        return
    at = 0
    while True:
        began = at
        try:
            word, at = next_word(value, at)
        except BadWord:
            into.invalid.append(value[began:].strip(WHITESPACE))
            return
        if word is None:
            return
        try:
            into.put(specifiers.expand(word), word if "=" not in word else word.partition("=")[0])
        except BadSpecifier:
            into.invalid.append(word.partition("=")[0])


def read_environment_file(text: str) -> Variables:
    """Read an EnvironmentFile=. It is no shell file: `export X=y` is invalid, `$` is literal, quotes may adjoin."""
    out = Variables()
    state, key, value = "pre-key", "", ""
    blank: int | None = None
    for char in text + "\0":
        if char == "\0":
            if state not in ("pre-key", "key", "comment", "comment-escape"):
                _push(out, key, value if blank is None or state != "value" else value[:blank])
            break
        if state == "pre-key":
            if char in "#;":
                state = "comment"
            elif char not in WHITESPACE:
                state, key, value, blank = "key", char, "", None
        elif state == "key":
            if char in _NEWLINE:
                if key.strip(WHITESPACE):
                    out.invalid.append(key.strip(WHITESPACE))
                state = "pre-key"
            elif char == "=":
                state = "pre-value"
            else:
                key += char
        elif state in ("pre-value", "value") and char in _NEWLINE:
            _push(out, key, value if blank is None or state != "value" else value[:blank])
            state = "pre-key"
        elif state == "pre-value":
            state, value = _begin(char, value)
            blank = None
        elif state == "value":
            if char == "\\":
                state, blank = "value-escape", None
            else:
                if char not in WHITESPACE:
                    blank = None
                elif blank is None:
                    blank = len(value)
                value += char
        elif state == "value-escape":
            state = "value"
            value += "" if char in _NEWLINE else char
        elif state == "single":
            state, value = ("pre-value", value) if char == "'" else (state, value + char)
        elif state == "double":
            if char in '"\\':
                state = "pre-value" if char == '"' else "double-escape"
            else:
                value += char
        elif state == "double-escape":
            state = "double"
            value += char if char in '"\\`$' else "" if char == "\n" else "\\" + char
        elif state == "comment":
            state = "comment-escape" if char == "\\" else "pre-key" if char in _NEWLINE else state
        elif state == "comment-escape":
            state = "comment"
    return out


def _begin(char: str, value: str) -> tuple[str, str]:
    if char in "'\"\\":
        return {"'": "single", '"': "double", "\\": "value-escape"}[char], value
    return ("pre-value", value) if char in WHITESPACE else ("value", value + char)


def _push(out: Variables, key: str, value: str) -> None:
    name = key.rstrip(WHITESPACE)
    out.put(f"{name}={value}", name)
