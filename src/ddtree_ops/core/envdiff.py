"""Two hosts' packages side by side: what differs, and what that means in words."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ddtree_ops.core import abi as rules
from ddtree_ops.core.errors import PreconditionFailed
from ddtree_ops.core.facts_live import Abi, parse
from ddtree_ops.core.finding import Level

ENGINE = "sglang"
#: Built against one torch or one CUDA, whatever their metadata says: half of a set does not load with half of another.
_BOUND = re.compile(
    r"torch|torch(vision|audio|ao|codec)|torch-.*|(pytorch-)?triton(-.*)?|(sglang|sgl)-kernel|sgl-.*|flashinfer.*|"
    r"nvidia-(?!ml-py$).*|cuda-.*|cupy-.*|(apache-)?tvm-ffi|flash-(attn|mla).*|xformers|deep-(gemm|ep)|tilelang|.*-cu\d\d+"
)


@dataclass(frozen=True)
class Dist:
    """A distribution that the interpreter imports. bound: a binary of it needs a library of torch or CUDA; cudart: CUDA
    majors that its binaries need; pth: files of it that only a site-packages directory runs."""

    name: str
    version: str
    local: str | None
    path: str
    requires: tuple[str, ...]
    bound: bool
    cudart: tuple[str, ...]
    pth: tuple[str, ...]


@dataclass(frozen=True)
class Env:
    """What the service's interpreter on a host imports, the first on sys.path of each name. libc: name and version."""

    host: str
    interpreter: str
    python: str
    soabi: str | None
    platform: str
    libc: tuple[str, str]
    abi: Abi
    dists: Mapping[str, Dist]
    shadowed: Mapping[str, tuple[str, ...]]


@dataclass(frozen=True)
class Row:
    """One line of the comparison. a, b: the versions in words, None where it is not there. bound: as Dist."""

    name: str
    a: str | None
    b: str | None
    bound: bool = False

    @property
    def same(self) -> bool:
        return self.a == self.b


def read(host: str, raw: Mapping[str, Any]) -> Env:
    """The agent's `env` document, typed. Raises PreconditionFailed where it does not fit."""
    try:
        dists = {item["name"]: _dist(item) for item in raw["dists"]}
        found = parse({"abi": raw["builds"]}).abi
        name, version = raw["libc"]
        return Env(
            host=host,
            abi=found if isinstance(found, Abi) else Abi(None, (), (), {}),
            dists=dists,
            libc=(str(name), str(version)),
            shadowed={key: tuple(paths) for key, paths in raw["shadowed"].items()},
            **{key: raw[key] for key in ("interpreter", "python", "soabi", "platform")},
        )
    except (KeyError, TypeError, ValueError) as error:
        raise PreconditionFailed(
            f"the host's list of packages does not fit: {type(error).__name__} {error}", host=host
        ) from None


def _dist(raw: Mapping[str, Any]) -> Dist:
    lists: dict[str, Any] = {key: tuple(raw[key]) for key in ("requires", "cudart", "pth")}
    return Dist(**{key: raw[key] for key in ("name", "version", "local", "path", "bound")}, **lists)


def is_bound(dist: Dist) -> bool:
    """Whether a distribution belongs to the set that is built for one torch and one CUDA."""
    if dist.name == ENGINE:
        return False
    return dist.bound or bool(_BOUND.fullmatch(dist.name) or re.match(r"cu\d", dist.local or ""))


def rows(a: Env, b: Env) -> list[Row]:
    """Interpreter, C library, then every distribution of either; the CUDA-bound ones first."""
    found = [
        Row("python", a.python, b.python),
        Row("interpreter ABI", a.soabi, b.soabi),
        Row("platform", a.platform, b.platform),
        Row("C library", " ".join(a.libc), " ".join(b.libc)),
    ]
    for name in sorted({*a.dists, *b.dists}):
        one, two = a.dists.get(name), b.dists.get(name)
        bound = any(is_bound(dist) for dist in (one, two) if dist is not None)
        found.append(Row(name, _version(a, one), _version(b, two), bound))
    return sorted(found, key=lambda row: (row.name in {*a.dists, *b.dists}, not row.bound))


def _version(env: Env, dist: Dist | None) -> str | None:
    """`2.11.0+cu130`; what a build is for where its version does not say: `2.11.0 (CUDA 13.0)`."""
    if dist is None:
        return None
    if dist.name == "torch" and env.abi.torch is not None:
        built = env.abi.torch
        version = built.version or dist.version
        if built.cuda and "+cu" not in version:
            return f"{version} (CUDA {built.cuda})"
        return version
    needs = ", ".join(f"libcudart.so.{major}" for major in dist.cudart)
    return f"{dist.version} (needs {needs})" if needs else dist.version


def details(env: Env, name: str) -> dict[str, Any] | None:
    """{version, local, cuda, cudart, path, shadowed} of a distribution as `env diff --json` prints it; cuda: the build
    that torch/version.py states; shadowed: further installations of it that are not imported."""
    dist = env.dists.get(name)
    if dist is None:
        return None
    torch = env.abi.torch if name == "torch" else None
    return {
        "version": torch.version if torch else dist.version,
        "local": dist.local,
        "cuda": torch.cuda if torch else None,
        "cudart": list(dist.cudart),
        "path": dist.path,
        "shadowed": list(env.shadowed.get(name, ())),
    }


def consequences(a: Env, b: Env) -> list[str]:
    """What the differences, and each host's own mix, mean for a server; a sentence each."""
    found = [*mixed(a), *mixed(b)]
    if a.soabi != b.soabi or a.platform != b.platform:
        found.append(
            f"{a.host} has {a.soabi} on {a.platform}, {b.host} {b.soabi} on {b.platform}: compiled packages of one do "
            "not load in the other, so env sync is refused"
        )
    elif older := older_libc(a, b):
        found.append(older)
    found += [said for name in _SAYS for said in _differing(a, b, name)]
    for name in ("torch", *rules.KERNELS, "triton", "flashinfer-python"):
        for has, lacks in ((a, b), (b, a)):
            if name in has.dists and name not in lacks.dists and not _renamed(name, lacks):
                found.append(f"{lacks.host} lacks {name}, which {has.host} has ({has.dists[name].version})")
    return found


_SAYS = {
    "torch": "a kernel wheel built against one does not load in the other",
    "sglang-kernel": "their kernels are not the same: what was proved on one is not proved on the other",
    "flashinfer-python": "their attention kernels, and the caches of compiled ones, are not the same",
    "triton": "kernels are compiled anew, and caches of one are of no use to the other",
    ENGINE: "a patch series is made for one release: it fits one of them",
}


def _differing(a: Env, b: Env, name: str) -> list[str]:
    one, two = _version(a, a.dists.get(name)), _version(b, b.dists.get(name))
    if one is None or two is None or one == two:
        return []
    return [f"{a.host} has {name} {one}, {b.host} {two}: {_SAYS[name]}"]


def _renamed(name: str, env: Env) -> bool:
    return name in rules.KERNELS and any(other in env.dists for other in rules.KERNELS)


def mixed(env: Env) -> list[str]:
    """Where one host's own packages do not fit together."""
    torch = env.abi.torch
    if torch is None or torch.cuda is None:
        return []
    major, named = torch.cuda.partition(".")[0], _version(env, env.dists.get("torch")) or torch.version
    found, told = [], set()
    for dist in env.dists.values():
        if dist.cudart and major not in dist.cudart:
            tag = re.match(r"cu\d+", dist.local or "")
            built = tag.group(0) if tag else f"CUDA {', '.join(dist.cudart)}"
            what = "the kernel" if dist.name in rules.KERNELS else "it"
            found.append(
                f"{env.host} has torch {named} and {dist.name} {dist.version} built for {built}: {what} will not load"
            )
            told.add(dist.name)
    for finding in rules.judge(env.abi, None, env.interpreter, env.host):
        if finding.rule == "cuda-kernel" and told & set(rules.KERNELS):
            continue
        if finding.level is not Level.OK and finding.rule != "cuda-build":
            found.append(f"{env.host}: {finding.evidence}")
    return found


def older_libc(a: Env, b: Env) -> str | None:
    """A sentence where `b` has the older C library: binaries ask for symbols of the one that they were linked with."""
    if _numbers(b.libc[1]) >= _numbers(a.libc[1]):
        return None
    older = f"{b.host} has {' '.join(b.libc)}, older than {a.host}'s {a.libc[1]}"
    return f"{older}: packages of {a.host} may not load there"


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version))


def differing(a: Env, b: Env) -> list[str]:
    """Names of CUDA-bound packages that differ."""
    return [row.name for row in rows(a, b) if row.bound and not row.same]
