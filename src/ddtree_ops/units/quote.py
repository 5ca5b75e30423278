"""The inverse of words.py: text that systemd reads back as exactly the given word."""

from __future__ import annotations

import re

_PLAIN = re.compile(r"[A-Za-z0-9_@%+=:,./${}~^*?!&|<>()\[\]#-]+")
_ESCAPES = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t", "\r": "\\r", "\a": "\\a", "\b": "\\b"}


def _escaped(text: str) -> str:
    out: list[str] = []
    for char in text:
        code = ord(char)
        if char in _ESCAPES:
            out.append(_ESCAPES[char])
        elif 0xDC80 <= code <= 0xDCFF:
            out.append(f"\\x{code - 0xDC00:02x}")
        elif code < 0x20 or code == 0x7F:
            out.append(f"\\x{code:02x}")
        else:
            out.append(char)
    return "".join(out)


def quote_word(text: str) -> str:
    """Quote one word, escapes only: `%` and `$` pass as they are (they already mean what they should)."""
    if "\0" in text:
        raise ValueError("an argument cannot hold a NUL byte")
    if _PLAIN.fullmatch(text) and text[0] not in "#":
        return text
    return f'"{_escaped(text)}"'


def quote_assignment(name: str, value: str) -> str:
    """Quote `NAME=value` for Environment=, where `%` is special and `$` is not."""
    return quote_word(f"{name}={value}".replace("%", "%%"))
