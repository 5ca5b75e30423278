"""Works out what bash makes of a word, from variables that are known; refuses what only a run can tell."""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass, field

from ddtree_ops.units.bash_lex import Part, Token, TooComplex, tokens

_PARAM = re.compile(
    r"(?P<name>[A-Za-z_][A-Za-z0-9_]*|[0-9]+|[@*#?$!-])(?P<index>\[[^\]]*\])?(?P<op>:?[-=+?])?(?P<rest>.*)",
    re.DOTALL,
)
_BRACES = re.compile(r"\{[^{}]*(?:,|\.\.)[^{}]*\}")
_PATTERN = re.compile(r"[*?]|\[.*\]")


@dataclass
class Scope:
    """Variables while reading a script. unknown: names whose value depends on the run; all_unknown: any may be."""

    values: dict[str, str] = field(default_factory=dict)
    arrays: dict[str, list[str]] = field(default_factory=dict)
    positional: list[str] | None = field(default_factory=list)
    zero: str = "bash"
    home: str | None = "/root"
    unknown: set[str] = field(default_factory=set)
    all_unknown: str | None = None
    assigned: set[str] = field(default_factory=set)
    notes: list[str] = field(default_factory=list)

    def assign(self, name: str, value: str | list[str] | None, sure: bool = True) -> None:
        """Set a scalar or an array; None or not `sure` makes it unknown."""
        self.values.pop(name, None)
        self.arrays.pop(name, None)
        self.unknown.discard(name)
        self.assigned.add(name)
        if value is None or not sure:
            self.unknown.add(name)
        elif isinstance(value, list):
            self.arrays[name] = value
        else:
            self.values[name] = value

    def forget(self, name: str, sure: bool) -> None:
        """Unset a variable."""
        self.assign(name, None)
        if sure:
            self.unknown.discard(name)

    def lookup(self, name: str) -> list[str] | None:
        """Return a variable's elements, None where unset. Raises TooComplex where only a run can tell."""
        if name in self.unknown:
            raise TooComplex(f"${name}, whose value depends on the run")
        if name in self.arrays:
            return self.arrays[name]
        if self.all_unknown and name not in self.assigned:
            raise TooComplex(f"${name}, which {self.all_unknown} may set")
        if name in self.values:
            return [self.values[name]]
        return None


def fields(word: Token, scope: Scope) -> list[str]:
    """Return the arguments that a word becomes. Raises TooComplex."""
    out: list[str] = []
    current = ""
    begun = empty_quotes = vanished = False
    bare = ""
    for index, part in enumerate(word.parts):
        pieces = _part(part, scope, index == 0, len(word.parts) == 1)
        if part.kind == "text" and not part.quoted:
            bare += part.text
        else:
            bare += "\0"
        if part.kind == "text" and part.quoted and not part.text:
            empty_quotes = True
            continue
        if not pieces:
            vanished = True
            continue
        begun = True
        for number, piece in enumerate(pieces):
            if number:
                out.append(current)
                current = ""
            current += piece
    if _BRACES.search(bare):
        raise TooComplex("a brace expansion")
    if _PATTERN.search(bare):
        scope.notes.append(
            f"the unquoted pattern {current!r} is taken literally: bash does so where no file matches"
        )
    if begun or (empty_quotes and not vanished):
        out.append(current)
    return out


def _part(part: Part, scope: Scope, first: bool, alone: bool) -> list[str]:
    """Return the pieces: several mean a split between arguments, none that the part vanishes."""
    if part.kind == "dynamic":
        if (place := _place(part.text, scope)) is not None:
            return [place] if part.quoted else _split(place)
        raise TooComplex(f"{part.text.splitlines()[0][:60]}, known only when it runs")
    if part.kind == "text":
        if first and not part.quoted and part.text.startswith("~"):
            return [_tilde(part.text, scope, alone)]
        return [part.text]
    values = parameter(part.text, scope, part.quoted)
    if part.quoted:
        return values
    if "IFS" in scope.assigned:
        raise TooComplex("an unquoted variable after IFS was set")
    return [piece for value in values for piece in _split(value)]


def _place(text: str, scope: Scope) -> str | None:
    """Work out `$(dirname X)` and `$(cd X && pwd)` of an absolute path: how scripts find their own directory."""
    inside = text[2:-1].strip() if text.startswith("$(") and not text.startswith("$((") else ""
    words = tokens(inside) if inside else []
    names = [w.op or w.literal() for w in words]
    if len(words) in (2, 3) and names[0] == "dirname" and (len(words) == 2 or names[1] == "--"):
        made = fields(words[-1], scope)
        return posixpath.dirname(made[0]) if len(made) == 1 and made[0].startswith("/") else None
    silent = [n for n in names if n not in (">", "/dev/null", "--", ">&", "&>", "1")]
    if len(silent) == 4 and silent[0] == "cd" and silent[2:] == ["&&", "pwd"]:
        made = fields(next(w for w in words[1:] if not w.op and w.literal() != "--"), scope)
        return posixpath.normpath(made[0]) if len(made) == 1 and made[0].startswith("/") else None
    return None


def _split(value: str) -> list[str]:
    if value != value.strip(" \t\n") and value.strip(" \t\n"):
        raise TooComplex("an unquoted variable with blanks at its ends")
    if _PATTERN.search(value):
        raise TooComplex(f"an unquoted variable that holds a pattern ({value[:40]!r})")
    return value.split()


def _tilde(text: str, scope: Scope, alone: bool) -> str:
    user, slash, rest = text[1:].partition("/")
    if user or not (slash or alone):
        raise TooComplex(f"the home directory {text}")
    home = scope.values.get("HOME", scope.home)
    if home is None:
        raise TooComplex("~, whose value depends on the run")
    return home + slash + rest


def parameter(text: str, scope: Scope, quoted: bool) -> list[str]:
    """Evaluate the inside of `${…}`: plain, `[@]`, `:-`, `-`, `:=`, `=`, `:+`, `+`, `:?`, `?`. Raises TooComplex."""
    match = _PARAM.fullmatch(text)
    if not match or (match["rest"] and not match["op"]):
        raise TooComplex(f"${{{text}}}")
    if scope.positional is None and (
        match["name"] in ("@", "*", "#") or match["name"].strip("123456789") == ""
    ):
        raise TooComplex(f"${match['name']}, after the script changed its arguments")
    name, index, op, rest = match["name"], match["index"], match["op"], match["rest"]
    values = _values(name, index, scope)
    if not op:
        return _joined(values or ([] if _is_all(name, index) else [""]), name, index, quoted)
    missing = values is None or not values or (op[0] == ":" and values in ([""], []))
    if op[-1] == "+":
        return [] if missing and not quoted else [""] if missing else [_default(rest, scope)]
    if not missing:
        return _joined(values or [""], name, index, quoted)
    if op[-1] == "?":
        raise TooComplex(f"${{{text}}}, which ends the script")
    value = _default(rest, scope)
    if op[-1] == "=":
        scope.assign(name, value)
    return [value]


def _is_all(name: str, index: str | None) -> bool:
    return name in ("@", "*") or index in ("[@]", "[*]")


def _joined(values: list[str], name: str, index: str | None, quoted: bool) -> list[str]:
    return [" ".join(values)] if quoted and (name == "*" or index == "[*]") else values


def _values(name: str, index: str | None, scope: Scope) -> list[str] | None:
    positional = scope.positional or []
    if name in ("@", "*"):
        return positional
    if name == "#":
        return [str(len(positional))]
    if name.isdigit():
        number = int(name)
        if number == 0:
            return [scope.zero]
        return [positional[number - 1]] if number <= len(positional) else None
    if not re.match(r"[A-Za-z_]", name):
        raise TooComplex(f"${name}, known only when it runs")
    values = scope.lookup(name)
    if index in ("[@]", "[*]") or values is None:
        return values
    if index is None:
        return values[:1] if values else None
    if not index[1:-1].isdigit():
        raise TooComplex(f"${{{name}{index}}}")
    return values[int(index[1:-1]) :][:1] or None


def _default(text: str, scope: Scope) -> str:
    """Evaluate the word after `:-` and its kin, which may hold blanks and quotes."""
    pieces: list[str] = []
    last = 0
    for token in tokens(text):
        if token.op:
            raise TooComplex(f"the default {text!r}")
        pieces.append(text[last : token.start])
        pieces += [" ".join(fields(token, scope))]
        last = token.end
    return "".join(pieces) + text[last:]
