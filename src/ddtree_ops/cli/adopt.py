"""`adopt`: reads the service that runs on a host into facts/HOST.yaml, and records it there as the baseline."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ddtree_ops.cli._options import ConfigOpt, HostOpt, JsonOpt, YesOpt

if TYPE_CHECKING:
    from pathlib import Path

    from ddtree_ops.config import HostConfig, Inventory
    from ddtree_ops.units.adopt import Adopted
    from ddtree_ops.units.facts import Facts

#: The probe hashes the whole package and measures capabilities: more silence than another call needs.
SILENCE_S = 240.0


def adopt(host: HostOpt = None, config: ConfigOpt = None, yes: YesOpt = False, json: JsonOpt = False) -> None:
    """Read what runs on a host now into facts/HOST.yaml: exactly, with notes on what is lost, or not at all."""
    from ddtree_ops.cli._sinks import document, say

    shown: list[dict[str, Any]] = []
    for inventory, one in _targets(config, host or [], yes, json):
        adopted, changed = take(inventory, one, yes, json)
        path = inventory.facts_path(one.name)
        say(f"{one.name}: {adopted.outcome}: {path}{'' if changed else ' (as it was)'}")
        if adopted.secrets:
            say(f"{one.name}: credentials stay on the host, named here: {', '.join(sorted(adopted.secrets))}")
        shown.append(
            {
                "host": one.name,
                "outcome": adopted.outcome,
                "notes": adopted.notes,
                "facts": str(path),
                "changed": changed,
            }
        )
    if json:
        document({"ok": True, "adopted": shown})


def take(inventory: Inventory, host: HostConfig, yes: bool, machine: bool) -> tuple[Adopted, bool]:
    """Read one host, write its facts, record them there; return what was adopted and whether the facts changed."""
    from ddtree_ops.cli._sinks import say

    adopted, facts = read(inventory, host)
    for note in adopted.notes:
        say(f"{host.name}: note: {note}")
    if facts.unit.exec is None:
        say(
            f"{host.name}: note: there is no {host.service} here; if there should be, correct service: in hosts.yaml"
        )
    changed = _write(inventory.facts_path(host.name), facts, host.name, yes, machine)
    _record(inventory, host, facts)
    return adopted, changed


def _targets(
    config: Path | None, names: list[str], yes: bool, machine: bool
) -> list[tuple[Inventory, HostConfig]]:
    """Return the hosts meant; a plain name that hosts.yaml lacks is added to it once the person agrees."""
    import re

    from ddtree_ops.cli._common import ask, load
    from ddtree_ops.config.model import NAME
    from ddtree_ops.units.inventory_edit import add_host

    inventory = load(config)
    for name in names:
        if name in inventory.hosts or name in inventory.groups or not re.fullmatch(NAME, name):
            continue
        # A typing error must not become a host.
        ask(f"{name} is not in {inventory.path}: add it", yes, machine)
        add_host(inventory.path, name)
        inventory = load(inventory.path)
    return [(inventory, one) for one in inventory.select(names)]


def read(inventory: Inventory, host: HostConfig) -> tuple[Adopted, Facts]:
    """Probe a host and adopt its unit. Raises PreconditionFailed where it cannot be adopted."""
    from ddtree_ops.apply.agent import connect
    from ddtree_ops.core.errors import PreconditionFailed
    from ddtree_ops.units.adopt import Refused, adopt
    from ddtree_ops.units.raw import from_wire

    request = {
        k: getattr(host, k) for k in ("interpreter", "port", "model", "draft") if getattr(host, k) is not None
    }
    with connect(inventory, host) as client:
        answer = client.call("read-unit", request, timeout=SILENCE_S)
    version = (answer.get("capabilities") or {}).get("systemd") or 252
    result = adopt(from_wire(answer["raw"], host.service, int(version)))
    if isinstance(result, Refused):
        raise PreconditionFailed(
            f"{host.service} cannot be adopted: {result.reason}",
            host=host.name,
            meaning="what it does could not be reproduced exactly; nothing was touched",
            serving="the service, as before",
            next=f"systemctl cat {host.service}, on the host",
        )
    return result, _facts(host, result, answer)


def _facts(host: HostConfig, adopted: Adopted, answer: dict[str, Any]) -> Facts:
    from datetime import datetime, timezone

    from ddtree_ops.units.facts import CapabilityFact, EngineFact, Facts, ModelFact

    def known(kind: type[Any], section: str) -> Any:
        found = answer.get(section) or {}
        return kind(**{k: found[k] for k in kind.model_fields if found.get(k) is not None})

    return Facts(
        host=host.name,
        recorded=datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        service=host.service,
        unit=adopted.unit,
        engine=known(EngineFact, "engine"),
        capabilities=known(CapabilityFact, "capabilities"),
        model=known(ModelFact, "model"),
    )


def _write(path: Path, facts: Facts, host: str, yes: bool, machine: bool) -> bool:
    """Write the facts unless nothing but the time differs; ask before other facts are replaced."""
    from ddtree_ops.cli._common import ask
    from ddtree_ops.cli._sinks import say
    from ddtree_ops.units.diff import unified
    from ddtree_ops.units.facts import dump_facts, load_facts

    text = dump_facts(facts)
    if path.exists():
        if load_facts(path).model_copy(update={"recorded": facts.recorded}) == facts:
            return False
        say(unified(path.read_text(encoding="utf-8"), text, str(path), f"{path} (as read now)").rstrip("\n"))
        ask(f"{host}: replace the recorded facts", yes, machine)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return True


def _record(inventory: Inventory, host: HostConfig, facts: Facts) -> None:
    """Record the baseline on the host: the release to go back to before there is another."""
    from ddtree_ops.apply.agent import connect

    with connect(inventory, host) as client:
        client.call("adopt-baseline", {"facts": facts.model_dump(mode="json")})
