"""The preflight: rules over what the probe saw. Unknown is a WARN, never an OK; a BLOCK stops a deploy (exit 3)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ddtree_ops.core import abi, doctor_engine, doctor_host, doctor_unit
from ddtree_ops.core.checks import every
from ddtree_ops.core.checks.about import CORE, About
from ddtree_ops.core.checks.python_env import serving
from ddtree_ops.core.checks.rule import Rule as AreaRule
from ddtree_ops.core.errors import HostLocked, OpsError, PreconditionFailed
from ddtree_ops.core.facts_live import Abi, Launch, Live, Unknown, parse
from ddtree_ops.core.features import kept
from ddtree_ops.core.finding import Finding, Level, block, ok, warn
from ddtree_ops.core.wanted import Wanted

Rule = Callable[[Any, Live, Wanted], Sequence[Finding]]


def _abi(found: Abi, live: Live, wanted: Wanted) -> list[Finding]:
    launch = live.launch if isinstance(live.launch, Launch) else None
    interpreter = launch.interpreter if launch else "python3"
    return abi.judge(found, launch.device if launch else None, interpreter, wanted.host, serving(live))


#: (rule, the section of the probe that it reads, the rule). In the order in which a person reads them.
RULES: tuple[tuple[str, str, Rule], ...] = (
    ("root", "session", doctor_host.root),
    ("systemd", "session", doctor_host.systemd),
    ("unit", "service", doctor_unit.loaded),
    ("transaction", "state", doctor_host.locks),
    ("dropins", "service", doctor_unit.overridden),
    ("user", "user", doctor_host.user),
    ("interpreter", "launch", doctor_host.interpreter),
    ("engine", "engine", doctor_engine.version),
    ("record", "engine", doctor_engine.record),
    ("sources", "engine", doctor_engine.series),
    ("cuda-build", "abi", _abi),
    ("model", "model", doctor_host.models),
    ("disk", "storage", doctor_host.disk),
    ("port", "port", doctor_host.port),
    ("log", "capabilities", doctor_host.log_target),
    ("facts", "service", doctor_unit.drift),
    ("drift", "state", doctor_unit.confirmed),
)
AREA_RULES = every.RULES
SECTIONS = tuple({rule.section.name: rule.section for rule in AREA_RULES}.values())
#: Without these nothing can be deployed at all: not knowing them blocks.
NEEDED = {"launch": "hosts.yaml: interpreter: /path/to/bin/python3"}


def known() -> dict[str, About]:
    """Every rule that a finding can name, in the order in which a person reads them."""
    areas = {
        rule.id: About(rule.why, rule.reports, rule.waivable, rule.section.name, rule.section.gpu)
        for rule in AREA_RULES
    }
    return {**CORE, **areas}


def examine(probe: dict[str, Any], wanted: Wanted) -> list[Finding]:
    """Judge one probe answer. Pure; the host answered, so `reachable` is the first finding."""
    live = parse(probe, SECTIONS)
    found = [ok("reachable", f"{wanted.host} answered")]
    if wanted.mode is not None:
        found += kept(wanted.needs, wanted.loses, wanted.mode)
    for name, section, rule in RULES:
        seen = getattr(live, section)
        if not isinstance(seen, Unknown):
            found += _judged(name, rule, seen, live, wanted)
        elif section in NEEDED:
            found.append(block(name, seen.why, f"{NEEDED[section]} for {wanted.host}"))
        else:
            found.append(_unknown(name, seen.why, wanted, False))
    for area_rule in AREA_RULES:
        found += _area(area_rule, live, wanted)
    return _waived(found, wanted.waive)


def _waived(findings: Sequence[Finding], waive: Mapping[str, str]) -> list[Finding]:
    """A BLOCK that a person lets pass, with a reason, becomes a WARN that carries it."""
    rules = known() if waive else {}
    return [
        replace(finding, level=Level.WARN, waived=waive[finding.rule])
        if finding.level is Level.BLOCK and finding.rule in waive and rules[finding.rule].waivable
        else finding
        for finding in findings
    ]


def _area(rule: AreaRule[Any], live: Live, wanted: Wanted) -> Sequence[Finding]:
    """With --device cpu no GPU is asked for; where the arguments say cuda, not knowing one blocks."""
    if rule.section.gpu and live.cuda is False:
        return []
    seen = live.of(rule.section)
    needed = bool(rule.section.gpu and live.cuda)
    if not isinstance(seen, Unknown):
        return _judged(rule.id, rule.judge, seen, live, wanted, needed)
    return [_unknown(rule.id, seen.why, wanted, needed)]


def _judged(
    name: str, judge: Rule, seen: object, live: Live, wanted: Wanted, needed: bool = False
) -> Sequence[Finding]:
    """What the rule says. A fact of a kind that it cannot judge (a text for a number) is not known, on any host: one
    odd answer costs that rule, not the preflight."""
    try:
        return judge(seen, live, wanted)
    except Exception as error:
        text = " ".join(str(error).split())[:120]
        why = f"the probe's answer does not fit: {type(error).__name__} {text}"
        return [_unknown(name, why, wanted, needed)]


def _unknown(name: str, why: str, wanted: Wanted, needed: bool) -> Finding:
    said, again = f"unknown: {why}", f"ddtree-ops doctor --host {wanted.host}"
    return block(name, said, again) if needed else warn(name, said, again)


#: The rules that say that the host is not what was recorded or confirmed: `deploy --adopt` takes that over.
DRIFT = ("facts", "drift")


def blocked(findings: Sequence[Finding]) -> list[Finding]:
    """The findings that stop a deploy."""
    return [finding for finding in findings if finding.level is Level.BLOCK]


def drifted(findings: Sequence[Finding]) -> list[str]:
    """Where the host is not what was recorded or confirmed, a sentence each."""
    return [stop.evidence for stop in blocked(findings) if stop.rule in DRIFT]


def waived(findings: Sequence[Finding]) -> list[str]:
    """What would have blocked and is let pass, a sentence each, for the plan and the host's history."""
    return [f"{one.rule}: {one.waived} ({one.evidence})" for one in findings if one.waived]


#: What explains much of what else looks wrong: a rollout on its way (its trial is not loaded yet), packages that are
#: not there (the host's own are judged in their place).
EXPLAINS = ("transaction", "runtime")


def refusal(
    findings: Sequence[Finding], host: str, serving: str | None = None, mode: str | None = None
) -> OpsError | None:
    """The error that a deploy (of `mode`) raises for these findings: the first BLOCK in words, the others counted;
    drift alone is named whole, with the command that takes it over.

    None where nothing blocks. An open transaction of somebody else is HostLocked (exit 4), all else
    PreconditionFailed (exit 3).
    """
    stops = blocked(findings)
    if not stops:
        return None
    if mode is not None and all(stop.rule in DRIFT for stop in stops):
        return _unknown_state(stops, host, serving, mode)
    first = next((stop for stop in stops if stop.rule in EXPLAINS), stops[0])
    others = sorted({stop.rule for stop in stops if stop is not first})
    rest = f"; {len(stops) - 1} more: {', '.join(others)}" if others else ""
    kind = HostLocked if first.rule == "transaction" else PreconditionFailed
    return kind(
        f"preflight: {first.evidence}{rest}",
        host=host,
        meaning="nothing was touched",
        serving=serving,
        next=first.remedy,
    )


def _unknown_state(stops: Sequence[Finding], host: str, serving: str | None, mode: str) -> OpsError:
    adopt = f"ddtree-ops deploy --host {host} --mode {mode} --adopt, to take the host over as it is"
    recorded = next((stop.remedy for stop in stops if stop.remedy and "--adopt" not in stop.remedy), None)
    return PreconditionFailed(
        "the host is not what was recorded of it: " + "; ".join(stop.evidence for stop in stops),
        host=host,
        meaning="somebody changed it since; nothing was touched",
        serving=serving,
        next=f"{adopt}; {recorded}, to record it and change nothing"
        if recorded
        else f"{adopt}; or put it back",
    )
