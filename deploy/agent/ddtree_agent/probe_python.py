"""The interpreter's environment: what its packages require, which came after the service's start, and from where."""

import glob
import json
import os
import re
from typing import TYPE_CHECKING, Any, Dict, List, Optional

from . import package
from .layout import OPT

if TYPE_CHECKING:
    from .probe_areas import Context

#: Distributions whose pins of the others decide whether the engine starts.
PINNING = ("sglang", "torchvision", "torchaudio", "sglang-kernel", "sgl-kernel", "flashinfer-python", "vllm")
NAMED = 20
#: Arguments that decide which kernels compile; their values are names of backends, never secrets.
BACKENDS = (
    "--attention-backend", "--prefill-attention-backend", "--decode-attention-backend", "--sampling-backend",
    "--moe-runner-backend", "--speculative-draft-attention-backend", "--mm-attention-backend",
)  # fmt: skip


def toolchain_argument(context: "Context") -> Dict[str, Any]:
    """For inner_toolchain: the backends that the server's arguments name."""
    launch = context.launch
    given = {name: launch.value(name) for name in BACKENDS} if launch else {}
    return {"backends": {k: v for k, v in given.items() if v and re.fullmatch(r"[a-z0-9_]{1,30}", v)}}


def caches_argument(context: "Context") -> Dict[str, Any]:
    """For inner_caches: the version of FlashInfer, under which it keeps what it compiled."""
    dists = context.asked.get("dists") or []
    return {"flashinfer": next((v for n, v, _ in dists if package.canonical(n) == "flashinfer-python"), None)}


def sources_argument(context: "Context") -> Dict[str, Any]:
    """For inner_sources: the engine's package, the series' files in it, and where releases lie."""
    origin = (context.asked.get("modules") or {}).get("sglang")
    files = context.request.get("files")
    return {
        "package": os.path.dirname(os.path.realpath(origin)) if origin else None,
        "files": [name for name in files if name.endswith(".py")][:100] if isinstance(files, list) else [],
        "roots": [{"path": path, "there": os.path.exists(path)} for path in (os.path.join(OPT, "releases"),)],
    }


def python(context: "Context") -> Dict[str, Any]:
    """{user_site, user_dists, site_dists, pycache_prefix, conda, requires, versions, missing, newer, editable,
    cudnn_check_off}.

    user_dists: distributions of the engine's stack in the user's own site. requires: {name: {name: specifier}} of
    pins between packages; versions: what is installed of those. missing: [{name, elsewhere}] what sglang requires and
    the interpreter does not see. newer: what was installed after the service's main process began. editable: [{name,
    source}].
    """
    asked = context.asked
    if "error" in asked:
        return {"error": asked["error"]}
    dists = [(package.canonical(name), version, path) for name, version, path in asked["dists"]]
    user_site = asked.get("user_site")
    ours = [d for d in dists if package.BUILDS.match(d[0])]
    requires = {n: pins(p) for n, _, p in dists if n in PINNING}
    return {
        "user_site": user_site,
        "user_dists": sorted(n for n, _, p in ours if user_site and p.startswith(user_site + os.sep)),
        "site_dists": sorted(n for n, _, p in ours if not (user_site and p.startswith(user_site + os.sep))),
        "pycache_prefix": asked.get("pycache_prefix"),
        "conda": os.path.isdir(os.path.join(asked.get("base_prefix", asked["prefix"]), "conda-meta")),
        "requires": requires,
        "versions": {n: v for n, v, _ in dists if any(n in wants for wants in requires.values())},
        "missing": _missing(dists, asked["version"]),
        "newer": _newer(ours, _started(context.show)),
        "editable": _editable(ours)[:NAMED],
        "cudnn_check_off": context.env.get("SGLANG_DISABLE_CUDNN_CHECK", "").lower() in ("1", "true", "yes"),
    }


def pins(dist_info: str) -> Dict[str, str]:
    """{name: specifier} of Requires-Dist lines that name a version and no condition."""
    return {n: spec for n, spec in _requires(dist_info) if spec}


def _requires(dist_info: str) -> "List[Any]":
    found = []
    try:
        with open(os.path.join(dist_info, "METADATA"), encoding="utf-8", errors="replace") as file:
            for line in file:
                if line in ("\n", "\r\n"):
                    break  # the description follows; a licence before it may hold lines of blanks
                match = re.match(
                    r"Requires-Dist:\s*([A-Za-z0-9._-]+)(?:\[[^\]]*\])?\s*\(?([^;()]*)\)?\s*(;.*)?$", line
                )
                if match and not match.group(3):
                    found.append((package.canonical(match.group(1)), match.group(2).strip()))
    except OSError:
        pass
    return found


def _missing(dists: "List[Any]", version: str) -> List[Dict[str, Optional[str]]]:
    sglang = next((path for name, _, path in dists if name == "sglang"), None)
    have = {name for name, _, _ in dists}
    gone = [name for name, _ in _requires(sglang) if name not in have] if sglang else []
    short = ".".join(version.split(".")[:2])
    places = glob.glob(f"/root/.local/lib/python{short}/site-packages") + glob.glob(
        f"/home/*/.local/lib/python{short}/site-packages"
    )
    elsewhere: Dict[str, str] = {}
    for place in places if gone else ():
        for info in glob.glob(os.path.join(place, "*.dist-info")):
            name = package.canonical(os.path.basename(info)[: -len(".dist-info")].rpartition("-")[0])
            elsewhere.setdefault(name, place)
    return [{"name": name, "elsewhere": elsewhere.get(name)} for name in sorted(set(gone))][:NAMED]


def _started(show: Dict[str, str]) -> Optional[float]:
    """When the service's main process began, by its own clock; None where it does not run."""
    try:
        with open(f"/proc/{int(show.get('MainPID', '0'))}/stat", encoding="ascii", errors="replace") as file:
            ticks = int(file.read().rpartition(")")[2].split()[19])
        with open("/proc/stat", encoding="ascii") as file:
            boot = next(int(line.split()[1]) for line in file if line.startswith("btime"))
        return boot + ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError, StopIteration):
        return None


def _newer(dists: "List[Any]", since: Optional[float]) -> List[str]:
    # The inode's change time: an installer may give files any modification time.
    found = []
    for name, _, path in dists:
        try:
            if since is not None and os.stat(os.path.join(path, "METADATA")).st_ctime > since + 1:
                found.append(name)
        except OSError:
            continue
    return sorted(set(found))[:NAMED]


def _editable(dists: "List[Any]") -> List[Dict[str, str]]:
    found = []
    for name, _, path in dists:
        try:
            with open(os.path.join(path, "direct_url.json"), encoding="utf-8") as file:
                told = json.load(file)
        except (OSError, ValueError):
            continue
        if isinstance(told, dict) and (told.get("dir_info") or {}).get("editable"):
            url = str(told.get("url", ""))
            found.append({"name": name, "source": url[7:] if url.startswith("file://") else "a directory"})
    return found
