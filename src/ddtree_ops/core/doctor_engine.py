"""Preflight rules about the engine's package: version, origin, RECORD, sources of the series."""

from __future__ import annotations

from ddtree_ops.core.facts_live import Engine, Live
from ddtree_ops.core.finding import Finding, block, ok, warn
from ddtree_ops.core.wanted import Wanted

NAMED = 3


def version(engine: Engine, _: Live, wanted: Wanted) -> list[Finding]:
    """The release that the series was made for, from where its wheel put it."""
    if engine.missing or engine.package is None:
        remedy = f"{engine.interpreter} -m pip install sglang=={wanted.version or 'VERSION'}, there"
        return [block("engine", f"sglang is not installed for {engine.interpreter}", remedy)]
    if engine.ignores_pythonpath:
        said = f"{engine.interpreter} is started with -E or -I, which ignores PYTHONPATH: no release can come first"
        return [block("engine", said, "ExecStart= without -E and -I, then ddtree-ops adopt")]
    if engine.version is None:
        said = f"sglang in {engine.package} belongs to no installed distribution"
        remedy = f"remove that directory, or its place from PYTHONPATH and WorkingDirectory, on {wanted.host}"
        if engine.elsewhere:
            return [block("engine", f"{said}: it shadows {engine.elsewhere[0]}", remedy)]
        return [warn("engine", said, remedy)]
    if wanted.version and engine.version != wanted.version:
        said = f"sglang {engine.version} is installed, series {wanted.series} is made for {wanted.version}"
        return [
            block(
                "engine", said, f"hosts.yaml: series: for {wanted.host}, or install sglang=={wanted.version}"
            )
        ]
    return [ok("engine", f"sglang {engine.version} in {engine.package}")]


def record(engine: Engine, _: Live, wanted: Wanted) -> list[Finding]:
    """site-packages must be what the wheel put there: a hand-edited file would travel into every release."""
    found = engine.record
    remedy = (
        f"{engine.interpreter} -m pip install --force-reinstall --no-deps sglang=={engine.version}, there"
    )
    if engine.missing:
        return []
    if not found.present:
        return [warn("record", f"{engine.package} has no RECORD: edits cannot be told", remedy)]
    if found.edited:
        one = found.edited[0]
        more = f" and {len(found.edited) - 1} more" if len(found.edited) > 1 else ""
        said = f"{engine.package}/{one.file} was edited by hand{more}: expected {one.expected}, found {one.found}"
        return [block("record", said, remedy)]
    if found.missing:
        return [block("record", f"{engine.package} lacks {_some(found.missing)}", remedy)]
    if found.extra:
        return [
            block("record", f"{engine.package} has files that no wheel brought: {_some(found.extra)}", remedy)
        ]
    if found.other:
        return [warn("record", f"damaged outside the package: {_some(found.other)}", remedy)]
    return [ok("record", f"{engine.count} files are as the wheel put them")]


def series(engine: Engine, _: Live, wanted: Wanted) -> list[Finding]:
    """The files that the series patches must be its pre-images; anything else is refused, by name and hash."""
    if not wanted.base or engine.missing:
        return []
    found = engine.files
    if set(wanted.base) - set(found):
        return [warn("sources", "the probe did not hash the files of the series", None)]
    patched = [path for path, digest in wanted.patched.items() if found.get(path) == digest]
    if patched and len(patched) == len(wanted.patched):
        said = f"{engine.package} is patched in place already"
        return [block("sources", said, _reinstall(engine, wanted))]
    for path, expected in sorted(wanted.base.items()):
        if found[path] != expected:
            how = "is half-patched" if patched else f"is not what series {wanted.series} was made for"
            said = (
                f"{engine.package}/{path} {how}: expected {expected}, found {found[path] or 'no such file'}"
            )
            return [block("sources", said, _reinstall(engine, wanted))]
    return [
        ok("sources", f"unpatched: all {len(wanted.base)} files are what series {wanted.series} was made for")
    ]


def _reinstall(engine: Engine, wanted: Wanted) -> str:
    version = wanted.version or engine.version
    return f"{engine.interpreter} -m pip install --force-reinstall --no-deps sglang=={version}, there"


def _some(names: tuple[str, ...]) -> str:
    rest = len(names) - NAMED
    return ", ".join(names[:NAMED]) + (f" and {rest} more" if rest > 0 else "")
