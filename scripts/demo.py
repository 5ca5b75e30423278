"""`make demo`: the main job, typed as an operator types it, on a throwaway host with the real engine."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
CLI = ROOT / ".venv" / "bin" / "ddtree-ops"
PROJECT = ROOT / ".lab" / "demo"
HOST = "ct129"
CYCLE = [66, 65] * 8
HOSTS_YAML = """\
version: 1
hosts:
  ct129:
    draft: /models/{pair}_draft     # on the host; the mode sets it
    budget: 6
    topk: 3
    shadow_every: 2
"""


class Failed(Exception):
    """A step of the demo did not do what it should."""


def show(*words: str, cwd: Path = PROJECT) -> None:
    """Run a command line in the open, as it would be typed."""
    print(f"\n\033[1m$ ddtree-ops {' '.join(words)}\033[0m", flush=True)
    if subprocess.run([str(CLI), *words], cwd=cwd, env=environment(), check=False).returncode:
        raise Failed(f"ddtree-ops {' '.join(words)} failed")


def environment() -> dict[str, str]:
    return {**os.environ, "DDTREE_OPS_SSH_CONFIG": str(ROOT / ".lab" / "ssh_config")}


def on_host(command: str) -> str:
    """What a shell command says on the host."""
    words = ["ssh", "-F", str(ROOT / ".lab" / "ssh_config"), HOST, command]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout


def server_info() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(on_host("curl -s localhost:30000/get_server_info"))
    return found


def generate(prompt: list[int]) -> dict[str, Any]:
    body = json.dumps({"input_ids": prompt, "sampling_params": {"temperature": 0, "max_new_tokens": 16}})
    command = f"curl -s localhost:30000/generate -H 'Content-Type: application/json' -d '{body}'"
    found: dict[str, Any] = json.loads(on_host(command))
    return found


def check(what: str, found: object, wanted: object) -> None:
    """Print a fact about the host, and stop where it is not what it should be."""
    print(f"  {'ok' if found == wanted else 'WRONG'}  {what}: {found}", flush=True)
    if found != wanted:
        raise Failed(f"{what} should be {wanted}")


def main_job(tp: int) -> None:
    shutil.rmtree(PROJECT, ignore_errors=True)
    PROJECT.mkdir(parents=True)
    (PROJECT / "hosts.yaml").write_text(HOSTS_YAML.format(pair="cyc"))
    show("adopt", "--host", HOST, "--yes")
    baseline = generate([65, 66, 65])["output_ids"]
    check("tokens of the baseline", baseline, CYCLE)
    show("doctor", "--host", HOST)
    show("deploy", "--host", HOST, "--mode", "shadow")
    told = server_info()
    planned = {"algorithm": "DDTREE", "ddtree_shadow_linear": True, "ddtree_budget": 6, "ddtree_topk_cap": 3}
    for key, wanted in planned.items():
        check(f"/get_server_info speculative_{key}", told[f"speculative_{key}"], wanted)
    check("/get_server_info tp_size", told["tp_size"], tp)
    answer = generate([65, 66, 65])
    check("tokens in shadow mode", answer["output_ids"], baseline)
    check("accept length", answer["meta_info"]["spec_accept_length"], 2.0)
    show("deploy", "--host", HOST, "--mode", "shadow")
    show("status", "--host", HOST)
    show("rollback", "--host", HOST)
    check("tokens after the rollback", generate([65, 66, 65])["output_ids"], baseline)
    show("rollback", "--host", HOST)
    show("history", "--host", HOST)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tp", type=int, default=1, help="tensor parallel size of the engine")
    tp: int = parser.parse_args().tp
    try:
        show("lab", "up", HOST, "--engine", "real", "--baseline", "plain", "--tp", str(tp), cwd=ROOT)
        main_job(tp)
        print(f"\nshadow mode was confirmed on {HOST} and rolled back; the baseline serves.", flush=True)
        return 0
    except Failed as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    finally:
        subprocess.run([str(CLI), "lab", "down"], cwd=ROOT, check=False)


if __name__ == "__main__":
    sys.exit(main())
