"""What `render` does with texts: writes them, or holds them against the committed ones and against systemd."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ddtree_ops.cli._sinks import say
from ddtree_ops.core.errors import PendingChanges, PreconditionFailed

if TYPE_CHECKING:
    from ddtree_ops.units.facts import Facts
    from ddtree_ops.units.render import Rendered


def summary(item: Rendered) -> dict[str, object]:
    """One rendered mode as `--json` shows it."""
    return {
        "host": item.host,
        "mode": item.mode,
        "argv": item.argv,
        "dropped": item.dropped,
        "set": [list(pair) for pair in item.set],
        "added": [{"flag": flag, "reason": reason} for flag, reason in item.added],
        "replaced": [{"flag": flag, "reason": reason} for flag, reason in item.replaced],
        "loses": [vars(loss) for loss in item.loses],
        "notes": item.notes,
        "dropin": item.dropin,
        "effective": item.effective,
    }


def sentence(item: Rendered) -> str:
    """One rendered mode for a person: what it adds and why."""
    lines = [f"{item.host} {item.mode}: {len(item.dropped)} flags dropped, {len(item.set)} set"]
    lines += [f"  {flag} is dropped: {reason}" for flag, reason in item.replaced]
    lines += [f"  {flag} is added: {reason}" for flag, reason in item.added]
    return "\n".join(lines)


def write(files: Mapping[Path, str]) -> None:
    """Write each file whose text differs."""
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists() or path.read_bytes() != text.encode():
            path.write_bytes(text.encode())


def problems(item: Rendered, facts: Facts) -> list[str]:
    """Return what systemd-analyze (where present) and our own lint say against a rendered unit."""
    from ddtree_ops.units import verify
    from ddtree_ops.units.lint import lint
    from ddtree_ops.units.raw import RawFile, RawUnit

    path = f"/etc/systemd/system/{facts.service}"
    missing = {f.path for f in facts.unit.environment_files if f.sha256 is None and not f.optional}
    # Set on the host, though no text here holds their values.
    known = {n for f in facts.unit.environment_files for n in f.names} | set(item.secrets)
    known |= set(facts.unit.exec.secrets if facts.unit.exec else ())
    known |= {n for n, value in facts.unit.environment.items() if not isinstance(value, str)}
    found = [
        f"{item.host} {item.mode}: {finding.level}: {finding.message}"
        for finding in lint(
            RawUnit(facts.service, RawFile(path, item.effective), systemd=facts.capabilities.systemd),
            exists=lambda p: False if p in missing else None,
            known=frozenset(known),
        )
        if finding.level == "error"
    ]
    if verify.available():
        files = {path: item.effective}
        if item.dropin:
            files[f"/run/systemd/system/{facts.service}.d/60-ddtree-trial.conf"] = item.dropin
        found += [
            f"{item.host} {item.mode}: systemd-analyze: {line}"
            for line in verify.verify(files, facts.service)
        ]
    return found


def check(files: Mapping[Path, str], root: Path, whole: bool, found: list[str]) -> None:
    """Compare with the committed files.

    whole: all hosts and modes were rendered, so that a file more is drift too. Raises PendingChanges with the diff on
    stderr, or PreconditionFailed where only verify or lint found something.
    """
    drift = [diff for path, text in files.items() if (diff := _difference(path, text))]
    if whole and root.is_dir():
        extra = sorted(p for p in root.rglob("*") if p.is_file() and p not in files)
        drift += [_removed(path) for path in extra]
    for line in [*drift, *found]:
        say(line.rstrip("\n"))
    if drift:
        raise PendingChanges(
            f"{len(drift)} rendered files differ from what hosts.yaml, facts/ and the series give",
            next="ddtree-ops render --all, then commit rendered/",
        )
    if found:
        raise PreconditionFailed(f"{len(found)} findings in the rendered units", evidence=found[0])


def _difference(path: Path, text: str) -> str:
    from ddtree_ops.units.diff import unified

    committed = path.read_bytes() if path.exists() else None
    if committed == text.encode():
        return ""
    old = "" if committed is None else committed.decode("utf-8", "replace")
    return unified(old, text, str(path) if committed is not None else "/dev/null", f"{path} (rendered)") or (
        f"{path}: differs in bytes that are no UTF-8"
    )


def _removed(path: Path) -> str:
    from ddtree_ops.units.diff import unified

    text = path.read_bytes().decode("utf-8", "replace")
    return unified(text, "", str(path), "/dev/null") or f"{path}: an empty file that nothing renders"
