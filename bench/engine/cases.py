"""The engines that the losslessness stages start: their flags, what each must report, and what is broken in it."""

from __future__ import annotations

from dataclasses import dataclass

BLOCK = 8
COMMON = [
    *("--host", "127.0.0.1", "--attention-backend", "triton", "--sampling-backend", "pytorch"),
    *(
        "--grammar-backend",
        "none",
        "--enable-metrics",
        "--watchdog-timeout",
        "300",
        "--decode-log-interval",
        "20",
    ),
    *("--max-running-requests", "8", "--context-length", "2048"),
]
CUDA = [
    *("--max-total-tokens", "32768", "--mem-fraction-static", "0.5"),
    *("--cuda-graph-max-bs", "8", "--disable-piecewise-cuda-graph"),
]
CPU = [
    *("--device", "cpu", "--disable-cuda-graph", "--dtype", "bfloat16", "--skip-server-warmup"),
    *("--max-total-tokens", "8192", "--mem-fraction-static", "0.3"),
]


@dataclass(frozen=True)
class Case:
    """One engine. mode: `ddtree_mode` it must report, None: none. mutant: broken on purpose, must be caught.

    probe: record trees and verify logits of the first requests. hashes: record a hash of every tree, per rank.
    nosync: a wait for the device on the way to the trees ends the server. dies: what its error must say, it must not
    serve.
    """

    name: str
    flags: tuple[str, ...] = ()
    mode: str | None = None
    mutant: str | None = None
    probe: bool = False
    hashes: bool = False
    sampled: bool = True
    nosync: bool = False
    dies: str | None = None

    @property
    def plugged(self) -> bool:
        """Whether the test-only plugin is in it."""
        return bool(self.mutant or self.probe or self.hashes or self.nosync)

    @property
    def speculative(self) -> bool:
        return "--speculative-algorithm" in self.flags


def dflash(*more: str) -> tuple[str, ...]:
    """Flags of the chain. {draft} stands for the draft's directory."""
    return ("--speculative-algorithm", "DFLASH", "--speculative-draft-model-path", "{draft}", *more)


def ddtree(budget: int, topk: int, *more: str) -> tuple[str, ...]:
    """Flags of a tree of this many nodes and candidates a position."""
    return (
        *("--speculative-algorithm", "DDTREE", "--speculative-draft-model-path", "{draft}"),
        *("--speculative-ddtree-budget", str(budget), "--speculative-ddtree-topk-cap", str(topk), *more),
    )


def mutant(name: str) -> Case:
    """The 16-node tree broken in one place; plug/ddtree_bench_mutants.py says how."""
    return Case(f"mutant_{name}", ddtree(16, 4), "full", mutant=name, probe=True, sampled=False)


LOSSLESS = [
    Case("nospec"),
    Case("dflash", dflash()),
    Case("shadow", ddtree(16, 4, "--speculative-ddtree-shadow-linear"), "shadow-linear"),
    Case("tree16", ddtree(16, 4), "full", probe=True),
    Case("tree64", ddtree(64, 8), "full", probe=True),
    Case("chain", ddtree(BLOCK - 1, 1), "full"),
    Case("tree16_chunked", ddtree(16, 4, "--chunked-prefill-size", "64"), "full"),
    Case("tree16_nosync", ddtree(16, 4), "full", sampled=False, nosync=True),
    Case("tree16_noradix", ddtree(16, 4, "--disable-radix-cache"), "full"),
    Case("mutant_wait", ddtree(16, 4), mutant="wait", nosync=True, dies="synchronizing CUDA operation"),
    *(mutant(name) for name in ("mask", "parent", "position", "commit_shift", "commit_other")),
]
TP2 = [
    Case("tp2_dflash", dflash("--tp", "2")),
    Case("tp2_tree16", ddtree(16, 4, "--tp", "2"), "full", hashes=True),
    Case("tp2_tree64", ddtree(64, 8, "--tp", "2", "--disable-custom-all-reduce"), "full", hashes=True),
]
STAGES = {"lossless": LOSSLESS, "tp2": TP2}


def command(case: Case, device: str, model: str, draft: str, port: int) -> list[str]:
    """Arguments of sglang.launch_server; of two equal options the last wins, so a case's own come last."""
    device_flags = CUDA if device == "cuda" else CPU
    own = [flag.replace("{draft}", draft) for flag in case.flags]
    # the engine's own choice of a port for its ranks may meet another server's
    ports = ["--port", str(port), "--nccl-port", str(port + 20)]
    return ["--model-path", model, *ports, *COMMON, *device_flags, *own]
