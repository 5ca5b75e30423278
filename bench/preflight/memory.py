"""Holds the preflight's memory arithmetic against what full-size servers said: `memory.py [LINES]`

LINES: what memory_h200.py printed. Without it, only what the rule says of each case of sizes.py. Run here, no GPU:
PYTHONPATH=src:deploy/agent:tests/catalogue .venv/bin/python bench/preflight/memory.py
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

from healthy import HEALTHY_H200, WANTED, overlaid
from sizes import CASES, MODELS

from ddtree_agent import inner_model
from ddtree_ops.core import memory
from ddtree_ops.core.checks import memory as rule
from ddtree_ops.core.doctor import examine
from ddtree_ops.core.modes import read_flags

GIB = 1 << 30


def parameters(config: dict[str, Any]) -> int:
    """Numbers in all its weights."""
    hidden, layers, dim = config["hidden_size"], config["num_hidden_layers"], config["head_dim"]
    heads, kv = config["num_attention_heads"] * dim, config["num_key_value_heads"] * dim
    mlp = 3 * hidden * config["intermediate_size"]
    if "num_experts" in config:
        mlp += 3 * hidden * config["shared_expert_intermediate_size"]
    gate = 2 if "full_attention_interval" in config else 1
    attention = hidden * (heads * gate + 2 * kv) + heads * hidden
    full = layers // config.get("full_attention_interval", 1)
    total = layers * mlp + full * attention
    if "full_attention_interval" in config:
        keys = config["linear_num_key_heads"] * config["linear_key_head_dim"]
        values = config["linear_num_value_heads"] * config["linear_value_head_dim"]
        total += (layers - full) * (hidden * (2 * keys + 2 * values) + values * hidden)
    if "dflash_config" in config:
        return total + hidden * hidden * len(config["dflash_config"]["target_layer_ids"])
    return total + 2 * config["vocab_size"] * hidden


def facts(model: str, flags: list[str]) -> dict[str, Any]:
    """A healthy one-GPU H200 host with this model."""
    target, draft = MODELS[model]
    sides = {
        name: {**HEALTHY_H200["checkpoints"][name], **inner_model.describe(config)}
        for name, config in (("target", target), ("draft", draft))
    }
    weights = {
        name: {
            **HEALTHY_H200["weights"][name],
            "bytes": 2 * parameters(config),
            "by_dtype": {"BF16": 2 * parameters(config)},
        }
        for name, config in (("target", target), ("draft", draft))
    }
    found = overlaid(HEALTHY_H200, {"checkpoints": sides, "weights": weights})
    given = {flag: True if value is None else value for flag, value in read_flags(flags)}
    found["arguments"]["flags"] = {
        "--model-path": "/m/t",
        "--speculative-draft-model-path": "/m/d",
        "--device": "cuda",
        **given,
    }
    return found


def predicted(name: str) -> tuple[memory.Need, memory.Budget, str]:
    """(input, arithmetic, what the rule says)."""
    seen: list[memory.Need] = []
    whole = rule.needed

    def spy(*args: Any) -> Any:
        seen.append(whole(*args))
        return seen[-1]

    with mock.patch.object(rule, "needed", spy):
        said = [f for f in examine(facts(*CASES[name]), WANTED) if f.rule == "memory-fit"]
    need = seen[0]
    if isinstance(need, str):
        raise SystemExit(f"{name}: {need} unknown")
    return need, memory.budget(need), "; ".join(f"{f.level}: {f.evidence} -> {f.remedy}" for f in said)


def measured(lines: list[str]) -> Iterator[tuple[str, str]]:
    text = "\n".join(lines)
    for name, pattern in (
        ("static share", r"mem_fraction_static=([\d.]+)"),
        ("tokens", r"max_total_num_tokens=(\d+)"),
        ("requests", r"max_running_requests=(\d+)"),
        ("left", r"available_gpu_mem=([\d.]+)"),
    ):
        found = re.search(pattern, text)
        if found:
            yield name, found[1]
    for line in lines:
        if re.search("Mamba Cache|Not enough|OutOfMemory|out of memory", line):
            yield "said", line[-200:]
    for kind in ("Load weight end", "Capture cuda graph end"):
        for found in re.finditer(kind + r".*?mem usage=([\d.]+) GB", text):
            yield kind, f"{found[1]} GB"


def main() -> None:
    logs = (
        [json.loads(line) for line in Path(sys.argv[1]).read_text().splitlines() if line.startswith("{")]
        if sys.argv[1:]
        else []
    )
    for name in CASES:
        need, plan, said = predicted(name)
        print(f"## {name}: {memory.judge(need)[0]}")
        print(
            f"predicted  share {need.fraction}, running {need.running}, width {need.width}, graphs {need.graphs}: "
            f"weights {plan.weights / GIB:.1f} GiB, states {(plan.states + plan.slots) / GIB:.1f}, tokens "
            f"{plan.tokens} of {plan.per_token} B; outside: draft {plan.draft / GIB:.1f}, logits "
            f"{plan.logits / GIB:.2f}, indices {plan.indices / GIB:.2f}, masks "
            f"{plan.masks / GIB:.2f}, room {plan.room / GIB:.1f}"
        )
        print(f"rule       {said}")
        for log in (log for log in logs if log["case"] == name):
            print(f"measured   up {log['up']} in {log['seconds']} s, used {log['used']}")
            for what, value in measured(log["lines"]):
                print(f"           {what}: {value}")


if __name__ == "__main__":
    main()
