"""DDTREE's Prometheus metrics, beside SGLang's own on /metrics (--enable-metrics)."""

from __future__ import annotations

from typing import Any

from .ddtree_stats import TreeStats

COUNTERS = {
    "verify_steps": "Verify steps.",
    "trees": "Draft trees built.",
    "nodes": "Nodes of these trees, roots not counted.",
    "accepted": "Drafted tokens accepted (full mode).",
    "spine_nodes": "Nodes compared with the chain of best candidates.",
    "spine_agree": "Of these, nodes that lie on it.",
    "tree_seconds": "Seconds from the draft's hidden states to the finished trees.",
    "shadow_errors": "Failures of the shadow side.",
}


class TreeMetrics:
    """Publishes a TreeStats; does nothing where metrics are off."""

    def __init__(self, server_args: Any, mode: str) -> None:
        self._counters: dict[str, Any] = {}
        if not server_args.enable_metrics:
            return
        # SGLang names the directory of the processes' files first, and then this may be imported
        from prometheus_client import Counter

        labels = {"model_name": server_args.served_model_name, "mode": mode}
        self._published = dict.fromkeys(COUNTERS, 0.0)
        for name, text in COUNTERS.items():
            counter = Counter(f"sglang:ddtree_{name}", text, labelnames=list(labels))
            self._counters[name] = counter.labels(**labels)
        self._by_depth = Counter(
            "sglang:ddtree_accepted_by_depth",
            "Trees of which a node at this depth was accepted.",
            labelnames=[*labels, "depth"],
        )
        self._labels = labels
        self._depths: list[int] = []

    def publish(self, stats: TreeStats) -> None:
        """Add what the counters gained since the last call."""
        if not self._counters:
            return
        for name, counter in self._counters.items():
            value = getattr(stats, name)
            counter.inc(value - self._published[name])
            self._published[name] = value
        self._depths.extend([0] * (len(stats.accepted_by_depth) - len(self._depths)))
        for i, value in enumerate(stats.accepted_by_depth):
            self._by_depth.labels(**self._labels, depth=i + 1).inc(value - self._depths[i])
            self._depths[i] = value
