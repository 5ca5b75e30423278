"""Compilers in the unit's own place: what Triton needs on every start of new kernels, and what only JIT code needs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ddtree_ops.core.checks import caches
from ddtree_ops.core.checks.python_env import interpreter, serving
from ddtree_ops.core.checks.rule import Rule
from ddtree_ops.core.checks.toolchain_facts import SECTION, Toolchain
from ddtree_ops.core.finding import Finding, block, ok, warn

if TYPE_CHECKING:
    from ddtree_ops.core.facts_live import Live
    from ddtree_ops.core.wanted import Wanted


def loads(facts: Toolchain, live: Live) -> str | None:
    """Why the next start loads JIT code, in words; None where it may not: a server that runs now in this very
    environment shows what it does without.

    FlashInfer and tvm-ffi start ninja at each load, compiled before or not (read in 0.6.8.post1 and 0.1.15).
    """
    if facts.jit.flashinfer and not facts.jit.flashinfer_aot:
        flag = next((name for name, value in sorted(facts.backends.items()) if "flashinfer" in value), None)
        if flag:
            return f"{flag} {facts.backends[flag]} builds FlashInfer's kernels at start"
        if not serving(live):
            return "FlashInfer brought no compiled kernels (flashinfer-jit-cache)"
    if facts.jit.jit_kernel and not serving(live):
        return "the engine builds its jit_kernel at start"
    return None


def compiles(facts: Toolchain, live: Live) -> str | None:
    """Why the next start compiles CUDA code, in words: it loads some, and the cache for it holds nothing."""
    why = loads(facts, live)
    cold = caches.cold(live, "flashinfer") if why and "FlashInfer" in why else caches.cold(live, "tvm-ffi")
    return f"{why}, and its cache is cold" if why and cold else None


def _lacks(
    rule: str, said: str, remedy: str, facts: Toolchain, live: Live, warm: bool = False
) -> list[Finding]:
    """warm: a warm cache does not help."""
    why = loads(facts, live) if warm else compiles(facts, live)
    if why:
        return [block(rule, f"{said}; {why}", remedy)]
    return [warn(rule, f"{said}; needed only where kernels compile at start", remedy)]


def compiler(facts: Toolchain, live: Live, wanted: Wanted) -> list[Finding]:
    """A C compiler and Python's header: Triton builds a launcher for each new kernel."""
    if live.cuda is False or not facts.jit.triton:
        return [ok("compiler", "no Triton kernel is compiled there")]
    if facts.cc.path is None:
        asked = facts.variables.get("CC")
        said = f"CC={asked} is no program" if asked else "neither gcc nor clang is on the unit's PATH"
        return [block("compiler", f"{said}: Triton cannot build its launchers", "apt-get install gcc, there")]
    if facts.cc.error:
        return [
            block(
                "compiler",
                f"{facts.cc.path} fails: {facts.cc.error}",
                "apt-get install --reinstall gcc, there",
            )
        ]
    if not facts.python_h:
        said = f"Python.h is not in {facts.include}: Triton cannot build its launchers"
        return [block("compiler", said, f"apt-get install python{facts.python}-dev, there")]
    return [ok("compiler", f"{facts.cc.path} {facts.cc.version or ''} and Python.h are there")]


def ninja(facts: Toolchain, live: Live, wanted: Wanted) -> list[Finding]:
    """ninja on the unit's PATH, by which FlashInfer, tvm-ffi and torch build."""
    if live.cuda is False:
        return []
    said, remedy = "", f"{interpreter(live)} -m pip install ninja, and its bin on the unit's PATH"
    if facts.ninja.path is None:
        said = "ninja is not on the unit's PATH"
        if facts.ninja_module:
            folder = interpreter(live).rpartition("/")[0]
            remedy = f"Environment=PATH={folder}:{facts.path or '/usr/bin'} in {wanted.service}"
    elif facts.ninja.error:
        said = f"{facts.ninja.path} fails: {facts.ninja.error}"
    if said:
        return _lacks("ninja", said, remedy, facts, live, warm=True)
    return [ok("ninja", f"ninja {facts.ninja.version} is {facts.ninja.path}")]


#: The newest gcc that nvcc takes, by its own version (host_config.h refuses a newer one).
NEWEST_GCC = (((11, 0), 11), ((12, 0), 12), ((12, 4), 13), ((12, 8), 14), ((13, 0), 15))


def cxx(facts: Toolchain, live: Live, wanted: Wanted) -> list[Finding]:
    """A C++ compiler that nvcc takes."""
    if live.cuda is False:
        return []
    if facts.cxx.path is None or facts.cxx.error:
        said = facts.cxx.error or "no g++ on the unit's PATH, which nvcc and the JIT builds call (cc1plus)"
        return _lacks("cxx", said, "apt-get install g++, there", facts, live)
    mine = _version(facts.cxx.version or "")
    cuda = _version(facts.nvcc.version or "")
    if "clang" in facts.cxx.path or not mine or not cuda:
        return [ok("cxx", f"{facts.cxx.path} {facts.cxx.version or ''}")]
    newest = [limit for since, limit in NEWEST_GCC if cuda >= since]
    if newest and mine[0] > newest[-1]:
        said = f"{facts.cxx.path} is gcc {facts.cxx.version}; nvcc {facts.nvcc.version} takes none after {newest[-1]}"
        remedy = f"apt-get install g++-{newest[-1]}, and Environment=CXX=g++-{newest[-1]} in {wanted.service}"
        return _lacks("cxx", said, remedy, facts, live)
    if facts.jit.jit_kernel and cuda >= (13, 0) and mine[0] < 13:
        # Seen with nvcc 13.0 and gcc 12.2: activation.cuh of 0.5.11 does not compile; with gcc 13.3 it does.
        said = (
            f"gcc {facts.cxx.version} with nvcc {facts.nvcc.version} does not compile the engine's jit_kernel"
        )
        return _lacks(
            "cxx", said, "apt-get install g++-13, and Environment=CXX=g++-13 in the unit", facts, live
        )
    return [ok("cxx", f"{facts.cxx.path} {facts.cxx.version} fits nvcc {facts.nvcc.version}")]


def nvcc(facts: Toolchain, live: Live, wanted: Wanted) -> list[Finding]:
    """nvcc is found, is of torch's CUDA major, and knows every GPU."""
    if live.cuda is False:
        return []
    torch = getattr(live.abi, "torch", None)
    cuda = torch.cuda if torch else None
    install = (
        f"install the CUDA toolkit {cuda or ''} and CUDA_HOME in the unit, or flashinfer-jit-cache".replace(
            "  ", " "
        )
    )
    if facts.nvcc.path is None:
        # Without even a directory for it, the builders give up before they look into a cache.
        gone = not facts.cuda_home.directory
        said = "nvcc is not found (CUDA_HOME, PATH, /usr/local/cuda)"
        return _lacks("nvcc", said, install, facts, live, warm=gone)
    if facts.nvcc.error or facts.nvcc.version is None:
        said = f"{facts.nvcc.path} fails: {facts.nvcc.error or 'it says no version'}"
        return _lacks("nvcc", said, install, facts, live)
    if cuda and facts.nvcc.version.partition(".")[0] != cuda.partition(".")[0]:
        said = f"{facts.nvcc.path} is of CUDA {facts.nvcc.version}, torch of {cuda}"
        return _lacks("nvcc", said, f"CUDA_HOME of a toolkit {cuda} in {wanted.service}", facts, live)
    for device in facts.devices or ():
        number = str(device.number)
        if facts.nvcc_archs is not None and number not in facts.nvcc_archs:
            said = f"nvcc {facts.nvcc.version} cannot compile for {device.name} (sm_{number})"
            return _lacks("nvcc", said, "a CUDA toolkit that lists it in nvcc --list-gpu-arch", facts, live)
        if device.number >= 100 and _version(facts.nvcc.version) < (12, 9):
            said = f"nvcc {facts.nvcc.version} does not know sm_{number}f, by which kernels for {device.name} are built"
            return _lacks("nvcc", said, "a CUDA toolkit 12.9 or newer", facts, live)
    return [ok("nvcc", f"nvcc {facts.nvcc.version} is {facts.nvcc.path}")]


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".") if part.isdigit())


def backend(facts: Toolchain, live: Live, wanted: Wanted) -> list[Finding]:
    """tvm-ffi compiles for the GPU that is there."""
    if live.cuda is False or not facts.jit.jit_kernel:
        return []
    if facts.hipcc:
        said = f"tvm-ffi compiles with AMD's hipcc because of {facts.hipcc}, though the GPUs are NVIDIA's"
        remedy = f"Environment=TVM_FFI_GPU_BACKEND=cuda in {wanted.service}, or a newer apache-tvm-ffi"
        return _lacks("jit-backend", said, remedy, facts, live, warm=True)
    return [ok("jit-backend", "tvm-ffi compiles for CUDA")]


def cuda_home(facts: Toolchain, live: Live, wanted: Wanted) -> list[Finding]:
    """CUDA_HOME is one existing directory with a toolkit's headers."""
    home = facts.cuda_home
    if live.cuda is False:
        return []
    if home.chosen and ":" in home.value:
        said = f"{home.source}={home.value} is a list; it must be one directory, without a colon"
        remedy = f"Environment={home.source}={home.value.strip(':').split(':')[-1]} in a drop-in of {wanted.service}"
        return [block("cuda-home", said, remedy)]
    if home.chosen and not home.directory:
        said = f"{home.source}={home.value} is no directory"
        return _lacks("cuda-home", said, f"correct {home.source} in {wanted.service}", facts, live)
    if home.cudart_header and not home.cuda_fp8:
        said = (
            f"{home.value} has no cuda_fp8.h: that toolkit is too old for the headers that JIT code includes"
        )
        return _lacks("cuda-home", said, f"CUDA_HOME of a newer toolkit in {wanted.service}", facts, live)
    if home.chosen and not home.cudart_header:
        said = f"{home.source}={home.value} has no CUDA headers"
        return _lacks("cuda-home", said, f"{home.source} of a whole toolkit in {wanted.service}", facts, live)
    if home.directory and home.unlinked and facts.jit.flashinfer:
        said = f"no {' and no '.join(home.unlinked)} to link in {home.value}/lib64, its stubs or the system's places"
        remedy = f"Environment=LIBRARY_PATH=the directory of {home.unlinked[0]} (find / -name '{home.unlinked[0]}*')"
        return _lacks(
            "cuda-home", said, f"{remedy} in {wanted.service}, or flashinfer-jit-cache", facts, live
        )
    return [ok("cuda-home", f"{home.value} ({home.source})")]


def ptxas(facts: Toolchain, live: Live, wanted: Wanted) -> list[Finding]:
    """The ptxas that Triton uses assembles for every GPU."""
    if live.cuda is False or not facts.jit.triton:
        return []
    for one in facts.ptxas:
        if one.given and one.error:
            said = f"TRITON_PTXAS_PATH={one.path} does not work: {one.error}"
            return [block("ptxas", said, f"take TRITON_PTXAS_PATH out of {wanted.service}, or correct it")]
        for arch, accepted in sorted(one.accepts.items()):
            if accepted is False:
                said = f"{one.path} ({one.version}) does not know sm_{arch}: every Triton kernel fails there"
                remedy = (
                    "Environment=TRITON_PTXAS_PATH=/usr/local/cuda/bin/ptxas, of a newer CUDA, in the unit"
                )
                return [block("ptxas", said, remedy)]
    unasked = [one.path for one in facts.ptxas if one.error or None in one.accepts.values()]
    if not facts.ptxas or unasked:
        said = f"unknown: {unasked[0]} could not be asked" if unasked else "unknown: no ptxas beside Triton"
        return [warn("ptxas", said, "Environment=TRITON_PTXAS_PATH=/usr/local/cuda/bin/ptxas in the unit")]
    if facts.devices is None:
        return [warn("ptxas", "unknown: no GPU is seen that it could be asked about", "nvidia-smi -L")]
    return [ok("ptxas", f"{facts.ptxas[0].path} {facts.ptxas[0].version} knows every GPU")]


def ldconfig(facts: Toolchain, live: Live, wanted: Wanted) -> list[Finding]:
    """ldconfig, by which Triton finds libcuda."""
    if live.cuda is False or not facts.jit.triton:
        return []
    if facts.variables.get("TRITON_LIBCUDA_PATH"):
        return [ok("ldconfig", "TRITON_LIBCUDA_PATH says where libcuda is")]
    plain = facts.triton_asks is None or "/" not in facts.triton_asks
    found = facts.ldconfig if plain else facts.sbin_ldconfig
    if found:
        return [ok("ldconfig", f"Triton finds {facts.ldconfig or facts.triton_asks}")]
    if plain and facts.triton_asks is None and facts.sbin_ldconfig:
        return [warn("ldconfig", "ldconfig is not on the unit's PATH, only in /sbin", _path(facts, wanted))]
    said = (
        f"Triton calls {facts.triton_asks or 'ldconfig'}, which the unit's PATH ({facts.path}) does not have"
    )
    return [block("ldconfig", said, f"{_path(facts, wanted)}, or TRITON_LIBCUDA_PATH")]


def _path(facts: Toolchain, wanted: Wanted) -> str:
    return (
        f"Environment=PATH={facts.path or '/usr/bin:/bin'}:/usr/sbin:/sbin in a drop-in of {wanted.service}"
    )


RULES: tuple[Rule[Toolchain], ...] = (
    Rule(
        "compiler", SECTION, compiler,
        "Triton compiles a small C launcher for each kernel that it has not seen: no compiler or no Python.h ends it.",
    ),
    Rule(
        "cxx", SECTION, cxx,
        "nvcc hands the host's half of a kernel to g++, and refuses one that is newer than itself.",
    ),
    Rule(
        "ninja", SECTION, ninja,
        "FlashInfer's and tvm-ffi's builds start ninja by name: without it a worker dies and /health waits in vain.",
        ("F038",),
    ),
    Rule(
        "nvcc", SECTION, nvcc,
        "Kernels that compile at start need an nvcc of torch's CUDA that knows the GPU; there is no fallback.",
        ("F039", "F043"),
    ),
    Rule(
        "jit-backend", SECTION, backend,
        "A ROCm directory beside CUDA makes an older tvm-ffi call hipcc for every kernel of the engine's jit_kernel.",
    ),
    Rule(
        "cuda-home", SECTION, cuda_home,
        "CUDA_HOME is pasted into paths: a list, a missing directory or an old toolkit fails in the first build.",
        ("F041", "F042"),
    ),
    Rule(
        "ptxas", SECTION, ptxas,
        "The assembler that Triton brings may be older than the GPU: then no Triton kernel runs at all.",
        ("F035", "F043"),
    ),
    Rule(
        "ldconfig", SECTION, ldconfig,
        "Services have no /sbin on their PATH, and Triton looks for libcuda with ldconfig.",
        ("F045",),
    ),
)  # fmt: skip
