"""Expands %-specifiers as the system manager does (systemd.unit(5), table "Specifiers"; unit-printf.c)."""

from __future__ import annotations

import string
from collections.abc import Mapping
from dataclasses import dataclass, field

_FIXED = {
    "h": "/root", "u": "root", "U": "0", "g": "root", "G": "0",
    "t": "/run", "S": "/var/lib", "C": "/var/cache", "L": "/var/log", "E": "/etc", "T": "/tmp", "V": "/var/tmp",
}  # fmt: skip
# What only the host can say; the probe reports them by letter.
HOST_SPECIFIERS = frozenset("aAbBcHlmMoqrRsvwW")


class BadSpecifier(ValueError):
    """A specifier that systemd does not know (`Invalid slot`): the setting does not count."""


class UnknownHere(LookupError):
    """A specifier whose value only the host knows and the probe did not report. `letter` names it."""

    def __init__(self, letter: str) -> None:
        super().__init__(f"%{letter}")
        self.letter = letter


@dataclass(frozen=True)
class Specifiers:
    """The values of %-specifiers for one unit of the system manager.

    unit: full name, `sglang@a.service`. fragment: the unit file's path. host: letter → value as probed.
    lenient: one whose value is not known stays as it is, for commands that nothing is read from.
    """

    unit: str
    fragment: str = ""
    host: Mapping[str, str] = field(default_factory=dict)
    lenient: bool = False

    def value(self, letter: str) -> str:
        """Return what `%letter` means. Raises BadSpecifier, UnknownHere."""
        name, _, _suffix = self.unit.rpartition(".")
        prefix, _, instance = name.partition("@")
        own = {
            "n": self.unit, "N": name, "p": prefix, "P": unescape_name(prefix),
            "i": instance, "I": unescape_name(instance),
            "j": prefix.rpartition("-")[2], "J": unescape_name(prefix.rpartition("-")[2]),
            "f": _as_path(instance or prefix), "y": self.fragment, "Y": self.fragment.rpartition("/")[0],
            "d": f"/run/credentials/{self.unit}",
        }  # fmt: skip
        for table in (own, _FIXED, self.host):
            if letter in table:
                return table[letter]
        if letter in HOST_SPECIFIERS and self.lenient:
            return f"%{letter}"
        if letter in HOST_SPECIFIERS:
            raise UnknownHere(letter)
        raise BadSpecifier(f"%{letter}")

    def expand(self, text: str) -> str:
        """Expand `text`; `%%` is `%`, a `%` before anything but a letter or digit stays."""
        if "%" not in text:
            return text
        out: list[str] = []
        at = 0
        while at < len(text):
            char = text[at]
            follow = text[at + 1 : at + 2]
            if char != "%" or not follow:
                out.append(char)
                at += 1
                continue
            if follow == "%":
                out.append("%")
            elif follow in string.ascii_letters + string.digits:
                out.append(self.value(follow))
            else:
                out.append("%" + follow)
            at += 2
        return "".join(out)


def unescape_name(text: str) -> str:
    """Undo unit name escaping: `-` is `/`, `\\xNN` a byte (systemd-escape(1))."""
    out: list[str] = []
    at = 0
    while at < len(text):
        if text[at] == "\\" and text[at + 1 : at + 2] == "x":
            try:
                out.append(chr(int(text[at + 2 : at + 4], 16)))
                at += 4
                continue
            except ValueError:
                pass
        out.append("/" if text[at] == "-" else text[at])
        at += 1
    return "".join(out)


def _as_path(text: str) -> str:
    plain = unescape_name(text)
    return plain if plain.startswith("/") else f"/{plain}"
