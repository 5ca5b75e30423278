"""Rules on what the service sees in its sandbox: paths it cannot read, its home, its /tmp, its umask."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ddtree_ops.core.checks import unit_files
from ddtree_ops.core.checks.judge import rule
from ddtree_ops.core.checks.rule import Rule, Section
from ddtree_ops.core.checks.unit_files import edit
from ddtree_ops.core.facts_live import Live, Unknown
from ddtree_ops.core.finding import Finding, block, ok, warn
from ddtree_ops.core.wanted import Wanted


@dataclass(frozen=True)
class Path:
    """A path as the service's user sees it. problem: why it cannot be read, None where it can."""

    what: str
    path: str
    exists: bool | None
    problem: str | None


@dataclass(frozen=True)
class Sandbox:
    """What a program sees that runs as the service would. rlimits: (soft, hard), None for no limit. inductor: its cache
    has a directory of its own."""

    uid: int
    umask: int
    home_set: bool
    home: str | None
    home_exists: bool
    tmp_private: bool | None
    inductor: bool
    rlimits: Mapping[str, tuple[int | None, int | None]]
    read: tuple[Path, ...]


def read(raw: Mapping[str, Any]) -> Sandbox:
    """The raw section, typed."""
    home = raw["home"]
    return Sandbox(
        uid=int(raw["uid"]),
        umask=int(raw["umask"]),
        home_set=bool(home["set"]),
        home=home["path"],
        home_exists=bool(home["exists"]),
        tmp_private=raw["tmp_private"],
        inductor=bool(raw["inductor"]),
        rlimits={name: (pair[0], pair[1]) for name, pair in raw["rlimits"].items() if pair is not None},
        read=tuple(Path(i["what"], i["path"], i["exists"], i["problem"]) for i in raw["read"]),
    )


SECTION = Section("sandbox", Sandbox, read)


def _property(live: Live, name: str) -> str:
    unit = live.of(unit_files.SECTION)
    return "" if isinstance(unit, Unknown) else unit.properties.get(name, "")


def _readable(facts: Sandbox, live: Live, wanted: Wanted) -> Iterator[Finding]:
    """Model and engine must be readable as the service's user, inside its sandbox."""
    id, bad = "sandbox-paths", False
    for item in facts.read:
        if item.problem is None:
            continue
        bad = True
        why, fix = _hidden(item.path, live, wanted)
        yield block(
            id,
            f"the {item.what} {item.path} cannot be read in the service's sandbox ({item.problem}){why}",
            fix,
        )
    if not bad:
        yield ok(id, "the service can read its engine and the files that it names")


def _hidden(path: str, live: Live, wanted: Wanted) -> tuple[str, str]:
    home = _property(live, "ProtectHome")
    if home in ("yes", "tmpfs") and path.startswith(("/home/", "/root/", "/run/user/")):
        return (
            f": ProtectHome={home} hides it",
            f"ProtectHome=read-only, or BindReadOnlyPaths={path}; {edit(wanted)}",
        )
    if _property(live, "PrivateTmp") == "yes" and path.startswith(("/tmp/", "/var/tmp/")):
        return ": PrivateTmp=yes hides it", f"move it out of /tmp, or PrivateTmp=no; {edit(wanted)}"
    return "", f"ssh {wanted.host} namei -l {path}; directories 0755 and files 0644 let the service's user in"


def _home(facts: Sandbox, live: Live, wanted: Wanted) -> Iterator[Finding]:
    """Caches are kept under the home directory."""
    id, fix = (
        "sandbox-home",
        f"Environment=HOME=/var/lib/sglang, a directory of the service's user; {edit(wanted)}",
    )
    if facts.home is None or not facts.home_exists:
        yield warn(
            id,
            f"the service has no home directory ({facts.home or 'none known'}): caches and configuration fail",
            fix,
        )
    elif not facts.home_set:
        yield warn(
            id, f"HOME is unset in the service: nvcc, ccache and CUDA's cache do not find {facts.home}", fix
        )
    else:
        yield ok(id, f"HOME is {facts.home}")


def _umask(facts: Sandbox, live: Live, wanted: Wanted) -> Iterator[Finding]:
    """What the service writes may have to be read by others: cache directories, logs, sockets."""
    if facts.umask & 0o055 == 0o055 and facts.uid == 0:
        text = (
            f"UMask={facts.umask:04o} as root: caches that this service fills are closed to every other user"
        )
        yield warn("sandbox-umask", text, f"UMask=0022; {edit(wanted)}")
    else:
        yield ok("sandbox-umask", f"umask {facts.umask:04o}")


def _tmp(facts: Sandbox, live: Live, wanted: Wanted) -> Iterator[Finding]:
    """Inductor keeps its cache in /tmp; systemd empties a private one at each stop."""
    if facts.tmp_private and not facts.inductor:
        text = (
            "/tmp is the unit's own and emptied at each stop: what torch.compile keeps there is compiled anew"
        )
        yield warn(
            "sandbox-tmp",
            text,
            f"Environment=TORCHINDUCTOR_CACHE_DIR=/var/cache/sglang/inductor; {edit(wanted)}",
        )
    elif facts.tmp_private is None:
        yield warn("sandbox-tmp", "unknown: /tmp could not be compared", f"ssh {wanted.host} ls -ld /tmp")
    else:
        yield ok("sandbox-tmp", "compile caches outlive a restart")


RULES: tuple[Rule[Sandbox], ...] = (
    rule(
        SECTION, "sandbox-paths", _readable, "The service cannot read what the preflight saw as root.", "F207"
    ),
    rule(SECTION, "sandbox-home", _home, "Caches have no place, or another one than in a shell."),
    rule(SECTION, "sandbox-umask", _umask, "Files of the service are closed to those who need them.", "F207"),
    rule(SECTION, "sandbox-tmp", _tmp, "Every start is a cold one."),
)
