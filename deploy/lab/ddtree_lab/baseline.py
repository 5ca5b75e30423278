"""The unit file that an operator left on a host before ddtree-ops ever came."""

from __future__ import annotations

from .spec import HostSpec

MODELS = {"cycle": ("cyc_target", "cyc_draft"), "context": ("ctx_target", "ctx_draft")}
REAL_PYTHON = "/root/ml-env/bin/python3"
STANDIN_PYTHON = "/opt/standin/bin/python3"
SCENARIO = "/etc/standin.json"

UNIT = """\
[Unit]
Description=SGLang inference server
Wants=network-online.target
After=network-online.target

[Service]
Type=simple
WorkingDirectory=/root
{environment}
ExecStart={python} -m sglang.launch_server \\
    {flags}
Restart=on-failure
RestartSec=5

[Install]
WantedBy=multi-user.target
"""

SPECULATION = {
    "plain": [],
    "nextn": [
        "--speculative-algorithm NEXTN",
        "--speculative-num-steps 3",
        "--speculative-eagle-topk 1",
        "--speculative-num-draft-tokens 4",
    ],
    "dflash": ["--speculative-algorithm DFLASH", "--speculative-draft-model-path /models/{draft}"],
}


def unit_text(spec: HostSpec) -> str:
    """The whole of /etc/systemd/system/sglang.service for `spec`."""
    return UNIT.format(
        python=STANDIN_PYTHON if spec.engine == "standin" else REAL_PYTHON,
        environment="\n".join(f"Environment={pair}" for pair in _environment(spec)),
        flags=" \\\n    ".join(_flags(spec)),
    )


def _flags(spec: HostSpec) -> list[str]:
    target, draft = MODELS[spec.pair]
    return [
        f"--model-path /models/{target}",
        "--host 0.0.0.0 --port 30000",
        # What a CPU needs, and the only backend name that DFLASH lets through to the test-only plugin.
        "--device cpu --attention-backend triton --disable-cuda-graph",
        "--dtype bfloat16 --max-total-tokens 4096 --max-running-requests 8",
        # Left to itself the engine computes a negative fraction on a machine of 24 GiB, and dies.
        "--mem-fraction-static 0.5",
        "--grammar-backend none --skip-server-warmup",
        *([f"--tp {spec.tp}"] if spec.tp > 1 else []),
        *(part.format(draft=draft) for part in SPECULATION[spec.baseline]),
    ]


def _environment(spec: HostSpec) -> list[str]:
    if spec.engine == "standin":
        return [f"STANDIN_SCENARIO={SCENARIO}"]
    threads = "|".join(str(rank) for rank in range(spec.tp))
    return [
        "PYTHONPATH=/opt/lab-engine/stubs:/opt/lab-engine/plug",
        "HF_HUB_OFFLINE=1",
        "SGLANG_USE_CPU_ENGINE=1",
        "TRITON_INTERPRET=1",
        # Tensor parallel layers call torch.compile, and a lab host has no C++ compiler.
        "TORCHDYNAMO_DISABLE=1",
        *([f"SGLANG_CPU_OMP_THREADS_BIND={threads}"] if spec.tp > 1 else []),
    ]
