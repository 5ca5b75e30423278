"""Frees what no service of a host needs any more."""

from __future__ import annotations

from typing import Any

from ddtree_ops.apply import agentzip, who
from ddtree_ops.apply.agent import AgentClient
from ddtree_ops.config.model import HostConfig
from ddtree_ops.core.errors import OutcomeUnknown, Unreachable

#: Deleting a release's thousands of files says nothing meanwhile (seconds).
_SILENCE_S = 300.0


def gc(
    host: HostConfig, client: AgentClient, *, keep: int, failed_bytes: int, dry_run: bool
) -> dict[str, Any]:
    """Collect on one host; return {dry_run, freed: bytes, removed, kept}.

    Raises HostLocked while a rollout is open there, OutcomeUnknown where the line was cut while it removed things.
    """
    request = {
        "who": who.operator(),
        "agent": agentzip.digest(),
        "keep": keep,
        "failed_bytes": failed_bytes,
        "dry_run": dry_run,
    }
    last: dict[str, Any] = {}
    cut = "the agent ended without an answer"
    try:
        for event in client.events("gc", request, timeout=_SILENCE_S):
            last = event
    except Unreachable as error:
        if dry_run:
            raise
        cut = error.what  # the request had its line, so it may have arrived, whatever came back of it
    if last.get("ev") != "result":
        raise OutcomeUnknown(
            "the line was cut while gc removed what is not needed",
            host=host.name,
            evidence=cut,
            meaning="nothing that is needed was touched; the next run removes the rest",
            next=f"ddtree-ops gc --host {host.name}",
        )
    return {key: last[key] for key in ("dry_run", "freed", "removed", "kept")}
