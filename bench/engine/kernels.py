"""Times DDTree's Triton kernels on a GPU, after they have equalled the reference on hundreds of batches there.

`python3 bench/engine/kernels.py [OUT]` needs torch and triton only. Batch 32, block 16. Exit 1, and no time is
printed, when a kernel differs. A time is the median over replays of a CUDA graph of REPEAT calls, per call.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import triton
import triton.language as tl

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "engine_patches"))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "engine"))

import kernel_checks as checks
from ddtree import ddtree_kernels as kernels
from ddtree import ddtree_utils

DEVICE = torch.device("cuda")
BATCH, DEPTH, VOCABULARY = 32, 15, 151_936
REPEAT, REPLAYS = 20, 60
MUST = {"build B=64": 20, "build B=256": 100, "top-k": 150, "end to end": 180}
GOAL = {"build B=64": 8, "build B=256": 40, "top-k": 90, "end to end": 110}
PEAKS = ("peaked", "flat")


@triton.jit
def _nothing(pointer):
    tl.store(pointer, 1)


def draft_logits(kind: str, seed: int, rows: int = BATCH * DEPTH) -> torch.Tensor:
    """bfloat16 [rows, vocabulary]. peaked: as a trained draft's, certain at first and less so with depth."""
    g = torch.Generator(DEVICE).manual_seed(seed)
    x = torch.randn(rows, VOCABULARY, generator=g, device=DEVICE)
    if kind == "flat":
        return x.to(torch.bfloat16)
    rank = torch.rand(rows, VOCABULARY, generator=g, device=DEVICE).argsort(dim=1) + 1
    steep = torch.linspace(5.0, 1.3, DEPTH, device=DEVICE).repeat(rows // DEPTH)[:, None]
    return (20 - steep * rank.log() + x / 2).to(torch.bfloat16)


def seconds(call: Callable[[], object], repeat: int = REPEAT) -> float:
    """Median time of one call in a graph of `repeat` calls."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):  # a host synchronisation would raise here
        for _ in range(repeat):
            call()
    graph.replay()
    times = []
    for _ in range(REPLAYS):
        start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        stop.record()
        stop.synchronize()
        times.append(start.elapsed_time(stop) / 1000 / repeat)
    return statistics.median(times)


def check_everything() -> int:
    """Compare on the GPU. Returns how many batches were compared. Raises: AssertionError."""
    kernels.self_check(DEVICE)
    count = 1
    sizes = [(32, 15, 16, 64, 65), (32, 15, 64, 64, 65), (8, 15, 64, 256, 257), (2, 15, 64, 1023, 1024)]
    sizes += [
        (3, 15, 1, 20, 21),
        (5, 15, 9, 7, 16),
        (4, 3, 4, 200, 210),
        (1, 1, 300, 256, 257),
        (33, 7, 5, 31, 33),
    ]
    for seed in range(3):
        for case in checks.tree_cases(sizes, seed):
            checks.compare_trees(case, DEVICE)
            count += 1
    g = torch.Generator().manual_seed(7)
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        for kind in checks.LOGITS:
            for columns, k in ((VOCABULARY, 16), (VOCABULARY, 64), (32_000, 128), (129, 200), (1, 1)):
                x = checks.logits_of(kind, 3, columns, dtype, g)
                there = torch.empty(3, columns + 8, dtype=dtype, device=DEVICE)[:, :columns].copy_(x)
                checks.compare_top(there, 11, k, f"{kind} {dtype} {columns} {k}")
                count += 1
    for case in checks.tree_cases([(32, 15, 16, 64, 65), (3, 15, 8, 100, 120)], seed=8):
        checks.compare_walk(checks.compare_trees(case, DEVICE), 15, DEVICE, 20_000, g)
        count += 2
    return count


class Inputs:
    """Candidates of one batch as the engine makes them, on the GPU."""

    def __init__(self, logits: torch.Tensor, ranks: int, budget: int) -> None:
        values, ids, partition = kernels.top_k_lse(logits, 0, ranks)
        self.log_probs = (values - partition[:, None]).view(BATCH, DEPTH, ranks)
        self.ids = ids.view(BATCH, DEPTH, ranks)
        self.roots = torch.arange(BATCH, device=DEVICE)
        lengths = [1000 + 37 * i for i in range(BATCH)]
        self.prefixes = torch.tensor(lengths, device=DEVICE)
        self.budget, self.rows = budget, budget + 1
        self.elements = ddtree_utils.mask_elements(lengths, self.rows)

    def build(
        self, log_probs: torch.Tensor | None = None, ids: torch.Tensor | None = None
    ) -> ddtree_utils.TreeBatch:
        return kernels.build_trees(
            self.log_probs if log_probs is None else log_probs,
            self.ids if ids is None else ids,
            self.roots,
            self.prefixes,
            self.budget,
            self.rows,
            self.elements,
        )

    def reference(self) -> tuple[ddtree_utils.TreeBatch, float]:
        """The batch on the host, and the seconds of its heaps alone (no mask, no links, nothing copied)."""
        inputs = [t.cpu() for t in (self.log_probs, self.ids, self.roots, self.prefixes)]
        start = time.perf_counter()
        for log_probs, ids in zip(*inputs[:2]):
            ddtree_utils.build_tree(log_probs, ids, self.budget)
        taken = time.perf_counter() - start
        return ddtree_utils.build_batch(*inputs, self.budget, self.rows), taken


def machine() -> str:
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    card = subprocess.run(query, capture_output=True, text=True, check=False).stdout.strip()
    now = time.strftime("%Y-%m-%d %H:%M", time.gmtime())
    return f"{card}; torch {torch.__version__}, triton {triton.__version__}, {now} UTC"


class Table:
    """Lines of name, time, floor, gap and target."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def add(self, name: str, taken: float, floor: float = 0.0, target: str = "", peer: str = "") -> None:
        line = f"{name:<46} {taken * 1e6:9.1f} us"
        if floor:
            line += f"  floor {floor * 1e6:6.1f} us  gap {taken / floor:6.1f}x"
        if target:
            line += f"  must {MUST[target]} goal {GOAL[target]}"
        self.say(line + ("  " + peer if peer else ""))

    def say(self, line: str) -> None:
        self.lines.append(line)
        print(line, flush=True)


def bandwidth() -> float:
    """Bytes read and written a second by a device-to-device copy of 4 GB."""
    source = torch.rand(1 << 30, device=DEVICE)
    target = torch.empty_like(source)
    times = []
    for _ in range(10):
        start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        target.copy_(source)
        stop.record()
        stop.synchronize()
        times.append(start.elapsed_time(stop) / 1000)
    return 8 * source.numel() / min(times)


def time_build(table: Table, launch: float, speed: float) -> None:
    for kind in PEAKS:
        logits = draft_logits(kind, 1)
        for ranks, budget in ((16, 64), (64, 64), (64, 256)):
            inputs = Inputs(logits, ranks, budget)
            expected, host = inputs.reference()
            differs = kernels.tree_difference(inputs.build(), expected)
            assert differs is None, (kind, ranks, budget, differs)
            moved = 12 * inputs.log_probs.numel() + BATCH * inputs.rows * (7 * 8 + inputs.rows)
            taken = seconds(inputs.build)
            peer = f"heaps on the host {host * 1e3:.1f} ms, {host / taken:.0f}x"
            name = f"build {kind} B={budget} K={ranks}"
            table.add(name, taken, launch + moved / speed, f"build B={budget}", peer)


def time_heap(table: Table) -> None:
    """What listing does not suit, as it is all ties, goes to the heap on the device."""
    for ranks, budget in ((16, 64), (64, 256)):
        inputs = Inputs(draft_logits("flat", 6), ranks, budget)
        inputs.log_probs.zero_()
        differs = kernels.tree_difference(inputs.build(), inputs.reference()[0])
        assert differs is None, (ranks, budget, differs)
        table.add(f"build, every score 0, B={budget} K={ranks}", seconds(inputs.build))


def time_top(table: Table, speed: float) -> None:
    logits = draft_logits("peaked", 2)
    moved = logits.numel() * logits.element_size()
    for k in (16, 32, 64):
        taken = seconds(lambda k=k: kernels.top_k_lse(logits, 0, k), repeat=5)
        theirs = seconds(lambda k=k: (logits.topk(k, dim=1), logits.float().logsumexp(dim=1)), repeat=2)
        peer = f"torch {theirs * 1e6:.0f} us, {theirs / taken:.1f}x"
        table.add(f"top-k {k} + logsumexp", taken, moved / speed, "top-k", peer)


def time_end_to_end(table: Table, launch: float, speed: float) -> None:
    for kind in PEAKS:
        logits = draft_logits(kind, 3)
        for ranks, budget in ((16, 64), (64, 64), (64, 256)):
            inputs = Inputs(logits, ranks, budget)

            def whole(inputs: Inputs = inputs, ranks: int = ranks, logits: torch.Tensor = logits) -> object:
                values, ids, partition = kernels.top_k_lse(logits, 0, ranks)
                log_probs = (values - partition[:, None]).view(BATCH, DEPTH, ranks)
                return inputs.build(log_probs, ids.view(BATCH, DEPTH, ranks))

            floor = launch + logits.numel() * logits.element_size() / speed
            table.add(
                f"end to end {kind} B={budget} K={ranks}", seconds(whole, repeat=5), floor, "end to end"
            )


def time_walk(table: Table, launch: float, speed: float) -> None:
    inputs = Inputs(draft_logits("peaked", 4), 16, 64)
    trees = inputs.build()
    target = draft_logits("peaked", 5, BATCH * inputs.rows // DEPTH * DEPTH + DEPTH)[: BATCH * inputs.rows]
    for share in (0.0, 0.6, 0.9, 1.0):
        follow = torch.rand(BATCH, inputs.rows, device=DEVICE) < share
        liked = torch.where(follow, kernels.some_child(trees), 1).reshape(-1, 1)
        logits = target.scatter(1, liked, 60.0)
        walked = kernels.walk_greedy(logits, trees, DEPTH)
        expected = ddtree_utils.walk(trees, lambda at, _, x=logits: x[at].argmax(dim=1), DEPTH)
        assert torch.equal(walked.token, expected.token), "walk"
        mean = float(walked.length.float().mean())
        deepest = int(walked.length.max())
        moved = mean * BATCH * VOCABULARY * 2
        taken = seconds(lambda x=logits: kernels.walk_greedy(x, trees, DEPTH), repeat=5)
        dense = seconds(lambda x=logits: x.argmax(dim=1), repeat=2)
        name = f"walk B=64, accept length {mean:.2f}, most {deepest}"
        table.add(name, taken, launch + moved / speed, "", f"argmax of all rows {dense * 1e6:.0f} us")


def main(out: str | None) -> int:
    table = Table()
    table.say(machine())
    started = time.perf_counter()
    try:
        count = check_everything()
    except (AssertionError, RuntimeError) as error:
        print(f"NOT EQUAL to the reference: {error}")
        return 1
    table.say(f"equal to the reference: {count} batches, {time.perf_counter() - started:.0f} s")
    started = time.perf_counter()
    kernels.self_check(DEVICE)
    table.say(f"self_check, compiled: {time.perf_counter() - started:.3f} s")
    flag = torch.zeros(1, dtype=torch.int32, device=DEVICE)
    launch, speed = seconds(lambda: _nothing[(1,)](flag)), bandwidth()
    table.say(f"an empty launch {launch * 1e6:.2f} us; copy {speed / 1e12:.2f} TB/s")
    time_build(table, launch, speed)
    time_heap(table)
    time_top(table, speed)
    time_end_to_end(table, launch, speed)
    time_walk(table, launch, speed)
    if out:
        Path(out).write_text("\n".join(table.lines) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else None))
