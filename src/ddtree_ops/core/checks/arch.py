"""Code for every GPU: the architectures of the binaries against each device, by CUDA's own rules of compatibility."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from ddtree_ops.core.checks.binaries import REQUIRED, dist_named, torch_named
from ddtree_ops.core.checks.binary_facts import SECTION, Binaries, Binary, Group
from ddtree_ops.core.checks.python_env import interpreter
from ddtree_ops.core.checks.rule import Rule
from ddtree_ops.core.checks.toolchain_facts import SECTION as TOOLCHAIN
from ddtree_ops.core.checks.toolchain_facts import Device, Toolchain
from ddtree_ops.core.finding import Finding, block, ok, warn

if TYPE_CHECKING:
    from ddtree_ops.core.facts_live import Live
    from ddtree_ops.core.wanted import Wanted

#: Below this share of a library's kernels it was not built for that GPU; above, the rest is meant for others.
FEW = 0.5

#: Attention backends that are written for some GPUs alone, by the major of their compute capability: what SGLang 0.5.11
#: itself refuses, and where the kernels behind it (FlashMLA, CUTLASS, FlashAttention 3 and 4) have no code.
BACKENDS: dict[str, tuple[int, ...]] = {
    "fa3": (8, 9),
    "dual_chunk_flash_attn": (8, 9),  # it calls fa3
    "fa4": (8, 9, 10, 11, 12),
    "flashmla": (9, 10),
    "cutlass_mla": (10,),
    "trtllm_mla": (10, 11, 12),
    "trtllm_mha": (10,),
}
#: What decodes on more GPUs than it can prefill on.
DECODING: dict[str, tuple[int, ...]] = {"trtllm_mha": (9, 10, 12)}
#: Backends for other makers' devices, and whose.
FOREIGN = {
    "aiter": "AMD's GPUs",
    "wave": "AMD's GPUs",
    "ascend": "Ascend NPUs",
    "intel_amx": "Intel's CPUs",
    "intel_xpu": "Intel's GPUs",
}
_PREFILL, _DECODE = "--prefill-attention-backend", "--decode-attention-backend"


def runs(number: int, group: Group) -> str | None:
    """How code of one fat binary runs on sm_`number`: "cubin", "ptx" or not at all (None).

    Machine code runs on its own major from its minor up; PTX on everything from its number up; an `a` variant of
    either on exactly that GPU, an `f` variant within its major.
    """
    for name in group.cubin:
        arch, kind = _arch(name)
        same = arch // 10 == number // 10
        if arch == number if kind == "a" else same and arch <= number:
            return "cubin"
    for name in group.ptx:
        arch, kind = _arch(name)
        if arch == number if kind == "a" else arch <= number and (kind != "f" or arch // 10 == number // 10):
            return "ptx"
    return None


def _arch(name: str) -> tuple[int, str]:
    return (int(name[:-1]), name[-1]) if name[-1:] in ("a", "f") else (int(name), "")


def share(number: int, groups: Iterable[Group]) -> tuple[float, float]:
    """(share of the fat binaries that run on the GPU, share that needs PTX compiled for it)."""
    total = fits = ptx = 0
    for group in groups:
        how = runs(number, group)
        total += group.count
        fits += group.count if how else 0
        ptx += group.count if how == "ptx" else 0
    return (fits / total, ptx / total) if total else (0.0, 0.0)


def picked(libs: Iterable[Binary], number: int) -> list[Binary]:
    """What sgl_kernel loads at import there: common_ops of sm90 on Hopper, of sm100 on all others, or of no variant.

    Its other files belong to one attention backend each, and are for some GPUs alone (seen in 0.4.2).
    """
    variant = "sm90" if number == 90 else "sm100"
    found = []
    for one in libs:
        folder = one.file.split("/")[-2] if "/" in one.file else ""
        common = one.package == "sgl_kernel" and one.file.rpartition("/")[2].startswith("common_ops")
        if common and one.groups and (not folder.startswith("sm") or folder == variant):
            found.append(one)
    return found


def _seen(live: Live) -> tuple[tuple[Device, ...] | None, str]:
    tools = live.of(TOOLCHAIN)
    if not isinstance(tools, Toolchain):
        return None, tools.why
    return tools.devices, tools.devices_error or "the driver names no GPU"


def kernels(facts: Binaries, live: Live, wanted: Wanted) -> list[Finding]:
    """The kernel library that is picked has code for every GPU that the service sees."""
    if live.cuda is False:
        return []
    devices, why = _seen(live)
    if not devices:
        return [_unknown("gpu-kernels", why, live, wanted)]
    chosen = picked(facts.libs, devices[0].number)
    if not chosen:
        return [warn("gpu-kernels", "unknown: no fat binary of sgl_kernel could be read", None)]
    name = dist_named("sgl_kernel", live)
    thin: list[Finding] = []
    for i, device in enumerate(devices):
        # Every rank loads what the first GPU picks, and some pick by their own: both must run.
        for one in {b.file: b for b in (*chosen, *picked(facts.libs, device.number))}.values():
            fits, _ = share(device.number, one.groups or ())
            said = f"GPU {i} ({device.name}) is sm_{device.number}, and {one.label} of {name} has code for {_list(one)}"
            remedy = (
                f"{interpreter(live)} -m pip install the {name.split()[0]} built for sm_{device.number}, or "
                "CUDA_VISIBLE_DEVICES with GPUs of one kind; memory and graph flags will not help"
            )
            if fits < FEW:
                return [block("gpu-kernels", f"{said}: no kernel image for it", remedy)]
            if device.number < 80 and fits < 1:
                thin.append(warn("gpu-kernels", f"{said}, but not in each kernel ({fits:.0%})", remedy))
    for one in facts.libs:
        if one.package in ("torch", "nvidia", "sgl_kernel") or not one.groups:
            continue
        for i, device in enumerate(devices):
            if share(device.number, one.groups)[0] == 0:
                said = f"GPU {i} ({device.name}) is sm_{device.number}, and {one.label} has code for {_list(one)} only"
                remedy = f"{interpreter(live)} -m pip install a build of {one.package} for it, or a backend without it"
                thin.append(warn("gpu-kernels", said, remedy))
    if thin:
        return thin[:1]
    cards = ", ".join(sorted({f"sm_{device.number}" for device in devices}))
    return [ok("gpu-kernels", f"{name} has code for {cards}")]


def extensions(facts: Binaries, live: Live, wanted: Wanted) -> list[Finding]:
    """Extensions named for one Python (common_ops.cpython-312-…) are for the interpreter of the unit."""
    ours = "".join(str(getattr(live.engine, "python", "")).split(".")[:2])
    by_stem: dict[tuple[str, str], set[str]] = {}
    for one in facts.libs:
        folder, _, name = one.file.rpartition("/")
        stem, *tags = name.split(".")
        tag = re.match(r"cpython-(\d+)", tags[0]) if len(tags) > 1 else None
        # A name without such a tag (abi3, plain) fits any.
        by_stem.setdefault((one.package, f"{folder}/{stem}"), set()).add(tag.group(1) if tag else ours)
    wrong = sorted(
        (package, stem, *sorted(tags)) for (package, stem), tags in by_stem.items() if ours not in tags
    )
    if live.cuda is False or not ours or not wrong:
        return [ok("extension-python", "no extension is named for another Python")] if ours else []
    package, stem, built = wrong[0][:3]
    name = dist_named(package, live)
    said = f"{stem.rpartition('/')[2]} of {name} is built for Python {built[0]}.{built[1:]}, the unit runs {ours[0]}."
    remedy = f"{interpreter(live)} -m pip install --force-reinstall --no-deps {name.split()[0]}"
    made = block if package in REQUIRED else warn
    return [made("extension-python", f"{said}{ours[1:]}: it cannot be imported", remedy)]


def torch(facts: Binaries, live: Live, wanted: Wanted) -> list[Finding]:
    """torch itself has code for every GPU that the service sees."""
    if live.cuda is False:
        return []
    devices, why = _seen(live)
    if not devices:
        return [_unknown("gpu-torch", why, live, wanted)]
    library = next((one for one in facts.libs if one.file.endswith("/libtorch_cuda.so")), None)
    if library is None or not library.groups:
        return [warn("gpu-torch", "unknown: the architectures of libtorch_cuda.so could not be read", None)]
    newest = max(_arch(name)[0] for group in library.groups for name in (*group.cubin, *group.ptx))
    for i, device in enumerate(devices):
        fits, ptx = share(device.number, library.groups)
        said = f"GPU {i} ({device.name}) is sm_{device.number}, and {torch_named(live)} has code for {_list(library)}"
        remedy = f"{interpreter(live)} -m pip install a torch whose list has sm_{device.number} or its major"
        if fits < FEW:
            return [block("gpu-torch", f"{said}: no kernel image for it", remedy)]
        if ptx >= FEW:
            return [
                warn("gpu-torch", f"{said}: compiled from PTX at the first start, which takes long", remedy)
            ]
        if device.number > newest:
            said = f"{said}: newer than the list, of the same major; that normally runs. Watch ptxas and FlashInfer"
            return [warn("gpu-torch", said, remedy)]
    return [ok("gpu-torch", f"{torch_named(live)} has code for every GPU ({_list(library)})")]


def backend(facts: Binaries, live: Live, wanted: Wanted) -> list[Finding]:
    """The attention backend that the arguments name exists for every GPU."""
    tools = live.of(TOOLCHAIN)
    if live.cuda is False or not isinstance(tools, Toolchain):
        return []
    for flag, value in sorted(tools.backends.items()):
        remedy = f"{flag} triton, or flashinfer, in hosts.yaml or the unit"
        if "attention" not in flag:
            continue
        if value in FOREIGN and live.cuda:
            return [block("gpu-backend", f"{flag} {value} is for {FOREIGN[value]}, not for NVIDIA's", remedy)]
        majors = _majors(flag, value, tools.backends)
        for i, device in enumerate(tools.devices or ()):
            if majors is not None and device.number // 10 not in majors:
                said = (
                    f"{flag} {value} has no kernels for GPU {i} ({device.name}, sm_{device.number}), only for compute "
                    f"capability {', '.join(f'{major}.x' for major in majors)}"
                )
                return [block("gpu-backend", said, remedy)]
    return [ok("gpu-backend", "the attention backend fits the GPUs")]


def _majors(flag: str, value: str, given: Mapping[str, str]) -> tuple[int, ...] | None:
    """The GPUs that a backend has kernels for in the part that this flag gives it; None: no limit is known.

    Both parts of --attention-backend may be taken over by flags of their own.
    """
    prefills, decodes = flag == _PREFILL, flag == _DECODE
    if flag == "--attention-backend":
        prefills, decodes = _PREFILL not in given, _DECODE not in given
        if not prefills and not decodes:
            return None
    return DECODING.get(value, BACKENDS.get(value)) if not prefills else BACKENDS.get(value)


def _list(one: Binary) -> str:
    names = {f"sm_{name}" for group in one.groups or () for name in group.cubin}
    names |= {f"compute_{name}" for group in one.groups or () for name in group.ptx}
    return (
        ", ".join(sorted(names, key=lambda name: (name.split("_")[0] != "sm", len(name), name))) or "no GPU"
    )


def _unknown(rule: str, why: str, live: Live, wanted: Wanted) -> Finding:
    said, again = f"unknown: {why}", f"nvidia-smi -L, and ddtree-ops doctor --host {wanted.host}"
    return block(rule, said, again) if live.cuda else warn(rule, said, again)


RULES: tuple[Rule[Binaries], ...] = (
    Rule(
        "extension-python", SECTION, extensions,
        "Python passes over an extension that is named for another version: the package seems to lack its code.",
    ),
    Rule(
        "gpu-kernels", SECTION, kernels,
        "A kernel without code for one of the GPUs fails at graph capture or at the first request, after the weights.",
        ("F029", "F030", "F034"),
    ),
    Rule(
        "gpu-torch", SECTION, torch,
        "A torch without code for the GPU fails at its first operation, minutes into the start.",
        ("F031", "F037"),
    ),
    Rule(
        "gpu-backend", SECTION, backend,
        "An attention backend without kernels for the GPU fails at its first call: no kernel image is available.",
        ("F033",),
    ),
)  # fmt: skip
