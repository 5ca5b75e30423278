"""What one run of the campaign does: drawn from a seed, so that it can be drawn again."""

from __future__ import annotations

import random
from dataclasses import dataclass

#: name: weight. 85 of 100 first faults are forced, the way power, kernels and people end things.
FORCED = {
    "host-crash": 4,
    "kill-runner": 4,
    "kill-agents": 2,
    "kill-operator": 4,
    "cut-link": 3,
    "reset": 2,
    "cut-for-good": 1,
}
GENTLE = {"interrupt": 1, "second-operator": 1, "reboot": 1}
FORCED_SHARE = 0.85
SECOND_SHARE = 0.15
BUDGETS = (4, 5, 6, 7)
#: How the release on trial behaves. A bad one never shares its budget with the release that must come back.
HEALTH = {"good": 7, "dies": 2, "hangs": 1}


@dataclass(frozen=True)
class Fault:
    """`t`: seconds after the command's start."""

    name: str
    t: float


@dataclass(frozen=True)
class Draw:
    """One run. `budget` is what the deploy asks for; a rollback has none."""

    action: str
    budget: int | None
    health: str
    faults: tuple[Fault, ...]


def draw(seed: str, cycles: dict[str, float], running_budget: int | None) -> Draw:
    """The run of `seed` on a host that runs `running_budget` (None: baseline).

    cycles: seconds of an undisturbed deploy and rollback. The first fault comes at a time uniform over 1.1 cycles; a
    second one within half a cycle of it.
    """
    rng = random.Random(seed)
    deploys = rng.random() < 0.75 or running_budget is None
    others = [budget for budget in BUDGETS if budget != running_budget]
    budget = rng.choice(others) if rng.random() < 0.95 or running_budget is None else running_budget
    health = _weighted(rng, HEALTH) if deploys and budget != running_budget else "good"
    cycle_s = cycles["deploy" if deploys else "rollback"]
    faults = [Fault(_kind(rng), round(rng.uniform(0, 1.1 * cycle_s), 3))]
    if rng.random() < SECOND_SHARE:
        faults.append(Fault(_kind(rng), round(faults[0].t + rng.uniform(0, cycle_s / 2), 3)))
    return Draw("deploy" if deploys else "rollback", budget if deploys else None, health, tuple(faults))


def _kind(rng: random.Random) -> str:
    return _weighted(rng, FORCED if rng.random() < FORCED_SHARE else GENTLE)


def _weighted(rng: random.Random, table: dict[str, int]) -> str:
    return rng.choices(list(table), weights=list(table.values()))[0]
