"""Starts full-size servers with dummy weights on a GPU; prints what their logs say of memory: `memory_h200.py CASE...`

The other half is memory.py, which holds these lines against the preflight's arithmetic. No weights are needed: a 27B
model takes its 54 GB all the same. Run on the H200 machine by bench/rehearse/run_h200.sh, in its environment.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

from sizes import CASES, MODELS

LINES = re.compile(
    r"Load weight (begin|end)|(KV|Mamba) Cache is allocated|Memory pool end|Capture cuda graph (begin|end)"
    r"|max_total_num_tokens=|mem_fraction_static=|Not enough memory|OutOfMemoryError|out of memory|fired up"
)
PORT, LIMIT_S = 31000, 170.0


def run(name: str, args: argparse.Namespace) -> dict[str, Any]:
    model, flags = CASES[name]
    place, log = Path(args.work) / name, Path(args.work) / f"{name}.log"
    for which, config in zip(("target", "draft"), MODELS[model]):
        (place / which).mkdir(parents=True, exist_ok=True)
        for file in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(Path(args.pair) / "target" / file, place / which)
        (place / which / "config.json").write_text(json.dumps(config))
    argv = [
        sys.executable,
        "-m",
        "sglang.launch_server",
        "--model-path",
        str(place / "target"),
        "--port",
        str(PORT),
    ]
    argv += [
        "--load-format",
        "dummy",
        "--speculative-draft-load-format",
        "dummy",
        "--grammar-backend",
        "none",
    ]
    argv += ["--speculative-draft-model-path", str(place / "draft"), *flags, *args.flags.split()]
    began = time.monotonic()
    with log.open("wb") as out:
        process = subprocess.Popen(
            argv, stdout=out, stderr=out, stdin=subprocess.DEVNULL, start_new_session=True
        )
    up = False
    while not up and process.poll() is None and time.monotonic() - began < LIMIT_S:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{PORT}/health", timeout=30):
                up = True
        except OSError:
            time.sleep(0.5)
    used = subprocess.run(
        ["nvidia-smi", "--query-gpu=memory.used,memory.total", "--format=csv,noheader,nounits"],
        capture_output=True, text=True, check=False,
    ).stdout.split("\n")[0]  # fmt: skip
    took = round(time.monotonic() - began, 1)
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()
    lines = [line for line in log.read_text(errors="replace").splitlines() if LINES.search(line)]
    lines = [re.sub(r"ServerArgs\(.*?(mem_fraction_static=[\d.]+).*", r"\1", line) for line in lines]
    return {"case": name, "up": up, "seconds": took, "used": used, "lines": [line[:260] for line in lines]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", default=list(CASES))
    parser.add_argument("--pair", required=True)
    parser.add_argument("--work", required=True)
    parser.add_argument("--flags", default="")
    args = parser.parse_args()
    Path(args.work).mkdir(parents=True, exist_ok=True)
    for name in args.cases:
        print(json.dumps(run(name, args)), flush=True)


if __name__ == "__main__":
    main()
