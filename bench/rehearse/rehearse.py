"""Rehearsals beside a live server on a GPU machine, with the agent's own code: `rehearse.py CASE...`, see CASES.

A live server of a tiny pair answers a client all the while; another process holds GPU memory so that only FREE_GIB are
left, as beside a 27B server. The models to rehearse are configs alone, of the sizes that people run. There is no
systemd here (systemd_shim.py), and the release is laid out by hand: what push proves is proven elsewhere.
Ends with a line a case and `N passed, N failed`.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
CHECKOUT = HERE.parents[1]
sys.path[:0] = [str(CHECKOUT / "deploy" / "agent"), str(CHECKOUT / "src"), str(CHECKOUT / "bench/preflight")]
from sizes import DENSE  # noqa: E402

UNIT, LIVE_PORT, RELEASE = "sglang.service", 30000, "aaaaaaaaaaaaaaaa"
LIMITS = {"imports": 120.0, "weights": 180.0, "graphs": 240.0, "serve": 120.0, "cap": 600.0}

HYBRID_80B: dict[str, Any] = {
    **DENSE, "architectures": ["Qwen3NextForCausalLM"], "model_type": "qwen3_next", "hidden_size": 2048,
    "intermediate_size": 5120, "num_hidden_layers": 48, "num_attention_heads": 16, "num_key_value_heads": 2,
    "head_dim": 256, "full_attention_interval": 4, "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128,
    "linear_num_key_heads": 16, "linear_num_value_heads": 32, "linear_value_head_dim": 128,
    "partial_rotary_factor": 0.25, "num_experts": 512, "num_experts_per_tok": 10,
    "moe_intermediate_size": 512, "shared_expert_intermediate_size": 512,
    "decoder_sparse_step": 1, "norm_topk_prob": True, "mlp_only_layers": [], "output_router_logits": False,
    "router_aux_loss_coef": 0.001,
}  # fmt: skip


def draft_of(target: dict[str, Any], reads: list[int]) -> dict[str, Any]:
    """A DFlash draft's config for this target: five layers, block of 8."""
    return {
        **DENSE, "architectures": ["DFlashDraftModel"], "hidden_size": target["hidden_size"],
        "num_hidden_layers": 5, "num_target_layers": target["num_hidden_layers"], "block_size": 8,
        "dflash_config": {"mask_token_id": 511, "mask_token": "<|mask|>", "target_layer_ids": reads},
    }  # fmt: skip


TINY: dict[str, Any] = {
    **DENSE, "hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 64, "vocab_size": 512,
}  # fmt: skip
MODELS = {
    "tiny": (
        TINY,
        {
            **draft_of(TINY, [1, 16, 31, 46, 61]),
            "intermediate_size": 512,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 64,
            "vocab_size": 512,
        },
    ),
    "dense27": (DENSE, draft_of(DENSE, [1, 16, 31, 46, 61])),
    "hybrid80": (HYBRID_80B, draft_of(HYBRID_80B, [1, 12, 23, 34, 45])),
}
TREE = (
    "--speculative-algorithm",
    "DDTREE",
    "--speculative-ddtree-budget",
    "16",
    "--speculative-ddtree-topk-cap",
    "4",
)
SHADOW = ("--speculative-ddtree-shadow-linear",)
HYBRID = (*SHADOW, "--disable-radix-cache")
#: A kernel that does not compile, and one request's verify read from its neighbour's rows.
BREAKS = {
    "kernel": ("ddtree_kernels_tree.py", "tl.program_id(", "tl.no_such_thing("),
    "requests": (
        "ddtree_worker.py",
        "return walk_greedily(logits, trees, depth)",
        "return walk_greedily(logits.unflatten(0, (len(batch.reqs), -1)).roll(1, 0).flatten(0, 1), trees, depth)",
    ),
}
#: name: (model, flags, GiB left free, what breaks the release, expected verdict)
CASES: dict[str, tuple[str, tuple[str, ...], float, str, str]] = {
    "full": ("dense27", TREE, 24, "", "PASSED"),
    "tiny": ("tiny", TREE, 24, "", "PASSED"),
    "tiny_requests": ("tiny", TREE, 24, "requests", "FAILED"),
    "shadow": ("dense27", TREE + SHADOW, 24, "", "PASSED"),
    "hybrid": ("hybrid80", TREE + HYBRID, 24, "", "PASSED"),
    "kernel": ("dense27", TREE, 24, "kernel", "FAILED"),
    "requests": ("dense27", TREE, 24, "requests", "FAILED"),
    "tight": ("dense27", TREE, 5, "", "DOES_NOT_FIT"),
    "none": ("dense27", TREE, 2, "", "DOES_NOT_FIT"),
    "squeeze": ("dense27", TREE, 24, "squeeze", "DOES_NOT_FIT"),
}


class Client:
    """Asks the live server for a few tokens, one request after the other, and keeps every latency."""

    def __init__(self, port: int) -> None:
        self.port, self.latencies, self.failures = port, list[float](), list[str]()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._loop, daemon=True)

    def start(self) -> Client:
        self._thread.start()
        return self

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(60)

    def take(self) -> str:
        """What was seen since the last call, in words."""
        seen, failed = self.latencies[:], self.failures[:]
        self.latencies.clear(), self.failures.clear()
        if not seen:
            return f"no answer, {len(failed)} failures"
        ordered = sorted(seen)
        p95 = ordered[int(0.95 * (len(ordered) - 1))]
        return (
            f"{len(seen)} answers, {len(failed)} failures, median {statistics.median(seen) * 1e3:.0f} ms, "
            f"p95 {p95 * 1e3:.0f} ms, longest {ordered[-1] * 1e3:.0f} ms"
        )

    def _loop(self) -> None:
        body = {
            "input_ids": [65, 66, 67, 68],
            "sampling_params": {"temperature": 0, "max_new_tokens": 16, "ignore_eos": True},
        }
        while not self._stop.wait(0.1):
            began = time.monotonic()
            request = urllib.request.Request(
                f"http://127.0.0.1:{self.port}/generate",
                json.dumps(body).encode(),
                {"Content-Type": "application/json"},
            )
            try:
                with urllib.request.urlopen(request, timeout=60) as reply:
                    json.load(reply)
                self.latencies.append(time.monotonic() - began)
            except OSError as error:
                self.failures.append(str(error))


class Bench:
    def __init__(self, args: argparse.Namespace) -> None:
        self.args, self.root = args, Path(args.work)
        shutil.rmtree(self.root, ignore_errors=True)
        self.root.mkdir(parents=True)
        os.environ["SHIM_DIR"] = str(self.root / "shim")
        (self.root / "shim").mkdir()
        (self.root / "bin").mkdir()
        for name in ("systemctl", "systemd-run"):
            (self.root / "bin" / name).symlink_to(HERE / "systemd_shim.py")
        os.environ["PATH"] = f"{self.root / 'bin'}:{os.environ['PATH']}"
        self.hogs: list[subprocess.Popen[str]] = []

    def models(self) -> None:
        """Configs of full size beside the tiny pair's tokenizer; no weights."""
        for name, configs in MODELS.items():
            for which, config in zip(("target", "draft"), configs):
                place = self.root / "models" / name / which
                place.mkdir(parents=True)
                for file in ("tokenizer.json", "tokenizer_config.json"):
                    shutil.copy(Path(self.args.pair) / "target" / file, place)
                (place / "config.json").write_text(json.dumps(config))

    def release(self, broken: str) -> Path:
        """The overlay: the whole package and our series over it, broken as `broken` says."""
        release = self.root / "opt/ddtree/releases" / RELEASE
        shutil.rmtree(release, ignore_errors=True)
        overlay = release / "overlay"
        shutil.copytree(Path(self.args.site) / "sglang", overlay / "sglang", symlinks=True)
        shutil.copytree(Path(self.args.patch) / "sglang", overlay / "sglang", dirs_exist_ok=True)
        if broken in BREAKS:
            path, old, new = BREAKS[broken]
            file = overlay / "sglang/srt/speculative" / path
            text = file.read_text()
            if old not in text:
                raise SystemExit(f"{path} has no {old!r}")
            file.write_text(text.replace(old, new, 1))
        (release / "manifest.json").write_text(json.dumps({"release": RELEASE}))
        return overlay

    def live(self) -> None:
        """The server that must not notice."""
        argv = [
            sys.executable, "-m", "sglang.launch_server", "--model-path", f"{self.args.pair}/target",
            "--host", "127.0.0.1", "--port", str(LIVE_PORT), *self.common(), "--max-total-tokens", "32768",
            *self.cap(0.1),
        ]  # fmt: skip
        env = " ".join(f"{name}={os.environ[name]}" for name in self.args.keep if name in os.environ)
        words = ["systemd-run", f"--unit={UNIT}", f"--property=StandardOutput=append:{self.root}/live.log"]
        words += [
            f"--property=Environment={env}",
            f"--property=ExecStart={{ path={argv[0]} ; argv[]={' '.join(argv)} ; ignore_errors=no }}",
        ]
        words += [f"--setenv={name}" for name in self.args.keep if name in os.environ]
        subprocess.run([*words, "--", *argv], check=True)
        until = time.monotonic() + 240
        while time.monotonic() < until:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{LIVE_PORT}/health_generate", timeout=30):
                    return
            except OSError:
                time.sleep(0.5)
        raise SystemExit(f"the live server did not come up: {(self.root / 'live.log').read_text()[-2000:]}")

    def common(self) -> list[str]:
        device = ["--device", "cpu", "--disable-cuda-graph"] if self.args.device == "cpu" else []
        return [
            "--attention-backend",
            "triton",
            "--grammar-backend",
            "none",
            "--tp",
            str(self.args.tp),
            *device,
            *self.args.flags.split(),
        ]

    def cap(self, fraction: float) -> list[str]:
        return (
            ["--mem-fraction-static", str(fraction), "--cuda-graph-max-bs", "8"]
            if self.args.device == "cuda"
            else []
        )

    def leave(self, gib: float) -> None:
        """Hold GPU memory until about `gib` GiB are free on each GPU."""
        if self.args.device != "cuda":
            return
        self.release_memory()
        self.hogs.append(self.hold(gib))

    def squeeze(self) -> None:
        """In the middle of a rehearsal somebody else takes all but 1 GiB: less than half of the reserve."""
        time.sleep(20)
        self.hogs.append(self.hold(1))

    def release_memory(self) -> None:
        while self.hogs:
            hog = self.hogs.pop()
            hog.kill()
            hog.wait()
            time.sleep(2)

    def hold(self, gib: float) -> subprocess.Popen[str]:
        """A process that holds all but `gib` GiB of each GPU."""
        code = (
            "import torch,sys,time\nkept=[]\nfor d in range(torch.cuda.device_count()):\n"
            " torch.cuda.set_device(d); torch.zeros(1,device='cuda'); free,_=torch.cuda.mem_get_info(d)\n"
            f" kept.append(torch.empty(max(0,free-int({gib}*2**30)),dtype=torch.uint8,device='cuda'))\n"
            "print('held',flush=True)\ntime.sleep(10000)\n"
        )
        hog = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
        assert hog.stdout is not None
        assert hog.stdout.readline().strip() == "held"
        return hog

    def run(self, name: str, client: Client) -> bool:
        from ddtree_agent import rehearsal, store
        from ddtree_agent.layout import Layout
        from ddtree_agent.wire import AgentError
        from ddtree_ops.core.modes_file import read_modes
        from ddtree_ops.core.rehearsal import Small, small

        model, flags, free, broken, expected = CASES[name]
        overlay = self.release(broken)
        self.leave(free)
        place = self.root / "models" / model
        argv = [
            sys.executable,
            "-m",
            "sglang.launch_server",
            "--model-path",
            str(place / "target"),
            "--port",
            str(LIVE_PORT),
        ]
        argv += [*self.common(), *flags, "--speculative-draft-model-path", str(place / "draft")]
        modes = read_modes(json.loads(Path(self.args.modes).read_text()))
        made = small(argv, 3, modes.rehearse)
        assert isinstance(made, Small), made
        request = {
            "release": RELEASE, "txn": f"{int(time.time() * 1000):x}-abc", "argv": made.argv, "models": made.models,
            "environment": {"PYTHONPATH": f"{overlay}:{os.environ['PYTHONPATH']}", "DDTREE_RELEASE": RELEASE},
            "expect": {"state": {"speculative_algorithm": "DDTREE", "ddtree_healthy": True}}, "limits": LIMITS,
        }  # fmt: skip
        store.verify = lambda *_: None  # type: ignore[assignment]
        client.take()
        if broken == "squeeze":
            threading.Thread(target=self.squeeze, daemon=True).start()
        began = time.monotonic()
        try:
            found = rehearsal.rehearse(Layout(UNIT, str(self.root)), request, (RELEASE,))
        except AgentError as error:
            found = {"verdict": "FAILED", **error.fields}
        took = time.monotonic() - began
        right = found["verdict"] == expected
        print(
            f"{'ok' if right else 'NOT OK'} {name}: {took:.1f} s, {json.dumps(found)}\n   live: {client.take()}",
            flush=True,
        )
        return right


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", default=list(CASES))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tp", type=int, default=1)
    parser.add_argument("--site", required=True, help="directory with the unpatched sglang")
    parser.add_argument("--patch", required=True, help="our series' files (bench/engine/overlay.py)")
    parser.add_argument("--pair", required=True, help="the tiny pair (bench/engine/models.py)")
    parser.add_argument("--modes", required=True, help="the series' modes.yaml, as JSON")
    parser.add_argument("--work", required=True)
    parser.add_argument("--keep", nargs="*", default=[], help="variables of the live unit")
    parser.add_argument("--flags", default="", help="more flags of every server, in one word")
    bench = Bench(parser.parse_args())
    bench.models()
    bench.live()
    client = Client(LIVE_PORT).start()
    time.sleep(10)
    print(f"live alone: {client.take()}", flush=True)
    passed = [bench.run(name, client) for name in bench.args.cases]
    client.stop()
    bench.release_memory()
    subprocess.run(["systemctl", "kill", UNIT], check=False)
    print(f"{sum(passed)} passed, {len(passed) - sum(passed)} failed")
    return 0 if all(passed) else 1


if __name__ == "__main__":
    sys.exit(main())
