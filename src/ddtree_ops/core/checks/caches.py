"""The directories that compilers and downloads write to: writable, executable, local, whole, and warm or cold."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ddtree_ops.core.checks.cache_facts import SECTION, Caches, Place
from ddtree_ops.core.checks.python_env import serving
from ddtree_ops.core.checks.rule import Rule
from ddtree_ops.core.finding import Finding, Level, ok, warn

if TYPE_CHECKING:
    from ddtree_ops.core.facts_live import Live
    from ddtree_ops.core.wanted import Wanted

MIB = 1 << 20
#: Compilers of kernels; Triton's is used by every release of ours, the others where their code compiles.
COMPILERS = ("triton", "inductor", "flashinfer", "tvm-ffi", "deep-gemm", "torch-extensions")
ALWAYS = ("triton", "tmp")
#: Caches whose loss costs minutes at every start.
KEPT = ("triton", "flashinfer", "tvm-ffi", "deep-gemm")
#: The variable that moves each of them.
VARIABLE = {
    "home": "HOME", "tmp": "TMPDIR", "triton": "TRITON_CACHE_DIR", "inductor": "TORCHINDUCTOR_CACHE_DIR",
    "flashinfer": "FLASHINFER_WORKSPACE_BASE", "tvm-ffi": "TVM_FFI_CACHE_DIR", "deep-gemm": "SGLANG_DG_CACHE_DIR",
    "torch-extensions": "TORCH_EXTENSIONS_DIR", "huggingface": "HF_HOME",
}  # fmt: skip


Judge = Callable[[Caches, "Live", "Wanted"], Sequence[Finding]]


def cold(live: Live, name: str) -> bool:
    """The cache is known to hold nothing compiled."""
    facts = live.of(SECTION)
    place = facts.places.get(name) if isinstance(facts, Caches) else None
    return place is not None and place.compiled == 0


def _level(place: Place, live: Live) -> Level:
    """BLOCK where a start needs it. What a server that runs now did not need is a WARN."""
    if place.name in ALWAYS:
        return Level.BLOCK
    if place.name in ("huggingface", "torch-extensions", "deep-gemm", "home"):
        return Level.WARN
    return Level.WARN if serving(live) else Level.BLOCK


def _used(facts: Caches, live: Live) -> list[Place]:
    """On CPUs only the temporary directory counts for sure."""
    return [place for name, place in facts.places.items() if live.cuda is not False or name == "tmp"]


def _worst(rule: str, found: list[Finding], fine: str) -> list[Finding]:
    if not found:
        return [ok(rule, fine)]
    first = next((one for one in found if one.level is Level.BLOCK), found[0])
    more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
    return [Finding(rule, first.level, first.evidence + more, first.remedy)]


def home(facts: Caches, live: Live, wanted: Wanted) -> list[Finding]:
    """HOME is a directory of the service's user: what no variable places lands there."""
    place = facts.places["home"]
    homeless = [
        one for one in _used(facts, live) if one.source == "HOME" and one.name in (*COMPILERS, "huggingface")
    ]
    bad = place.path == "/" or not place.exists or place.write is False
    if bad and homeless:
        said = f"HOME is {facts.home or 'not set'}" + (
            f" ({place.path} is not writable for uid {facts.uid}: {place.why})"
            if place.write is False
            else ""
        )
        said += (
            f": the caches of {', '.join(one.name for one in homeless[:4])} would lie in {homeless[0].path}"
        )
        remedy = (
            f"Environment=HOME=/var/lib/{wanted.service.removesuffix('.service')} in a drop-in of {wanted.service}, "
            "a directory of the service's user; or TRITON_CACHE_DIR, HF_HOME, XDG_CACHE_HOME"
        )
        broken = [one for one in homeless if one.name == "triton" and one.write is not True]
        return [Finding("home", Level.BLOCK if broken else Level.WARN, said, remedy)]
    return [ok("home", f"{place.path}" if not bad else f"{place.path}; every cache has its own place")]


def write(facts: Caches, live: Live, wanted: Wanted) -> list[Finding]:
    """The service's user can write to each cache."""
    found = []
    for place in _used(facts, live):
        level = _level(place, live)
        if place.file or place.dangling:
            what = "a link to nothing" if place.dangling else "a file"
            remedy = f"mv {place.path} {place.path}.old"
            found.append(Finding("cache-write", level, f"{place.path} is {what}, no directory", remedy))
        elif place.write is False and place.name != "home":
            owner = f", owner uid {place.owner}, mode {place.mode:04o}" if place.mode is not None else ""
            said = f"{place.name} cache {place.path}: uid {facts.uid} cannot write: {place.why} at {place.base}{owner}"
            if "Read-only" in (place.why or ""):
                remedy = (
                    f"ReadWritePaths={place.path} in {wanted.service}, or {VARIABLE[place.name]} elsewhere"
                )
            else:
                remedy = (
                    f"chown -R {facts.uid} {place.base if place.exists else place.path}; or "
                    f"Environment={VARIABLE[place.name]}= a directory of its own, one a user and service"
                )
            found.append(Finding("cache-write", level, said, remedy))
        elif place.write is None:
            found.append(warn("cache-write", f"unknown: {place.path} was not tried", None))
        elif place.foreign and facts.uid != 0:
            said = f"{place.foreign[0]} in the {place.name} cache is not ours to write (uid {facts.uid})"
            found.append(warn("cache-write", said, f"chown -R {facts.uid} {place.path}"))
    return _worst("cache-write", found, f"uid {facts.uid} can write to every cache")


def execute(facts: Caches, live: Live, wanted: Wanted) -> list[Finding]:
    """Compiled code can be loaded from where it lies: no noexec mount."""
    found = []
    for place in _used(facts, live):
        if place.name not in (*COMPILERS, "tmp"):
            continue
        if place.execute is False:
            said = (
                f"{place.name} directory {place.path} lies on a noexec mount: `failed to map segment from shared "
                "object`. The mode of the files does not matter"
            )
            remedy = f"Environment={VARIABLE[place.name]}= a directory on a mount without noexec, in {wanted.service}"
            level = Level.WARN if place.name == "tmp" else _level(place, live)
            found.append(Finding("cache-exec", level, said, remedy))
        elif place.execute is None and place.write:
            found.append(warn("cache-exec", f"unknown: {place.path} was not tried for execution", None))
    return _worst("cache-exec", found, "code can be loaded from every cache")


def place_of(facts: Caches, live: Live, wanted: Wanted) -> list[Finding]:
    """Kernel caches are real local directories that outlive a restart."""
    found = []
    ranks = getattr(live.launch, "tp", 1) or 1
    for place in _used(facts, live):
        if place.name not in KEPT:
            continue
        moved = (
            f"Environment={VARIABLE[place.name]}= a real local directory, in a drop-in of {wanted.service}"
        )
        if place.remote:
            said = f"{place.name} cache {place.path} is on {place.fs}, over the network: {ranks} ranks race in it"
            level = Level.BLOCK if ranks > 1 and place.name in ALWAYS else Level.WARN
            found.append(Finding("cache-place", level, said, moved))
        elif place.exists and place.source == "HOME" and place.real != _straight(place, facts.places["home"]):
            said = (
                f"{place.name} cache {place.path} is a link to {place.real}: several ranks lose files in it"
            )
            found.append(warn("cache-place", said, moved))
        elif place.fs in ("tmpfs", "ramfs", "overlay"):
            said = (
                f"{place.name} cache {place.path} is on {place.fs}, which is lost: each start compiles anew"
            )
            found.append(warn("cache-place", said, f"{moved}, one that is kept"))
        elif place.fs is None:
            found.append(warn("cache-place", f"unknown: what file system holds {place.path}", None))
    return _worst("cache-place", found, "kernel caches are local directories")


def _straight(place: Place, home: Place) -> str:
    """Where the cache would be without a link of its own: a linked home directory is nothing unusual."""
    below = place.path.removeprefix(home.path.rstrip("/") + "/")
    return place.path if below == place.path else f"{home.real.rstrip('/')}/{below}"


def room(facts: Caches, live: Live, wanted: Wanted) -> list[Finding]:
    """There is room for what compilers write."""
    found = []
    for place in _used(facts, live):
        if place.name == "home" or place.bytes is None:
            continue
        little = place.inodes is not None and place.inodes < 1000
        if place.bytes < 1024 * MIB or little:
            hard = (place.bytes < 64 * MIB or little) and place.name in (*ALWAYS, "flashinfer", "tvm-ffi")
            left = f"{place.bytes // MIB} MiB" + (
                f" and {place.inodes} inodes" if place.inodes is not None else ""
            )
            said = f"{place.name} directory {place.path} has {left} left on its file system"
            remedy = f"df -h {place.base}; df -i {place.base}; or {VARIABLE[place.name]} elsewhere"
            found.append(Finding("cache-room", Level.BLOCK if hard else Level.WARN, said, remedy))
    return _worst("cache-room", found, "the caches' file systems have room")


def whole(facts: Caches, live: Live, wanted: Wanted) -> list[Finding]:
    """Nothing in a kernel cache is cut off."""
    found = []
    for place in _used(facts, live):
        if place.broken:
            said = f"{place.broken_count} files in the {place.name} cache are empty or cut off: {place.broken[0]}"
            remedy = f"rm -r {place.broken[0].rpartition('/')[0]}, it is compiled again"
            found.append(
                Finding("cache-whole", _level(place, live) if not serving(live) else Level.WARN, said, remedy)
            )
    return _worst("cache-whole", found, "no file of a kernel cache is cut off")


def locks(facts: Caches, live: Live, wanted: Wanted) -> list[Finding]:
    """No lock of a build that was killed: who waits for it waits for ever."""
    found = [
        warn(
            "cache-locks",
            f"{place.locks_count} locks in the {place.name} cache are older than the boot, of builds that never ended: "
            f"{place.locks[0]}; a start may hang at `Loading JIT ops`",
            f"rm {' '.join(place.locks[:3])}",
        )
        for place in _used(facts, live)
        if place.locks
    ]
    return _worst("cache-locks", found, "no lock is left of a build that was cut off")


def warm(facts: Caches, live: Live, wanted: Wanted) -> list[Finding]:
    """How long the start compiles, and whether several ranks would compile into one cache at once."""
    if live.cuda is False:
        return []
    place = facts.places["triton"]
    triton = next((dist for dist in getattr(live.abi, "dists", ()) if dist.name == "triton"), None)
    ranks = getattr(live.launch, "tp", 1) or 1
    if place.compiled == 0 and ranks > 1 and triton and triton.version.split(".")[0] in ("1", "2"):
        said = f"cold Triton cache, {ranks} ranks and triton {triton.version}, whose ranks race for one temporary file"
        return [
            warn("cache-warm", said, "start once at tp 1 to warm it, or a TRITON_CACHE_DIR for each rank")
        ]
    known = {name: facts.places[name].compiled for name in KEPT if name in facts.places}
    said = ", ".join(f"{name} {'cold' if not count else f'{count} kernels'}" for name, count in known.items())
    return [ok("cache-warm", f"{said}; a cold one costs minutes at the first start")]


def headers(facts: Caches, live: Live, wanted: Wanted) -> list[Finding]:
    """Compiled kernels are of the headers that the series brings: JIT caches do not notice a changed header."""
    touched = sorted(
        path for path in {*wanted.base, *wanted.patched} if path.endswith((".cuh", ".h", ".hpp", ".cu"))
    )
    if not touched or live.cuda is False:
        return [ok("jit-headers", "the series changes no CUDA header")]
    warm_ones = [facts.places[name] for name in ("tvm-ffi", "flashinfer") if facts.places[name].compiled]
    if not warm_ones:
        return [ok("jit-headers", "the series changes CUDA headers, and no compiled kernel is older")]
    said = (
        f"the series changes {touched[0]}, and the {warm_ones[0].name} cache holds kernels compiled from "
        "the old headers: they would go on being used"
    )
    return [warn("jit-headers", said, f"rm -r {warm_ones[0].path}, before the start")]


RULES: tuple[Rule[Caches], ...] = (
    Rule(
        "home", SECTION, home,
        "A unit without HOME, or with /, puts every cache into the root directory and fails with Permission denied.",
        ("F047",),
    ),
    Rule(
        "cache-write", SECTION, write,
        "A cache that an earlier run left to root, or that another user owns, ends the first compile.",
        ("F046", "F049"),
    ),
    Rule(
        "cache-exec", SECTION, execute,
        "Compiled kernels on a noexec mount do not load: `failed to map segment from shared object`.",
        ("F053", "F054"),
    ),
    Rule(
        "cache-place", SECTION, place_of,
        "Ranks that share a cache over NFS or through a link lose each other's files; one that is not kept is cold.",
        ("F050", "F059"),
    ),
    Rule("cache-room", SECTION, room, "A full file system ends a compile in its middle and leaves half a kernel."),
    Rule(
        "cache-whole", SECTION, whole,
        "A kernel or its description cut off by a power cut or a full disk is taken for good and does not load.",
    ),
    Rule(
        "cache-locks", SECTION, locks,
        "The lock of a build that was killed makes the next start wait without a word.",
        ("F055",),
    ),
    Rule(
        "cache-warm", SECTION, warm,
        "A cold cache makes a start minutes longer, and old Tritons race when ranks compile at once.",
        ("F051", "F058"),
    ),
    Rule(
        "jit-headers", SECTION, headers,
        "JIT caches do not track headers: a patched one changes nothing until its kernels are deleted.",
        ("F057",),
    ),
)  # fmt: skip
