"""Finds the one server command in a bash script and works out its arguments; the rest of the script stays as it is."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from ddtree_ops.units.bash_eval import Scope, fields
from ddtree_ops.units.bash_lex import REDIRECTS, Token, TooComplex, balanced, tokens
from ddtree_ops.units.server import Found, NotAdoptable, locate

_OPEN = frozenset({"if", "while", "until", "for", "select", "case", "{"})
_CLOSE = frozenset({"fi", "done", "esac", "}"})
_PASS = frozenset({"then", "else", "elif", "do", "!", "time", "in"})
_ASSIGN = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(\[[^\]]*\])?(\+?=)")
_DECLARE = frozenset({"export", "declare", "typeset", "readonly", "local"})


@dataclass
class Server:
    """The server in a script.

    start, end: its span in the text, from the interpreter on. argv: what bash passes. flags: index of the first flag.
    prefix: launchers in front of it. background: started with `&`. notes: sentences.
    """

    start: int
    end: int
    argv: list[str]
    flags: int
    notes: list[str]
    background: bool = False
    prefix: list[str] = field(default_factory=list)


@dataclass
class Assigned:
    """A literal assignment in the script: `value` stands at [start, end)."""

    name: str
    value: str
    start: int
    end: int


class Reader:
    """Reads one script. `assigned` collects literal assignments; `find` returns the server."""

    def __init__(self, script: str, scope: Scope) -> None:
        self.script = script
        self.scope = scope
        self.assigned: list[Assigned] = []
        self._found: list[Server] = []
        self._nested = 0

    def find(self) -> Server:
        """Return the server command. Raises TooComplex or NotAdoptable with the reason."""
        command: list[Token] = []
        depth = parens = 0
        loop_variable = False
        for token in [*tokens(self.script), Token(len(self.script), len(self.script), "\n")]:
            word = token.bare()
            if token.op and token.op not in REDIRECTS:
                if token.op == "(" and len(command) == 1 and self._array(command[0], token):
                    command = []
                    continue
                self._simple(command, depth + parens, token.op)
                command = []
                parens = max(0, parens + {"(": 1, ")": -1}.get(token.op, 0))
            elif self._nested > token.start:
                continue
            elif not command and not token.op and word in _OPEN | _CLOSE | _PASS:
                depth = max(0, depth + (word in _OPEN) - (word in _CLOSE))
                loop_variable = word in ("for", "select")
            elif loop_variable:
                self.scope.assign(word or "", None)
                loop_variable = False
                command.append(token)
            elif word == "{" and command and command[0].bare() == "function":
                depth += 1
                command = []
            elif not command and word == "[[":
                end = self.script.find("]]", token.start)
                self._nested = len(self.script) if end < 0 else end + 2
            else:
                command.append(token)
        if not self._found:
            raise NotAdoptable("no SGLang server is started in it")
        if len(self._found) > 1:
            raise NotAdoptable("it starts more than one SGLang server")
        return self._found[0]

    def _array(self, first: Token, bracket: Token) -> bool:
        """Read `NAME=( … )`; say whether it was one. What is inside is stepped over."""
        match = re.fullmatch(r"([A-Za-z_][A-Za-z0-9_]*)(\+?)=", first.bare() or "")
        if not match or first.end != bracket.start:
            return False
        end = balanced(self.script, bracket.start, "(", ")")
        self._nested = end
        old = self.scope.arrays.get(match[1], []) if match[2] else []
        try:
            inside = [t for t in tokens(self.script[bracket.end : end - 1]) if t.op != "\n"]
            self.scope.assign(match[1], [*old, *(f for t in inside for f in fields(t, self.scope))])
        except TooComplex:
            self.scope.assign(match[1], None)
        return True

    def _simple(self, command: list[Token], depth: int, ended_by: str) -> None:
        """Take in one simple command."""
        at = 0
        while at < len(command) and self._assignment(command[at], depth, at + 1 == len(command)):
            at += 1
        words = command[at:]
        if not words:
            return
        name = words[0].literal()
        if name in _DECLARE:
            for token in words[1:]:
                self._assignment(token, depth, True)
        elif name in ("source", "."):
            self._source(words)
        elif name in ("eval", "read", "mapfile", "readarray", "getopts"):
            self.scope.all_unknown = name
        elif name == "unset":
            for token in words[1:]:
                self.scope.assign(token.literal() or "", None)
        elif name == "set" and len(words) > 1 and words[1].literal() == "--":
            self.scope.positional = [f for t in words[2:] for f in fields(t, self.scope)]
        elif name == "shift":
            self.scope.positional = self.scope.positional[1:]
        else:
            self._candidate(words, depth, ended_by)

    def _source(self, words: list[Token]) -> None:
        path = words[1].literal() if len(words) > 1 else None
        if path and path.endswith(("/bin/activate", "bin/activate")):
            for name in ("PATH", "VIRTUAL_ENV", "VIRTUAL_ENV_PROMPT", "PS1", "PYTHONHOME"):
                self.scope.assign(name, None)
            return
        self.scope.all_unknown = f"the file {path or 'it reads'}"
        self.scope.assigned.clear()

    def _assignment(self, token: Token, depth: int, persists: bool) -> bool:
        """Take in `NAME=word`; say whether the token is one."""
        first = token.parts[0] if token.parts else None
        match = _ASSIGN.match(first.text) if first and first.kind == "text" and not first.quoted else None
        if not match:
            return False
        raw_start = token.start + match.end()
        if literal := token.literal():
            value = literal[match.end() :]
            self.assigned.append(Assigned(match[1], value, raw_start, token.end))
        if not persists:
            return True
        try:
            value = self._value(raw_start, token.end)
            if match[3] == "+=":
                value = "".join(self.scope.lookup(match[1]) or []) + value
            self.scope.assign(match[1], value, depth == 0 and not match[2])
        except TooComplex:
            self.scope.assign(match[1], None)
        return True

    def _value(self, start: int, end: int) -> str:
        """Evaluate the text after `=`, where nothing is split."""
        inner = tokens(self.script[start:end])
        if not inner:
            return ""
        quoted = Token(0, 0, "", [type(p)(p.kind, p.text, True) for p in inner[0].parts])
        if inner[0].parts[0].text.startswith("~") and not inner[0].parts[0].quoted:
            quoted.parts[0] = inner[0].parts[0]
        return " ".join(fields(quoted, self.scope))

    def _candidate(self, words: list[Token], depth: int, ended_by: str) -> None:
        """See whether a command is the server, and note where."""
        redirect = next((i for i, t in enumerate(words) if t.op or self._is_fd(words, i)), len(words))
        plain, after = words[:redirect], words[redirect:]
        if not self._mentions_server(plain):
            return
        if depth:
            raise TooComplex("the server is started inside a loop, a condition, a function or a subshell")
        if any(self._argument_after(after)):
            raise TooComplex("a redirection in the middle of the server's arguments")
        # `exec` is bash's own; what follows it is found as well as without it.
        self.scope.notes.clear()
        flat: list[str] = []
        origin: list[int] = []
        for index, token in enumerate(plain):
            try:
                made = fields(token, self.scope)
            except TooComplex as why:
                raise TooComplex(
                    f"the server's argument {self.script[token.start : token.end]!r} needs {why}"
                ) from None
            flat += made
            origin += [index] * len(made)
        found: Found | None = locate(flat)
        if found is None:
            return
        start = origin[found.start]
        if found.start and origin[found.start - 1] == start:
            raise TooComplex("the launcher and the interpreter come from one variable")
        notes = list(dict.fromkeys(self.scope.notes))
        self._found.append(
            Server(
                plain[start].start, plain[-1].end, flat[found.start :], found.flags - found.start, notes,
                ended_by == "&", flat[: found.start],
            )
        )  # fmt: skip

    def _is_fd(self, words: list[Token], index: int) -> bool:
        """Whether the word is the number in front of a redirection (`2>`)."""
        follow = words[index + 1] if index + 1 < len(words) else None
        return bool(
            follow
            and follow.op
            and follow.start == words[index].end
            and (words[index].bare() or "").isdigit()
        )

    @staticmethod
    def _argument_after(after: list[Token]) -> list[bool]:
        """Whether arguments follow the redirections."""
        expected = 0
        out: list[bool] = []
        for index, token in enumerate(after):
            if token.op:
                expected += 1
            elif expected:
                expected -= 1
            elif not (index + 1 < len(after) and after[index + 1].op and (token.bare() or "").isdigit()):
                out.append(True)
        return out

    def _mentions_server(self, words: list[Token]) -> bool:
        """Cheap first look, so that commands of no interest need not be worked out."""
        known: list[str] = []
        for token in words:
            try:
                known += fields(token, self.scope)
            except TooComplex:
                known.append("")
        return locate(known) is not None
