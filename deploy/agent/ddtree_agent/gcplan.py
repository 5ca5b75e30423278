"""Decides what a garbage collection removes and why; plain data in, plain data out, no host."""

from dataclasses import dataclass
from typing import Any, Dict, List, Sequence

#: Records of ended rollouts that stay, for each service.
KEEP_TXNS = 20


@dataclass(frozen=True)
class Item:
    """Something of ours on the host. kind: release | runtime | failed | agent | txn | leftover; `at`: unix time of its
    last use; `bytes`: allocated; `service`: whose it is, "" for what all services of the host share; `whole`: not
    half-made; `runtime`: the one that a release runs on."""

    kind: str
    name: str
    bytes: int
    at: float
    service: str = ""
    whole: bool = True
    runtime: str = ""


@dataclass(frozen=True)
class Choice:
    """What happens to an item, and why."""

    item: Item
    goes: bool
    why: str

    def to_json(self) -> Dict[str, Any]:
        found = {"kind": self.item.kind, "name": self.item.name, "bytes": self.item.bytes, "why": self.why}
        return {**found, "service": self.item.service} if self.item.service else found


def plan_gc(
    releases: List[Item],
    failed: List[Item],
    agents: List[Item],
    txns: List[Item],
    needed: Dict[str, str],
    keep: int,
    failed_bytes: int,
    runtimes: Sequence[Item] = (),
) -> List[Choice]:
    """Choose for every item, the oldest of each kind first.

    needed: why a release, runtime or agent (by name) or a rollout (by id) must stay; what is in it never goes. keep:
    how many of the newest releases stay besides. failed_bytes: the cap on evidence; the newest stays whatever its size.
    """
    chosen = _newest(releases, needed, keep, f"not needed, and older than the {keep} newest")
    run_on = {
        c.item.runtime: f"release {c.item.name} runs on it" for c in chosen if not c.goes and c.item.runtime
    }
    return [
        *chosen,
        # the newest stays: it may have come a minute ago, for a release that is not made yet
        *_newest([*runtimes], {**run_on, **needed}, 1, "no release that stays runs on it"),
        *_failed(failed, failed_bytes),
        *_newest(agents, needed, 1, "an older agent that nothing runs"),
        *_txns(txns, needed),
    ]


def _newest(items: List[Item], needed: Dict[str, str], keep: int, why_not: str) -> List[Choice]:
    found, place = [], 0
    for item in sorted(items, key=lambda item: (item.at, item.name), reverse=True):
        new, place = item.whole and place < keep, place + item.whole
        why = needed.get(item.name) or (f"among the {keep} newest" if new else None)
        goes = why_not if item.whole else "a crash left it half-made"
        found.append(Choice(item, why is None, why or goes))
    return found[::-1]


def _failed(failed: List[Item], cap: int) -> List[Choice]:
    found, total = [], 0
    for place, item in enumerate(sorted(failed, key=lambda item: (item.at, item.name), reverse=True)):
        total += item.bytes
        stays = place == 0 or total <= cap
        why = "the newest evidence" if place == 0 else f"evidence within {cap} bytes"
        found.append(Choice(item, not stays, why if stays else f"evidence beyond {cap} bytes, oldest first"))
    return found[::-1]


def _txns(txns: List[Item], needed: Dict[str, str]) -> List[Choice]:
    found = []
    for service in sorted({item.service for item in txns}):
        mine = [item for item in txns if item.service == service]
        found += _newest(mine, needed, KEEP_TXNS, f"older than the last {KEEP_TXNS} rollouts")
    return found
