"""`doctor`: the preflight alone: what the host is, what speaks against a deploy, nothing touched."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from ddtree_ops.cli._options import ConfigOpt, HostOpt, JsonOpt

if TYPE_CHECKING:
    from ddtree_ops.config import HostConfig, Inventory
    from ddtree_ops.core.finding import Finding
    from ddtree_ops.core.wanted import Wanted
    from ddtree_ops.units.facts import Facts

#: The probe hashes the whole package and measures capabilities: more silence than another call needs.
SILENCE_S = 240.0


def doctor(
    host: HostOpt = None,
    config: ConfigOpt = None,
    json: JsonOpt = False,
    record: Annotated[
        bool,
        typer.Option("--record", help="Write engine, capabilities and model as seen into facts/HOST.yaml."),
    ] = False,
) -> None:
    """Preflight alone: facts and verdicts, nothing touched. Exit 3 where something speaks against a deploy."""
    from ddtree_ops.cli._common import select
    from ddtree_ops.cli._sinks import document, say
    from ddtree_ops.core.doctor import refusal
    from ddtree_ops.core.errors import OpsError, PreconditionFailed

    inventory, hosts = select(config, host)
    shown: dict[str, Any] = {}
    failures: list[OpsError] = []
    for chosen in hosts:
        try:
            findings = check(inventory, chosen, record)
        except OpsError as error:
            shown[chosen.name] = {"error": error.to_json()}
            say(f"{chosen.name}: {error.what}")
            failures.append(error)
            continue
        shown[chosen.name] = {"findings": [finding.to_json() for finding in findings]}
        say(table(chosen.name, findings))
        refused = refusal(findings, chosen.name)
        if refused is not None:
            failures.append(refused)
    if not failures:
        if json:
            document({"ok": True, "hosts": shown})
        return
    worst = failures[0]
    if len(failures) > 1:
        names = ", ".join(str(failure.host) for failure in failures)
        worst = PreconditionFailed(f"preflight fails on {names}", next="read the findings above")
    if not json:
        raise worst
    # One document on stdout: the findings belong into it beside the error.
    document({"ok": False, "error": worst.to_json(), "hosts": shown})
    say(f"ddtree-ops: {worst}")
    raise typer.Exit(worst.exit_code)


def check(inventory: Inventory, host: HostConfig, record: bool) -> list[Finding]:
    """Probe one host and judge what it says. With `record`, write what it says into its facts first."""
    from ddtree_ops.apply.agent import connect
    from ddtree_ops.core.doctor import examine

    facts = _facts(inventory, host)
    wanted = _wanted(inventory, host, facts)
    with connect(inventory, host) as client:
        probe = client.call("probe", request(host, facts, wanted), timeout=SILENCE_S)["facts"]
    if record:
        facts = _record(inventory, host, facts, probe)
        wanted = _wanted(inventory, host, facts)
    return examine(probe, wanted)


def request(host: HostConfig, facts: Facts | None, wanted: Wanted) -> dict[str, Any]:
    """What the agent's probe is asked: hosts.yaml's word first, then the adopted unit's."""
    asked: dict[str, Any] = {"service": host.service, "files": sorted(wanted.base), "measure": True}
    if facts is not None and facts.unit.exec is not None:
        asked["argv"] = facts.unit.exec.argv
    for key in ("interpreter", "port", "model", "draft"):
        if getattr(host, key) is not None:
            asked[key] = getattr(host, key)
    return asked


def table(name: str, findings: list[Finding]) -> str:
    """The findings as a person reads them: worst in front of the eye, each with the command that helps."""
    width = max(len(finding.rule) for finding in findings)
    lines = [f"{name}:"]
    for finding in findings:
        lines.append(f"  {finding.level:<5} {finding.rule:<{width}}  {finding.evidence}")
        if finding.remedy and finding.level != "OK":
            lines.append(f"  {'':<5} {'':<{width}}  → {finding.remedy}")
    return "\n".join(lines)


def _facts(inventory: Inventory, host: HostConfig) -> Facts | None:
    from ddtree_ops.units.facts import load_facts

    path = inventory.facts_path(host.name)
    return load_facts(path) if path.exists() else None


def _wanted(inventory: Inventory, host: HostConfig, facts: Facts | None) -> Wanted:
    from ddtree_ops.core.wanted import Wanted

    base = _base(inventory, host)
    return Wanted(
        host=host.name,
        service=host.service,
        version=base.get("version"),
        series=host.series,
        base=base.get("files", {}),
        recorded=facts.model_dump(mode="json") if facts is not None else None,
    )


def _base(inventory: Inventory, host: HostConfig) -> dict[str, Any]:
    """The series' base.json: the engine release and the pre-images that it was made for. Raises UsageProblem."""
    import json

    from ddtree_ops.core.errors import UsageProblem
    from ddtree_ops.data import data_dir

    shipped = data_dir("engine_patches") / host.series
    path = (shipped if shipped.is_dir() else inventory.base / host.series) / "base.json"
    try:
        loaded: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return loaded
    except (OSError, ValueError) as error:
        raise UsageProblem(
            f"series {host.series}: {path} cannot be read: {error}",
            host=host.name,
            next="hosts.yaml: series: a directory with base.json in it",
        ) from None


def _record(inventory: Inventory, host: HostConfig, facts: Facts | None, probe: dict[str, Any]) -> Facts:
    """Write engine, capabilities and model as probed; the unit stays as adopted. Raises UsageProblem, OSError."""
    from datetime import datetime, timezone

    from ddtree_ops.core.errors import UsageProblem
    from ddtree_ops.units.facts import CapabilityFact, EngineFact, ModelFact, dump_facts

    if facts is None:
        raise UsageProblem(
            "no facts to renew: this host was never adopted",
            host=host.name,
            next=f"ddtree-ops adopt --host {host.name}",
        )
    seen: dict[str, Any] = {"recorded": datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")}
    for key, kind in (("engine", EngineFact), ("capabilities", CapabilityFact), ("model", ModelFact)):
        section = probe.get(key) or {}
        if not section.get("error"):
            known = {k: section[k] for k in kind.model_fields if section.get(k) is not None}
            seen[key] = getattr(facts, key).model_copy(update=known)
    renewed = facts.model_copy(update=seen)
    inventory.facts_path(host.name).write_text(dump_facts(renewed), encoding="utf-8")
    return renewed
