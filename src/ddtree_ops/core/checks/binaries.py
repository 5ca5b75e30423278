"""Rules over the engine's binaries: what each asks of torch, CUDA, the driver and the C library must be there."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ddtree_ops.core.checks.binary_facts import SECTION, Binaries, Binary, Missing
from ddtree_ops.core.checks.python_env import interpreter, serving
from ddtree_ops.core.checks.rule import Rule
from ddtree_ops.core.demangle import old_strings, short
from ddtree_ops.core.finding import Finding, Level, ok, warn

if TYPE_CHECKING:
    from ddtree_ops.core.facts_live import Live
    from ddtree_ops.core.wanted import Wanted

#: A start without one of these ends at import; of the others a server may never import one.
REQUIRED = ("torch", "nvidia", "sgl_kernel", "flashinfer", "torchvision")
#: Import name to the distribution that pip knows.
DISTS = {"sgl_kernel": ("sglang-kernel", "sgl-kernel"), "flashinfer": ("flashinfer-python",)}
#: torch's own files without which `import torch` fails; it loads others only where they are used.
TORCH_CORE = (
    "libc10.so",
    "libc10_cuda.so",
    "libtorch.so",
    "libtorch_cpu.so",
    "libtorch_cuda.so",
    "libtorch_python.so",
)
#: Libraries of the system that kernels ask for, and the Debian package of each.
SYSTEM = {
    "libnuma": "libnuma1", "libgomp": "libgomp1", "libibverbs": "libibverbs1", "librdmacm": "librdmacm1",
    "libGL": "libgl1", "libglib-2.0": "libglib2.0-0", "libstdc++": "libstdc++6", "libopenblas": "libopenblas0",
    "libnl-3": "libnl-3-200", "libmpi": "libopenmpi3", "libjpeg": "libjpeg62-turbo", "libpng16": "libpng16-16",
}  # fmt: skip
CUDA_TORCH = ("libc10_cuda.so", "libtorch_cuda.so")


def torch_named(live: Live) -> str:
    """torch with its version, as far as it is known."""
    torch = getattr(live.abi, "torch", None)
    return f"torch {torch.version}" if torch else "torch"


def dist_named(package: str, live: Live) -> str:
    """The distribution of an import name with its version, as installed."""
    names = DISTS.get(package, (package.replace("_", "-"),))
    found = [dist for dist in getattr(live.abi, "dists", ()) if dist.name in names]
    return f"{found[0].name} {found[0].version}" if found else names[0]


def severity(binary: Binary, live: Live) -> Level:
    """BLOCK where a start would end by it. A library that the server may not import is a WARN while it serves."""
    if live.cuda is False:
        return Level.WARN  # --device cpu imports no kernel library
    return Level.BLOCK if binary.package in REQUIRED or not serving(live) else Level.WARN


def judged(libs: Sequence[Binary], live: Live) -> list[Binary]:
    """With --device cpu kernel libraries are not imported: only torch and its companions count."""
    cpu = ("torch", "torchvision", "torchaudio")
    return [one for one in libs if live.cuda is not False or one.package in cpu]


def torch_symbols(facts: Binaries, live: Live, wanted: Wanted) -> list[Finding]:
    """Each library's c10, at and torch symbols are exported by the torch beside it."""
    found = []
    for one in judged(facts.libs, live):
        lacking = [miss for miss in one.missing if miss.source == "torch"]
        package = dist_named(one.package, live).split()[0]
        remedy = _install(live, package, f"built for {torch_named(live)}")
        gone = [lost.name for lost in one.lost if lost.name in CUDA_TORCH]
        if gone:
            said = f"{one.label} needs {gone[0]} of a CUDA build of torch, and {torch_named(live)} has none"
            found.append(Finding("torch-symbols", severity(one, live), said, remedy))
        elif lacking and not _other_strings(lacking, facts):
            more = f" and {one.missing_count - 1} more" if one.missing_count > 1 else ""
            said = (
                f"undefined symbol: {dist_named(one.package, live)}, {one.label}, needs {short(lacking[0].symbol)}"
                f"{more}, which {torch_named(live)} does not have: built for another torch, "
                "not a missing GPU architecture, whatever the CUDA versions say"
            )
            found.append(Finding("torch-symbols", severity(one, live), said, remedy))
    count = len([one for one in facts.libs if one.package not in ("torch", "nvidia")])
    return _first(found) or [
        ok("torch-symbols", f"{count} libraries find every symbol in {torch_named(live)}")
    ]


def string_abi(facts: Binaries, live: Live, wanted: Wanted) -> list[Finding]:
    """Library and torch use the same std::string (_GLIBCXX_USE_CXX11_ABI)."""
    found = []
    for one in judged(facts.libs, live):
        lacking = [miss for miss in one.missing if miss.source == "torch"]
        if lacking and _other_strings(lacking, facts):
            theirs, ours = ("0", "1") if facts.cxx11 else ("1", "0")
            named = next(m for m in lacking if old_strings(m.symbol) is facts.cxx11 or "__cxx11" in m.symbol)
            said = (
                f"{one.label} is built with _GLIBCXX_USE_CXX11_ABI={theirs}, {torch_named(live)} with {ours}: "
                f"undefined symbol {short(named.symbol)} ({named.symbol[:120]})"
            )
            package = dist_named(one.package, live).split()[0]
            remedy = f"rebuild {package} with -D_GLIBCXX_USE_CXX11_ABI={ours}; or " + _install(
                live, package, f"built for {torch_named(live)}"
            )
            found.append(Finding("string-abi", severity(one, live), said, remedy))
    if facts.cxx11 is None and facts.torch_lib:
        found = found or [warn("string-abi", "unknown: torch's libc10 could not be read", None)]
    return _first(found) or [ok("string-abi", "libraries and torch use the same std::string")]


def _other_strings(lacking: Sequence[Missing], facts: Binaries) -> bool:
    """All that is missing and names a string names the other one."""
    old = [
        old_strings(miss.symbol) for miss in lacking if old_strings(miss.symbol) or "__cxx11" in miss.symbol
    ]
    return bool(old) and facts.cxx11 is not None and all(one is facts.cxx11 for one in old)


def library_path(facts: Binaries, live: Live, wanted: Wanted) -> list[Finding]:
    """Every library that a library asks for is found by the unit's loader."""
    found = []
    for one in judged(facts.libs, live):
        for lost in one.lost:
            if lost.name in CUDA_TORCH or (
                lost.elsewhere and (lost.preloaded or one.package in ("torch", "nvidia"))
            ):
                continue  # torch's own import finds its companions by path
            level = severity(one, live)
            if one.package in ("torch", "nvidia") and one.file.rpartition("/")[2] not in TORCH_CORE:
                level = Level.WARN
            other = _other_cuda(lost.name, live)
            if other:
                said = f"{one.label} needs {lost.name}: {other}. One environment, one CUDA major"
                package = dist_named(one.package, live).split()[0]
                remedy = _install(live, package, "for torch's CUDA")
                if one.package not in REQUIRED:
                    remedy = f"{interpreter(live)} -m pip uninstall {package}; or {remedy}"
            elif lost.elsewhere:
                folder = lost.elsewhere.rpartition("/")[0]
                said = (
                    f"{one.label} needs {lost.name}, which the unit's loader does not find; it lies in {folder}. "
                    "A shell with another LD_LIBRARY_PATH would find it"
                )
                remedy = f"Environment=LD_LIBRARY_PATH={folder} in a drop-in of {wanted.service}"
            else:
                said = f"{one.label} needs {lost.name}, which is nowhere on this host"
                debian = SYSTEM.get(lost.name.partition(".so")[0])
                remedy = (
                    f"apt-get install {debian}, there"
                    if debian
                    else f"{interpreter(live)} -m pip install the wheel that brings {lost.name}, or {_other(one, live)}"
                )
            found.append(Finding("library-path", level, said, remedy))
    return _first(found) or [
        ok("library-path", "every library that is asked for is found by the unit's loader")
    ]


def _other_cuda(name: str, live: Live) -> str | None:
    """In words, where a library of CUDA itself is of another major than torch's."""
    asked = re.fullmatch(r"lib(?:cudart|nvrtc|cublas|cublasLt|nvJitLink)\.so\.(\d+)[.\d]*", name)
    torch = getattr(live.abi, "torch", None)
    if asked is None or torch is None or torch.cuda is None or torch.cuda.partition(".")[0] == asked.group(1):
        return None
    return f"it is built for CUDA {asked.group(1)}, {torch_named(live)} for CUDA {torch.cuda}"


def _other(one: Binary, live: Live) -> str:
    return f"{dist_named(one.package, live).split()[0]} built for what is installed"


def cuda_libraries(facts: Binaries, live: Live, wanted: Wanted) -> list[Finding]:
    """CUDA's own libraries (NCCL, cuBLAS, nvJitLink, ...) fit each other: the file that is found has the symbols."""
    found = []
    for one in judged(facts.libs, live):
        for miss in one.missing:
            if miss.source == "torch" or live.cuda is False:
                continue
            said = (
                f"{one.label} needs {short(miss.symbol)}, and {miss.source}, which the loader picks, lacks it"
            )
            wheel = "/nvidia/" in miss.source
            remedy = (
                f"{interpreter(live)} -m pip install --force-reinstall torch's own pins of the nvidia-* wheels"
                if wheel
                else f"take {miss.source.rpartition('/')[0]} out of LD_LIBRARY_PATH of {wanted.service}"
            )
            found.append(Finding("cuda-libraries", severity(one, live), said, remedy))
    return _first(found) or [ok("cuda-libraries", "CUDA's libraries have every symbol that is asked of them")]


def driver_symbols(facts: Binaries, live: Live, wanted: Wanted) -> list[Finding]:
    """Symbols of the driver API (cu...) are in the driver's own libcuda."""
    if live.cuda is False:
        return []
    asking = [one for one in facts.libs if one.driver]
    if asking:
        one = asking[0]
        said = f"{one.label} needs {', '.join(one.driver or ())}, and {facts.libcuda} lacks it: the driver is too old"
        remedy = (
            f"upgrade the NVIDIA driver (of the machine, where {wanted.host} is a container), "
            f"or install an older {dist_named(one.package, live).split()[0]}"
        )
        return [Finding("driver-symbols", severity(one, live), said, remedy)]
    if facts.libcuda is None:
        return [
            warn(
                "driver-symbols",
                "unknown: no libcuda.so.1 in the loader's cache",
                "ldconfig -p | grep libcuda",
            )
        ]
    return [ok("driver-symbols", f"{facts.libcuda} has every driver symbol that is asked of it")]


def c_library(facts: Binaries, live: Live, wanted: Wanted) -> list[Finding]:
    """The C and C++ libraries are as new as the binaries want them, and of the same machine."""
    found = []
    for one in judged(facts.libs, live):
        package = dist_named(one.package, live).split()[0]
        if one.machine and one.machine != facts.machine:
            said = f"{one.label} is built for {one.machine}, this host is {facts.machine}"
            found.append(
                Finding("c-library", severity(one, live), said, _install(live, package, facts.machine))
            )
        for gap in one.versions:
            said = f"{one.label} needs {gap.version}, and {gap.file} ends at {gap.has or 'none of that set'}"
            remedy = f"a newer distribution (or libstdc++), or {package} built for an older one (manylinux)"
            found.append(Finding("c-library", severity(one, live), said, remedy))
    return _first(found) or [ok("c-library", f"glibc {facts.glibc or '?'} and libstdc++ are new enough")]


def readable(facts: Binaries, live: Live, wanted: Wanted) -> list[Finding]:
    """Every file was read: a damaged one fails at import."""
    for one in judged(facts.libs, live):
        if one.error and "no ELF" not in one.error:
            package = dist_named(one.package, live).split()[0]
            return [warn("binaries", f"{one.error}", _install(live, package, "again"))]
    if facts.left:
        said = f"unknown: {facts.left} libraries were not looked at in time"
        return [warn("binaries", said, f"ddtree-ops doctor --host {wanted.host}")]
    return [ok("binaries", f"{len(facts.libs)} libraries were read")]


def _first(found: list[Finding]) -> list[Finding]:
    """The worst finding, the others counted: forty lines about one wrong wheel help nobody."""
    if not found:
        return []
    worst = next((one for one in found if one.level is Level.BLOCK), found[0])
    more = f" (and {len(found) - 1} more like it)" if len(found) > 1 else ""
    return [Finding(worst.rule, worst.level, worst.evidence + more, worst.remedy)]


def _install(live: Live, package: str, which: str) -> str:
    if package in ("torch", "nvidia"):
        return f"{interpreter(live)} -m pip install --force-reinstall torch with its own pins"
    return f"{interpreter(live)} -m pip install --no-deps --force-reinstall {package}, the wheel {which}"


RULES: tuple[Rule[Binaries], ...] = (
    Rule(
        "torch-symbols", SECTION, torch_symbols,
        "A kernel library built for another torch ends the start at import with `undefined symbol`, after the old "
        "server was stopped; versions of packages may agree all the same.",
        ("F001", "F004", "F005", "F008", "F009"),
    ),
    Rule(
        "string-abi", SECTION, string_abi,
        "C++ code compiled with the string of before C++11 does not link with a torch that uses the new one.",
        ("F003",),
    ),
    Rule(
        "library-path", SECTION, library_path,
        "A library that only a shell's LD_LIBRARY_PATH finds, or that is not installed, ends the start at import.",
        ("F011", "F012", "F013"),
    ),
    Rule(
        "cuda-libraries", SECTION, cuda_libraries,
        "An older NCCL, cuBLAS or nvJitLink that comes first on the loader's path lacks what torch asks of it.",
    ),
    Rule(
        "driver-symbols", SECTION, driver_symbols,
        "A kernel library that calls a newer driver API than the host's driver has does not load.",
        ("F007",),
    ),
    Rule(
        "c-library", SECTION, c_library,
        "A wheel for a newer glibc, or for another machine, does not load.",
    ),
    Rule("binaries", SECTION, readable, "A damaged library fails at import."),
)  # fmt: skip
