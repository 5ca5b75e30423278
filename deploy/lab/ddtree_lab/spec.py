"""What a lab host is asked to be: its name, and the engine an operator would have left running there."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from typing import Any

from .problem import LabProblem

ENGINES = ("none", "real", "standin")
BASELINES = ("plain", "nextn", "dflash")
PAIRS = ("cycle", "context")
ALIAS = re.compile(r"[A-Za-z0-9_.:-]+")
NAME = re.compile(r"[a-z][a-z0-9-]{0,30}")


@dataclass(frozen=True)
class HostSpec:
    """One host. tp: tensor parallel size (1 or more). aliases: other names and addresses that ssh reaches it by."""

    name: str
    engine: str = "none"
    baseline: str = "plain"
    pair: str = "cycle"
    tp: int = 1
    aliases: tuple[str, ...] = ()

    def check(self) -> HostSpec:
        """Return self; raises LabProblem (usage) naming the first thing that cannot be."""
        if not NAME.fullmatch(self.name) or self.name in ("ctl", "sw"):
            raise LabProblem(
                f"{self.name!r} cannot be a lab host's name: lower-case letters, digits and -", usage=True
            )
        for what, value, allowed in (
            ("engine", self.engine, ENGINES),
            ("baseline", self.baseline, BASELINES),
            ("pair", self.pair, PAIRS),
        ):
            if value not in allowed:
                raise LabProblem(f"no {what} {value!r}: choose {', '.join(allowed)}", usage=True)
        for alias in self.aliases:
            if not ALIAS.fullmatch(alias):
                raise LabProblem(f"{alias!r} cannot be another name of {self.name}", usage=True)
        if self.engine == "real" and self.baseline == "nextn":
            raise LabProblem(
                "the real engine cannot run NEXTN on a CPU",
                usage=True,
                next=f"ddtree-ops lab up {self.name} --engine standin --baseline nextn",
            )
        if self.tp < 1:
            raise LabProblem(f"tp is {self.tp}, and must be at least 1", usage=True)
        return self

    def to_json(self) -> dict[str, Any]:
        return asdict(self)
