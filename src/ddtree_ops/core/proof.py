"""Whether a mode that needs another one's proof has it: the same sources, confirmed in that mode on this host."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from ddtree_ops.core.errors import PreconditionFailed
from ddtree_ops.core.modes import read_flags


@dataclass(frozen=True)
class Proof:
    """A rollout that this host confirmed. at: unix seconds; argv: the server's, empty where its release is gone."""

    mode: str
    source_digest: str
    release: str
    at: float
    who: str
    argv: tuple[str, ...] = ()

    @property
    def when(self) -> str:
        """In UTC, for a person."""
        return datetime.fromtimestamp(self.at, timezone.utc).strftime("%Y-%m-%d %H:%M UTC")


def read_proofs(entries: Sequence[Mapping[str, Any]]) -> list[Proof]:
    """The agent's `proven`, oldest first. Raises KeyError for a shape that no agent of ours gives."""
    return [
        Proof(e["mode"], e["source_digest"], e["release"], e["at"], e["who"], tuple(e["argv"]))
        for e in entries
    ]


def proven(proofs: Sequence[Proof], by: str, source_digest: str, mode: str, host: str) -> Proof:
    """The newest rollout of `by` with these sources. Raises PreconditionFailed where the host confirmed none."""
    same = [proof for proof in proofs if proof.mode == by]
    for proof in reversed(same):
        if proof.source_digest == source_digest:
            return proof
    raise PreconditionFailed(
        f"mode {mode} needs a {by} of the same sources first: source_digest {source_digest} was never confirmed "
        f"in mode {by} on this host",
        host=host,
        evidence=_others(same, by),
        meaning="nothing was touched",
        next=f"ddtree-ops deploy --host {host} --mode {by}",
    )


def recorded(proofs: Sequence[Proof], mode: str, source_digest: str) -> bool:
    """Whether the host's history has a confirmed rollout of this mode with these sources."""
    return any((proof.mode, proof.source_digest) == (mode, source_digest) for proof in proofs)


def _others(same: Sequence[Proof], by: str) -> str:
    if not same:
        return f"the host's history has no confirmed {by}"
    last = same[-1]
    return f"the last confirmed {by} here had source_digest {last.source_digest} (release {last.release}, {last.when})"


def describe(proof: Proof, now: Sequence[str] | None) -> list[str]:
    """The proof in sentences. now: the argv that the proving mode would have today, None where it is not known."""
    lines = [f"proof: {proof.mode} of the same sources was confirmed here {proof.when} by {proof.who}"]
    if now is None or not proof.argv:
        return [*lines, f"proof: what that {proof.mode} ran with is not known any more"]
    return lines + [f"proof: that {proof.mode} ran with {text}" for text in _differences(proof.argv, now)]


def _differences(then: Sequence[str], now: Sequence[str]) -> Iterator[str]:
    before, after = dict(read_flags(then)), dict(read_flags(now))
    for flag in [*before, *(flag for flag in after if flag not in before)]:
        if flag and (flag not in before or flag not in after or before[flag] != after[flag]):
            yield f"{_shown(flag, before)}, this plan has {_shown(flag, after)}"


def _shown(flag: str, flags: Mapping[str, str | list[str] | None]) -> str:
    if flag not in flags:
        return f"no {flag}"
    value = flags[flag]
    return flag if value is None else f"{flag} {value if isinstance(value, str) else ' '.join(value)}"
