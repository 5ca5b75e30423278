"""The interpreter's environment: pins between packages, what is missing or installed since, the user's own site."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ddtree_ops.core.checks.rule import Rule, Section
from ddtree_ops.core.finding import Finding, Level, block, ok, warn

if TYPE_CHECKING:
    from ddtree_ops.core.facts_live import Live
    from ddtree_ops.core.wanted import Wanted

#: A wrong version of one of these ends the start; of the others the engine may bear another.
HARD = ("torch", "sglang-kernel", "sgl-kernel", "flashinfer-python")
NAMED = 6
#: torch 2.9.1's own fault, which the engine refuses to start with (F019): Conv3d under cuDNN before this.
CUDNN_TORCH, CUDNN_NEEDED = "2.9.1", (9, 15)


@dataclass(frozen=True)
class Absent:
    """A requirement that the interpreter does not see. elsewhere: a user's own site that holds it."""

    name: str
    elsewhere: str | None


@dataclass(frozen=True)
class PythonEnv:
    """user_dists, site_dists: packages of the engine's stack inside and outside the user's own site. requires: pins
    by the package that makes them. newer: packages installed after the service's main process began."""

    user_site: str | None
    user_dists: tuple[str, ...]
    site_dists: tuple[str, ...]
    pycache_prefix: str | None
    conda: bool
    requires: Mapping[str, Mapping[str, str]]
    versions: Mapping[str, str]
    missing: tuple[Absent, ...]
    newer: tuple[str, ...]
    editable: tuple[tuple[str, str], ...]
    cudnn_check_off: bool


def read(raw: Mapping[str, Any]) -> PythonEnv:
    """The probe's section `python`."""
    return PythonEnv(
        user_site=raw["user_site"],
        user_dists=tuple(raw["user_dists"]),
        site_dists=tuple(raw["site_dists"]),
        pycache_prefix=raw["pycache_prefix"],
        conda=raw["conda"],
        requires={name: dict(pins) for name, pins in raw["requires"].items()},
        versions=dict(raw["versions"]),
        missing=tuple(Absent(one["name"], one["elsewhere"]) for one in raw["missing"]),
        newer=tuple(raw["newer"]),
        editable=tuple((one["name"], one["source"]) for one in raw["editable"]),
        cudnn_check_off=raw["cudnn_check_off"],
    )


SECTION = Section("python", PythonEnv, read)


def serving(live: Live) -> bool:
    """The service runs now, and nothing of its stack was installed since: what may break a start did not break its.

    Without the second, a running process proves nothing: it still holds the files from before.
    """
    state = (getattr(live.service, "active_state", ""), getattr(live.service, "sub_state", ""))
    env = live.of(SECTION)
    return state == ("active", "running") and not (isinstance(env, PythonEnv) and env.newer)


def interpreter(live: Live) -> str:
    """The unit's Python, for commands to type."""
    return getattr(live.launch, "interpreter", None) or "python3"


def pins(env: PythonEnv, live: Live, wanted: Wanted) -> list[Finding]:
    """What the packages require of each other is what is installed."""
    if live.cuda is False:
        return [ok("pins", "--device cpu: the pins are of the GPU builds")]
    have = {**env.versions, **{dist.name: dist.version for dist in getattr(live.abi, "dists", ())}}
    found: list[Finding] = []
    for name, wants in sorted(env.requires.items()):
        for needed, spec in sorted(wants.items()):
            if needed not in have or satisfies(have[needed], spec):
                continue
            said = (
                f"{name} {have.get(name, '')} asks for {needed}{spec}, {needed} {have[needed]} is installed"
            )
            remedy = f"{interpreter(live)} -m pip install --no-deps '{needed}{spec}', in the build for this host's CUDA"
            patch = satisfies(have[needed], _minor(spec))
            hard = (needed in HARD or name in ("torchvision", "torchaudio")) and not patch
            level = Level.BLOCK if hard and not serving(live) else Level.WARN
            found.append(Finding("pins", level, said, remedy))
    worst = [one for one in found if one.level is Level.BLOCK] or found
    if not worst:
        return [ok("pins", "the packages fit what they require of each other")]
    more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
    return [Finding("pins", worst[0].level, worst[0].evidence + more, worst[0].remedy)]


def satisfies(version: str, spec: str) -> bool:
    """Whether a version fits a specifier (==, !=, >=, <=, >, <, ~=); what it cannot read fits."""
    mine = _numbers(version)
    for part in spec.split(","):
        match = re.fullmatch(r"\s*(==|!=|>=|<=|>|<|~=|===)\s*v?([\w.+*!-]+)\s*", part)
        if match is None:
            continue
        sign, text = match.groups()
        theirs = _numbers(text.replace("*", ""))
        length = max(len(mine), len(theirs))
        left, right = (*mine, *[0] * (length - len(mine))), (*theirs, *[0] * (length - len(theirs)))
        if "*" in text:
            left, right = left[: len(theirs)], theirs
        # A post or pre release counts only where both say it: 0.6.8.post1 is not 0.6.8.
        same = left == right and (("*" in text) or _tail(version) == _tail(text) or sign != "==")
        head = max(1, len(theirs) - 1)
        fits = {
            "==": same, "===": same, "!=": not same, ">=": left >= right, "<=": left <= right, ">": left > right,
            "<": left < right, "~=": left >= right and left[:head] == right[:head],
        }  # fmt: skip
        if not fits[sign]:
            return False
    return True


def _numbers(version: str) -> tuple[int, ...]:
    head = re.match(r"\d+(\.\d+)*", version.partition("+")[0])
    return tuple(int(part) for part in head.group().split(".")) if head else ()


def _tail(version: str) -> str:
    return re.sub(r"^\d+(\.\d+)*", "", version.partition("+")[0]).lstrip(".")


def _minor(spec: str) -> str:
    """An exact pin loosened to its first two numbers: ==2.11.0 to ==2.11.*."""
    return re.sub(r"==\s*(\d+\.\d+)[\w.]*", r"==\1.*", spec)


def missing(env: PythonEnv, live: Live, wanted: Wanted) -> list[Finding]:
    """What the engine requires is seen by the unit's own interpreter and user."""
    leaked = [one for one in env.missing if one.elsewhere]
    if leaked:
        names = " ".join(one.name for one in leaked)
        said = (
            f"the engine requires {names}, which only {leaked[0].elsewhere} holds: pip once took a user's own site "
            "(~/.local) for installed, and the unit does not see it"
        )
        remedy = f"PYTHONNOUSERSITE=1 {interpreter(live)} -m pip install {names}"
        return [warn("requirements", said, remedy) if serving(live) else block("requirements", said, remedy)]
    if env.missing and live.cuda is not False:
        names = " ".join(one.name for one in env.missing[:NAMED])
        more = f" and {len(env.missing) - NAMED} more" if len(env.missing) > NAMED else ""
        said = f"the engine requires {names}{more}, not installed there"
        return [warn("requirements", said, f"{interpreter(live)} -m pip install {names}")]
    return [ok("requirements", "what the engine requires is installed")]


def user_site(env: PythonEnv, live: Live, wanted: Wanted) -> list[Finding]:
    """The stack comes from one place: a user's own site comes before the interpreter's and mixes two of them."""
    if env.user_dists and env.site_dists:
        said = (
            f"{', '.join(env.user_dists[:4])} come from {env.user_site}, {', '.join(env.site_dists[:3])} from "
            "elsewhere: another user or HOME sees another stack"
        )
        remedy = (
            f"Environment=PYTHONNOUSERSITE=1 in {wanted.service}, and install them for {interpreter(live)}"
        )
        torch = "torch" in env.user_dists or "sglang" in env.user_dists
        hard = torch and not serving(live)
        return [block("user-site", said, remedy) if hard else warn("user-site", said, remedy)]
    if env.user_dists:
        return [ok("user-site", f"the whole stack is in {env.user_site}")]
    return [ok("user-site", "nothing of the stack comes from a user's own site")]


def newer(env: PythonEnv, live: Live, wanted: Wanted) -> list[Finding]:
    """The running server is what is installed: after an upgrade nobody has ever started that stack."""
    if env.newer:
        said = f"installed after the running server started: {', '.join(env.newer[:6])}; no start has proved them yet"
        return [
            warn(
                "installed-since",
                said,
                f"ddtree-ops deploy --host {wanted.host} --rehearse, or read its smoke",
            )
        ]
    return [ok("installed-since", "nothing of the stack was installed since the server started")]


def editable(env: PythonEnv, live: Live, wanted: Wanted) -> list[Finding]:
    """Packages come from wheels: the source of an editable one changes under a running release."""
    if env.editable:
        name, source = env.editable[0]
        said = (
            f"{name} is an editable install of {source}: whoever edits there changes what the next start runs"
        )
        return [warn("editable", said, f"{interpreter(live)} -m pip install --no-deps {name}, from a wheel")]
    return [ok("editable", "no package of the stack is an editable install")]


def cudnn(env: PythonEnv, live: Live, wanted: Wanted) -> list[Finding]:
    """torch 2.9.1 needs a newer cuDNN than it pins: the engine refuses to start a multimodal model."""
    abi = live.abi
    torch = getattr(abi, "torch", None)
    if (
        live.cuda is False
        or torch is None
        or not torch.version
        or torch.version.partition("+")[0] != CUDNN_TORCH
    ):
        return [ok("cudnn", "no known fault of this torch with cuDNN")]
    dist = next((d for d in getattr(abi, "dists", ()) if re.fullmatch(r"nvidia-cudnn-cu\d+", d.name)), None)
    target = getattr(live.model, "target", None)
    images = any("ConditionalGeneration" in name for name in getattr(target, "architectures", ()))
    if dist is None:
        if target is not None and not images:
            return [ok("cudnn", "the model reads no images, for which alone this torch needs a newer cuDNN")]
        return [
            warn("cudnn", f"torch {torch.version} needs cuDNN 9.15 or newer; its version is unknown", None)
        ]
    if _numbers(dist.version)[:2] >= CUDNN_NEEDED:
        return [ok("cudnn", f"{dist.name} {dist.version} is new enough for torch {torch.version}")]
    said = f"torch {torch.version} with {dist.name} {dist.version}: a fault in Conv3d before cuDNN 9.15"
    remedy = f"{interpreter(live)} -m pip install --no-deps {dist.name}==9.16.0.29"
    if images and not env.cudnn_check_off:
        return [block("cudnn", f"{said}, and the engine refuses to start a model that reads images", remedy)]
    return [warn("cudnn", said, remedy)]


RULES: tuple[Rule[PythonEnv], ...] = (
    Rule(
        "pins", SECTION, pins,
        "A resolver took another torch or kernel than the engine was built for: the start ends at import.",
        ("F004", "F009", "F016"),
    ),
    Rule(
        "requirements", SECTION, missing,
        "A package that only a login shell's user sees is missing in the unit: ModuleNotFoundError at start.",
        ("F215",),
    ),
    Rule(
        "user-site", SECTION, user_site,
        "~/.local comes first on the path: half of the stack may be another version than the one that was installed.",
        ("F015", "F215"),
    ),
    Rule(
        "installed-since", SECTION, newer,
        "An upgrade beside a running server shows only when it is started again.",
    ),
    Rule(
        "editable", SECTION, editable,
        "An editable install is whatever its source directory is at the moment of the start.",
    ),
    Rule(
        "cudnn", SECTION, cudnn,
        "The engine itself refuses torch 2.9.1 with an older cuDNN for models that read images.",
        ("F019",),
    ),
)  # fmt: skip
