"""Which builds fit together: torch's CUDA against the kernel wheel's, companions, duplicates.

Sources: failures.md families ABI and DRV (F001, F012, F015, F016, F017); PyPI wheels may lack the +cuXXX suffix, so
torch/version.py and the NEEDED names of the kernel's binaries decide, and tags only add to them.
"""

from __future__ import annotations

import re

from ddtree_ops.core.facts_live import Abi, Dist, Torch
from ddtree_ops.core.finding import Finding, block, ok, warn

KERNELS = ("sglang-kernel", "sgl-kernel")
COMPANIONS = ("torchvision", "torchaudio")
#: A second copy of one of these decides at random what is imported.
SINGLE = ("sglang", "torch", "triton", *COMPANIONS, *KERNELS)
FLASHINFER = ("flashinfer-python", "flashinfer-cubin", "flashinfer-jit-cache")
#: Wheels that carry a CUDA tag or bring CUDA code and that a server may import.
TAGGED = (*COMPANIONS, "triton", "pytorch-triton", "vllm", "deep-gemm", "deep-ep", "xformers", *FLASHINFER)
#: CUDA's wheels without a -cuNN in their name have CUDA's own major as version (since CUDA 13).
PLAIN_CUDA = re.compile(
    r"nvidia-(cublas|cuda-runtime|cuda-nvrtc|cuda-cupti|nvjitlink|cuda-nvcc)|cuda-toolkit"
)


def judge(abi: Abi, device: str | None, interpreter: str, host: str, running: bool = False) -> list[Finding]:
    """Findings about the builds on `host`. device: the server's `--device`, None for its default, a GPU. running: the
    service serves now, so what only may break it is a WARN."""
    found = duplicates(abi, interpreter)
    if device == "cpu":
        return [*found, ok("cuda-build", "--device cpu: the rules for GPU builds do not apply")]
    if abi.torch is None:
        return [*found, block("cuda-build", "torch is not installed", f"{interpreter} -m pip install torch")]
    if abi.torch.cuda is None:
        said = f"torch {abi.torch.version} is a CPU build, and the server has no --device cpu"
        return [*found, block("cuda-build", said, _install(interpreter, "torch", "for the host's CUDA"))]
    found.append(ok("cuda-build", f"torch {abi.torch.version} is built for CUDA {abi.torch.cuda}"))
    found += kernels(abi, abi.torch.cuda, interpreter, host)
    found += companions(abi, abi.torch.cuda, interpreter, running)
    found += flashinfer(abi, interpreter)
    return found


def duplicates(abi: Abi, interpreter: str) -> list[Finding]:
    """Distributions that are installed twice in sight of the interpreter."""
    found = []
    for name, paths in sorted(abi.duplicates.items()):
        said = f"{name} is installed {len(paths)} times: {', '.join(paths)}"
        remedy = f"{interpreter} -m pip uninstall {name}, until none is left, then install one"
        found.append(
            block("duplicates", said, remedy) if name in SINGLE else warn("duplicates", said, remedy)
        )
    return found or [ok("duplicates", "no distribution is installed twice")]


def kernels(abi: Abi, cuda: str, interpreter: str, host: str) -> list[Finding]:
    """The kernel wheel against torch's CUDA, by its binaries' NEEDED names and by its tag."""
    wheels = [dist for dist in abi.dists if dist.name in KERNELS]
    label = f"{wheels[0].name} {wheels[0].version}" if wheels else "sgl_kernel"
    remedy = (
        _install(interpreter, wheels[0].name if wheels else "sglang-kernel", f"built for CUDA {cuda}")
        + f"; or the packages of a host where they fit: ddtree-ops env sync --from HOST --to {host}"
    )
    major = cuda.partition(".")[0]
    runtimes: dict[str, str] = {}
    unread = [kernel for kernel in abi.kernels if kernel.needed is None]
    for kernel in abi.kernels:
        for name in kernel.needed or ():
            asked = re.fullmatch(r"libcudart\.so\.(\d+).*", name)
            if asked:
                runtimes.setdefault(asked.group(1), f"{_short(kernel.file)} needs {name}")
    for runtime, said in sorted(runtimes.items()):
        if runtime != major:
            torch = f"torch {abi.torch.version}" if abi.torch else "torch"
            text = f"{label} is built for CUDA {runtime} ({said}), {torch} for CUDA {cuda}"
            return [block("cuda-kernel", text, remedy)]
    tagged = [_tag(dist, cuda, remedy, "cuda-kernel", abi.torch) for dist in wheels]
    bad = [finding for finding in tagged if finding is not None]
    if bad:
        return bad
    if unread:
        said = f"{_short(unread[0].file)} cannot be read: {unread[0].error}"
        return [warn("cuda-kernel", said, remedy)]
    if not runtimes:
        return [warn("cuda-kernel", f"{label}: no binary that names its CUDA runtime was found", remedy)]
    return [ok("cuda-kernel", f"{label} and torch are both built for CUDA {major}")]


def companions(abi: Abi, cuda: str, interpreter: str, running: bool = False) -> list[Finding]:
    """What is built beside torch by its tags, and a mix of CUDA majors among NVIDIA's wheels."""
    found = []
    for dist in abi.dists:
        if dist.name in TAGGED:
            remedy = _install(interpreter, dist.name, f"built for CUDA {cuda}")
            bad = _tag(dist, cuda, remedy, "cuda-companions", abi.torch)
            found += [bad] if bad else []
    found += _majors(abi, cuda.partition(".")[0], interpreter, running)
    return found or [ok("cuda-companions", f"nothing beside torch contradicts CUDA {cuda}")]


def _majors(abi: Abi, major: str, interpreter: str, running: bool) -> list[Finding]:
    """One environment, one CUDA major: nvidia-cudnn-cu12 and nvidia-cudnn-cu13 even write the same files."""
    by_base: dict[str, dict[str, Dist]] = {}
    for dist in abi.dists:
        tagged = re.fullmatch(r"(nvidia-.*)-cu(\d+)", dist.name)
        if tagged:
            by_base.setdefault(tagged.group(1), {})[tagged.group(2)] = dist
        elif PLAIN_CUDA.fullmatch(dist.name):
            by_base.setdefault(dist.name, {})[dist.version.partition(".")[0]] = dist
    strangers = [dist for found in by_base.values() for of, dist in found.items() if of != major]
    if not strangers:
        return []
    names = " ".join(dist.name for dist in strangers)
    remedy = f"{interpreter} -m pip uninstall {names}; then reinstall torch's own nvidia-* wheels"
    twice = next((found for found in by_base.values() if major in found and len(found) > 1), None)
    if twice:
        pair = " and ".join(f"{dist.name} {dist.version}" for dist in twice.values())
        said = f"{pair} are both installed, of several CUDA majors, and torch is built for CUDA {major}"
    else:
        said = (
            f"wheels of several CUDA majors in one environment: torch is built for CUDA {major}, and "
            + ", ".join(f"{dist.name} {dist.version}" for dist in strangers[:3])
        )
    return [
        block("cuda-companions", said, remedy)
        if twice and not running
        else warn("cuda-companions", said, remedy)
    ]


def flashinfer(abi: Abi, interpreter: str) -> list[Finding]:
    """FlashInfer's parts refuse each other at start unless their versions agree (F017)."""
    parts = {d.name: d.version.partition("+")[0] for d in abi.dists if d.name in FLASHINFER}
    if len(set(parts.values())) < 2:
        return [ok("flashinfer", "its parts agree" if parts else "not installed")]
    said = ", ".join(f"{name} {version}" for name, version in sorted(parts.items()))
    wanted = parts.get("flashinfer-python", max(parts.values()))
    names = " ".join(f"{name}=={wanted}" for name in sorted(parts))
    return [
        block("flashinfer", f"versions differ: {said}", f"{interpreter} -m pip install --no-deps {names}")
    ]


def _tag(dist: Dist, cuda: str, remedy: str, rule: str, torch: Torch | None) -> Finding | None:
    """A +cuXYZ tag against torch's CUDA: another major never loads, another minor may."""
    tag = re.search(r"cu(\d{2})(\d+)", dist.local or "")
    if dist.local == "cpu":
        said = f"{dist.name} {dist.version} has no CUDA code, torch is built for CUDA {cuda}"
        return warn(rule, said, remedy)
    if tag is None or f"{tag.group(1)}.{tag.group(2)}" == ".".join(cuda.split(".")[:2]):
        return None
    said = f"{dist.name} {dist.version} against torch's CUDA {cuda}{f' (torch {torch.version})' if torch else ''}"
    return block(rule, said, remedy) if tag.group(1) != cuda.partition(".")[0] else warn(rule, said, remedy)


def _install(interpreter: str, name: str, which: str) -> str:
    return f"{interpreter} -m pip install --no-deps --force-reinstall {name}, the wheel {which}"


def _short(path: str) -> str:
    return "/".join(path.split("/")[-3:])
