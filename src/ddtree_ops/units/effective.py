"""Prints the merged unit as systemd would see it: the adopted settings with a release's drop-in applied."""

from __future__ import annotations

from collections.abc import Mapping

from ddtree_ops.units.facts import SecretName, UnitFact
from ddtree_ops.units.quote import quote_assignment
from ddtree_ops.units.unit import RESOLVED

_FIRST = ("Type", "User", "Group", "WorkingDirectory")


def text(unit: UnitFact, mode: str, command: str, ours: Mapping[str, str], secrets_file: str | None) -> str:
    """Return the unit text. A variable that the unit sets to a secret is named in a comment, without its value."""
    name = (unit.fragment.path or "").rpartition("/")[2]
    out = [f"# {name} in mode {mode}: unit file and drop-ins merged"]
    out += _section("Unit", unit.unit_section)
    out += ["", "[Service]"]
    settings = unit.settings
    for key in _FIRST:
        out += _setting(key, settings.get(key))
    if unit.exec and not secrets_file:
        spelled = [n for n, source in unit.exec.secrets.items() if source == "captured"]
        out += [
            f"# ${{{n}}} stands for a value that the unit itself spells out; it is not recorded"
            for n in spelled
        ]
    out.append(f"ExecStart={command}")
    for variable, value in unit.environment.items():
        if variable in ours:
            continue
        if isinstance(value, SecretName):
            out.append(f"# {variable} is set by the unit itself; its value is not recorded")
        else:
            out.append(f"Environment={quote_assignment(variable, value)}")
    out += [f"Environment={quote_assignment(n, v)}" for n, v in ours.items()]
    out += [
        f"EnvironmentFile={'-' if f.optional else ''}{f.path.replace('%', '%%')}"
        for f in unit.environment_files
    ]
    if secrets_file:
        out.append(f"EnvironmentFile={secrets_file}")
    for key, setting in settings.items():
        if key not in _FIRST:
            out += _setting(key, setting)
    out += _section("Install", unit.install_section)
    return "\n".join(out) + "\n"


def _section(name: str, settings: Mapping[str, str | list[str]]) -> list[str]:
    if not settings:
        return []
    return ["", f"[{name}]", *(line for key, value in settings.items() for line in _setting(key, value))]


def _setting(key: str, value: str | list[str] | None) -> list[str]:
    if value is None:
        return []
    values = [value] if isinstance(value, str) else value
    return [f"{key}={v.replace('%', '%%') if key in RESOLVED else v}" for v in values]
