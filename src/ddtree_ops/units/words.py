"""Splits text into words as systemd does: its quotes, its C escapes, its separators (extract-word.c, escape.c)."""

from __future__ import annotations

from dataclasses import dataclass

WHITESPACE = " \t\n\r"
_SIMPLE = {
    "a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v",
    "\\": "\\", '"': '"', "'": "'", "s": " ",
}  # fmt: skip
_DIGITS = {"x": (2, 16), "u": (4, 16), "U": (8, 16)}


class BadWord(ValueError):
    """A word that systemd does not accept: an unbalanced quote or, in strict reading, an unknown escape."""


@dataclass(frozen=True)
class Rules:
    """How a word is read.

    escapes: C escapes mean something (else a backslash only protects the next character). unescape_relax: unknown
    escapes and a trailing backslash stay as they are. relax: an unbalanced quote ends with the text.
    """

    escapes: bool = True
    unescape_relax: bool = False
    relax: bool = False


STRICT = Rules()
RELAXED = Rules(unescape_relax=True)
SPLIT = Rules(escapes=False, relax=True)


def clean(text: str) -> str:
    """Join bytes that `\\xNN` escapes left as surrogates into the characters they spell."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "surrogateescape")


def unescape_one(text: str, at: int) -> tuple[int, str] | None:
    """Read the escape whose first character after the backslash is `text[at]`.

    Returns (characters used, what they mean), or None where systemd knows no such escape. A byte above 0x7f from
    `\\xNN` or `\\NNN` is returned as a surrogate: see `clean`.
    """
    char = text[at]
    if char in _SIMPLE:
        return 1, _SIMPLE[char]
    if char in _DIGITS:
        count, base = _DIGITS[char]
        return _number(text[at + 1 : at + 1 + count], count, base, char == "x", 1)
    if char in "01234567":
        return _number(text[at : at + 3], 3, 8, True, 0)
    return None


def _number(digits: str, count: int, base: int, byte: bool, lead: int) -> tuple[int, str] | None:
    allowed = "01234567" if base == 8 else "0123456789abcdefABCDEF"
    if len(digits) < count or any(d not in allowed for d in digits):
        return None
    value = int(digits, base)
    if value == 0 or (byte and value > 255) or value > 0x10FFFF or 0xD800 <= value < 0xE000:
        return None
    if byte and value > 127:
        return lead + count, chr(0xDC00 + value)
    return lead + count, chr(value)


def next_word(text: str, at: int, rules: Rules = STRICT) -> tuple[str | None, int]:
    """Read one word from `text[at:]` (extract_first_word).

    Returns (word, position after it and the blanks that follow), or (None, len(text)) where no word is left.
    Raises BadWord.
    """
    end = len(text)
    while at < end and text[at] in WHITESPACE:
        at += 1
    if at >= end:
        return None, end
    out: list[str] = []
    quote = ""
    while at < end:
        char = text[at]
        if char == "\\":
            at = _escape(text, at + 1, quote, rules, out)
            continue
        if quote:
            if char == quote:
                quote = ""
            else:
                out.append(char)
        elif char in "'\"":
            quote = char
        elif char in WHITESPACE:
            while at < end and text[at] in WHITESPACE:
                at += 1
            return clean("".join(out)), at
        else:
            out.append(char)
        at += 1
    if quote and not rules.relax:
        raise BadWord("unbalanced quote")
    return clean("".join(out)), end


def _escape(text: str, at: int, quote: str, rules: Rules, out: list[str]) -> int:
    """Append what the backslash before `at` makes of what follows; return where reading goes on."""
    if at >= len(text):
        if rules.unescape_relax and (not quote or rules.relax):
            out.append("\\")
        elif not rules.relax:
            raise BadWord("unbalanced quote" if quote else "trailing backslash")
        return at
    if not rules.escapes:
        out.append(text[at])
        return at + 1
    found = unescape_one(text, at)
    if found:
        out.append(found[1])
        return at + found[0]
    if not rules.unescape_relax:
        raise BadWord(f"unknown escape \\{text[at]}")
    out.append("\\" + text[at])
    return at + 1


def next_word_warn(text: str, at: int) -> tuple[str | None, int, str | None]:
    """Read one word, in strict reading and else with unknown escapes kept (extract_first_word_and_warn).

    Returns (word, position, warning). Raises BadWord for an unbalanced quote.
    """
    try:
        word, after = next_word(text, at, STRICT)
        return word, after, None
    except BadWord as strict:
        word, after = next_word(text, at, RELAXED)
        return word, after, str(strict)


def split_relaxed(text: str) -> list[str]:
    """Split the value of a whole-word `$NAME` (strv_split_full with unquoting, relaxed)."""
    words: list[str] = []
    at = 0
    while True:
        word, at = next_word(text, at, SPLIT)
        if word is None:
            return words
        words.append(word)
