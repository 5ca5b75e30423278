"""The random campaign: rollouts interrupted at any moment, each outcome judged by the independent reader.

usage: make campaign N=300 [HOSTS=6] [SEED=…]. After OSTree's kill tests: a time uniform over 1.1 cycles, 85 % forced.
State carries over from run to run.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import statistics
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import reader
from campaign_draw import draw
from campaign_run import (
    CANARY,
    OPERATOR_LIMIT_S,
    UNKNOWN_S,
    Interrupted,
    budget_of,
    command,
    keys,
    parsed,
    timeouts,
    wanted_info,
    wanted_release,
)
from ddtree_lab.client import Lab
from ddtree_lab.spec import HostSpec
from ddtree_lab.state import State, own_directory
from invariants import Asked, late
from rig import CHECKOUT, UNIT, Rig, where_run


@dataclass
class Campaign:
    """What all threads share. `results` are the lines of campaign.jsonl."""

    seed: str
    runs: int
    out: Path
    results: list[dict[str, Any]] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    _next: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self) -> int | None:
        """The number of the next run; None at the end."""
        with self._lock:
            if self._next >= self.runs:
                return None
            self._next += 1
            return self._next

    def add(self, line: dict[str, Any]) -> None:
        with self._lock:
            self.results.append(line)
            with open(self.out / "campaign.jsonl", "a") as file:
                file.write(json.dumps(line, sort_keys=True) + "\n")
        print(summary(line), flush=True)

    @property
    def late(self) -> list[str]:
        return late([line["lag_s"] for line in self.results if line["lag_s"] is not None])

    @property
    def violations(self) -> list[str]:
        return (
            self.late
            + self.errors
            + [
                f"run {line['run']} on {line['host']} (seed {line['seed']}): {sentence}"
                for line in self.results
                for sentence in line["violations"]
            ]
        )


class HostCampaign(threading.Thread):
    """The runs of one host, one after the other, until none is left or one violated an invariant."""

    def __init__(self, campaign: Campaign, rig: Rig) -> None:
        super().__init__(name=rig.host.name, daemon=True)
        self.campaign, self.rig, self.host = campaign, rig, rig.host
        #: Seconds of an undisturbed command, as last seen here.
        self.cycles: dict[str, float] = {}
        self.now: reader.Read = {}

    def run(self) -> None:
        try:
            self._prepare()
            while (number := self.campaign.take()) is not None:
                if self._one(number):
                    return
        except Exception as error:  # a thread's end must fail the campaign
            self.campaign.errors.append(f"{self.host.name}: {type(error).__name__}: {error}")

    def _prepare(self) -> None:
        """Adopt the service and measure whole cycles, on all hosts at once as it will be."""
        self.rig.configure(**keys(6, UNKNOWN_S))
        self.rig.adopt()
        for verb in ("deploy", "rollback", "deploy"):
            done = self.rig.cli(verb, "--json")
            assert done.rc == 0, done.err
            self.cycles[verb] = done.seconds
        self.now = reader.read(self.host)

    def _one(self, number: int) -> bool:
        """One run with its repeat; True where something was violated."""
        seed = f"{self.campaign.seed}/{number}"
        before, began = self.now, time.time()
        plan = draw(seed, self.cycles, budget_of(before))
        cycle_s = self.cycles[plan.action]
        run = Interrupted(self.rig, plan, max(self.cycles.values()))
        run.play()
        after = self._read()
        found = run.judge(after, before)
        again = self.rig.cli(*command(plan), timeout=OPERATOR_LIMIT_S)
        if (parsed(again.out) or {}).get("result", {}).get("phases"):  # it ran the whole cycle
            self.cycles[plan.action] = again.seconds
        reader.settle(self.host)
        self.now = self._read()
        asked = Asked(
            swept=True,
            said=again.out + again.err,
            noticed_s=None,
            info=wanted_info(plan),
            wanted=wanted_release(plan, after),
        )
        found += [f"after the repeat: {text}" for text in self._check(again, asked, after)]
        line = run.line(after, before)
        line |= {"run": number, "seed": seed, "host": self.host.name, "violations": found}
        line |= {"cycle_s": round(cycle_s, 2), "seconds": round(time.time() - began, 1)}
        self.campaign.add(line)
        if found:
            self._keep_evidence(number, before, after, run)
        return bool(found)

    def _check(self, again: Any, asked: Asked, before: reader.Read) -> list[str]:
        found = reader.check(self.now, before, again.rc, parsed(again.out), asked, (CANARY,))
        if again.rc != 0:
            found.append(f"I9: the same command again ended with {again.rc}: {again.err[-300:]}")
        return found

    def _read(self) -> reader.Read:
        return reader.read(self.host, (CANARY,))

    def _keep_evidence(self, number: int, before: reader.Read, after: reader.Read, run: Interrupted) -> None:
        place = self.campaign.out / f"evidence-{number}-{self.host.name}"
        place.mkdir(parents=True, exist_ok=True)
        for name, found in (("before", before), ("after", after), ("repeated", self.now)):
            (place / f"{name}.json").write_text(json.dumps(found, indent=1))
        (place / "operator.txt").write_text(run.said)
        journal = "journalctl --no-pager -o short-precise -n 2000"
        events = f"tail -n +1 /var/lib/ddtree/{UNIT}/txn/*/* 2>/dev/null | tail -n 2000"
        for name, command_ in (("journal.txt", journal), ("transactions.txt", events)):
            with suppress(Exception):
                (place / name).write_text(self.host.exec(command_)[1])


def summary(line: dict[str, Any]) -> str:
    faults = " + ".join(f"{name} at {t}" for name, t in [(line["fault"], line["t"]), *line["more"]])
    return (
        f"{line['run']:>4} {line['host']} {line['action']:<8} {line['health']:<5} {faults}: "
        f"{line['outcome']} {line['state']} exit {line['exit_code']}, recovery {line['recovery_s']} s, "
        f"{line['seconds']} s {line['violations'] or ''}"
    )


def run_campaign(lab: Lab, project: Path, runs: int, hosts: int, seed: str, out: Path) -> Campaign:
    """Boot `hosts` hosts in a lab that is up, do `runs` runs over them, return all that was found."""
    out.mkdir(parents=True, exist_ok=True)
    for left in [*out.glob("campaign.*"), *out.glob("evidence-*")]:
        shutil.rmtree(left) if left.is_dir() else left.unlink()
    campaign = Campaign(seed, runs, out)
    os.environ["DDTREE_CAMPAIGN_CANARY"] = CANARY
    print(f"campaign of {runs} runs on {hosts} hosts, seed {seed}", flush=True)
    threads = []
    for number in range(1, hosts + 1):
        host = lab.host(f"c{number}")
        lab.add(HostSpec(host.name, engine="standin"))
        host.wait_http()
        host.write(f"/etc/systemd/system/{UNIT}.d/10-own.conf", "[Service]\nEnvironment=OWN=1\n")
        host.check(["systemctl", "daemon-reload"])
        threads.append(HostCampaign(campaign, Rig(host, project / host.name)))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (out / "campaign.json").write_text(json.dumps(about(campaign, threads), indent=1))
    return campaign


def about(campaign: Campaign, threads: list[HostCampaign]) -> dict[str, Any]:
    """What the report says of the campaign as a whole."""
    cycle_s = round(statistics.median([line["cycle_s"] for line in campaign.results] or [0.0]), 2)
    return {
        "seed": campaign.seed,
        "asked": campaign.runs,
        "runs": len(campaign.results),
        "hosts": len(threads),
        "cycle_s": cycle_s,
        "timeouts": timeouts(cycle_s),
        **where_run(),
        "errors": campaign.errors + campaign.late,
    }


@contextmanager
def own_lab() -> Iterator[Lab]:
    """A lab for a campaign that is started by hand; a session of tests removes it where this process was killed."""
    own_directory(CHECKOUT / ".lab-test")
    lab = Lab(State.at(CHECKOUT / ".lab-test" / f"session-{os.getpid()}-campaign"))
    lab.up()
    try:
        yield lab
    finally:
        lab.down()
        shutil.rmtree(lab.state.root)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=300)
    parser.add_argument("--hosts", type=int, default=6)
    parser.add_argument("--seed", default=str(random.SystemRandom().randrange(10**6)))
    parser.add_argument("--out", type=Path, default=CHECKOUT / "build" / "reliability")
    args = parser.parse_args()
    began = time.monotonic()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the lab goes with us
    with own_lab() as lab:
        found = run_campaign(lab, lab.state.root / "projects", args.runs, args.hosts, args.seed, args.out)
    print(f"{len(found.results)} of {args.runs} runs in {time.monotonic() - began:.0f} s")
    print("\n".join(found.violations) or "no invariant was violated")
    return 1 if found.violations else 0


if __name__ == "__main__":
    raise SystemExit(main())
