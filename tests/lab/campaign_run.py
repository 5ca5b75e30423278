"""One run of the campaign: a command, the faults that hit it, and what must be said of both afterwards."""

from __future__ import annotations

import json
import math
import subprocess
import threading
import time
from typing import Any

import reader
from campaign_draw import Draw
from campaign_faults import Blows, Client, Operator
from ddtree_lab.problem import LabProblem
from invariants import Asked
from rig import Rig

#: "operator cut off: the old service answers again within the confirm deadline + 15 s on the stand-in"; on a machine
#: so loaded that two whole cycles take longer than that, within those.
RECOVERY_S = 15.0
#: A whole cycle before one was measured (s).
UNKNOWN_S = 60.0
#: The guard's timer looks this often, where systemd's own follow-up was killed as well.
GUARD_LOOK_S = 20.0
OPERATOR_LIMIT_S = 200
CANARY = "canary-7f3a9d1c5e"
SICK = {"dies": {"exit": {"weights": 3}}, "hangs": {"hang": "weights"}}


class Interrupted:
    """One command and the faults that hit it."""

    def __init__(self, rig: Rig, plan: Draw, cycle_s: float) -> None:
        self.rig, self.host, self.plan, self.cycle_s = rig, rig.host, plan, cycle_s
        self.code: int | None = None
        self.out = self.err = ""
        self.struck: list[float] = []
        self.hung = False
        self.errors: list[str] = []
        self.recovery_s = 0.0
        self.others: list[tuple[int, str, str]] = []

    def play(self) -> None:
        """Start the command, strike, wait until everybody who lives has ended and the host has converged."""
        self.rig.configure(**keys(self.plan.budget or 6, self.cycle_s))
        if self.plan.health in SICK:
            when = {"speculative_ddtree_budget": self.plan.budget}
            self.rig.scenario({"when": when, "then": SICK[self.plan.health]})
        client = Client(self.host)
        client.start()
        operator = self.rig.start(*command(self.plan))
        blows = Blows(self.rig, operator)
        self._strike(blows, time.monotonic())
        self._await(operator, blows)
        reader.settle(self.host)
        client.end()
        self.recovery_s = client.recovery_s(self.struck[0])
        self._forget()

    def _forget(self) -> None:
        """Take the sickness away. A host that was asked to reboot late may go down only now."""
        for last in (False, False, True):
            try:
                self.rig.scenario()
                return
            except LabProblem:
                if last:
                    raise
                reader.settle(self.host)

    def _strike(self, blows: Blows, began: float) -> None:
        threads = []
        for fault in self.plan.faults:
            time.sleep(max(0.0, began + fault.t - time.monotonic()))
            self.struck.append(time.time())
            threads.append(threading.Thread(target=blows.strike, args=(fault.name,)))
            threads[-1].start()
        for thread in threads:
            thread.join()

    def _await(self, operator: Operator, blows: Blows) -> None:
        try:
            self.out, self.err = operator.communicate(timeout=OPERATOR_LIMIT_S)
        except subprocess.TimeoutExpired:
            self.hung = True
            Rig.kill(operator)
        self.errors = blows.errors
        self.code = None if operator.returncode < 0 else operator.returncode
        for other in blows.others:
            out, err = other.communicate(timeout=OPERATOR_LIMIT_S)
            self.others.append((other.returncode, out, err))

    def judge(self, after: reader.Read, before: reader.Read) -> list[str]:
        """Every violated invariant."""
        alone = not self.others
        asked = Asked(
            alone=alone,
            recovery_s=self.recovery_s if alone else None,  # two rollouts are two downtimes
            recovery_limit_s=self._limit_s(),
            said=self.said,
            noticed_s=None,
            info=wanted_info(self.plan),
            wanted=wanted_release(self.plan, before) if alone else None,
        )
        document = None if self.code is None else parsed(self.out)
        found = reader.check(after, before, self.code, document, asked, (CANARY,))
        for code, out, _ in self.others:
            beside = Asked(alone=False, noticed_s=None)
            found += [text for text in reader.check(after, None, code, parsed(out), beside) if "I4" in text]
        found += self.errors
        if self.hung:
            found.append(f"I4: the operator's command did not end in {OPERATOR_LIMIT_S} s")
        return found

    def line(self, after: reader.Read, before: reader.Read) -> dict[str, Any]:
        """The run as campaign.jsonl keeps it."""
        first, *more = self.plan.faults
        new = set(after["transactions"]) - set(before["transactions"])
        verdicts = [verdict for name in new for verdict in after["transactions"][name]["verdicts"]]
        lags = [verdict["lag_s"] for verdict in verdicts if verdict.get("lag_s") is not None]
        moved = after["confirmed"]["release"] != before["confirmed"]["release"]
        return {
            "action": self.plan.action,
            "health": self.plan.health,
            "fault": first.name,
            "t": first.t,
            "more": [[fault.name, fault.t] for fault in more],
            "outcome": "new" if moved else "old",
            "state": [after["transactions"][name]["state"].get("state") for name in sorted(new)],
            "exit_code": self.code,
            "recovery_s": self.recovery_s,
            "lag_s": max(lags, default=None),
        }

    @property
    def said(self) -> str:
        return self.out + self.err + "".join(out + err for _, out, err in self.others)

    def _limit_s(self) -> float:
        limits = timeouts(self.cycle_s)
        stall = limits["weights"] if self.plan.health == "hangs" else 0
        guarded = any(fault.name == "kill-agents" for fault in self.plan.faults) or len(self.plan.faults) > 1
        usual = limits["confirm"] + max(RECOVERY_S, 2 * self.cycle_s)
        return usual + stall + (GUARD_LOOK_S if guarded else 0)


def timeouts(cycle_s: float) -> dict[str, int]:
    """hosts.yaml's limits (s) on a host whose whole cycle takes `cycle_s`: seconds, on a machine that is not loaded."""
    usual = math.ceil(cycle_s)
    return {
        "connect": min(10, max(3, usual)),
        "import": max(10, 2 * usual),
        "weights": max(5, usual),
        "graphs": max(5, usual),
        "serve": max(10, 2 * usual),
        "confirm": max(3, usual),
        "stop": max(3, usual),
        "cap": max(30, 5 * usual),
    }


def keys(budget: int, cycle_s: float) -> dict[str, Any]:
    """The host's keys in hosts.yaml."""
    secret = {"CAMPAIGN_TOKEN": {"secret": "env:DDTREE_CAMPAIGN_CANARY"}}
    return {"timeouts": timeouts(cycle_s), "budget": budget, "environment": secret}


def command(plan: Draw) -> tuple[str, str]:
    return plan.action, "--json"


def wanted_info(plan: Draw) -> dict[str, Any] | None:
    """What the server must say of itself where the command ended with 0."""
    return None if plan.budget is None else {"speculative_ddtree_budget": plan.budget}


def wanted_release(plan: Draw, before: reader.Read) -> str | None:
    """Where a rollback that ends with 0 must have gone; a deploy's release has no name yet."""
    record = before["confirmed"]
    return str(record.get("undo") or record["release"]) if plan.action == "rollback" else None


def budget_of(read: reader.Read) -> int | None:
    """The budget that the server says it runs with; None for the baseline."""
    found = read["info"]["body"].get("speculative_ddtree_budget")
    return None if found is None else int(found)


def parsed(text: str) -> dict[str, Any] | None:
    """A command's JSON document; None where it printed none."""
    try:
        found = json.loads(text)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None
