"""From a host and a mode to a plan and a release: probe, preflight, snapshot, patch, render. Touches nothing."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ddtree_ops.apply.agent import AgentClient
from ddtree_ops.apply.endpoint import Endpoint, endpoint
from ddtree_ops.apply.secrets import for_host
from ddtree_ops.config.model import HostConfig, Inventory
from ddtree_ops.config.secrets import Secret
from ddtree_ops.core.doctor import drifted, examine, refusal, waived
from ddtree_ops.core.downtime import estimate, over, warnings
from ddtree_ops.core.errors import OpsError, PreconditionFailed, UsageProblem
from ddtree_ops.core.finding import Finding, Level, grouped
from ddtree_ops.core.modes import BASELINE
from ddtree_ops.core.plan import Plan, Preconditions, describe_gate
from ddtree_ops.core.proof import Proof, describe, proven, read_proofs, recorded
from ddtree_ops.core.rehearsal import Small, small
from ddtree_ops.core.steps import deploy_steps
from ddtree_ops.core.wanted import Wanted
from ddtree_ops.engine import snapshot
from ddtree_ops.engine.digests import tree_hashes
from ddtree_ops.engine.find import find_series
from ddtree_ops.engine.patch import Patched, apply_series
from ddtree_ops.engine.release import Release, make_release
from ddtree_ops.engine.series import Series
from ddtree_ops.units.facts import Facts, load_facts
from ddtree_ops.units.guard import flags_at
from ddtree_ops.units.render import Rendered, render

#: Fetching the package of an engine and hashing it say nothing meanwhile (seconds).
_PROBE_SILENCE_S = 180.0
#: So many warnings of the preflight are told in full; the others by name.
_WARNINGS = 6


@dataclass(frozen=True)
class Prepared:
    """Everything that a deploy needs, decided. `expect_state`: what /get_server_info must say; `modules`: what the
    import smoke imports besides its own list; `environment`: the release's, with @RELEASE@ in it; `proven_by`: the
    mode in which this host must have confirmed the same sources; `rehearsal`: the command line of its rehearsal, or why
    there can be none; `gate`: whether its nft can shut the port; `held`: who
    keeps deploys off this host, in words."""

    host: HostConfig
    plan: Plan
    release: Release
    endpoint: Endpoint
    expect_state: Mapping[str, Any]
    modules: list[str]
    environment: Mapping[str, str]
    secrets: Mapping[str, Secret]
    rehearsal: Small | str
    proven_by: str | None = None
    gate: bool = False
    held: str | None = None


def prepare(
    inventory: Inventory,
    host: HostConfig,
    mode: str,
    client: AgentClient,
    on_event: Any,
    accept: Collection[str] = (),
) -> Prepared:
    """Decide a deploy of `mode`. Raises UsageProblem for an unknown mode, PreconditionFailed or HostLocked.

    `accept`: rules of doctor.DRIFT that refuse nothing; what they say stands in the plan's `drift`.
    """
    facts = adopted(inventory, host)
    series = find_series(host.series, inventory.base)
    if mode == BASELINE:
        raise UsageProblem(
            "the baseline is not deployed, it is gone back to",
            host=host.name,
            next=f"ddtree-ops rollback --host {host.name} --to baseline",
        )
    where = endpoint(host, facts)
    rendered = render(host, facts, mode, series.modes)
    if rendered.dropin is None:
        raise PreconditionFailed(
            f"{host.service} does not exist on this host, so there is nothing to change or to go back to",
            host=host.name,
            meaning="nothing was touched",
            next=f"ddtree-ops render --host {host.name} --mode baseline, install that unit, start it, then adopt",
        )
    seen = probe(client, host, facts, series)
    findings = _preflight(host, facts, series, mode, rendered.argv, seen, on_event, accept)
    engine = seen["engine"]
    on_event(
        {"ev": "note", "text": f"sources on the host: sglang {engine['version']}, tree {engine['tree'][:16]}"}
    )
    tree = snapshot.fetch(client, host.name, engine["package"], engine["tree"])
    patched = _patched(series, mode, tree)
    release = _release(engine, tree, patched, mode, rendered, rendered.dropin, host.runtime)
    past = client.call("history", {"limit": 50})
    proofs = read_proofs(past["proven"])
    proof = _proof(host, facts, series, mode, release, proofs)
    # a rollout that others need for their proof is done only once the host's history has it
    known = not series.modes.proves(mode) or recorded(proofs, mode, release.source_digest)
    return Prepared(
        host=host,
        plan=_plan(host, facts, mode, rendered, release, seen, past["history"], proof, findings, known),
        release=release,
        endpoint=where,
        expect_state=rendered.state,
        proven_by=series.modes.get(mode).proven_by,
        gate=facts.capabilities.nft,
        held=(seen["state"].get("hold") or {}).get("text"),
        modules=modules(patched),
        # What the unit itself sets stays with the unit: here are only names for its secrets.
        environment={k: v for k, v in rendered.env.items() if not v.startswith("${")},
        secrets=for_host(inventory.base, host, facts, client),
        rehearsal=small(rendered.argv, flags_at(rendered.argv), series.modes.rehearse),
    )


def adopted(inventory: Inventory, host: HostConfig) -> Facts:
    """The committed facts of a host. Raises PreconditionFailed where it was never adopted."""
    path = inventory.facts_path(host.name)
    if not path.exists():
        raise PreconditionFailed(
            f"{host.name} was never adopted: {path} does not exist",
            host=host.name,
            meaning="what runs there now is not recorded, so there is nothing to go back to; nothing was touched",
            next=f"ddtree-ops adopt --host {host.name}",
        )
    return load_facts(path)


def probe(
    client: AgentClient, host: HostConfig, facts: Facts | None, series: Series | None = None
) -> dict[str, Any]:
    """One look at the host: the agent's probe document, as its next release would find it."""
    request = {**starts(host, facts), "files": sorted(series.base) if series else [], "runtime": host.runtime}
    if host.port:
        request["port"] = host.port
    if host.model:
        request["model"] = host.model
    if host.draft:
        request["draft"] = host.draft
    found: dict[str, Any] = client.call("probe", request, timeout=_PROBE_SILENCE_S)["facts"]
    found["transport"] = client.line
    return found


def starts(host: HostConfig, facts: Facts | None) -> dict[str, Any]:
    """How the host's server is started, for the agent's requests: {interpreter, argv?}."""
    if facts is not None and facts.unit.exec is not None:
        return {"argv": facts.unit.exec.argv, "interpreter": host.interpreter or facts.engine.interpreter}
    return {"interpreter": host.interpreter}


def modules(patched: Patched) -> list[str]:
    """Dotted names of the Python files that the series touches."""
    names = (
        path.removesuffix(".py").removesuffix("/__init__") for path in patched.files if path.endswith(".py")
    )
    return sorted("sglang." + name.replace("/", ".") for name in names)


def wanted(
    host: HostConfig, facts: Facts | None, series: Series, mode: str | None, argv: Sequence[str] = ()
) -> Wanted:
    """What the preflight holds the host against. argv: the rendered command line of `mode`."""
    return Wanted(
        host=host.name,
        service=host.service,
        version=series.version,
        series=series.name,
        base=series.base,
        recorded=facts.model_dump(mode="json") if facts else None,
        needs_draft=mode is not None and "draft" in series.modes.requires(mode),
        mode=mode,
        loses=() if mode is None else series.modes.get(mode).loses,
        needs=host.needs,
        argv=tuple(argv),
        accepts=series.modes.accepts(),
        hybrid_refused=None if mode is None else series.modes.get(mode).refused(True),
        waive=host.waive,
    )


def _preflight(
    host: HostConfig,
    facts: Facts,
    series: Series,
    mode: str,
    argv: Sequence[str],
    seen: dict[str, Any],
    on_event: Any,
    accept: Collection[str],
) -> list[Finding]:
    """Raise where a rule blocks that is not accepted; return all that the preflight found."""
    findings = examine(seen, wanted(host, facts, series, mode, argv))
    for text in _warnings(findings, host.name):
        on_event({"ev": "note", "text": text})
    refused = refusal([f for f in findings if f.rule not in accept], host.name, _serving(seen), mode)
    if refused is not None:
        raise refused
    return findings


def _warnings(findings: list[Finding], host: str) -> list[str]:
    """The WARNs in few lines: what was waived first, rules that say the same at once, beyond a few their names."""
    groups = grouped(finding for finding in findings if finding.level is Level.WARN)
    groups.sort(key=lambda group: group[1].waived is None)
    shown = max(_WARNINGS, sum(group[1].waived is not None for group in groups))
    lines = [
        f"WARN {', '.join(rules)}: {said.evidence}" + (f" (waived: {said.waived})" if said.waived else "")
        for rules, said in groups[:shown]
    ]
    rest = [rule for rules, _ in groups[shown:] for rule in rules]
    more = f"WARN {len(rest)} more: {', '.join(rest)}; ddtree-ops doctor --host {host} says what they saw"
    return [*lines, more] if rest else lines


def _serving(seen: dict[str, Any]) -> str | None:
    """What answers now, for an error that left it alone; None where nothing runs."""
    if seen.get("service", {}).get("active_state") != "active":
        return None
    running = seen.get("state", {}).get("running") or {}
    return (
        f"{_name(running)}, untouched" if running.get("release") else "the service that ran before, untouched"
    )


def _name(running: dict[str, Any]) -> str:
    """A release with its mode, in words."""
    release, mode = running["release"], running.get("mode")
    return "the baseline" if release == BASELINE else f"{mode or 'a release of ours,'} {release}"


def _patched(series: Series, mode: str, tree: Path) -> Patched:
    if series.modes.patched(mode):
        return apply_series(series, tree)
    return Patched(files={}, pre={}, patches=[])


def _release(
    engine: dict[str, Any],
    tree: Path,
    patched: Patched,
    mode: str,
    rendered: Rendered,
    dropin: str,
    runtime: str | None,
) -> Release:
    return make_release(
        engine={key: engine[key] for key in ("name", "version", "package", "interpreter")},
        base=tree_hashes(tree),
        base_bytes=int(engine["bytes"]),
        files=patched.files,
        pre=patched.pre,
        patches=patched.patches,
        mode=mode,
        argv=list(rendered.argv),
        exec_argv=list(rendered.exec_argv),
        dropin=dropin,
        runtime=runtime,
    )


def _proof(
    host: HostConfig, facts: Facts, series: Series, mode: str, release: Release, past: list[Proof]
) -> list[str]:
    """Sentences on what proves the release on this host, none where its mode needs no proof.

    Raises PreconditionFailed where it is missing.
    """
    by = series.modes.get(mode).proven_by
    if by is None:
        return []
    proof = proven(past, by, release.source_digest, mode, host.name)
    try:
        now = render(host, facts, by, series.modes).argv
    except OpsError:
        now = None  # it ran with what cannot be rendered any more; its sources are the same all the same
    return describe(proof, now)


def _runs_on(host: HostConfig, seen: dict[str, Any]) -> list[str]:
    if host.runtime is None:
        return []
    dists = ", ".join(seen.get("runtime", {}).get("dists", []))
    return [f"runs on runtime {host.runtime}, before the host's own packages: {dists}"]


def _plan(
    host: HostConfig,
    facts: Facts,
    mode: str,
    rendered: Rendered,
    release: Release,
    seen: dict[str, Any],
    past: list[dict[str, Any]],
    proof: list[str],
    findings: list[Finding],
    known: bool,
) -> Plan:
    state = seen["state"]
    confirmed = (state.get("confirmed") or {}).get("release", BASELINE)
    running = state.get("running") or {}
    downtime = estimate(
        past,
        mode=mode,
        release=release.digest,
        linked="jit_kernel" in release.manifest["links"],
        stop_limit_s=host.timeouts.stop,
        runtime=host.runtime,
    )
    refused = over(downtime, host.max_downtime)
    service = seen["service"]
    files = [service["fragment"], *service["dropins"], *service["environment_files"]]
    payload = len(release.payload())
    return Plan(
        host=host.name,
        service=host.service,
        mode=mode,
        release=release.digest,
        source_digest=release.source_digest,
        steps=deploy_steps(
            host.service,
            release.digest,
            len(release.files),
            payload,
            host.timeouts.stop,
            host.drain.command if host.drain else (),
            host.drain.undo if host.drain else (),
        ),
        preconditions=Preconditions(
            confirmed=confirmed,
            tree=seen["engine"]["tree"],
            unit_files={file["path"]: file["sha256"] for file in files if file and file.get("sha256")},
        ),
        argv_before=state.get("argv") or (facts.unit.exec.argv if facts.unit.exec else []),
        argv_after=rendered.argv,
        dropin=rendered.dropin or "",
        changes=[f"{flag} is dropped: {reason}" for flag, reason in rendered.replaced]
        + [f"{flag} is added: {reason}" for flag, reason in rendered.added],
        loses=rendered.loses,
        notes=[
            *proof,
            *_runs_on(host, seen),
            *rendered.notes,
            *([f"{refused}: a deploy is refused"] if refused else warnings(downtime, host.max_downtime)),
        ],
        downtime=downtime,
        gate=describe_gate(facts.capabilities.nft, past),
        drift=drifted(findings),
        waived=waived(findings),
        running=_name(running if running.get("release") == confirmed else {"release": confirmed}),
        done=confirmed == release.digest
        and service["active_state"] == "active"
        and not state.get("open")
        and not state.get("drift")
        and known,
    )
