"""DDTREE broken on purpose, one fault each: what the judge of the losslessness stages must catch."""

from __future__ import annotations

from typing import Any

import torch


def mask_tails(trees: Any) -> list[torch.Tensor]:
    """Views of each request's mask on the tree's own columns, [N, N]."""
    rows, tails, start = trees.rows, [], 0
    for prefix in trees.position[:, 0].tolist():
        size = rows * (prefix + rows)
        tails.append(trees.mask[start : start + size].view(rows, prefix + rows)[:, prefix:])
        start += size
    return tails


def see_sibling(trees: Any) -> None:
    """Mask: a node also sees the sibling before it."""
    for tail, siblings in zip(mask_tails(trees), trees.next_sibling):
        nodes = torch.arange(trees.rows, device=siblings.device)
        linked = siblings >= 0
        tail[siblings[linked], nodes[linked]] = True


def skip_parent(trees: Any) -> None:
    """Parent link: a node from depth 2 on hangs at its grandparent, in all the link arrays."""
    deep = (trees.depth >= 2) & (torch.arange(trees.rows, device=trees.depth.device) < trees.nodes[:, None])
    above = trees.parent.gather(1, trees.parent.clamp(min=0))
    trees.parent.copy_(torch.where(deep, above, trees.parent))
    trees.next_token.fill_(-1)
    trees.next_sibling.fill_(-1)
    for parent, nodes, child, sibling in zip(
        trees.parent.tolist(), trees.nodes.tolist(), trees.next_token, trees.next_sibling
    ):
        last: dict[int, int] = {}
        for node in range(1, nodes):
            if parent[node] in last:
                sibling[last[parent[node]]] = node
            else:
                child[parent[node]] = node
            last[parent[node]] = node


def count_rows(trees: Any) -> None:
    """Position: a node stands at prefix + row instead of prefix + depth."""
    trees.position.copy_(trees.position[:, :1] + torch.arange(trees.rows, device=trees.position.device))


def wait_for_device(trees: Any) -> None:
    """No fault in what is computed: the host reads how many nodes there are before verify is launched."""
    trees.nodes.sum().item()


def shift_path(walk: Any, rows: int) -> None:
    """Commit: the KV and hidden states of the rows after the accepted ones."""
    last = walk.path.amax(dim=1, keepdim=True)
    moved = (walk.path > 0) & (last + 1 < rows)
    walk.path.copy_(torch.where(moved, walk.path + 1, walk.path))


def path_of_another(walk: Any, rows: int) -> None:
    """Commit: the rows that the next request of the batch accepted, where it accepted as many."""
    other = walk.path.roll(1, 0)
    fits = walk.length.roll(1, 0) >= walk.length
    columns = torch.arange(walk.path.shape[1], device=walk.path.device) < walk.length[:, None]
    walk.path.copy_(torch.where(fits[:, None] & columns, other, walk.path))


BUILD = {"mask": see_sibling, "parent": skip_parent, "position": count_rows, "wait": wait_for_device}
WALK = {"commit_shift": shift_path, "commit_other": path_of_another}
