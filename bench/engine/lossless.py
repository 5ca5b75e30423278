"""Judges every token of real SGLang servers: `lossless.py lossless|tp2 --device cuda --models DIR …`.

All cases of a stage start at once. What each server answered is written to FILE before it is judged, and a case that
FILE already has for this overlay is not run again: a stage that was cut continues with what is missing.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import threading
import time
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

import report
from cases import STAGES, Case
from engine_server import Server
from judge import hugging_face
from workload import (
    Request,
    greedy_workload,
    penalised_workload,
    run_greedy,
    run_penalised,
    run_sampled,
    sampled_workload,
    shorter,
)

MIN_TOKENS = 2000
START_LIMIT_S = {"cuda": 240, "cpu": 180}
LOG_WANTED = ("Initialized D", "DDTREE full:", "DDTREE shadow", "accept len", "broken on purpose")


def say(*words: object) -> None:
    """One line with the time since the start."""
    print(f"[{time.monotonic() - START:6.1f}]", *words, flush=True)


class Results:
    """The results file: one entry a case, thrown away when the overlay that it ran is another."""

    def __init__(self, path: Path, overlay: str) -> None:
        self.path, self._lock = path, threading.Lock()
        self.data: dict[str, Any] = {"overlay": overlay, "cases": {}}
        if path.exists():
            found = json.loads(path.read_text())
            if found.get("overlay") == overlay:
                self.data = found

    def put(self, case: Case, entry: dict[str, Any]) -> None:
        """Keep what a case answered."""
        with self._lock:
            self.data["cases"][case.name] = entry
            self.save()

    def save(self) -> None:
        """Write the file in one go, so that a cut leaves the old one."""
        new = self.path.with_suffix(".new")
        new.write_text(json.dumps(self.data))
        new.replace(self.path)


def serve(server: Server, results: Results, short: int) -> None:
    """Ask one healthy server everything, and keep its answers."""
    case, workload, sampled, penalties = (
        server.case,
        greedy_workload(),
        sampled_workload(),
        penalised_workload(),
    )
    if short > 1:
        workload = shorter(workload, short)
        sampled, penalties = ([Request(r.prompt, 16) for r in some] for some in (sampled, penalties))
    answers = run_greedy(server.post, workload, server.watch)
    drawn = run_sampled(server.post, sampled) if case.sampled else []
    penalised = run_penalised(server.post, penalties) if case.sampled and case.mode == "full" else []
    log = server.log_lines()
    results.put(
        case,
        {
            "healthy_after_s": server.healthy_after,
            "greedy": {name: [asdict(a) for a in got] for name, got in answers.items()},
            "sampled": [asdict(a) for a in drawn],
            "penalised": [[asdict(a) for a in got] for got in penalised],
            "state": {
                k: v for k, v in server.state().items() if "ddtree" in k or "spec" in k or "accept" in k
            },
            "metrics": server.metrics(),
            "log": [line for wanted in LOG_WANTED for line in [x for x in log if wanted in x][-2:]],
            "waits": sorted({line.strip()[:150] for line in log if "synchronizing CUDA operation" in line}),
            "cuda": server.device == "cuda",
            "graphs": any("cuda graph: True" in line for line in log),
            "hashes": read_hashes(server.directory) if case.hashes else {},
            "dumps": str(server.directory) if case.probe else "",
        },
    )


def read_hashes(directory: Path) -> dict[str, list[str]]:
    """Lines of the tree recordings, per rank."""
    return {path.name: path.read_text().splitlines() for path in sorted(directory.glob("rank*"))}


def run_cases(cases: list[Case], options: argparse.Namespace, results: Results) -> dict[str, str]:
    """Start all, ask all that become healthy; returns why a case has no answers."""
    servers = [
        Server(case, options.device, options.models, options.work, 30000 + 40 * i)
        for i, case in enumerate(cases)
    ]
    say("started", *(case.name for case in cases))
    failed: dict[str, str] = {}

    def one(server: Server) -> None:
        try:
            server.wait(START_LIMIT_S[options.device])
            if server.why:
                failed[server.case.name] = server.why
                return
            all_up.wait()
            serve(server, results, options.short)
        except Exception as error:
            failed[server.case.name] = f"{type(error).__name__}: {error}; {server.first_error()}"

    all_up = threading.Event()
    threads = [threading.Thread(target=one, args=(server,)) for server in servers]
    try:
        for thread in threads:
            thread.start()
        while any(server.why == "not healthy yet" for server in servers):
            time.sleep(0.2)
        say("healthy", {s.case.name: s.healthy_after for s in servers if not s.why}, "failed", failed)
        all_up.set()
        for thread in threads:
            thread.join(options.suite_limit)
        late = [s.case.name for s, t in zip(servers, threads) if t.is_alive()]
        failed.update(dict.fromkeys(late, f"no answers after {options.suite_limit} s"))
        say("answered")
    finally:
        for server in servers:
            server.stop()
    return failed


def usable(case: Case, entry: dict[str, Any] | None) -> bool:
    """Whether a case need not run again: it was judged, or can be."""
    if entry is None:
        return False
    if case.dies:
        return "died" in entry
    return "checks" in entry or not case.probe or Path(entry["dumps"]).is_dir()


def machine(device: str) -> dict[str, str]:
    """Where this ran."""
    names = ["sglang", "sglang-kernel", "torch", "triton", "transformers"]
    facts = {"python": platform.python_version()}
    for name in names:
        try:
            facts[name] = version(name)
        except Exception:
            continue
    if device == "cuda":
        used = os.environ.get("CUDA_VISIBLE_DEVICES")
        only = ["-i", used] if used else []
        query = ["nvidia-smi", *only, "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
        gpus = subprocess.run(query, capture_output=True, text=True, check=False).stdout.strip().splitlines()
        facts["gpu"] = f"{len(gpus)} x {gpus[0]}" if gpus else "none"
    return facts


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("stage", choices=STAGES)
    parser.add_argument("--device", choices=["cuda", "cpu"], required=True)
    parser.add_argument("--models", type=lambda text: Path(text).resolve(), required=True)
    parser.add_argument("--work", type=lambda text: Path(text).resolve(), required=True)
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--overlay", type=Path, required=True, help="digest.json of the overlay in use")
    parser.add_argument("--only", default="", help="names of cases, comma-separated")
    parser.add_argument("--short", type=int, default=1, help="a fraction of the work, for a dry run")
    parser.add_argument("--suite-limit", type=float, default=240)
    parser.add_argument("--threads", type=int, default=16, help="of the reference")
    return parser.parse_args(arguments)


def main(options: argparse.Namespace) -> int:
    """Run what is missing, judge all; returns the exit code."""
    only = set(options.only.split(",")) - {""}
    cases = [case for case in STAGES[options.stage] if not only or case.name in only]
    overlay = json.loads(options.overlay.read_text())
    results = Results(options.results, overlay["sha256"])
    results.data |= {"commit": overlay["commit"], "machine": machine(options.device)}
    missing = [case for case in cases if not usable(case, results.data["cases"].get(case.name))]
    failed = run_cases(missing, options, results) if missing else {}
    for case in missing:
        if case.dies and case.name in failed:
            results.put(case, {"died": failed[case.name]})
    reference = hugging_face(options.models / "target", options.threads)
    lines = report.header(options.stage, results.data)
    checks = report.judge_cases(
        cases, results.data["cases"], failed, reference, MIN_TOKENS // options.short**2, results.save
    )
    say("judged")
    lines += [check.line for check in checks]
    bad = sum(not check.passed for check in checks)
    lines.append(f"{len(checks) - bad} passed, {bad} failed")
    text = "\n".join(lines)
    options.results.with_name(f"{options.stage}.txt").write_text(text + "\n")
    print(text, flush=True)
    return int(bad > 0)


if __name__ == "__main__":
    START = time.monotonic()
    sys.exit(main(parse(sys.argv[1:])))
