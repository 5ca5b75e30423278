"""Which packages of one host make a consistent set on another, and whether they can run there at all."""

from __future__ import annotations

from dataclasses import dataclass

from ddtree_ops.core.envdiff import ENGINE, Dist, Env, is_bound, older_libc
from ddtree_ops.core.errors import PreconditionFailed
from ddtree_ops.core.requirement import needed, satisfies


@dataclass(frozen=True)
class Chosen:
    """What travels, by name, and sentences on what does not although it belongs to the set."""

    names: tuple[str, ...]
    left: tuple[str, ...]


def match(a: Env, b: Env) -> None:
    """Raise PreconditionFailed where packages of `a` cannot run on `b`, naming the difference."""
    for what, one, two in (
        ("interpreter ABI", a.soabi, b.soabi),
        ("Python", _minor(a.python), _minor(b.python)),
        ("platform", a.platform, b.platform),
        ("C library", a.libc[0], b.libc[0]),
    ):
        if one != two or not one:
            raise PreconditionFailed(
                f"the packages of {a.host} do not run here: its {what} is {one}, here it is {two}",
                host=b.host,
                meaning="nothing was touched",
                next=f"the same interpreter on both (interpreter: of {b.host} in hosts.yaml), then again",
            )
    if older := older_libc(a, b):
        raise PreconditionFailed(
            older, host=b.host, meaning="nothing was touched", next=f"build them on a host as old as {b.host}"
        )


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


def choose(a: Env, b: Env) -> Chosen:
    """The packages of `a` that make a consistent set on `b`. Raises PreconditionFailed where one of them cannot travel.

    All of the CUDA-bound set, not only what differs: then the runtime is whole by itself, the same whatever `b` has
    (one digest for a fleet), and nobody's later pip install on `b` can break it; what `b` has already does not travel.
    Of what the set requires besides, only what `b` lacks or has in a version that is not allowed: the rest of `b` is
    what its engine was installed with.
    """
    todo = sorted(name for name, dist in a.dists.items() if is_bound(dist))
    if "torch" not in todo:
        raise PreconditionFailed(
            "there is no torch, so no set to carry over",
            host=a.host,
            next=f"ddtree-ops doctor --host {a.host}",
        )
    chosen: list[str] = []
    left: list[str] = []
    while todo:
        dist = a.dists[todo.pop(0)]
        if dist.name in chosen:
            continue
        here = b.dists.get(dist.name)
        if dist.pth:
            left.append(_stays(dist, here, a, b))
            continue
        chosen.append(dist.name)
        for name, spec in needed(dist.requires):
            other = b.dists.get(name)
            if name in a.dists and name != ENGINE and not (other and satisfies(other.version, spec)):
                todo.append(name)
    return Chosen(tuple(sorted(chosen)), tuple(left))


def _stays(dist: Dist, here: Dist | None, a: Env, b: Env) -> str:
    if here is not None and here.version == dist.version:
        return f"{dist.name} {dist.version} stays {b.host}'s own: only site-packages runs its {dist.pth[0]}"
    raise PreconditionFailed(
        f"{dist.name} {dist.version} cannot be carried over: only site-packages runs its {dist.pth[0]}",
        host=b.host,
        evidence=f"{a.host} has {dist.version}, {b.host} {here.version if here else 'none'}",
        meaning="nothing was touched",
        next=f"{b.interpreter} -m pip install --no-deps {dist.name}=={dist.version}, there, then again",
    )
