"""The server's arguments, the installed engine's parser, and what of the GPUs decides whether they hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ddtree_ops.core.checks.checkpoint_facts import pick
from ddtree_ops.core.checks.rule import Section
from ddtree_ops.core.modes import scan

if TYPE_CHECKING:
    from ddtree_ops.core.facts_live import Live
    from ddtree_ops.core.wanted import Wanted

MIB = 1 << 20
TP = ("--tp-size", "--tensor-parallel-size", "--tp")
PP = ("--pp-size", "--pipeline-parallel-size")
DP = ("--dp-size", "--data-parallel-size")
DRAFT = ("--speculative-draft-model-path", "--speculative-draft-model")
BACKENDS = ("--attention-backend", "--prefill-attention-backend", "--decode-attention-backend")
#: Algorithms with a DFlash draft: one block drafted at once, by a draft without a head of its own.
BLOCK_DRAFTERS = ("DFLASH", "DDTREE", "DSPARK")


@dataclass(frozen=True)
class EngineText:
    """What the installed engine honours or refuses, from its own text. None: the text is not there.

    draft_layer_types: its DFlash draft reads the config's layer_types (so windows of some layers). draft_rope_default:
    the rope_theta that it takes where the config object has none. ngram_state: NGRAM commits a recurrent state.
    lora_speculation: the algorithms that it allows beside LoRA. dp_refused: those that it refuses with DP attention.
    mixed_chunk_off: it switches mixed chunks off by itself. fp8_marlin: it computes FP8 weights on GPUs without FP8.
    blackwell_hybrid: the attention backends that it takes for a hybrid model on Blackwell.
    """

    draft_layer_types: bool | None = None
    draft_rope_parameters: bool | None = None
    draft_rope_default: float | None = None
    ngram_state: bool | None = None
    grammar_refused: bool | None = None
    lora_speculation: tuple[str, ...] | None = None
    hybrid_radix_refused: bool | None = None
    dp_refused: tuple[str, ...] | None = None
    mixed_chunk_off: bool | None = None
    fp8_marlin: bool | None = None
    blackwell_hybrid: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Arguments:
    """flags: {name: value}, True for a bare flag, "" for a value that is not told. stray: flags after
    which a word stands that they cannot take. known: the parser's flags, None
    where its text was not found; complete: whether they are all. nargs: "0" for a switch, "deprecated"."""

    flags: Mapping[str, str | bool]
    repeated: tuple[str, ...]
    stray: tuple[str, ...]
    known: frozenset[str] | None
    complete: bool
    choices: Mapping[str, tuple[str, ...]]
    types: Mapping[str, str]
    nargs: Mapping[str, str]
    environment: Mapping[str, str]
    engine: EngineText

    def has(self, *names: str) -> bool:
        """Whether one of these flags is given (null in a document means: not given)."""
        return any(name in self.flags for name in names)

    def text(self, *names: str) -> str | None:
        """The value of one of these flags; None where it is absent, bare or not told."""
        found = next((self.flags[name] for name in names if name in self.flags), None)
        return found if isinstance(found, str) and found else None

    def number(self, *names: str) -> int | None:
        """The value as a whole number."""
        text = self.text(*names)
        return int(text) if text and text.lstrip("-").isdigit() else None

    def fraction(self, *names: str) -> float | None:
        """The value as a number."""
        try:
            return float(self.text(*names) or "")
        except ValueError:
            return None

    def on(self, variable: str) -> bool:
        """Whether an environment variable is switched on, as the engine reads it."""
        return self.environment.get(variable, "").lower() in ("1", "true", "yes", "on")

    @property
    def algorithm(self) -> str | None:
        """The speculative algorithm's name, NEXTN read as EAGLE."""
        name = (self.text("--speculative-algorithm") or "").upper()
        return {"NEXTN": "EAGLE"}.get(name, name) or None

    @property
    def tree(self) -> bool:
        """Whether DDTREE verifies its trees (full mode)."""
        return self.algorithm == "DDTREE" and not self.has("--speculative-ddtree-shadow-linear")

    @property
    def tp(self) -> int:
        return self.number(*TP) or 1

    @property
    def pp(self) -> int:
        return self.number(*PP) or 1


@dataclass(frozen=True)
class GpuRoom:
    """One GPU that the service could use, in bytes."""

    total: int
    used: int


def gpus(live: Live) -> list[GpuRoom] | None:
    """The GPUs that the service will take, from the section `gpus`; None where nothing is known of their memory."""
    seen = live.areas.get("gpus")
    cards = list(getattr(seen, "cards", ()))
    shown = getattr(seen, "visible", None)
    if shown is not None:
        words = [word.strip() for word in shown.split(",")]
        cards = [card for word in words for card in cards if word in (str(card.index), card.uuid)]
    found = []
    for card in cards[getattr(seen, "base", 0) or 0 :][: getattr(seen, "need", None)]:
        if not card.total:
            return None
        found.append(GpuRoom(card.total * MIB, (card.used or 0) * MIB))
    return found or None


def judged(found: Arguments, wanted: Wanted) -> Arguments:
    """The arguments that a deploy is about: the rendered ones where a mode is asked for, else those of the unit.

    The flags that the series adds to the engine's parser are known too.
    """
    known = None if found.known is None else found.known | set(wanted.accepts)
    choices = {flag: (*values, *wanted.accepts.get(flag, ())) for flag, values in found.choices.items()}
    # whether a flag that the series brings takes a value, its own parser says in the import smoke
    brought = {flag: "?" for flag in wanted.accepts if flag not in (found.known or ())}
    seen = replace(found, known=known, choices=choices, nargs={**brought, **found.nargs})
    at = next((i for i, word in enumerate(wanted.argv) if word.startswith("--")), len(wanted.argv))
    if at == len(wanted.argv):
        return seen
    flags: dict[str, str | bool] = {}
    repeated = []
    for span in scan(wanted.argv, at):
        name = _whole(span.name, known)
        if name in flags:
            repeated.append(name)
        flags[name] = True if span.value is None else span.value
    return replace(seen, flags=flags, repeated=tuple(repeated), stray=())


def _whole(name: str, known: frozenset[str] | None) -> str:
    """argparse takes an unambiguous beginning for the flag."""
    near = {flag for flag in known or () if flag.startswith(name)}
    return near.pop() if name not in (known or ()) and name.startswith("--") and len(near) == 1 else name


def _read(raw: Mapping[str, Any]) -> Arguments:
    engine = raw["engine"]
    allowed = engine.get("lora_speculation")
    return Arguments(
        flags={name: value for name, value in raw["flags"].items() if value is not None},
        repeated=tuple(raw["repeated"]),
        stray=tuple(raw["stray"]),
        known=None if raw["known"] is None else frozenset(raw["known"]),
        complete=raw["complete"],
        choices={flag: tuple(values) for flag, values in raw["choices"].items()},
        types=dict(raw["types"]),
        nargs=dict(raw["nargs"]),
        environment=dict(raw["environment"]),
        engine=pick(EngineText, engine, lora_speculation=None if allowed is None else tuple(allowed)),
    )


ARGUMENTS = Section("arguments", Arguments, _read)
