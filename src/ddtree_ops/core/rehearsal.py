"""What a rehearsal runs and what it showed, decided without I/O: the release's own command line made small."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ddtree_ops.core.modes import Rehearsal, scan

#: What the host fills in.
_WORDS = ("{target}", "{draft}", "{port}", "{fraction}", "{layers}")


@dataclass(frozen=True)
class Small:
    """argv: the server's, with {target}, {draft}, {port} and {fraction} for the host to fill in, each a word of its
    own. models: the checkpoints that {target} and {draft} are made from, as the command line names them."""

    argv: list[str]
    models: dict[str, str]


def small(argv: Sequence[str], flags_at: int, rules: Rehearsal | None) -> Small | str:
    """A release's command line as its rehearsal runs it; why it cannot be rehearsed, in words."""
    if rules is None:
        return "this series says nothing of rehearsals (rehearse: in its modes.yaml)"
    for word in argv:
        if word in _WORDS:
            return f"its command line has the word {word}, which a rehearsal uses for itself"
    kept, models = list(argv[:flags_at]), dict[str, str]()
    put = dict(rules.set)
    for span in scan(argv, flags_at):
        for rule in rules.refuse:
            if rule.flag == span.name and (span.value or "") not in rule.allow:
                return f"{span.name} {span.value or ''}: {rule.reason}".replace(" :", ":")
        if span.name in rules.small and span.value:
            which = rules.small[span.name]
            models[which] = span.value
            kept += [span.name, f"{{{which}}}"]
        elif span.name not in rules.drop and span.name not in put:
            kept += argv[span.start : span.end]
    if "target" not in models:
        return "the command line names no model"
    for flag, value in put.items():
        kept += [flag] if value is None else [flag, value]
    return Small(kept, models)


def sentence(found: Mapping[str, Any]) -> str:
    """What a rehearsal showed, for the operator and the host's history. found: the agent's `rehearsal` object."""
    if found["verdict"] != "PASSED":
        return f"not rehearsed: {found['why']}"
    answers, seconds = found["answers"], found["seconds"]
    text = (
        f"rehearsed in {seconds:.0f} s beside the live server: {found['layers']} layers, dummy weights, "
        f"{answers['same']} of {answers['tokens']} tokens as the target's own next token"
    )
    room = found.get("memory") or {}
    if room.get("least_free") is not None:
        text += f"; at least {room['least_free'] / (1 << 30):.1f} GiB of every GPU stayed free"
    return text
