"""Words of others, as they may be kept and shown: one line, nothing that drives a terminal."""

from __future__ import annotations


def one_line(text: str) -> str:
    """The text on one line; control characters (ESC, newlines, bidi marks) become blanks."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


def escaped(text: str) -> str:
    """The text with control characters (ESC, newlines, bidi marks) as Python writes them: \\x1b, \\n, \\u202e."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)
