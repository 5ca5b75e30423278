"""`doctor`: the preflight alone: what the host is, what speaks against a deploy, nothing touched."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from ddtree_ops.cli._options import ConfigOpt, HostOpt, JsonOpt

if TYPE_CHECKING:
    from ddtree_ops.config import HostConfig, Inventory
    from ddtree_ops.core.finding import Finding
    from ddtree_ops.units.facts import Facts


def complete_rules(incomplete: str) -> list[str]:
    """Names of rules for shell completion."""
    from ddtree_ops.core.doctor import known

    return [rule for rule in known() if rule.startswith(incomplete)]


def doctor(
    host: HostOpt = None,
    config: ConfigOpt = None,
    json: JsonOpt = False,
    record: Annotated[
        bool,
        typer.Option("--record", help="Write engine, capabilities and model as seen into facts/HOST.yaml."),
    ] = False,
    explain: Annotated[
        str | None,
        typer.Option(
            "--explain",
            metavar="RULE",
            help="Say what a rule is for; no host is asked.",
            autocompletion=complete_rules,
            show_default=False,
        ),
    ] = None,
    verbose: Annotated[
        int, typer.Option("--verbose", "-v", count=True, help="List the rules that hold too.")
    ] = 0,
) -> None:
    """Preflight alone: facts and verdicts, nothing touched. Exit 3 where something speaks against a deploy."""
    from ddtree_ops.cli._common import select
    from ddtree_ops.cli._findings import show
    from ddtree_ops.cli._sinks import document, say
    from ddtree_ops.core.doctor import refusal
    from ddtree_ops.core.errors import OpsError, PreconditionFailed

    if explain is not None:
        _explain(explain, json)
        return
    inventory, hosts = select(config, host)
    shown: dict[str, Any] = {}
    failures: list[OpsError] = []
    for chosen in hosts:
        try:
            findings = check(inventory, chosen, record)
        except OpsError as error:
            shown[chosen.name] = {"error": error.to_json()}
            if len(hosts) > 1:
                say(f"{chosen.name}: {error.what}")
            failures.append(error)
            continue
        shown[chosen.name] = {"findings": [finding.to_json() for finding in findings]}
        show(chosen.name, findings, verbose)
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
    from ddtree_ops.apply.prepare import probe, wanted
    from ddtree_ops.core.doctor import examine
    from ddtree_ops.engine.find import find_series

    facts = _facts(inventory, host)
    series = find_series(host.series, inventory.base)
    with connect(inventory, host) as client:
        seen = probe(client, host, facts, series)
    if record:
        facts = _record(inventory, host, facts, seen)
    return examine(seen, wanted(host, facts, series, None))


def _explain(rule: str, json: bool) -> None:
    """Print what a rule is for. Raises UsageProblem where no rule has that name."""
    from dataclasses import asdict

    from ddtree_ops.cli._findings import explained
    from ddtree_ops.cli._sinks import document
    from ddtree_ops.config.select import did_you_mean
    from ddtree_ops.core.doctor import known
    from ddtree_ops.core.errors import UsageProblem

    rules = known()
    if rule not in rules:
        raise UsageProblem(
            f"no rule of the preflight is named {rule or 'nothing'}{did_you_mean(rule, list(rules))}",
            next=f"ddtree-ops doctor --explain RULE, one of: {', '.join(rules)}",
        )
    if json:
        document({"rule": rule, **asdict(rules[rule])})
    else:
        typer.echo(explained(rule, rules[rule]))


def _facts(inventory: Inventory, host: HostConfig) -> Facts | None:
    from ddtree_ops.units.facts import load_facts

    path = inventory.facts_path(host.name)
    return load_facts(path) if path.exists() else None


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
