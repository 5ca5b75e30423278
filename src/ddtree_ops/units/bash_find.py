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
_SETTERS = frozenset({"eval", "read", "mapfile", "readarray", "getopts", "let"})
_JOINS = ("&&", "||", "|", "|&")
_PYTHON = "/unknown/python"
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
        # Names set since the last `&&` chain began: sure within it, a guess after it.
        self._chain: list[str] = []
        self._after = ";"
        self._depth = 0
        # Functions may set what they name whenever they are called.
        self._functions: set[str] = set()
        self._within: set[str] = set()

    def find(self) -> Server:
        """Return the server command. Raises TooComplex or NotAdoptable with the reason."""
        command: list[Token] = []
        depth = parens = 0
        loop_variable = False
        for token in [*tokens(self.script), Token(len(self.script), len(self.script), "\n")]:
            word = token.bare()
            if token.op and token.op not in REDIRECTS:
                self._depth = depth + parens
                if token.op == "(" and command and self._array(command, token):
                    command = []
                    continue
                if token.op == "(" and self._opens(command, token):
                    self._unsettle("arithmetic")
                if token.op == "\n" and not command and self._after in _JOINS:
                    continue
                self._simple(command, token.op)
                self._end(token.op)
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
                self._functions.add(command[1].bare() or "")
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

    def _opens(self, command: list[Token], token: Token) -> bool:
        """Look at a `(`: record the function whose definition it opens; say whether it opens arithmetic."""
        name = command[0].bare() if len(command) == 1 else None
        if name and re.match(r"\(\s*\)", self.script[token.start :]):
            self._functions.add(name)
        return self.script.startswith("((", token.start)

    def _end(self, op: str) -> None:
        """Note what ends a command: after a chain of `&&` nobody knows how far it came."""
        if op not in ("&&", "(") and self._after in _JOINS:
            for name in self._chain:
                self.scope.assign(name, None)
        if op != "&&":
            self._chain = []
        self._after = op

    def _sure(self, ended_by: str = ";") -> bool:
        """Whether a command here runs, and in this shell, wherever what follows it runs."""
        return (
            self._depth == 0
            and self._after not in ("||", "|", "|&")
            and ended_by not in ("|", "|&", "&", "||")
        )

    def _set(self, name: str, value: str | list[str] | None, sure: bool) -> None:
        self.scope.assign(name, value, sure)
        if self._depth:
            self._within.add(name)
        if self._after == "&&":
            self._chain.append(name)

    def _array(self, command: list[Token], bracket: Token) -> bool:
        """Read `NAME=( … )`, also behind `declare -a`; say whether it was one. What is inside is stepped over."""
        first = command[-1]
        match = re.fullmatch(r"([A-Za-z_][A-Za-z0-9_]*)(\+?)=", first.bare() or "")
        if not match or first.end != bracket.start:
            return False
        if len(command) > 1 and command[0].literal() not in _DECLARE:
            return False
        end = balanced(self.script, bracket.start, "(", ")")
        self._nested = end
        old = self.scope.arrays.get(match[1], []) if match[2] else []
        try:
            inside = [t for t in tokens(self.script[bracket.end : end - 1]) if t.op != "\n"]
            whole = not match[2] or match[1] in self.scope.arrays or match[1] not in self.scope.assigned
            made = [*old, *(f for t in inside for f in fields(t, self.scope))]
            self._set(match[1], made, self._sure() and whole)
        except TooComplex:
            self._set(match[1], None, False)
        return True

    def _simple(self, command: list[Token], ended_by: str) -> None:
        """Take in one simple command."""
        at = 0
        first = next((i for i, t in enumerate(command) if not self._is_assignment(t)), len(command))
        while at < first:
            self._assignment(command[at], self._sure(ended_by), first == len(command))
            at += 1
        words = command[at:]
        if not words:
            return
        name = words[0].literal()
        if name in _DECLARE:
            for token in words[1:]:
                self._assignment(token, self._sure(ended_by), True)
        elif name in ("source", "."):
            self._source(words)
        elif name in _SETTERS or (name == "printf" and "-v" in [w.literal() for w in words]):
            self._unsettle(name)
        elif name in self._functions:
            for variable in self._within:
                self.scope.assign(variable, None)
        elif name == "unset":
            for token in words[1:]:
                self.scope.forget(token.literal() or "", self._sure(ended_by))
        elif name in ("set", "shift"):
            self._positional(words, self._sure(ended_by) and self._after != "&&")
        else:
            self._candidate(words, ended_by)

    def _positional(self, words: list[Token], sure: bool) -> None:
        """Take in `set -- …` and `shift`; other forms of `set` change options only."""
        literal = [w.literal() for w in words]
        if literal[0] == "set":
            if "--" not in literal:
                return
            at = literal.index("--") + 1
            self.scope.positional = [f for t in words[at:] for f in fields(t, self.scope)] if sure else None
            return
        count = int(literal[1] or "") if len(words) > 1 and (literal[1] or "").isdigit() else 1
        known = (
            self.scope.positional is not None and sure and (len(words) == 1 or (literal[1] or "").isdigit())
        )
        # A shift by more than there are does nothing.
        if known and self.scope.positional is not None and count <= len(self.scope.positional):
            self.scope.positional = self.scope.positional[count:]
        elif not known:
            self.scope.positional = None

    def _source(self, words: list[Token]) -> None:
        last = words[1].parts[-1].text if len(words) > 1 else ""
        path = (words[1].literal() if len(words) > 1 else None) or last
        if last.endswith(("bin/activate", "etc/profile.d/conda.sh")):
            # What these two set is known, all else stays as it was.
            for name in (
                "PATH",
                "VIRTUAL_ENV",
                "VIRTUAL_ENV_PROMPT",
                "PS1",
                "PYTHONHOME",
                "CONDA_PREFIX",
                "CONDA_EXE",
            ):
                self.scope.assign(name, None)
            return
        self._unsettle(f"the file {path or 'it reads'}")
        self.scope.positional = None

    def _unsettle(self, by: str) -> None:
        """Note that any variable may have another value from here on."""
        self.scope.all_unknown = by
        self.scope.assigned.clear()

    @staticmethod
    def _is_assignment(token: Token) -> re.Match[str] | None:
        first = token.parts[0] if token.parts and not token.op else None
        return _ASSIGN.match(first.text) if first and first.kind == "text" and not first.quoted else None

    def _assignment(self, token: Token, sure: bool, persists: bool) -> None:
        """Take in `NAME=word`, where the token is one."""
        match = self._is_assignment(token)
        if not match:
            return
        raw_start = token.start + match.end()
        if literal := token.literal():
            value = literal[match.end() :]
            self.assigned.append(Assigned(match[1], value, raw_start, token.end))
        if not persists:
            return
        try:
            value = self._value(raw_start, token.end)
            if match[3] == "+=":
                value = "".join(self.scope.lookup(match[1]) or []) + value
            self._set(match[1], value, sure and not match[2])
        except TooComplex:
            self._set(match[1], None, False)

    def _value(self, start: int, end: int) -> str:
        """Evaluate the text after `=`, where nothing is split."""
        inner = tokens(self.script[start:end])
        if not inner:
            return ""
        quoted = Token(0, 0, "", [type(p)(p.kind, p.text, True) for p in inner[0].parts])
        if inner[0].parts[0].text.startswith("~") and not inner[0].parts[0].quoted:
            quoted.parts[0] = inner[0].parts[0]
        return " ".join(fields(quoted, self.scope))

    def _candidate(self, words: list[Token], ended_by: str) -> None:
        """See whether a command is the server, and note where."""
        redirect = next((i for i, t in enumerate(words) if t.op or self._is_fd(words, i)), len(words))
        plain, after = words[:redirect], words[redirect:]
        before = dict(self.scope.values)
        server = self._mentions_server(plain)
        if not self._sure(ended_by) or self._after == "&&":
            # `${X:=y}` in a command that may not run, or runs elsewhere.
            for name in {n for n, v in self.scope.values.items() if before.get(n) != v}:
                self._set(name, None, False)
        if not server:
            return
        if self._depth:
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
                known.append(_PYTHON if not known or known[-1] == "exec" else "")
        # `$VENV/bin/python -m sglang.launch_server` is the server too, though where it lies is not known.
        return locate(known) is not None
