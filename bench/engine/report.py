"""Turns what the servers answered into checks: one line each, passed or not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from cases import Case
from judge import (
    NODE_WRONG,
    Reference,
    Sampled,
    Verdict,
    deficits,
    judge_sampled,
    node_difference,
    penalise,
)
from workload import PENALTIES, TEMPERATURE, TOP_K

Entry = dict[str, Any]


@dataclass(frozen=True)
class Check:
    """One thing that had to hold."""

    name: str
    passed: bool
    words: str

    @property
    def line(self) -> str:
        return f"{'ok  ' if self.passed else 'FAIL'} {self.name:26s} {self.words}"


def header(stage: str, data: dict[str, Any]) -> list[str]:
    """What ran, and where."""
    facts = ", ".join(f"{key} {value}" for key, value in data["machine"].items())
    return [
        f"# stage {stage}: {facts}",
        f"# series at commit {data['commit']}, overlay sha256 {data['overlay']}",
    ]


def judge_cases(
    cases: list[Case],
    entries: dict[str, Entry],
    failed: dict[str, str],
    reference: Reference,
    min_tokens: int,
    save: Callable[[], None],
) -> list[Check]:
    """All checks of these cases, in their order, and then those between cases. A case is judged once."""
    checks: list[Check] = []
    for case in cases:
        entry = entries.get(case.name)
        if case.dies:
            why = (entry or {}).get("died", "it served")
            checks.append(
                Check(case.name, case.dies in why, f"{'caught' if case.dies in why else 'NOT CAUGHT'}: {why}")
            )
            continue
        if entry is None:
            checks.append(Check(case.name, False, failed.get(case.name, "not run")))
            continue
        if "checks" not in entry:
            entry["checks"] = [asdict(check) for check in judge_case(case, entry, reference, min_tokens)]
            save()
        checks += [Check(**check) for check in entry["checks"]]
    return checks + compare(cases, entries)


def judge_case(case: Case, entry: Entry, reference: Reference, min_tokens: int) -> list[Check]:
    """Greedy tokens, sampled tokens, nodes, what the server reports, and the ranks' trees of one case."""
    verdict = judge_greedy(entry, reference)
    errors = [a["error"] for got in entry["greedy"].values() for a in got if a["error"]]
    short = sum(len(a["tokens"]) != a["request"]["tokens"] for got in entry["greedy"].values() for a in got)
    words = f"{verdict.wrong} of {verdict.tokens} tokens wrong, worst {verdict.worst:.3f}, accept {accept(entry):.2f}"
    words += f", graphs {'on' if entry['graphs'] else 'off'}, healthy after {entry['healthy_after_s']} s"
    entry["verdict"] = {"tokens": verdict.tokens, "wrong": verdict.wrong, "worst": verdict.worst}
    if case.mutant:
        ran = any("broken on purpose" in line for line in entry["log"])
        words = f"{'caught' if verdict.wrong else 'NOT CAUGHT'}: {words}"
        checks = [Check(case.name, ran and verdict.wrong > 0, words)]
        return checks + node_checks(case, entry, reference)
    # a CPU has no graphs, and a stage without them proves nothing about a GPU
    graphs = entry["graphs"] or not entry.get("cuda", True)
    right = graphs and not verdict.wrong and not errors and not short and verdict.tokens >= min_tokens
    for problem in (verdict.faults[:2], errors[:1]):
        words += "".join(f"; {text}" for text in problem)
    words += f"; {short} answers of the wrong length" if short else ""
    checks = [Check(case.name, right, words)]
    if case.sampled:
        checks.append(sampled_check(case, entry, reference))
    if entry["penalised"]:
        checks.append(penalty_check(case, entry, reference))
    if case.mode:
        mode = entry["state"].get("ddtree_mode")
        checks.append(Check(f"{case.name}: reports", mode == case.mode, f"ddtree_mode {mode}"))
    if case.hashes:
        checks.append(rank_check(case, entry))
    if case.nosync:
        checks.append(wait_check(case, entry))
    return checks + node_checks(case, entry, reference)


def answers_with_logits(answers: list[Entry], reference: Reference) -> list[tuple[Entry, torch.Tensor]]:
    """Each answer that has tokens, with the reference's logits where they were chosen, [n, V]."""
    good = [a for a in answers if a["tokens"]]
    runs = reference([[*a["request"]["prompt"], *a["tokens"]] for a in good])
    return [(a, run[len(a["request"]["prompt"]) - 1 : -1]) for a, run in zip(good, runs)]


def judge_greedy(entry: Entry, reference: Reference) -> Verdict:
    """All greedy answers of a case."""
    verdict = Verdict()
    for suite, answers in entry["greedy"].items():
        for answer, logits in answers_with_logits(answers, reference):
            name = f"{suite}, prompt of {len(answer['request']['prompt'])}"
            verdict.add(deficits(logits, answer["tokens"]), name)
    return verdict


def sampled_check(case: Case, entry: Entry, reference: Reference) -> Check:
    """All sampled answers of a case as one series of draws."""
    errors = [a["error"] for a in entry["sampled"] if a["error"]]
    if errors:
        return Check(f"{case.name}: sampled", False, errors[0])
    judged = answers_with_logits(entry["sampled"], reference)
    logits = torch.cat([rows for _, rows in judged])
    emitted = [token for answer, _ in judged for token in answer["tokens"]]
    s: Sampled = judge_sampled(logits, emitted, TEMPERATURE, TOP_K)
    words = (
        f"{s.tokens} tokens, {s.outside} outside the top {TOP_K}, {s.other} not the best, "
        f"{s.expected:.0f} due, z {s.z:+.1f}, accept {accept_of(entry['sampled']):.2f}"
    )
    return Check(f"{case.name}: sampled", s.right, words)


def penalty_check(case: Case, entry: Entry, reference: Reference) -> Check:
    """Penalised greedy answers, judged with the penalties; without them some must be wrong."""
    verdict, plain, errors = Verdict(), Verdict(), []
    for sampling, answers in zip(PENALTIES, entry["penalised"]):
        errors += [a["error"] for a in answers if a["error"]]
        amounts = {name.removesuffix("_penalty"): amount for name, amount in sampling.items()}
        for answer, logits in answers_with_logits(answers, reference):
            name = f"{sampling}, prompt of {len(answer['request']['prompt'])}"
            verdict.add(deficits(penalise(logits, answer["tokens"], **amounts), answer["tokens"]), name)
            plain.add(deficits(logits, answer["tokens"]), name)
    words = f"{verdict.wrong} of {verdict.tokens} tokens wrong, worst {verdict.worst:.3f}"
    words += f"; without the penalties {plain.wrong} would be"
    accepted = accept_of([a for answers in entry["penalised"] for a in answers])
    words = "; ".join([f"{words}, accept {accepted:.2f}", *verdict.faults[:2], *errors[:1]])
    right = not errors and not verdict.wrong and verdict.tokens > 0 and plain.wrong > 0
    return Check(f"{case.name}: penalties", right, words)


def node_checks(case: Case, entry: Entry, reference: Reference) -> list[Check]:
    """Recorded verify steps: every node's logits against its root path run as a chain."""
    if not case.probe:
        return []
    worst, nodes, steps, bad = 0.0, 0, 0, 0
    for i, answer in enumerate(entry["greedy"]["alone"]):
        text = [*answer["request"]["prompt"], *answer["tokens"]]
        for path in sorted(Path(entry["dumps"]).glob(f"alone-{i}-*.pt")):
            difference = node_difference(reference, torch.load(path), text)
            worst, nodes, steps = max(worst, float(difference.max())), nodes + len(difference), steps + 1
            bad += int((difference > NODE_WRONG).sum())
    words = f"{nodes} nodes of {steps} steps, largest logit difference {worst:.3f}, {bad} above {NODE_WRONG}"
    name = f"{case.name}: nodes in context"
    if case.mutant in ("mask", "position"):
        return [Check(name, bad > 0, f"caught: {words}" if bad else f"NOT CAUGHT: {words}")]
    return [] if case.mutant else [Check(name, bad == 0 and nodes > 0, words)]


def rank_check(case: Case, entry: Entry) -> Check:
    """Every rank built the same trees, byte for byte."""
    ranks = list(entry["hashes"].values())
    equal = len(ranks) > 1 and all(lines == ranks[0] for lines in ranks) and len(ranks[0]) > 0
    count = min((len(lines) for lines in ranks), default=0)
    words = f"{len(ranks)} ranks, {count} tree batches, {'byte-equal' if equal else 'DIFFERENT'}"
    return Check(f"{case.name}: trees", equal, words)


def wait_check(case: Case, entry: Entry) -> Check:
    """No module of ours waits for the device from the trees to the walk; before that a wait ended the server."""
    places = sorted({line.split(": ")[0].rpartition("/")[2] for line in entry["waits"]})
    ours = [place for place in places if place.startswith("ddtree")]
    words = f"waits behind the trees: {len(ours)} of ours, SGLang's at {', '.join(places) or 'no place'}"
    return Check(f"{case.name}: waits", not ours, words)


def compare(cases: list[Case], entries: dict[str, Entry]) -> list[Check]:
    """Trees accept more than the chain; the tree that is a chain answers as the chain does (told, not required)."""
    right = {c.name: entries[c.name] for c in cases if c.name in entries and not c.mutant}
    chain = next((name for name in right if name.endswith("dflash")), None)
    if chain is None:
        return []
    checks = []
    for name, entry in right.items():
        if "tree" in name:
            more, less = accept(entry), accept(right[chain])
            checks.append(Check(f"{name} > {chain}", more > less, f"accept {more:.2f} against {less:.2f}"))
    if "chain" in right:
        ours, theirs = (
            [a["tokens"] for got in right[name]["greedy"].values() for a in got] for name in ("chain", chain)
        )
        same = sum(a == b for a, b in zip(ours, theirs))
        close = abs(accept(right["chain"]) / accept(right[chain]) - 1)
        words = f"{same} of {len(ours)} answers equal to the token; accept differs by {100 * close:.1f} %"
        checks.append(Check("chain = dflash", close < 0.02, words))
    return checks


def accept(entry: Entry) -> float:
    """Tokens a verify step, over all greedy answers; 1 without speculation."""
    return accept_of([a for got in entry["greedy"].values() for a in got])


def accept_of(answers: list[Entry]) -> float:
    steps = sum(a["verify_steps"] for a in answers)
    # the first token of an answer comes from the prefill
    return sum(max(0, len(a["tokens"]) - 1) for a in answers if a["verify_steps"]) / steps if steps else 1.0
