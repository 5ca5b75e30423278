"""What a deploy would change on one host, decided from inventory, facts and release without touching anything."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from ddtree_ops.core.downtime import UNMEASURED, Downtime
from ddtree_ops.core.errors import PreconditionFailed, UsageProblem
from ddtree_ops.core.features import Loss
from ddtree_ops.core.steps import Step

SCHEMA_VERSION = 1
#: The phases of core.signatures.PHASES in which the server listens and is not gated yet.
_PORT_OPEN = ("serve", "mode", "capacity")


@dataclass(frozen=True)
class Preconditions:
    """What must still hold when the plan is applied. `unit_files`: sha256 by path; `tree`: the engine's sources;
    `confirmed`: the release that this host runs by decision."""

    confirmed: str
    tree: str
    unit_files: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Plan:
    """A deploy, printable and serialisable. `running`: mode and release confirmed now, `argv_before`: their command
    line; `changes`: sentences; `loses`: what clients lose against the baseline; `downtime`: from the host's own last
    starts; `gate`: a sentence from what its nft can do; `drift`: where the host is not what was recorded of it, which
    a deploy refuses; `waived`: what the preflight would have refused, let pass by hosts.yaml, with the reason."""

    host: str
    service: str
    mode: str
    release: str
    source_digest: str
    steps: Sequence[Step]
    preconditions: Preconditions
    argv_before: Sequence[str]
    argv_after: Sequence[str]
    dropin: str
    changes: Sequence[str] = ()
    loses: Sequence[Loss] = ()
    notes: Sequence[str] = ()
    downtime: Downtime = UNMEASURED
    gate: str = ""
    drift: Sequence[str] = ()
    waived: Sequence[str] = ()
    running: str = ""
    done: bool = False

    def to_json(self) -> dict[str, Any]:
        """The document of `plan -o`."""
        return {"schema_version": SCHEMA_VERSION, "kind": "plan", **asdict(self)}


def moved(planned: Mapping[str, Any], now: Plan) -> list[str]:
    """What differs between a saved plan and the one that holds now, a sentence each; empty: nothing moved."""
    found = []
    before, after = planned["preconditions"], asdict(now.preconditions)
    if before["confirmed"] != after["confirmed"]:
        found.append(f"the confirmed release was {before['confirmed']}, now it is {after['confirmed']}")
    if before["tree"] != after["tree"]:
        found.append(f"the engine's sources were {before['tree'][:16]}, now they are {after['tree'][:16]}")
    paths = sorted(set(before["unit_files"]) | set(after["unit_files"]))
    found += [
        f"{path} changed" for path in paths if before["unit_files"].get(path) != after["unit_files"].get(path)
    ]
    if planned["release"] != now.release:
        found.append(
            f"hosts.yaml, facts or the series changed: release {planned['release']} is now {now.release}"
        )
    return found


def check_unmoved(planned: Mapping[str, Any], now: Plan, what: str = "the saved plan") -> None:
    """Raise PreconditionFailed where a plan that was made before no longer fits the host."""
    found = moved(planned, now)
    if found:
        raise PreconditionFailed(
            f"{what} no longer fits: " + "; ".join(found),
            host=now.host,
            meaning="nothing was touched",
            next=f"ddtree-ops plan --host {now.host} --mode {now.mode} -o plan.json",
        )


def read_plan(document: Any, source: str) -> Mapping[str, Any]:
    """Check a plan document's shape. Raises UsageProblem naming the file."""
    wanted = ("host", "mode", "release", "preconditions")
    if (
        not isinstance(document, dict)
        or document.get("kind") != "plan"
        or any(k not in document for k in wanted)
    ):
        raise UsageProblem(
            f"{source} is not a plan", next="ddtree-ops plan --host HOST --mode MODE -o plan.json"
        )
    if document.get("schema_version") != SCHEMA_VERSION:
        raise UsageProblem(
            f"{source} has schema_version {document.get('schema_version')}, this is {SCHEMA_VERSION}"
        )
    return document


def describe_gate(nft: bool, history: Sequence[Mapping[str, Any]]) -> str:
    """A sentence on whom the port answers from the switch until the gates pass; without nft, how long it answers
    everyone: the phases that the last measured start spent with its port open."""
    if nft:
        return "from the switch until its gates pass the port answers only us"
    opened = [
        sum(float(entry["phases"].get(phase) or 0) for phase in _PORT_OPEN)
        for entry in history
        if isinstance(entry.get("phases"), Mapping) and "serve" in entry["phases"]
    ]
    if not opened:
        return (
            "this host has no nft: an ungated server would be reachable from its first answer until its gates pass "
            "(no start was measured on this host yet)"
        )
    return (
        f"this host has no nft: an ungated server would be reachable for about {max(1.0, opened[-1]):.0f} s "
        "(serve to gates passed, as last measured here)"
    )
