"""Writes a start command back as the value of ExecStart=, around it what adoption found there."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence

from ddtree_ops.core.errors import PreconditionFailed
from ddtree_ops.units.facts import SERVER, ExecFact
from ddtree_ops.units.quote import quote_word

_READS_FILES = re.compile(r"PYTHONPATH|(?:^|[\s;&|(])(?:source|\.)\s|\bconda\b|\beval\b")
_BREAK = " \\\n    "


def exec_value(
    fact: ExecFact, argv: Sequence[str], ours: Mapping[str, str], path_first: str | None, host: str
) -> str:
    """Return the value of ExecStart= that runs `argv` in the place of the adopted server.

    ours: variables that the release sets, for launchers that clear the environment. path_first: what must come first
    on PYTHONPATH, None in an unpatched mode. Raises PreconditionFailed where the launcher would undo that.
    """
    prefix = fact.prefixes
    words: list[str] = []
    for index, element in enumerate(fact.outer or [SERVER]):
        if element == SERVER:
            words += _extra(fact.outer or [], index, ours, path_first)
            words += [_argument(word, fact.secrets) for word in argv]
        elif SERVER in element:
            server = bash_command(argv, fact.secrets, path_first if _may_set_path(fact, element) else None)
            words.append(quote_word(_percent(element.replace(SERVER, server.replace("$", "$$")))))
        else:
            words.append(quote_word(_percent(_launcher_word(fact.outer or [], index, path_first, host))))
    if fact.argv0 is not None:
        words.insert(1, _argument(fact.argv0, {}))
    return prefix + _lines(words)


def _percent(text: str) -> str:
    return text.replace("%", "%%")


def _argument(word: str, secrets: Mapping[str, object]) -> str:
    """Quote an argument in which `${NAME}` of a secret stays a reference."""
    return quote_word(
        "".join(p if ref else p.replace("%", "%%").replace("$", "$$") for p, ref in pieces(word, secrets))
    )


def pieces(word: str, secrets: Mapping[str, object]) -> list[tuple[str, bool]]:
    """Cut a word of facts into (text, is a reference)."""
    if not secrets:
        return [(word, False)]
    pattern = re.compile(r"(\$\{(?:" + "|".join(map(re.escape, secrets)) + r")\})")
    return [(part, bool(index % 2)) for index, part in enumerate(pattern.split(word)) if part or not word]


def bash_command(argv: Sequence[str], secrets: Mapping[str, object], path_first: str | None) -> str:
    """Return `argv` as bash text; references are expanded by bash, quoted."""
    words = []
    for word in argv:
        cut = pieces(word, secrets)
        words.append("".join(f'"{p}"' if ref else shlex.quote(p) for p, ref in cut))
    lead = f'/usr/bin/env PYTHONPATH={path_first}"${{PYTHONPATH:+:$PYTHONPATH}}" ' if path_first else ""
    return lead + " ".join(words)


def _may_set_path(fact: ExecFact, text: str) -> bool:
    """Whether the shell text may change PYTHONPATH before the server starts."""
    shell = [w for w in fact.outer or [] if SERVER not in w][:4]
    login = any(re.fullmatch(r"-[a-z]*[li][a-z]*|--login", w) for w in shell)
    return login or bool(_READS_FILES.search(text))


def _is_env(outer: Sequence[str], index: int) -> bool:
    """Whether outer[index] is an argument of env(1)."""
    before = [w.rpartition("/")[2] for w in outer[:index]]
    return "env" in before


def _launcher_word(outer: Sequence[str], index: int, path_first: str | None, host: str) -> str:
    word = outer[index]
    if not path_first or not _is_env(outer, index):
        return word
    if word.startswith("PYTHONPATH="):
        held = word.partition("=")[2]
        return f"PYTHONPATH={path_first}" + (f":{held}" if held else "")
    if (word in ("-u", "--unset") and outer[index + 1] == "PYTHONPATH") or word in (
        "-uPYTHONPATH",
        "--unset=PYTHONPATH",
    ):
        raise PreconditionFailed(
            "the unit's env(1) removes PYTHONPATH, which a patched mode needs", host=host,
            next="remove `-u PYTHONPATH` from ExecStart=, then adopt again",
        )  # fmt: skip
    return word


def _extra(outer: Sequence[str], index: int, ours: Mapping[str, str], path_first: str | None) -> list[str]:
    """Return assignments for an `env -i` in front of the server, which passes nothing of the unit's on."""
    if (
        index
        and _is_env(outer, index)
        and any(w in ("-i", "-", "--ignore-environment") for w in outer[:index])
    ):
        held = any(w.startswith("PYTHONPATH=") for w in outer[:index])
        return [quote_word(_percent(f"{n}={v}")) for n, v in ours.items() if not (held and n == "PYTHONPATH")]
    return []


def _lines(words: Sequence[str]) -> str:
    """Put each flag on a line of its own: a drop-in is read by people at 3 a.m."""
    out = words[0]
    for word in words[1:]:
        out += (_BREAK if word.startswith("--") else " ") + word
    return out
