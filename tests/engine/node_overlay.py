"""Imported by a copy of ddtree_info.py in tests: writes down each verify, and breaks it on purpose where told.

In the directory $DDTREE_TEST_ROOM the file `fault` names what is broken, if anything, and the file `record` a
directory that gets one file a verify: of each request its text so far, its tree and its logits.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
from pathlib import Path
from typing import Any

import torch
from sglang.srt.speculative.ddtree_info import DDTreeVerifyInput

ROOM = Path(os.environ["DDTREE_TEST_ROOM"])
_numbers = itertools.count()
_prepare, _verify = DDTreeVerifyInput.prepare_for_verify, DDTreeVerifyInput.verify


def _told(name: str) -> str:
    path = ROOM / name
    return path.read_text() if path.exists() else ""


def _prepare_or_break(self: Any, batch: Any, page_size: int, **more: Any) -> None:
    _prepare(self, batch, page_size, **more)
    rows = self.draft_token_num
    if _told("fault") == "mask":
        self.custom_mask = torch.ones_like(self.custom_mask)
    if _told("fault") == "position":
        self.positions = (self.trees.position[:, :1] + torch.arange(rows)).view(-1)


def _other_parents(trees: Any) -> torch.Tensor:
    """Each node below depth 1 under the next node as deep as its parent."""
    parents = trees.parent.clone()
    for b, nodes in enumerate(trees.nodes.tolist()):
        depth = trees.depth[b, :nodes].tolist()
        for node in range(nodes):
            if depth[node] > 1:
                level = [n for n in range(node) if depth[n] == depth[node] - 1]
                parents[b, node] = level[(level.index(int(parents[b, node])) + 1) % len(level)]
    return parents


def _verify_or_break(self: Any, *, batch: Any, logits_output: Any, page_size: int) -> Any:
    if _told("fault") == "parent":
        self.trees = dataclasses.replace(self.trees, parent=_other_parents(self.trees))
    if _told("fault") == "commit":
        right = self.accept

        def accept(*given: Any) -> Any:
            walk = right(*given)
            rows = torch.arange(walk.path.shape[1]).expand_as(walk.path)
            return dataclasses.replace(walk, path=torch.where(walk.path < 0, walk.path, rows))

        self.accept = accept
    if _told("record"):
        logits = logits_output.next_token_logits.view(len(batch.reqs), self.draft_token_num, -1)
        requests = [
            {
                "text": [*req.origin_input_ids, *req.output_ids],
                "prompt": len(req.origin_input_ids),
                "prefix": int(batch.seq_lens_cpu[b]),
                "token": self.trees.token[b, : int(self.trees.nodes[b])].clone(),
                "parent": self.trees.parent[b, : int(self.trees.nodes[b])].clone(),
                "logits": logits[b, : int(self.trees.nodes[b])].clone(),
            }
            for b, req in enumerate(batch.reqs)
        ]
        torch.save(requests, Path(_told("record")) / f"{next(_numbers):06}.pt")
    *first, hidden, accepted = _verify(self, batch=batch, logits_output=logits_output, page_size=page_size)
    if _told("fault") == "hidden":
        hidden = hidden[:1].expand_as(hidden)
    return (*first, hidden, accepted)


DDTreeVerifyInput.prepare_for_verify = _prepare_or_break
DDTreeVerifyInput.verify = _verify_or_break
