"""Turns a start command into the server's argv and what is around it: launcher, `bash -c` text or wrapper script."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from ddtree_ops.units import secret
from ddtree_ops.units.bash_eval import Scope
from ddtree_ops.units.bash_find import Reader
from ddtree_ops.units.bash_lex import TooComplex
from ddtree_ops.units.facts import SERVER, ExecFact
from ddtree_ops.units.server import (
    NotAdoptable,
    locate,
    past_launchers,
    python_switches,
    script_path,
    shell_script,
)
from ddtree_ops.units.vault import Vault, hide_argv

Wrapper = Literal["none", "launcher", "bash -c", "script"]
_SHEBANG = re.compile(r"#![ \t]*(?P<program>\S+)(?:[ \t]+(?P<rest>[^\n]*[^\s]))?[ \t\r]*(?:\n|$)")
_SOURCE = re.compile(r"\$\{BASH_SOURCE(?:\[0\])?\}|\$BASH_SOURCE\b")


@dataclass
class Start:
    """A start command taken apart. argv: the server's, marks for secrets. flags: index of the first flag."""

    argv: list[str]
    flags: int
    wrapper: Wrapper = "none"
    outer: list[str] | None = None
    notes: list[str] = field(default_factory=list)

    def fact(self, prefixes: str, argv0: str | None, vault: Vault) -> ExecFact:
        """Return what facts record. Raises NotAdoptable where a literal would read as a reference."""
        used = {n for word in [*self.argv, *(self.outer or [])] for n in secret.marked(word)}
        literal = [re.sub(f"{secret.OPEN}[^{secret.CLOSE}]*{secret.CLOSE}", "", word) for word in self.argv]
        for name in used:
            if any(f"${{{name}}}" in word for word in literal):
                raise NotAdoptable(f"an argument holds the literal text ${{{name}}}, the name of a secret")
        return ExecFact(
            argv=[secret.unmark(w) for w in self.argv],
            wrapper=self.wrapper,
            prefixes=prefixes.replace(":", ""),
            outer=None if self.outer is None else [secret.unmark(w.replace("$", "$$")) for w in self.outer],
            argv0=argv0,
            secrets={n: vault.source.get(n, "unit") for n in sorted(used)},
        )


def take_apart(
    argv: list[str], env: Mapping[str, str], scripts: Mapping[str, str], home: str | None, vault: Vault
) -> Start:
    """Find the server in an expanded argv (marks for secrets in it and in `env`). Raises NotAdoptable."""
    found = locate(argv)
    if found:
        start = _plain(argv, found.start, found.flags, vault)
    elif shell := shell_script(argv):
        at, options = shell
        scope = Scope(dict(env), positional=argv[at + 2 :], zero=(argv[at + 1 :] or argv)[0], home=home)
        start = _script(argv[at], scope, vault, argv[:at], argv[at + 1 :], "bash -c")
        if "l" in options:
            start.notes.append("a login shell: /etc/profile and ~/.profile may set more than is seen here")
    elif named := script_path(argv, dict(scripts)):
        start = _wrapper(argv, named, scripts[named[1]], env, home, vault)
    else:
        raise NotAdoptable(f"{argv[0]} starts no SGLang server that can be seen{_shell_hint(argv)}")
    if ignoring := [s for s in python_switches(start.argv) if re.match(r"-[a-zA-Z]*[EI]", s)]:
        start.notes.append(f"python {ignoring[0]} ignores PYTHONPATH: no patched mode can run this way")
    return start


def _shell_hint(argv: list[str]) -> str:
    return ": the text of this program was not probed" if len(argv) == 1 or argv[0].endswith("sh") else ""


def _plain(argv: list[str], start: int, flags: int, vault: Vault) -> Start:
    server = hide_argv(vault, argv[start:])
    notes = [
        f"systemd runs no shell: {word!r} is passed to the server as an argument"
        for word in dict.fromkeys(argv[flags:])
        if re.fullmatch(r"&&|\|\|?|&|[0-9]?>>?(?:&[0-9])?", word)
    ]
    if not start:
        return Start(server, flags, notes=notes)
    outer = [_hide_word(word, vault) for word in argv[:start]]
    return Start(server, flags - start, "launcher", [*outer, SERVER], notes)


def _hide_word(word: str, vault: Vault) -> str:
    """Hide the value of `NAME=value` in front of the server."""
    name, equals, value = word.partition("=")
    if equals and value and secret.OPEN not in value and secret.secret_name(name, value):
        return f"{name}={vault.keep(name, value, 'captured')}"
    return vault.hide_found(word)


def _script(
    text: str, scope: Scope, vault: Vault, before: list[str], after: list[str], wrapper: Wrapper
) -> Start:
    if SERVER in text:
        raise NotAdoptable(f"its text holds {SERVER}")
    reader = Reader(text, scope)
    try:
        server = reader.find()
    except TooComplex as why:
        raise NotAdoptable(f"the shell text is beyond this reader: {why}") from None
    cuts: list[tuple[int, int, str]] = [(server.start, server.end, SERVER)]
    for item in reader.assigned:
        if item.value and secret.OPEN not in item.value and secret.secret_name(item.name, item.value):
            token = vault.keep(item.name, item.value, "captured")
            at = text.find(item.value, item.start, item.end)
            if at < 0:
                raise NotAdoptable(f"the credential in {item.name}= is spelled with escapes")
            if not server.start <= at < server.end:
                cuts.append((at, at + len(item.value), token))
    argv = hide_argv(vault, [vault.hide(word) for word in server.argv])
    for start, end, new in sorted(cuts, reverse=True):
        text = text[:start] + new + text[end:]
    pieces = text.split(SERVER)
    text = SERVER.join(vault.hide_found(piece) for piece in pieces)
    notes = [*server.notes, f"the server runs inside {'a wrapper script' if wrapper == 'script' else 'bash -c'}: "
             "its arguments are taken as the shell works them out now, the text around them is kept"]  # fmt: skip
    if server.background:
        notes.append("the server runs in the background of the shell, which is the unit's main process")
    outer = [*(_hide_word(w, vault) for w in before), text, *(_hide_word(w, vault) for w in after)]
    return Start(argv, server.flags, wrapper, outer, notes)


def _wrapper(
    argv: list[str], named: tuple[int, str], text: str, env: Mapping[str, str], home: str | None, vault: Vault
) -> Start:
    """Inline a wrapper script as `bash -c TEXT script args…`: `$0` and the arguments stay what they were."""
    at, path = named
    shebang = _SHEBANG.match(text)
    if at == past_launchers(argv):
        if not shebang:
            raise NotAdoptable(f"the wrapper {path} has no #! line")
        # The kernel passes all that follows the program as one argument.
        runner = [*argv[:at], shebang["program"], *([shebang["rest"]] if shebang["rest"] else [])]
    else:
        runner = argv[:at]
    if not re.search(
        r"(?:^|/)(?:ba|da|z|k)?sh$", next((w for w in reversed(runner) if not w.startswith("-")), "")
    ):
        raise NotAdoptable(f"the wrapper {path} is no shell script ({' '.join(runner)})")
    body = text[shebang.end() :] if shebang else text
    notes = [f"the text of {path} is inlined: a later change of that file counts only after the next adopt"]
    if "BASH_SOURCE" in body:
        body = _SOURCE.sub("$0", body)
        if "BASH_SOURCE" in body:
            raise NotAdoptable(f"the wrapper {path} uses BASH_SOURCE in a way that cannot be inlined")
        notes.append(f"BASH_SOURCE in {path} is read as $0")
    scope = Scope(dict(env), positional=argv[at + 1 :], zero=path, home=home)
    start = _script(body.rstrip("\n"), scope, vault, [*runner, "-c"], argv[at:], "script")
    start.notes += notes
    return start
