"""Cuts a bash script into words and operators with their places, enough to find one command in it (bash(1))."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Literal

Kind = Literal["text", "param", "dynamic"]
_OPERATORS = (
    "&>>", "<<<", "<<-", ";;&", "&&", "||", "|&", ";;", ";&", "&>", ">>", "<<", ">&", "<&", ">|", "<>",
    "|", "&", ";", "(", ")", "<", ">", "\n",
)  # fmt: skip
REDIRECTS = frozenset({"<<", "<<-", "&>>", "&>", ">>", "<<<", ">&", "<&", ">|", "<>", "<", ">"})
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*|[0-9@*#?$!-]")
_ANSI = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\", "'": "'", '"': '"', "a": "\a", "b": "\b", "e": "\x1b"}


class TooComplex(ValueError):
    """A construct whose effect this reader does not work out; the message names it."""


@dataclass(frozen=True)
class Part:
    """A piece of a word. text: literal, or the inside of `${…}`; dynamic: known only when it runs."""

    kind: Kind
    text: str
    quoted: bool


@dataclass
class Token:
    """A word (with parts) or an operator (`op`), at [start, end) of the script."""

    start: int
    end: int = 0
    op: str = ""
    parts: list[Part] = field(default_factory=list)

    def literal(self) -> str | None:
        """The word's text where all of it is literal, else None."""
        if self.op or any(p.kind != "text" for p in self.parts):
            return None
        return "".join(p.text for p in self.parts)

    def bare(self) -> str | None:
        """The word's text where nothing in it is quoted: what a reserved word must be."""
        return None if any(p.quoted for p in self.parts) else self.literal()


def tokens(script: str) -> list[Token]:
    """Cut `script`. Here-documents are stepped over. Raises TooComplex for unbalanced quotes."""
    out: list[Token] = []
    documents: list[tuple[str, bool]] = []
    at = 0
    while at < len(script):
        char = script[at]
        if len(out) > 1 and out[-2].op in ("<<", "<<-") and out[-1].end == at:
            documents.append((out[-1].literal() or "", out[-2].op == "<<-"))
        if char == "\n" and documents:
            out.append(Token(at, at + 1, "\n"))
            at = _documents(script, at + 1, documents)
            documents = []
        elif script.startswith("\\\n", at):
            at += 2
        elif char in " \t":
            at += 1
        elif char == "#":
            newline = script.find("\n", at)
            at = len(script) if newline < 0 else newline
        elif op := next((o for o in _OPERATORS if script.startswith(o, at)), None):
            if op in "<>" and script[at + 1 : at + 2] == "(":
                end = balanced(script, at + 1, "(", ")")
                out.append(Token(at, end, "", [Part("dynamic", script[at:end], True)]))
                at = end
                continue
            out.append(Token(at, at + len(op), op))
            at += len(op)
        else:
            token = Token(at)
            at = _word(script, at, token)
            token.end = at
            out.append(token)
    return out


def _documents(script: str, at: int, documents: list[tuple[str, bool]]) -> int:
    """Step over here-documents; return the place after the last delimiter's line."""
    for delimiter, tabs in documents:
        while at < len(script):
            end = script.find("\n", at)
            line = script[at : end if end >= 0 else len(script)]
            at = end + 1 if end >= 0 else len(script)
            if (line.lstrip("\t") if tabs else line) == delimiter:
                break
    return at


def _word(script: str, at: int, token: Token) -> int:
    parts = token.parts
    while at < len(script):
        char = script[at]
        if char in " \t\n;&|()<>":
            break
        if char == "\\":
            if script[at + 1 : at + 2] != "\n":
                parts.append(Part("text", script[at + 1 : at + 2] or "\\", True))
            at += 2
        elif char == "'":
            end = _find(script, "'", at + 1)
            parts.append(Part("text", script[at + 1 : end], True))
            at = end + 1
        elif char == '"':
            at = _double(script, at + 1, parts)
        elif script.startswith("$'", at):
            at = _ansi(script, at + 2, parts)
        elif script.startswith('$"', at):
            at = _double(script, at + 2, parts)
        elif char in "$`":
            at = _dollar(script, at, parts, False)
        else:
            end = at + 1
            while end < len(script) and script[end] not in " \t\n;&|()<>\\'\"$`":
                end += 1
            parts.append(Part("text", script[at:end], False))
            at = end
    return at


def _find(script: str, what: str, at: int) -> int:
    end = script.find(what, at)
    if end < 0:
        raise TooComplex(f"an unbalanced {what}")
    return end


def _double(script: str, at: int, parts: list[Part]) -> int:
    parts.append(Part("text", "", True))
    while at < len(script):
        char = script[at]
        if char == '"':
            return at + 1
        if char == "\\":
            follow = script[at + 1 : at + 2]
            if follow != "\n":
                parts.append(Part("text", follow if follow in '$`"\\' else "\\" + follow, True))
            at += 2
        elif char in "$`":
            at = _dollar(script, at, parts, True)
        else:
            end = at
            while end < len(script) and script[end] not in '"\\$`':
                end += 1
            parts.append(Part("text", script[at:end], True))
            at = end
    raise TooComplex('an unbalanced "')


def _ansi(script: str, at: int, parts: list[Part]) -> int:
    out = ""
    while at < len(script) and script[at] != "'":
        if script[at] == "\\":
            if script[at + 1 : at + 2] not in _ANSI:
                raise TooComplex(f"the escape {script[at : at + 2]} in $'…'")
            out += _ANSI[script[at + 1]]
            at += 2
        else:
            out += script[at]
            at += 1
    parts.append(Part("text", out, True))
    return _find(script, "'", at) + 1


def _dollar(script: str, at: int, parts: list[Part], quoted: bool) -> int:
    """Read what begins with `$` or a back quote."""
    if script[at] == "`":
        end = _find(script, "`", at + 1)
        parts.append(Part("dynamic", script[at : end + 1], quoted))
        return end + 1
    follow = script[at + 1 : at + 2]
    if follow == "(":
        end = balanced(script, at + 1, "(", ")")
        parts.append(Part("dynamic", script[at:end], quoted))
        return end
    if follow == "{":
        end = balanced(script, at + 1, "{", "}")
        parts.append(Part("param", script[at + 2 : end - 1], quoted))
        return end
    name = _NAME.match(script, at + 1)
    if not name:
        parts.append(Part("text", "$", quoted))
        return at + 1
    parts.append(Part("param", name.group(), quoted))
    return name.end()


def balanced(script: str, at: int, opening: str, closing: str) -> int:
    """Return the place after the bracket that closes the one at `at`, minding quotes. Raises TooComplex."""
    depth = 0
    while at < len(script):
        char = script[at]
        if char == "\\":
            at += 1
        elif char == "'":
            at = _find(script, "'", at + 1)
        elif char == '"':
            at += 1
            while at < len(script) and script[at] != '"':
                at += 2 if script[at] == "\\" else 1
        elif char == opening:
            depth += 1
        elif char == closing:
            depth -= 1
            if not depth:
                return at + 1
        at += 1
    raise TooComplex(f"an unbalanced {opening}")
