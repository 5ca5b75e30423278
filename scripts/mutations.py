"""Takes one safeguard at a time out of a copy of the sources and looks which tests see it.

usage: make mutations [ONLY=name]. Every test runs over every mutant: the ones declared for it must go red, all others
stay green. Writes build/reliability/mutations.json, and what each red test said below build/reliability/mutations/.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "build" / "reliability" / "mutations.json"
AGENT = "deploy/agent/ddtree_agent/"
TEST_LIMIT_S = 900
RED, GREEN = 1, 0

_CRASHES = "tests/unit/test_transaction_crashes.py::"
#: Short name: pytest's node id. The last two have nothing to do with what is taken out here.
TESTS = {
    "crash": _CRASHES + "test_a_cut_before_any_effect_loses_no_host",
    "race": _CRASHES + "test_a_race_has_one_winner_whoever_comes_first",
    "safeguards": _CRASHES + "test_what_else_the_safeguards_are_for",
    "power cut": "tests/unit/test_power_cut.py::test_the_power_may_go_at_any_effect",
    "silent runner": "tests/lab/test_transaction_edges.py::test_a_stopped_runner_does_not_hold_the_host",
    "garbage": "tests/lab/test_traffic_gate.py::test_an_engine_that_answers_garbage_never_answers_a_user",
    "interrupt": "tests/lab/test_main_job.py::test_an_interrupt_ends_in_the_old_service",
    "table": "tests/unit/test_txn.py",
}


class NotApplied(Exception):
    """The line that a mutation changes is not there, or more than once."""


@dataclass(frozen=True)
class Mutation:
    """`old` stands once in `file`; `red`: the names in TESTS that must see `new` in its place."""

    name: str
    file: str
    old: str
    new: str
    red: tuple[str, ...]


MUTATIONS = (
    Mutation(
        "the guard's timer",
        AGENT + "guard.py",
        "    extend(txn, seconds)\n    status, out, err",
        "    extend(txn, seconds)\n    return\n    status, out, err",
        ("crash", "safeguards", "silent runner"),
    ),
    Mutation(
        "the compare-and-swap of a state change",
        AGENT + "journal.py",
        "if not table.may(self.state, new):",
        "if False:",
        ("race",),
    ),
    Mutation(
        "the confirm's nonce",
        AGENT + "outcome.py",
        'if nonce != txn.intent["nonce"]:',
        "if False:",
        ("safeguards",),
    ),
    Mutation(
        "the host's lock",
        AGENT + "layout.py",
        "            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)\n            return\n",
        "            return\n",
        ("race",),
    ),
    Mutation(
        "the fsync of a file before its rename",
        AGENT + "layout.py",
        "            os.fsync(file.fileno())\n    except BaseException:\n",
        "    except BaseException:\n",
        ("power cut",),
    ),
    Mutation(
        "the traffic gate",
        AGENT + "gate.py",
        "    problem = _load(ruleset(table_of(unit), port, _users(unit)))",
        "    problem = None",
        ("garbage",),
    ),
)


def mutated(text: str, mutation: Mutation) -> str:
    """The text with the mutation in it. Raises NotApplied where it does not fit exactly once."""
    if text.count(mutation.old) != 1:
        raise NotApplied(
            f"{mutation.name}: {mutation.old!r} stands {text.count(mutation.old)} times in {mutation.file}"
        )
    return text.replace(mutation.old, mutation.new)


def copy_sources(to: Path) -> None:
    """What git knows, as it is in the working tree."""
    shutil.rmtree(to, ignore_errors=True)
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
    for name in filter(None, listed.decode().split("\0")):
        target = to / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).exists() or (ROOT / name).is_symlink():
            shutil.copy2(ROOT / name, target, follow_symlinks=False)


def run_test(copy: Path, node: str, said: Path) -> int:
    """0 green, 1 red: then `said` holds its output. Raises RuntimeError where the test could not run."""
    env = {
        **os.environ,
        "PYTHONPATH": str(copy / "src"),
        "PYTHONDONTWRITEBYTECODE": "1",
        "DDTREE_LAB_CACHE": str((ROOT / ".lab" / "cache").resolve()),
        "CI": "1",  # a lab test that cannot run is no green one
    }
    words = [sys.executable, "-m", "pytest", "-x", node]
    try:
        done = subprocess.run(
            words, cwd=copy, env=env, capture_output=True, text=True, timeout=TEST_LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired:
        said.write_text(f"no end in {TEST_LIMIT_S} s\n")
        return RED
    if done.returncode not in (RED, GREEN):
        raise RuntimeError(f"{node} could not run: {done.stdout[-600:]}{done.stderr[-600:]}")
    if done.returncode == RED:
        said.write_text(done.stdout + done.stderr)
    return done.returncode


def run_all(copy: Path, mutant: str) -> dict[str, int]:
    """How every test ends over a copy, by its short name."""
    place = OUT.with_suffix("")
    place.mkdir(parents=True, exist_ok=True)
    return {name: run_test(copy, node, place / f"{mutant}, {name}.txt") for name, node in TESTS.items()}


def red_without(place: Path) -> list[str]:
    """Tests that are red over the sources as they are: these say nothing of any mutation."""
    copy_sources(place)
    return [name for name, end in run_all(place, "none").items() if end == RED]


def try_one(mutation: Mutation, place: Path) -> dict[str, Any]:
    """Run every test over one mutant: a line of mutations.json."""
    copy_sources(place)
    file = place / mutation.file
    file.write_text(mutated(file.read_text(), mutation))
    ends = run_all(place, mutation.name)
    caught = [name for name, end in ends.items() if end == RED]
    return {
        "name": mutation.name,
        "file": mutation.file,
        "expected": list(mutation.red),
        "caught_by": caught,
        "stayed_green": [name for name, end in ends.items() if end == GREEN],
        "ok": sorted(caught) == sorted(mutation.red),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="mutations whose name holds this text")
    args = parser.parse_args()
    place, found = ROOT / "build" / "mutant", []
    if red := red_without(place):
        print(f"red without any mutation: {', '.join(red)}", file=sys.stderr)
        return 2
    for mutation in (one for one in MUTATIONS if args.only in one.name):
        found.append(try_one(mutation, place))
        print(f"{mutation.name}: red {found[-1]['caught_by']}, wanted {list(mutation.red)}", flush=True)
    shutil.rmtree(place, ignore_errors=True)
    OUT.parent.mkdir(parents=True, exist_ok=True)
    OUT.write_text(json.dumps(found, indent=1) + "\n")
    return 0 if all(line["ok"] for line in found) else 1


if __name__ == "__main__":
    raise SystemExit(main())
