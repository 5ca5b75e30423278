"""hosts.yaml from disk to an Inventory, with all of its faults at once."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from ddtree_ops.config.document import Document, read_document
from ddtree_ops.config.model import GroupEntry, HostConfig, HostEntry, Inventory, InventoryFile, Timeouts
from ddtree_ops.config.problems import ConfigProblem, Loc, Problem, dotted
from ddtree_ops.config.secrets import looks_secret
from ddtree_ops.config.select import did_you_mean
from ddtree_ops.core.errors import UsageProblem
from ddtree_ops.core.features import Need

_VERBATIM = frozenset({"environment"})


def discover(explicit: Path | None = None) -> Path:
    """Return the hosts.yaml to use: `explicit`, $DDTREE_OPS_CONFIG, ./hosts.yaml, ./ops/hosts.yaml, XDG's.

    A file that was named is returned even where it is missing, so that the error names it. Raises
    UsageProblem where nothing was named and nothing is there.
    """
    named = explicit or (Path(p) if (p := os.environ.get("DDTREE_OPS_CONFIG")) else None)
    if named:
        return named.expanduser()
    xdg = Path(os.environ.get("XDG_CONFIG_HOME") or "~/.config").expanduser()
    places = [Path("hosts.yaml"), Path("ops/hosts.yaml"), xdg / "ddtree-ops/hosts.yaml"]
    for place in places:
        if place.exists():
            return place
    looked = ", ".join(str(p) for p in places)
    raise UsageProblem(f"no hosts.yaml: looked for {looked}", next="ddtree-ops init")


def load_inventory(path: Path) -> Inventory:
    """Load and check hosts.yaml. Raises ConfigProblem (a UsageProblem) with every fault as file:line:col."""
    document = read_document(path, _VERBATIM)
    problems = list(document.problems)
    parsed: InventoryFile | None = None
    if isinstance(document.data, dict):
        document.data = {k: _blank(v, (k,)) for k, v in document.data.items()}
        try:
            parsed = InventoryFile.model_validate(document.data)
        except ValidationError as error:
            problems += _from_pydantic(error, document)
        problems += _references(document)
    else:
        problems.append(
            Problem(*document.place(()), "", "must be a mapping: version, defaults, groups, hosts")
        )
    if problems or parsed is None:
        # A value that two YAML versions read apart is also of the wrong type: say it once.
        kept = [p for p in problems if p in document.problems or p.path not in document.doubtful]
        raise ConfigProblem(path, kept)
    hosts = {name: _resolve(name, entry, parsed, document, path) for name, entry in parsed.hosts.items()}
    members = {g: tuple(n for n, h in hosts.items() if g in h.groups) for g in parsed.groups}
    return Inventory(path=path.absolute(), hosts=hosts, groups=members)


def _blank(value: Any, loc: Loc) -> Any:
    """Read `ct200:` with nothing after it, a host that only inherits, as an empty mapping."""
    if value is None and loc[0] in ("defaults", "groups"):
        return {}
    if isinstance(value, dict) and loc in (("hosts",), ("groups",)):
        return {k: {} if v is None else v for k, v in value.items()}
    return value


def _resolve(name: str, entry: HostEntry, file: InventoryFile, document: Document, path: Path) -> HostConfig:
    merged: dict[str, Any] = {}
    layers: list[tuple[Loc, GroupEntry | HostEntry]] = [
        (("defaults",), file.defaults),
        *((("groups", g), file.groups[g]) for g in entry.groups),
        (("hosts", name), entry),
    ]
    for loc, layer in layers:
        for key, value in ((k, getattr(layer, k)) for k in layer.model_fields_set):
            if key == "timeouts":
                given = {k: getattr(value, k) for k in value.model_fields_set}
                merged[key] = {**merged.get(key, {}), **given}
            elif key == "environment":
                merged[key] = {**merged.get(key, {}), **value}
            else:
                merged[key] = value
            if key == "requires":
                merged["needs"] = _needs(value, (*loc, key), document, path)
    if "timeouts" in merged:
        times = {Timeouts.model_fields[k].alias or k: v for k, v in merged["timeouts"].items()}
        merged["timeouts"] = Timeouts.model_validate(times)
    merged["groups"] = tuple(entry.groups)
    return HostConfig(name=name, **merged)


def _needs(features: list[str], loc: Loc, document: Document, path: Path) -> tuple[Need, ...]:
    places = (document.place((*loc, index)) for index in range(len(features)))
    return tuple(
        Need(f, f"{path}:{line}:{column}") for f, (line, column) in zip(features, places, strict=True)
    )


def _references(document: Document) -> list[Problem]:
    """Faults that lie between keys: unknown groups, a name that is a host and a group, no host at all."""
    data = document.data
    groups = data.get("groups") if isinstance(data.get("groups"), dict) else {}
    hosts = data.get("hosts") if isinstance(data.get("hosts"), dict) else {}
    found: list[Problem] = []
    if data.get("hosts") == {}:
        found.append(Problem(*document.place(("hosts",)), "hosts", "no host: write at least one"))
    for name, host in hosts.items():
        if name in groups:
            place = document.place(("hosts", name), key=True)
            found.append(Problem(*place, f"hosts.{name}", "a group has the same name: rename one"))
        wanted = host.get("groups") if isinstance(host, dict) else None
        found += _credentials(document, ("hosts", name))
        found += _twice(document, ("hosts", name), host)
        for index, group in enumerate(wanted if isinstance(wanted, list) else []):
            if isinstance(group, str) and group not in groups:
                loc: Loc = ("hosts", name, "groups", index)
                message = f"no group is named {group}{did_you_mean(group, list(groups))}"
                found.append(Problem(*document.place(loc), dotted(loc), message))
    layers = [(("defaults",), data.get("defaults")), *((("groups", n), keys) for n, keys in groups.items())]
    for around, keys in layers:
        found += _credentials(document, around)
        found += _twice(document, around, keys)
    return found


def _twice(document: Document, around: Loc, keys: Any) -> list[Problem]:
    """Features that one `requires` names again: a slip of the hand, mostly for another one."""
    named = keys.get("requires") if isinstance(keys, dict) else None
    named = named if isinstance(named, list) else []
    found: list[Problem] = []
    for index, feature in enumerate(named):
        if isinstance(feature, str) and feature in named[:index]:
            loc: Loc = (*around, "requires", index)
            found.append(Problem(*document.place(loc), dotted(loc), f"{feature} is named twice: drop one"))
    return found


def _credentials(document: Document, around: Loc) -> list[Problem]:
    """Values in an `environment` that are credentials written out."""
    found: list[Problem] = []
    for loc, text in document.texts.items():
        name = str(loc[-1]) if loc else ""
        if loc[:-1] == (*around, "environment") and text and looks_secret(name, text):
            message = f"a credential: write {{secret: env:{name}}}, not its value"
            found.append(Problem(*document.place(loc), dotted(loc), message))
    return found


def _from_pydantic(error: ValidationError, document: Document) -> list[Problem]:
    return [_problem(detail, document) for detail in error.errors(include_url=False, include_input=False)]


def _problem(detail: ErrorDetails, document: Document) -> Problem:
    loc = tuple(part for part in detail["loc"] if part != "[key]")
    bad_key = "[key]" in detail["loc"]
    message = detail["msg"].removeprefix("Value error, ").replace("Input should", "should")
    if detail["type"] == "extra_forbidden":
        bad_key = True
        message = f"unknown key{did_you_mean(str(loc[-1]), _known_keys(loc[:-1]))}"
    elif detail["type"] == "missing":
        loc_hint = {"version": "write `version: 1` at the top", "hosts": "name at least one host"}
        message = f"missing: {loc_hint.get(str(loc[-1]), 'required')}"
    elif bad_key and "waive" in loc:
        pass  # the message says which rule and why
    elif bad_key:
        what = "variable name" if "environment" in loc else "name (letters, digits, . _ -)"
        message = f"not a {what}"
    else:
        message += _got(loc, document)
    return Problem(*document.place(loc, key=bad_key), dotted(loc), message)


def _got(loc: Loc, document: Document) -> str:
    # What stands under `environment` may be a credential that lost its way: never repeated.
    if "environment" in loc or loc not in document.texts:
        return ""
    return f" (here: {document.texts[loc][:60] or 'nothing'})"


def _known_keys(around: Loc) -> list[str]:
    if not around:
        return list(InventoryFile.model_fields)
    if around[-1] == "timeouts":
        return [field.alias or name for name, field in Timeouts.model_fields.items()]
    return list((HostEntry if around[0] == "hosts" else GroupEntry).model_fields)
