"""Takes credentials out of what adoption writes, and keeps their values in memory only."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Literal

from ddtree_ops.config.secrets import Secret
from ddtree_ops.units import secret

Source = Literal["unit", "captured"]
# A shorter value is replaced only where it is a whole word: `EMPTY` stands in other words too.
WHOLE = 8


@dataclass
class Vault:
    """Values found so far. source: `unit` stays in the operator's files, `captured` moves to /etc/ddtree."""

    values: dict[str, Secret] = field(default_factory=dict)
    source: dict[str, Source] = field(default_factory=dict)

    def keep(self, name: str, value: str, source: Source) -> str:
        """Keep a value; return the mark that stands for it. Equal values share a name, unequal ones never do."""
        for known, held in self.values.items():
            if held.reveal() == value:
                return secret.mark(known)
        free, number = name, 2
        while free in self.values:
            free, number = f"{name}_{number}", number + 1
        self.values[free] = Secret(value)
        self.source[free] = source
        return secret.mark(free)

    def hide(self, text: str) -> str:
        """Return `text` with every kept value replaced by its mark."""
        for name, held in sorted(self.values.items(), key=lambda item: -len(item[1].reveal())):
            value = held.reveal()
            if text == value or (len(value) >= WHOLE and value in text):
                text = text.replace(value, secret.mark(name))
        return text

    def hide_found(self, text: str) -> str:
        """`hide`, and capture what has the form of a credential where it stands."""
        text = self.hide(text)
        for pattern, group in ((secret.CONTEXTS, "value"), (secret.SHAPES, 0)):
            at = 0
            while match := pattern.search(text, at):
                value = match[group]
                start, end = match.span(group)
                if secret.OPEN in value:
                    at = match.end()
                    continue
                token = self.keep("DDTREE_SECRET", value, "captured")
                text = text[:start] + token + text[end:]
                at = start + len(token)
        return text

    def scrub(self, text: str) -> str:
        """Return `text` for people: marks as `${NAME}`, values and their like as ***."""
        text = self.hide(text)
        for held in self.values.values():
            if len(held.reveal()) >= 4:
                text = text.replace(held.reveal(), "***")
        text = secret.CONTEXTS.sub(lambda m: _blot(m, "value"), text)
        text = secret.SHAPES.sub(lambda m: _blot(m, 0), text)
        return secret.unmark(text)


def _blot(match: re.Match[str], group: str | int) -> str:
    """Return what was matched with the credential in it as ***; a mark is none."""
    return match[0] if secret.OPEN in match[group] else match[0].replace(match[group], "***")


def hide_argument(vault: Vault, flag: str | None, word: str) -> str:
    """Return an argument of the server with credentials as marks: the value of a `--api-key`, or a known form."""
    if flag and secret.secret_flag(flag) and word and secret.OPEN not in word:
        return vault.keep(secret.variable_for(flag), word, "captured")
    name, equals, value = word.partition("=")
    if equals and value and secret.secret_flag(name) and secret.OPEN not in value:
        return f"{name}={vault.keep(secret.variable_for(name), value, 'captured')}"
    return vault.hide_found(word)


def hide_argv(vault: Vault, argv: list[str]) -> list[str]:
    """Return the server's argv with credentials as marks."""
    out: list[str] = []
    for index, word in enumerate(argv):
        previous = argv[index - 1] if index else ""
        flag = previous if previous.startswith("-") and "=" not in previous else None
        out.append(hide_argument(vault, flag, word))
    return out
