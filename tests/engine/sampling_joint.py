"""The exact joint of four sampled tokens of a small model, and chi-square of counts against its tokens 2 to 4.

Runs under .venv-engine's python: reads {"model", "prompt", "top_k", "temperature", "seen": [[t1, t2, t3, t4, count]…]}
and prints one JSON object. The forward is Hugging Face's own, in float32.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from typing import Any

import torch
from sampling_checks import p_value
from transformers import AutoModelForCausalLM

Joint = dict[tuple[int, ...], float]


def joint_of(question: dict[str, Any]) -> Joint:
    """P(t1, t2, t3, t4) of all texts that top-k allows."""
    model = AutoModelForCausalLM.from_pretrained(question["model"], dtype=torch.float32).eval()
    texts: Joint = {(): 1.0}
    for _ in range(4):
        inputs = torch.tensor([[*question["prompt"], *text] for text in texts])
        with torch.inference_mode():
            logits = model(inputs).logits[:, -1].double()
        values, ids = logits.topk(question["top_k"], dim=1)
        chances = torch.softmax(values / question["temperature"], dim=1)
        texts = {
            (*text, token): chance * more
            for (text, chance), row, tokens in zip(texts.items(), chances.tolist(), ids.tolist())
            for token, more in zip(tokens, row)
        }
    return texts


def last_three(joint: Joint) -> Joint:
    """P(t2, t3, t4)."""
    out: Joint = defaultdict(float)
    for text, chance in joint.items():
        out[text[1:]] += chance
    return out


def main() -> None:
    question = json.load(sys.stdin)
    joint = joint_of(question)
    counts: Joint = defaultdict(float)
    impossible = 0
    for *text, count in question["seen"]:
        impossible += count * (tuple(text) not in joint)
        counts[tuple(text[1:])] += count
    wanted = last_three(joint)
    expected = torch.tensor(list(wanted.values()), dtype=torch.float64)
    seen = torch.tensor([counts[text] for text in wanted], dtype=torch.float64)
    # the same number of draws as a server gives that draws token 1 and takes the best one from then on
    ahead: Joint = defaultdict(float)
    for first in {text[:1] for text in joint}:
        of_first = {text: chance for text, chance in joint.items() if text[:1] == first}
        ahead[greedy(of_first, 1)[1:]] += sum(of_first.values())
    mutant = torch.tensor([ahead[text] for text in wanted], dtype=torch.float64) * seen.sum()
    print(
        json.dumps(
            {
                "p": p_value(seen, expected),
                "p_greedy_at_nodes": p_value(mutant, expected),
                "cells": int((expected * seen.sum() >= 5).sum()),
                "impossible": impossible,
                "greedy": greedy(joint, 0),
            }
        )
    )


def greedy(joint: Joint, start: int) -> tuple[int, ...]:
    """The text that takes the best token from place `start` on."""
    some = next(iter(joint))
    text = some[:start]
    while len(text) < len(some):
        after: Joint = defaultdict(float)
        for whole, chance in joint.items():
            if whole[: len(text)] == text:
                after[whole[: len(text) + 1]] += chance
        text = max(after, key=after.__getitem__)
    return text


if __name__ == "__main__":
    main()
