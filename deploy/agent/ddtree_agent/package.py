"""The engine's installed package: where it is, whether its files are intact, what it was built for."""

import base64
import csv
import json
import os
import re
import subprocess
from typing import Any, Dict, Iterable, List, Optional, Tuple, Union

from . import elf
from .store import file_digest, tree_digest, walk

#: Distributions whose builds must fit together.
BUILDS = re.compile(
    r"^(torch|torchvision|torchaudio|triton|pytorch-triton|sglang|sglang-kernel|sgl-kernel|flashinfer-.*|nvidia-.*"
    r"|cuda-toolkit|vllm|flash-attn.*|deep-gemm|deep-ep|xformers|transformers|apache-tvm-ffi|nixl.*|cupy-cuda\d+x)$"
)
NAMED = 20

# Runs in the engine's interpreter. find_spec of a top-level name imports nothing.
QUERY = """
import json, os, sys
from importlib import metadata, util
where = json.loads(sys.argv[1])
if sys.path and sys.path[0] == "" and where["path0"] != "cwd":
    sys.path[0] = where["path0"]
def spec(name):
    try:
        found = util.find_spec(name)
    except (ImportError, ValueError):
        return None
    if found is None:
        return None
    return found.origin or list(found.submodule_search_locations or [None])[0]
dists, seen = [], set()
for dist in metadata.distributions():
    path = os.path.realpath(str(getattr(dist, "_path", "")))
    name = dist.metadata["Name"]
    if name and path not in seen:
        seen.add(path)
        dists.append([name, dist.version, path])
names = ["sglang", "sgl_kernel", "torch", "triton", "flashinfer", "torchvision", "torchaudio", "vllm", "flash_attn",
    "flashinfer_jit_cache", "flash_attn_2_cuda", "flash_attn_3", "deep_gemm", "deep_ep", "xformers", "mooncake",
    "causal_conv1d_cuda", "selective_scan_cuda", "nixl_ep", "tvm_ffi", "torch_memory_saver"]
site = sys.modules.get("site")
print("@query " + json.dumps({"version": sys.version.split()[0], "executable": sys.executable,
    "prefix": sys.prefix, "base_prefix": sys.base_prefix, "path": sys.path,
    "ignore_environment": bool(sys.flags.ignore_environment),
    "user_site": site.getusersitepackages() if site and site.ENABLE_USER_SITE else None,
    "pycache_prefix": sys.pycache_prefix,
    "modules": {n: spec(n) for n in names}, "dists": dists}))
"""


def hash_tree(root: str) -> Tuple[Dict[str, str], int]:
    """({relpath: sha256}, bytes) of every file under `root` but bytecode; links to files are read through."""
    files: Dict[str, str] = {}
    size = 0
    for name in walk(root):
        path = os.path.join(root, name)
        if os.path.isfile(path):
            files[name] = file_digest(path)
            size += os.path.getsize(path)
    return files, size


def check_record(dist_info: str, package: str, found: Dict[str, str]) -> Dict[str, Any]:
    """Compare an installed distribution with its RECORD (PEP 376; the wheel's own hashes).

    found: hash_tree(package)[0]. Returns {"present": bool, "files": n,
    "edited": [{file, expected, found}], "missing": [file], "extra": [file], "other": [file]}: relative to the
    package, at most 20 of each; `extra` are .py and .so files in the package that no wheel brought, `other`
    the damaged ones outside it.
    """
    try:
        with open(os.path.join(dist_info, "RECORD"), newline="", encoding="utf-8") as file:
            rows = [row for row in csv.reader(file) if len(row) >= 2]
    except OSError:
        return {"present": False, "files": 0, "edited": [], "missing": [], "extra": [], "other": []}
    site = os.path.dirname(dist_info)
    edited: List[Dict[str, str]] = []
    missing: List[str] = []
    other: List[str] = []
    known = set()
    for name, digest in ((row[0], row[1]) for row in rows):
        path = os.path.normpath(os.path.join(site, name))
        inside = path.startswith(package + os.sep)
        if inside:
            known.add(os.path.relpath(path, package))
        if not digest.startswith("sha256="):
            continue  # bytecode and RECORD itself carry no hash
        expected = _hex(digest)
        now = found.get(os.path.relpath(path, package)) if inside else _hash_or_none(path)
        if now == expected:
            continue
        if not inside:
            other.append(path)
        elif now is None:
            missing.append(os.path.relpath(path, package))
        else:
            edited.append({"file": os.path.relpath(path, package), "expected": expected, "found": now})
    extra = sorted(name for name in found if name.endswith((".py", ".so", ".pth")) and name not in known)
    return {
        "present": True,
        "files": len(known),
        "edited": edited[:NAMED],
        "missing": missing[:NAMED],
        "extra": extra[:NAMED],
        "other": other[:NAMED],
    }


def query(
    interpreter: str,
    flags: List[str],
    env: Dict[str, str],
    cwd: str,
    path0: str = "cwd",
    user: Optional[Dict[str, Any]] = None,
    timeout: float = 20,
) -> Dict[str, Any]:
    """Ask the engine's interpreter what it would import, as the service: flags, environment, user.

    Nothing of the engine is imported and no bytecode is written. Returns the QUERY document. Raises
    RuntimeError with the interpreter's own last line, or OSError where it cannot be started.
    """
    try:
        done = subprocess.run(
            [interpreter, *flags, "-c", QUERY, json.dumps({"path0": path0})],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            timeout=timeout,
            env=dict(env, PYTHONDONTWRITEBYTECODE="1"),
            cwd=cwd,
            check=False,
            **(user or {}),
        )
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"{interpreter} gave no answer in {timeout:g} s") from None
    for line in done.stdout.decode("utf-8", "replace").splitlines():
        if line.startswith("@query "):
            answer: Dict[str, Any] = json.loads(line[7:])
            return answer
    tail = done.stderr.decode("utf-8", "replace").strip().splitlines()
    raise RuntimeError(f"{interpreter} ended with {done.returncode}: {tail[-1] if tail else 'no output'}")


def engine(
    asked: Dict[str, Any], files: Union[str, Iterable[str], None] = None, name: str = "sglang"
) -> Dict[str, Any]:
    """The engine package behind a query() answer: place, version, RECORD check, tree digest, file hashes.

    files: relative paths whose hashes to send, or "all". A file that is not there has hash null.
    """
    origin = asked["modules"].get(name)
    dists = [d for d in asked["dists"] if canonical(d[0]) == name]
    if not origin or not origin.endswith("__init__.py"):
        return {"name": name, "package": origin, "version": dists[0][1] if dists else None, "missing": True}
    package = os.path.dirname(os.path.realpath(origin))
    hashes, size = hash_tree(package)
    owner = next((d for d in dists if os.path.dirname(d[2]) == os.path.dirname(package)), None)
    wanted = hashes if files == "all" else {f: hashes.get(f) for f in (files or ())}
    return {
        "name": name,
        "package": package,
        "origin": origin,
        "version": owner[1] if owner else None,
        "dist_info": owner[2] if owner else None,
        "elsewhere": [d[2] for d in dists if d is not owner],
        "record": check_record(owner[2], package, hashes) if owner else {"present": False},
        "tree": tree_digest(hashes),
        "bytes": size,
        "count": len(hashes),
        "files": wanted,
    }


def builds(asked: Dict[str, Any]) -> Dict[str, Any]:
    """Which CUDA each binary was built for; read from files, nothing is imported.

    {torch: {version, cuda, path} | null, dists: [{name, version, local, path, tag}],
    kernels: [{file, needed: [soname]}], duplicates: {name: [dist-info path]}}.
    """
    dists = [(canonical(n), v, p) for n, v, p in asked["dists"]]
    by_name: Dict[str, List[str]] = {}
    for name, _, path in dists:
        by_name.setdefault(name, []).append(path)
    return {
        "torch": _torch(asked["modules"].get("torch")),
        "dists": [
            {"name": n, "version": v, "local": v.partition("+")[2] or None, "path": p, "tag": _wheel_tag(p)}
            for n, v, p in dists
            if BUILDS.match(n)
        ],
        "kernels": _kernels(asked["modules"].get("sgl_kernel")),
        "duplicates": {name: paths for name, paths in by_name.items() if len(paths) > 1},
    }


def canonical(name: str) -> str:
    """A distribution's name as PEP 503 compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _torch(origin: Optional[str]) -> Optional[Dict[str, Any]]:
    # PyPI wheels may lack the +cuXXX suffix: version.py says what the build was.
    if not origin:
        return None
    with open(os.path.join(os.path.dirname(origin), "version.py"), encoding="utf-8") as file:
        text = file.read()
    version = re.search(r"^__version__\s*=\s*['\"](.+?)['\"]", text, re.M)
    cuda = re.search(r"^cuda\b[^=]*=\s*(?:['\"](.+?)['\"]|None)", text, re.M)
    return {
        "version": version.group(1) if version else None,
        "cuda": cuda.group(1) if cuda else None,
        "path": origin,
    }


def _kernels(origin: Optional[str]) -> List[Dict[str, Any]]:
    found: List[Dict[str, Any]] = []
    for folder, _, names in os.walk(os.path.dirname(origin)) if origin else ():
        for name in sorted(names):
            path = os.path.join(folder, name)
            if re.search(r"\.so(\.\d+)*$", name):
                try:
                    found.append({"file": path, "needed": elf.needed(path)})
                except (OSError, ValueError) as error:
                    found.append({"file": path, "error": str(error)})
    return found


def _wheel_tag(dist_info: str) -> Optional[str]:
    try:
        with open(os.path.join(dist_info, "WHEEL"), encoding="utf-8") as file:
            return next((line[5:].strip() for line in file if line.startswith("Tag: ")), None)
    except OSError:
        return None


def _hex(digest: str) -> str:
    raw = digest.partition("=")[2]
    try:
        return base64.urlsafe_b64decode(raw + "=" * (-len(raw) % 4)).hex()
    except ValueError:
        return raw


def _hash_or_none(path: str) -> Optional[str]:
    try:
        return file_digest(path)
    except OSError:
        return None
