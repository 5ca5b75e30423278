"""Rules about the server's arguments: known to the new tree's parser, and valid."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ddtree_ops.core.checks.argument_facts import ARGUMENTS, DP, PP, TP, Arguments, judged
from ddtree_ops.core.checks.rule import Rule
from ddtree_ops.core.facts_live import Engine
from ddtree_ops.core.finding import Finding, block, ok, warn

if TYPE_CHECKING:
    from ddtree_ops.core.facts_live import Live
    from ddtree_ops.core.wanted import Wanted

#: (flags, lowest, highest): what the engine takes without a check and then fails on.
_RANGES: tuple[tuple[tuple[str, ...], float, float], ...] = (
    (("--mem-fraction-static",), 0.05, 0.99),
    ((*TP, *PP, *DP, "--nnodes", "--page-size", "--max-running-requests", "--max-total-tokens"), 1, 1 << 40),
    (("--cuda-graph-max-bs", "--context-length", "--speculative-num-draft-tokens"), 1, 1 << 40),
    (("--speculative-ddtree-budget",), 1, 1024),
    (
        ("--speculative-ddtree-topk-cap", "--speculative-ddtree-shadow-every", "--speculative-eagle-topk"),
        1,
        1 << 20,
    ),
    (("--port", "--nccl-port"), 1, 65535),
)


def flags(found: Arguments, live: Live, wanted: Wanted) -> Sequence[Finding]:
    """Every flag is one that the tree's parser knows."""
    args = judged(found, wanted)
    version = live.engine.version if isinstance(live.engine, Engine) else None
    tree = f"sglang {version or wanted.version or 'as installed'}"
    if args.known is None:
        text = "the engine's parser was not found, so which flags it knows is unknown"
        return [warn("flags", text, f"ddtree-ops doctor --host {wanted.host}")]
    said: list[Finding] = []
    for name in sorted(set(args.flags) - args.known):
        near = _near(name, args.known)
        text = f"{name} is unknown to {tree}"
        if near:
            said.append(
                block("flags", f"{text}: did you mean {near}?", f"{near} instead of {name} in the unit")
            )
        elif args.complete or name.startswith("-"):
            why = "it was removed there, is newer than it, or needs a patched tree"
            made = block if args.complete else warn
            said.append(
                made(
                    "flags",
                    f"{text}: {why}",
                    f"remove {name} from the unit, or install the engine that has it",
                )
            )
    for name in sorted(flag for flag in args.flags if args.nargs.get(flag) == "deprecated"):
        text = f"{name} is deprecated in {tree}: it does nothing and will be removed"
        said.append(warn("flags", text, f"remove {name} from the unit"))
    for name in args.stray:
        switch = args.nargs.get(name) == "0"
        text = f"a word after {name} belongs to no flag{': it takes no value' if switch else ''}"
        remedy = f"{name} alone in the unit" if switch else f"quotes around the value of {name} in the unit"
        said.append((block if switch else warn)("flags", text, remedy))
    return said or [ok("flags", f"{len(args.flags)} flags, all known to {tree}")]


def _near(name: str, known: frozenset[str]) -> str | None:
    dashed = name.replace("_", "-")
    if dashed in known:
        return dashed
    close = difflib.get_close_matches(dashed, sorted(known), 1, 0.84)
    return close[0] if close else None


def values(found: Arguments, live: Live, wanted: Wanted) -> Sequence[Finding]:
    """Every value is one that its flag takes."""
    args = judged(found, wanted)
    said = [
        finding
        for name, value in args.flags.items()
        if value != "" and "$" not in str(value) and args.nargs.get(name) != "deprecated"
        for finding in _value(args, name, value)
    ]
    for names, low, high in _RANGES:
        for name in names:
            given = args.fraction(name)
            if given is not None and not low <= given <= high:
                text = f"{name} {given:g} is out of range: {low:g} to {high:g}"
                said.append(block("flag-values", text, f"another value for {name} in the unit"))
    for name in args.repeated:
        said.append(
            warn(
                "flag-values",
                f"{name} is given twice: the last one counts",
                f"remove one {name} from the unit",
            )
        )
    return said or [ok("flag-values", "every value is one that its flag takes")]


def _value(args: Arguments, name: str, value: str | bool) -> list[Finding]:
    """One flag's value against its choices and type."""
    choices, kind, count = args.choices.get(name), args.types.get(name), args.nargs.get(name)
    if value is True:
        if args.known and name in args.known and count not in ("0", "?", "*", "deprecated"):
            return [block("flag-values", f"{name} has no value", f"a value after {name} in the unit")]
        return []
    words = str(value).split() if count in ("+", "*") else [str(value)]
    wrong = [word for word in words if choices is not None and word not in choices]
    if wrong:
        folded = {choice.lower(): choice for choice in choices or ()}
        near = difflib.get_close_matches(wrong[0].lower(), folded, 1)
        hint = f"{name} {folded[near[0]]}" if near else f"{name}: one of {', '.join((choices or ())[:8])}"
        return [
            block("flag-values", f"{name} {wrong[0]} is no choice of this engine", f"{hint}, in the unit")
        ]
    if kind and not all(_number(word, kind) for word in words):
        return [block("flag-values", f"{name} {value} is no {kind}", f"a number after {name} in the unit")]
    if count == "0":
        return [block("flag-values", f"{name} takes no value", f"{name} alone in the unit")]
    return []


def _number(word: str, kind: str) -> bool:
    try:
        float(word) if kind == "float" else int(word)
    except ValueError:
        return False
    return True


RULES: tuple[Rule[Any], ...] = (
    Rule(
        "flags",
        ARGUMENTS,
        flags,
        "A flag that the new tree does not know ends the start with exit 2, after the old server is gone.",
        ("F118", "F119", "F120", "F126"),
    ),
    Rule(
        "flag-values",
        ARGUMENTS,
        values,
        "A value outside a flag's choices or range ends the start, or is taken and fails in the middle of a load.",
    ),
)
