"""Rules about what a checkpoint brings beside its weights: its own Python code, and its processor's files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ddtree_ops.core.checks.checkpoint import arguments, interpreter
from ddtree_ops.core.checks.checkpoint_facts import CHECKPOINTS, Checkpoints, Side, pick
from ddtree_ops.core.checks.rule import Rule, Section
from ddtree_ops.core.finding import Finding, block, ok, warn

if TYPE_CHECKING:
    from ddtree_ops.core.facts_live import Live
    from ddtree_ops.core.wanted import Wanted


@dataclass(frozen=True)
class Code:
    """files, missing: modules that its configs name, and those beside them; elsewhere: repositories that the code
    comes from, without a cached copy; needs: packages that it imports, not installed; processor: files of its
    image or audio processor."""

    files: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    elsewhere: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    processor: tuple[str, ...] = ()


@dataclass(frozen=True)
class CheckpointCode:
    target: Code | None
    draft: Code | None


def _read(raw: Mapping[str, Any]) -> CheckpointCode:
    target, draft = (pick(Code, raw[name]) if raw.get(name) else None for name in ("target", "draft"))
    return CheckpointCode(target, draft)


CODE = Section("checkpoint_code", CheckpointCode, _read)


def _sides(found: CheckpointCode, live: Live) -> Iterator[tuple[Side, Code, Checkpoints]]:
    """(checkpoint, its code) of those whose config was read."""
    seen = live.of(CHECKPOINTS)
    if not isinstance(seen, Checkpoints):
        return
    for side, code in ((seen.target, found.target), (seen.draft, found.draft)):
        if side is not None and code is not None and side.known:
            yield side, code, seen


def own_code(found: CheckpointCode, live: Live, wanted: Wanted) -> Sequence[Finding]:
    """Code that --trust-remote-code lets in is there, whole, and what it imports is installed."""
    args = arguments(live, wanted)
    if args is not None and not args.has("--trust-remote-code"):
        return []  # not read at all; `model-type` says where it would be needed
    return [_own(side, code, seen.hub.offline, live, wanted) for side, code, seen in _sides(found, live)]


def _own(side: Side, code: Code, offline: bool, live: Live, wanted: Wanted) -> Finding:
    id = "model-code"
    if code.missing:
        text = f"{side.path}: its configs name {code.missing[0]}, which --trust-remote-code loads, and it is not there"
        return block(id, text, f"copy the checkpoint's *.py files into {side.path} on {wanted.host}")
    if code.needs:
        packages = " ".join(code.needs)
        text = f"{side.path}: its own code ({code.files[0]}) imports {packages}, not installed for the engine"
        remedy = (
            f"{interpreter(live)} -m pip install --no-deps {packages} (the packages of those imports), on "
        )
        return block(id, text, remedy + wanted.host)
    if code.elsewhere:
        text = f"{side.path}: its code comes from {code.elsewhere[0]}, of which the unit's cache has no copy"
        made = block if offline else warn
        return made(id, text, f"copy that code into {side.path} and name it in auto_map, or cache it")
    return ok(id, f"{side.path}: {len(code.files)} files of its own code, all there")


def processor(found: CheckpointCode, live: Live, wanted: Wanted) -> Sequence[Finding]:
    """A model that takes images or sound brings the files that say how."""
    said = []
    for side, code, seen in _sides(found, live):
        if side is not seen.target or not side.multimodal:
            continue
        if code.processor:
            said.append(ok("processor", f"{side.path}: {', '.join(code.processor)}"))
            continue
        text = (
            f"{side.path} takes images or sound and has no preprocessor_config.json or processor_config.json"
        )
        said.append(warn("processor", text, f"copy those files into {side.path} on {wanted.host}"))
    return said


def chat_template(found: Checkpoints, live: Live, wanted: Wanted) -> Sequence[Finding]:
    """The target says how a conversation is written, or the arguments do."""
    side, args = found.target, arguments(live, wanted)
    if side is None or not side.known or side.chat_template is None:
        return []
    given = args is not None and args.has("--chat-template", "--is-embedding")
    if side.chat_template or given:
        return [ok("chat-template", f"{side.path}: its own" if side.chat_template else "--chat-template")]
    text = f"{side.path} has no chat template (tokenizer_config.json, chat_template.jinja): /v1/chat/completions fails "
    remedy = f"copy chat_template.jinja into {side.path} on {wanted.host}, or --chat-template in the unit"
    return [warn("chat-template", text + "or is written in a form that the model was not trained on", remedy)]


RULES: tuple[Rule[Any], ...] = (
    Rule(
        "model-code",
        CODE,
        own_code,
        "A copy of a checkpoint without its Python files, or an environment without a package that they import, ends "
        "the start while the config or tokenizer is read.",
    ),
    Rule(
        "processor",
        CODE,
        processor,
        "The engine builds the processor of a multimodal model at its start, and fails without its files.",
    ),
    Rule(
        "chat-template",
        CHECKPOINTS,
        chat_template,
        "Newer checkpoints keep the template in a file of its own, which a copy forgets: completions work, chats fail.",
    ),
)
