"""The engine's binaries against torch, driver and C library of this host, by their ELF tables: nothing is loaded."""

import glob
import os
import re
import time
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Set

from . import fatbin
from .elf_symbols import Elf, gnu_hash
from .loader import Loader, cache

if TYPE_CHECKING:
    from .probe_areas import Context

#: Import names whose libraries are held against torch. Each is in package.QUERY, which says where it lies.
FIRST = 3
PACKAGES = (
    "sgl_kernel", "flashinfer", "torchvision", "torchaudio", "flashinfer_jit_cache", "vllm", "flash_attn",
    "flash_attn_2_cuda", "flash_attn_3", "deep_gemm", "deep_ep", "xformers", "causal_conv1d_cuda",
    "selective_scan_cuda", "nixl_ep", "tvm_ffi", "torch_memory_saver", "mooncake",
)  # fmt: skip
#: Names of torch's own namespaces, and its C interface: the part of a library's symbols that binds it to one torch.
TORCH = re.compile(
    r"^_Z(?:T[VISThv]|GV|GR)?(?:N[rVKRO]*)?(?:3c10|2at|5torch|6caffe2|4c10d)|^(?:aoti_)?torch_"
)
#: At most so many files of one package: those of one build say the same.
PER_PACKAGE, IN_ALL, NAMED, SECONDS = 40, 160, 8, 8.0
#: Names of CUDA's libraries, each with the file that has to define it.
CUDA = (
    ("nccl", "libnccl.so"), ("cudnn", "libcudnn"), ("cublasLt", "libcublasLt.so"), ("cublas", "libcublas.so"),
    ("cusparseLt", "libcusparseLt.so"), ("cusparse", "libcusparse.so"), ("cufft", "libcufft.so"),
    ("curand", "libcurand.so"), ("cusolver", "libcusolver.so"), ("nvrtc", "libnvrtc.so"),
    ("nvJitLink", "libnvJitLink.so"), ("__nvJitLink", "libnvJitLink.so"), ("nvshmem", "libnvshmem"),
    ("cupti", "libcupti.so"), ("cufile", "libcufile.so"), ("cuda", "libcudart.so"),
)  # fmt: skip
DRIVER = re.compile(r"^cu[A-Z]\w*$")
CORE = re.compile(r"/lib(c10|c10_cuda|torch|torch_\w+)\.so$")
LIBRARY = re.compile(r"\.so(\.\d+)*$")
FAULTS = ("error", "missing", "lost", "versions", "driver")


def binaries(context: "Context") -> Dict[str, Any]:
    """The section: {torch, host, libcuda, libs: [one of _one()], left}; left: how many the limits left out."""
    asked = context.asked
    if "error" in asked:
        return {"error": asked["error"]}
    origins = {name: path for name, path in asked["modules"].items() if path}
    return examine(
        origins,
        Loader(asked["executable"], context.env.get("LD_LIBRARY_PATH", ""), cache()),
        time.monotonic() + SECONDS,
    )


def examine(origins: Dict[str, str], loader: Loader, deadline: float) -> Dict[str, Any]:
    """origins: {import name: __init__.py or extension}. The loader's order, its files and a time limit are given."""
    torch = origins.get("torch")
    place = os.path.join(os.path.dirname(torch), "lib") if torch else ""
    ours = sorted(glob.glob(os.path.join(place, "*.so"))) if place else []
    loaded = loader.closure(ours)
    # What a start needs comes first, for the time limit.
    jobs = [(name, path) for name in PACKAGES[:FIRST] for path in _files(origins.get(name))]
    jobs += [("torch", path) for path in ours if CORE.search(path)]
    jobs += [("nvidia", path) for path in sorted(loaded.values()) if "/nvidia/" in path]
    jobs += [(name, path) for name in PACKAGES[FIRST:] for path in _files(origins.get(name))]
    left = 0
    loader.loaded = loaded
    libcuda = loader.known.get("libcuda.so.1") or next(
        (p for p in (os.path.join(d, "libcuda.so.1") for d in loader.library_path) if os.path.exists(p)), None
    )
    preloads = _preloads(torch, loader, ours, loaded) if torch else set()
    libs: List[Dict[str, Any]] = []
    for name, path in jobs:
        if len(libs) >= IN_ALL or time.monotonic() > deadline:
            left += 1
            continue
        libs.append(dict(_one(path, loader, loaded, libcuda, preloads), package=name))
    for kept in libs:
        if kept["package"] == "nvidia":
            kept.pop("groups", None)  # they bring code for all GPUs, in more kinds than are worth sending
    interesting = [k for k in libs if k["package"] != "nvidia" or any(k.get(f) for f in FAULTS)]
    return {
        "torch": {"lib": place, "cxx11": _cxx11(loader, place)} if torch else None,
        "host": {"machine": os.uname().machine, "glibc": _glibc()},
        "libcuda": libcuda,
        "libs": interesting,
        "seen": len(libs),
        "left": left,
    }


def _one(
    path: str, loader: Loader, loaded: Dict[str, str], libcuda: Optional[str], preloads: Set[str]
) -> Dict[str, Any]:
    """{file, needed, machine, missing, missing_count, lost, driver, versions, groups}, or {file, error}.

    missing: [{symbol, from}] that no library defines which it can see. lost: [{name, elsewhere, preloaded}] it asks
    for and the loader does not find. driver: symbols that the driver's libcuda lacks, null where there is no libcuda.
    versions: [{file, version, has}].
    """
    try:
        elf = Elf(path)
        return _held(elf, loader, loaded, libcuda, preloads)
    except (OSError, ValueError) as error:
        return {"file": path, "error": str(error)}
    except Exception as error:  # damage deeper in the tables
        return {"file": path, "error": f"{path}: damaged ELF file ({type(error).__name__})"}


def _held(
    elf: Elf, loader: Loader, loaded: Dict[str, str], libcuda: Optional[str], preloads: Set[str]
) -> Dict[str, Any]:
    found = {name: loader.find(name, elf) for name in elf.needed}
    lost = [
        {
            "name": name,
            "elsewhere": _elsewhere(name, loader, loaded),
            "preloaded": name.split(".so")[0] in preloads,
        }
        for name, place in found.items()
        if place is None and not name.startswith("libcuda.so")
    ]
    visible = loader.closure([elf.path])
    visible.update({name: path for name, path in loaded.items() if name not in visible})
    # torch's own first: most of what is looked for is there.
    ordered = sorted(visible.values(), key=lambda path: "/torch/lib/" not in path)
    scope = [one for one in (loader.open(path) for path in ordered) if one is not None]
    missing, driver = [], []
    libraries = {name: path for name, path in visible.items() if name.startswith("libc10") or "torch" in name}
    nvidia = loader.open(libcuda) if libcuda else None
    for symbol in elf.undefined():
        source = _source(symbol)
        is_driver = DRIVER.match(symbol) is not None
        if source is None and not is_driver:
            continue
        value = gnu_hash(symbol)
        if any(one.defines(symbol, value) for one in scope):
            continue
        if is_driver:
            if nvidia is not None and not nvidia.defines(symbol, value):
                driver.append(symbol)
        elif source == "torch":
            if libraries:
                missing.append({"symbol": symbol, "from": "torch"})
        else:
            given = next((path for name, path in visible.items() if name.startswith(str(source))), None)
            if given:  # where it is not loaded at all, `lost` says so
                missing.append({"symbol": symbol, "from": given})
    return {
        "file": elf.path,
        "machine": elf.machine,
        "needed": elf.needed,
        "missing": missing[:NAMED],
        "missing_count": len(missing),
        "lost": lost[:NAMED],
        "driver": driver[:NAMED] if nvidia is not None else None,
        "versions": _versions(elf, loader, found, loaded)[:NAMED],
        "groups": fatbin.groups(elf, most=400, seconds=1.0),
    }


def _source(symbol: str) -> Optional[str]:
    if TORCH.match(symbol):
        return "torch"
    for prefix, library in CUDA:
        if symbol.startswith(prefix) and (prefix != "cuda" or symbol[4:5].isupper()):
            return library
    return None


def _versions(
    elf: Elf, loader: Loader, found: Dict[str, Optional[str]], loaded: Dict[str, str]
) -> List[Dict[str, Any]]:
    gaps = []
    for name, wanted in elf.versions_needed().items():
        place = found.get(name) or loaded.get(name)
        provider = loader.open(place) if place else None
        given = provider.versions_defined() if provider is not None else []
        for version in wanted if given else ():
            if version not in given:
                family = version.split("_")[0] + "_"
                has = [one for one in given if one.startswith(family) and one[len(family) :][:1].isdigit()]
                best = max(has, key=lambda v: [int(n) for n in re.findall(r"\d+", v)], default=None)
                gaps.append({"file": place, "version": version, "has": best})
    return gaps


def _files(origin: Optional[str]) -> List[str]:
    """The libraries of a package, or the one that is a top-level extension; at most PER_PACKAGE."""
    if origin is None:
        return []
    if LIBRARY.search(origin):
        return [origin]
    found = []
    for folder, folders, names in os.walk(os.path.dirname(origin)):
        folders[:] = sorted(f for f in folders if f != "__pycache__")
        found += [os.path.join(folder, name) for name in sorted(names) if LIBRARY.search(name)]
    return found[:PER_PACKAGE]


def _elsewhere(name: str, loader: Loader, loaded: Dict[str, str]) -> Optional[str]:
    """Where a file of that name lies although the loader does not look there."""
    sites = {p.split("/torch/lib/")[0] for p in loaded.values() if "/torch/lib/" in p}
    patterns = [f"{site}/nvidia/*/lib/{name}" for site in sorted(sites)]
    patterns += [f"/usr/local/cuda*/lib64/{name}", f"/usr/local/cuda*/targets/*/lib/{name}"]
    return next((path for pattern in patterns for path in sorted(glob.glob(pattern))), None)


def _preloads(torch: str, loader: Loader, ours: List[str], loaded: Dict[str, str]) -> Set[str]:
    """Libraries that `import torch` itself loads by path from its companions' wheels: "libnvrtc", and so on.

    Newer releases do so on every import, older ones only where their own libraries do not load without.
    """
    try:
        with open(torch, encoding="utf-8", errors="replace") as file:
            text = file.read(400_000)
    except OSError:
        return set()
    opened = [one for one in (loader.open(path) for path in ours) if one is not None]
    always = "/proc/self/maps" in text
    if not always and all(name in loaded or loader.find(name, one) for one in opened for name in one.needed):
        return set()
    return set(re.findall(r"[\"'](lib\w+)\.so\.\*", text))


def _cxx11(loader: Loader, place: str) -> Optional[bool]:
    """torch's _GLIBCXX_USE_CXX11_ABI, by whether libc10's names hold the new string. None where there is no libc10."""
    elf = loader.open(os.path.join(place, "libc10.so"))
    return None if elf is None else elf.map.find(b"__cxx11") >= 0


def _glibc() -> Optional[str]:
    try:
        return (os.confstr("CS_GNU_LIBC_VERSION") or "").replace("glibc ", "") or None
    except (OSError, ValueError):
        return None
