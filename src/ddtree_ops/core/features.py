"""What clients of a service rely on, by name: what hosts.yaml can require, and what a mode says that they lose."""

from __future__ import annotations

from dataclasses import dataclass

from ddtree_ops.core.finding import Finding, block

#: name → what it is. A series names a loss by one of these, so that `requires:` in hosts.yaml can forbid it.
FEATURES = {
    "logprobs": "log-probabilities of tokens",
    "grammar": "output bound to json_schema, regex, ebnf or structural_tag",
    "tool_choice": "tool_choice=required",
    "penalties": "frequency, presence and repetition penalties, min_new_tokens",
    "custom_logit_processor": "a logit processor that the client sends along",
    "attention_backend": "the attention backend that the operator, or the engine by itself, chose",
}


@dataclass(frozen=True)
class Loss:
    """What clients lose against the baseline. feature: one of FEATURES; says: what they see instead."""

    feature: str
    says: str

    def __str__(self) -> str:
        return f"{self.feature}: {self.says}"


@dataclass(frozen=True)
class Need:
    """A feature that a service must keep, and where hosts.yaml says so (`file:line:col`)."""

    feature: str
    place: str


def kept(needs: tuple[Need, ...], loses: tuple[Loss, ...], mode: str) -> list[Finding]:
    """One BLOCK for each needed feature that the mode loses, naming feature, mode and line."""
    said = {loss.feature: loss.says for loss in reversed(loses)}
    return [
        block(
            "requires",
            f"mode {mode} loses {need.feature} ({said[need.feature]}), which {need.place} requires",
            f"keep the mode that runs, or remove {need.feature} at {need.place} if clients can do without it",
        )
        for need in needs
        if need.feature in said
    ]
