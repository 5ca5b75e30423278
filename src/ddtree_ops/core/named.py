"""What a log line itself names (a library, a symbol's owner, versions, a device, a path), put behind a rule's hint."""

from __future__ import annotations

import re

from ddtree_ops.core.demangle import short

_MOST = 3
_SYMBOL = re.compile(r"undefined symbol: ?(?P<symbol>\w+)")
#: Whose a symbol is, by its name: the first that fits.
_OWNERS = (
    (re.compile(r"tvm"), "tvm-ffi"),
    (re.compile(r"^p?nccl"), "libnccl"),
    (re.compile(r"^cu[A-Z]"), "libcuda, the driver"),
    (re.compile(r"^_{0,2}cuda[A-Z]"), "libcudart"),
    (
        re.compile(r"^_{0,2}(?:nvJitLink|nvrtc|cublas|cudnn|cusparse|cusolver|cufft|nvshmem)"),
        "a CUDA library",
    ),
    (re.compile(r"^_?Py"), "Python"),
    (re.compile(r"(?:3c10|2at|5torch|c10_cuda)"), "torch"),
)
_DRIVER = re.compile(r"found version (?P<major>1\d)0(?P<minor>\d)0\b")
_NAMES = (
    re.compile(r"(?P<it>/[\w./-]*/\.local/[\w./-]*packages)"),
    re.compile(r"(?P<it>[\w.+-]+\.so(?:\.\d+)*)\b"),
    re.compile(r"(?P<it>CUDA(?: [Vv]ersion)?[ =:]{1,3}\d\d\.\d+|cuda>=\d+\.\d+)"),
    re.compile(
        r"(?P<it>(?:(?:Py)?[Tt]orch(?:vision|audio)?|flashinfer\S*|triton|sgl[-_]kernel)"
        r"\s?(?:==|[ =(])\s?\d+\.\d[\w.+]*)"
    ),
    re.compile(
        r"\b(?P<it>[A-Za-z][\w.-]+(?: is installed with version \d[\w.+]*(?<!\.)|(?= with minimum required version)))"
    ),
    re.compile(r"[Nn]o module named '?(?P<it>[\w.]+)"),
    re.compile(r"cannot import name '(?P<it>[^']+' from '[^']+)"),
    re.compile(r"(?P<it>PCI:[0-9a-fA-F:.]+|GPU[ -]?\d+\b)"),
    re.compile(r"(?:denied|such file or directory|not found)\W{1,4}'(?P<it>/?[\w./-]+)'"),
    re.compile(r"(?P<it>/dev/[\w/-]+)"),
    re.compile(r"(?<![\w-])(?P<it>--[a-z][\w-]+)"),
    re.compile(
        r"\b(?P<it>(?:enable|disable|speculative|prefill|chunked|hicache|max|num|prompt_lookup|page|context)_[a-z]\w+)"
    ),
)


def names(line: str) -> list[str]:
    """What the line names, the most telling first."""
    found: list[str] = []
    symbol = _SYMBOL.search(line)
    if symbol:
        owner = next((who for what, who in _OWNERS if what.search(symbol["symbol"])), "")
        found.append(f"{short(symbol['symbol'], 60)}" + (f" of {owner}" if owner else ""))
    driver = _DRIVER.search(line)
    if driver:
        found.append(f"the driver is for CUDA {driver['major']}.{driver['minor']}")
    for pattern in _NAMES:
        found.extend(match["it"] for match in pattern.finditer(line) if match["it"] not in found)
    return found


def told(hint: str, line: str) -> str:
    """The hint, and behind it what the line names that the hint does not."""
    found = [name for name in names(line) if name not in hint][:_MOST]
    return f"{hint}. Here: {', '.join(found)}" if found else hint
