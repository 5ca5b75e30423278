"""Reads ExecStart= and its kin into commands, and expands variables, as systemd does (load-fragment.c, env-util.c)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from ddtree_ops.units.specifiers import BadSpecifier, Specifiers
from ddtree_ops.units.words import WHITESPACE, BadWord, next_word_warn, split_relaxed


class FatalSetting(ValueError):
    """A value for which systemd refuses to start the unit at all."""


@dataclass(frozen=True)
class Command:
    """One command. path: what is executed. argv: with argv[0], before variables. prefixes: of `-@:+!`."""

    path: str
    argv: tuple[str, ...]
    prefixes: str = ""

    @property
    def expands(self) -> bool:
        """Whether `$NAME` is expanded (`:` switches it off)."""
        return ":" not in self.prefixes


@dataclass
class Commands:
    """What one assignment gives. warnings: what systemd logs and goes on."""

    commands: list[Command] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


def parse_commands(value: str, specifiers: Specifiers) -> Commands:
    """Parse a non-empty ExecStart= value.

    Raises FatalSetting where systemd then refuses the unit, UnknownHere where a specifier's value is not known.
    """
    result = Commands()
    at = 0
    while True:
        try:
            first, at, warning = next_word_warn(value, at)
        except BadWord:
            result.warnings.append("has an unbalanced quote in its first word, systemd ignores it")
            return result
        if first is None:
            return result
        if warning:
            result.warnings.append(_unknown_escape(first, warning))
        if first == ";":
            continue
        prefixes, rest = _prefixes(first)
        try:
            command, at, more = _one(value, at, prefixes, rest, specifiers, result.warnings)
        except FatalSetting as fatal:
            if "-" not in prefixes:
                raise
            result.warnings.append(f"{fatal}, systemd ignores it")
            return result
        result.commands.append(command)
        if not more:
            return result


def _unknown_escape(word: str, warning: str) -> str:
    return f"{warning}: systemd warns and keeps it as written in {word}"


def _may_follow(char: str, seen: str) -> bool:
    """Whether a prefix character counts after `seen`; `+`, `!` and `!!` exclude each other."""
    if char in "-@:":
        return char not in seen
    if char == "+":
        return "+" not in seen and "!" not in seen
    return char == "!" and "+" not in seen and seen.count("!") < 2


def _prefixes(word: str) -> tuple[str, str]:
    seen = ""
    for char in word:
        if not _may_follow(char, seen):
            break
        seen += char
    return seen, word[len(seen) :]


def _one(
    value: str, at: int, prefixes: str, first: str, specifiers: Specifiers, warnings: list[str]
) -> tuple[Command, int, bool]:
    """Read one command whose first word is known; say whether a `;` with another one follows."""
    path = _expand(first, specifiers)
    if not path:
        raise FatalSetting("has an empty path")
    if any(ord(c) < 32 or c in "\"'\\\x7f" for c in path):
        raise FatalSetting(f"names a path with quotes, backslashes or control characters: {path!r}")
    if not path.startswith("/") and "/" in path:
        raise FatalSetting(f"{path!r} is neither an absolute path nor a plain file name")
    if path.endswith("/"):
        raise FatalSetting(f"names a directory: {path}")
    argv = [] if "@" in prefixes else [path]
    more = False
    while at < len(value):
        if value[at] == ";" and _blank(value, at + 1):
            at = _skip(value, at + 1)
            more = True
            break
        if value[at] == "\\" and value[at + 1 : at + 2] == ";" and _blank(value, at + 2):
            at = _skip(value, at + 2)
            argv.append(";")
            continue
        try:
            word, at, warning = next_word_warn(value, at)
        except BadWord:
            raise FatalSetting("has an unbalanced quote, systemd ignores it: nothing is started") from None
        if word is None:
            break
        if warning:
            warnings.append(_unknown_escape(word, warning))
        argv.append(_expand(word, specifiers))
    if not argv or not argv[0]:
        raise FatalSetting("has an empty argv[0]")
    return Command(_simplify(path), tuple(argv), prefixes), at, more


def _expand(text: str, specifiers: Specifiers) -> str:
    try:
        return specifiers.expand(text)
    except BadSpecifier as bad:
        raise FatalSetting(f"uses the unknown specifier {bad} (a literal % is written %%)") from None


def _blank(value: str, at: int) -> bool:
    return at >= len(value) or value[at] in WHITESPACE


def _skip(value: str, at: int) -> int:
    while at < len(value) and value[at] in WHITESPACE:
        at += 1
    return at


def _simplify(path: str) -> str:
    return re.sub(r"/(?:\./)+", "/", re.sub(r"/+", "/", path))


@dataclass
class Expanded:
    """An argv after variables. unset: names that evaluated to nothing. used: names that were set."""

    argv: list[str] = field(default_factory=list)
    unset: list[str] = field(default_factory=list)
    used: list[str] = field(default_factory=list)


def expand_argv(argv: tuple[str, ...], env: Mapping[str, str]) -> Expanded:
    """Expand variables as systemd does before it executes (replace_env_argv).

    A word that begins with `$` and is no `${`: the whole rest is a name, its value is split at blanks, nothing if
    unset. `${NAME}` anywhere: the value, never split. `$$`: one `$`. `${X:-y}` and `$X` in mid-word stay as they are.
    """
    out = Expanded()
    for word in argv:
        if word.startswith("$") and word[1:2] not in ("{", "$"):
            name = word[1:]
            if name in env:
                out.used.append(name)
                out.argv += split_relaxed(env[name])
            else:
                out.unset.append(name)
            continue
        out.argv.append(expand_word(word, env, out))
    return out


def expand_word(word: str, env: Mapping[str, str], seen: Expanded) -> str:
    """Expand `${NAME}` and `$$` within one word (replace_env)."""
    out: list[str] = []
    start = at = 0
    while at < len(word):
        follow = word[at + 1 : at + 2]
        if word[at] != "$" or follow not in ("{", "$"):
            at += 2 if word[at] == "$" else 1
            continue
        if follow == "$":
            out.append(word[start : at + 1])
            start = at = at + 2
            continue
        stop = re.compile(r"[}:]").search(word, at + 2)
        if stop is None:
            break
        if stop.group() == ":":
            at = stop.end()
            continue
        name = word[at + 2 : stop.start()]
        (seen.used if name in env else seen.unset).append(name)
        out += [word[start:at], env.get(name, "")]
        start = at = stop.end()
    return "".join(out) + word[start:]
