"""Renders what a mode puts on a host, from committed files alone: the drop-in, the effective unit, the differences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ddtree_ops.config.model import HostConfig
from ddtree_ops.config.secrets import SecretRef
from ddtree_ops.core.errors import PreconditionFailed, UsageProblem
from ddtree_ops.core.features import Loss
from ddtree_ops.core.modes import BASELINE, Modes, Rewritten, rewrite, scan
from ddtree_ops.units import effective
from ddtree_ops.units.execline import exec_value
from ddtree_ops.units.facts import ExecFact, Facts, SecretName
from ddtree_ops.units.guard import check_patched, flags_at
from ddtree_ops.units.raw import RawFile, RawUnit
from ddtree_ops.units.templates import fill
from ddtree_ops.units.unit import merge

RELEASE = "@RELEASE@"
OVERLAY = f"/opt/ddtree/releases/{RELEASE}/overlay"
SECRETS_FILE = "/etc/ddtree/secrets-@RELEASE@.env"


@dataclass(frozen=True)
class Rendered:
    """What a mode means on a host. `@RELEASE@` stands for the digest, which is taken over these texts.

    dropin: None for the baseline and for a host without a service. effective: the whole unit as systemd would see it.
    argv: the server's, `${NAME}` for secrets. env: the unit's variables, secrets as `${NAME}`. patched: whether the
    release's overlay is on PYTHONPATH. exec_argv: ExecStart= as `systemctl show` reads it, before variables.
    secrets: names that the release's own file in /etc/ddtree must hold.
    """

    host: str
    mode: str
    dropin: str | None
    effective: str
    argv: list[str]
    env: dict[str, str]
    exec_argv: list[str] = field(default_factory=list)
    patched: bool = False
    dropped: list[list[str]] = field(default_factory=list)
    set: list[tuple[str, str | None]] = field(default_factory=list)
    added: list[tuple[str, str]] = field(default_factory=list)
    replaced: list[tuple[str, str]] = field(default_factory=list)
    loses: list[Loss] = field(default_factory=list)
    state: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    secrets: list[str] = field(default_factory=list)


def render(host: HostConfig, facts: Facts, mode: str, modes: Modes) -> Rendered:
    """Render `mode` for `host`.

    Raises UsageProblem for an unknown mode or a missing host key, PreconditionFailed where the mode refuses, conflicts
    with an operator's value, or could not take effect in this unit.
    """
    fact = facts.unit.exec or _fresh(host, facts)
    adopted = facts.unit.exec is not None
    if adopted:
        _agree(host, fact.argv)
    change = _change(host, facts, fact.argv, mode, modes)
    patched = modes.patched(mode)
    if mode != BASELINE and adopted:
        check_patched(host.name, facts.unit, fact, patched)
    secrets = sorted({n for n, s in fact.secrets.items() if s == "captured"} | set(_secret_names(host)))
    ours = _environment(host, facts, patched) if mode != BASELINE or not adopted else {}
    command = exec_value(fact, change.argv, ours, OVERLAY if patched else None, host.name)
    if mode == BASELINE and adopted:
        secrets = []
    shared: dict[str, Any] = {
        "release": RELEASE, "mode": mode, "command": command, "environment": ours,
        "secrets_file": SECRETS_FILE if secrets else None,
    }  # fmt: skip
    if not adopted:
        dropin = None
        whole = fill("sglang.service.j2", host=host.name, stop_seconds=f"{host.timeouts.stop:g}", **shared)
    else:
        dropin = None if mode == BASELINE else fill("dropin.conf.j2", **shared)
        whole = effective.text(facts.unit, mode, command, ours, shared["secrets_file"])
    return Rendered(
        host.name, mode, dropin, whole, change.argv, _all_environment(facts, ours),
        _read_back(whole, facts), patched, change.dropped,
        change.set, change.added, change.replaced, change.loses, change.state, list(facts.unit.notes), secrets,
    )  # fmt: skip


def _read_back(text: str, facts: Facts) -> list[str]:
    """Read our own ExecStart= by systemd's rules, as the host will."""
    meaning = merge(RawUnit(facts.service, RawFile(facts.service, text)))
    return list(meaning.commands["ExecStart"][0].argv)


def _change(host: HostConfig, facts: Facts, argv: Sequence[str], mode: str, modes: Modes) -> Rewritten:
    if mode == BASELINE:
        return Rewritten(list(argv))
    at = flags_at(argv)
    values: dict[str, str | int | None] = {
        "draft": host.draft or _adopted_draft(argv, at), "budget": host.budget, "topk": host.topk,
        "shadow_every": host.shadow_every, "block_size": facts.model.block_size,
    }  # fmt: skip
    return rewrite(argv, at, modes, modes.get(mode), values, facts.model.target_hybrid, host.name)


def _adopted_draft(argv: Sequence[str], at: int) -> str | None:
    """Return the draft of a baseline that is DFLASH already; another algorithm's draft is another kind of model."""
    spans = {span.name: span.value for span in scan(argv, at)}
    if (spans.get("--speculative-algorithm") or spans.get("--speculative-algo") or "").upper() != "DFLASH":
        return None
    return spans.get("--speculative-draft-model-path") or spans.get("--speculative-draft-model")


def _agree(host: HostConfig, argv: Sequence[str]) -> None:
    """Raise PreconditionFailed where hosts.yaml and the adopted command line say different things."""
    spans = {span.name: span.value for span in scan(argv, flags_at(argv))}
    for key, wanted, flags in (
        ("port", host.port, ("--port",)),
        ("tp", host.tp, ("--tp-size", "--tensor-parallel-size", "--tp")),
        ("model", host.model, ("--model-path", "--model")),
    ):
        for flag in flags:
            if wanted is not None and flag in spans and spans[flag] != str(wanted):
                raise PreconditionFailed(
                    f"hosts.yaml says {key} {wanted}, the adopted unit has {flag} {spans[flag]}", host=host.name,
                    meaning="an operator's value is never changed", next=f"correct {key} in hosts.yaml",
                )  # fmt: skip


def _fresh(host: HostConfig, facts: Facts) -> ExecFact:
    """Return the start command of a host that has no service yet."""
    interpreter = host.interpreter or facts.engine.interpreter
    for key, value in (("interpreter", interpreter), ("model", host.model)):
        if not value:
            raise UsageProblem(
                f"a host without a service needs the host key {key}",
                host=host.name,
                next=f"set {key}: in hosts.yaml",
            )
    argv = [
        str(interpreter),
        "-m",
        "sglang.launch_server",
        "--model-path",
        str(host.model),
        "--host",
        "127.0.0.1",
    ]
    argv += ["--port", str(host.port or 30000), "--tp-size", str(host.tp or 1)]
    return ExecFact(argv=argv)


def _secret_names(host: HostConfig) -> list[str]:
    return [name for name, value in host.environment.items() if isinstance(value, SecretRef)]


def _environment(host: HostConfig, facts: Facts, patched: bool) -> dict[str, str]:
    """Return the variables that the drop-in sets: the operator's of hosts.yaml, then ours."""
    out = {n: v for n, v in host.environment.items() if isinstance(v, str)}
    held = out.pop("PYTHONPATH", None) or facts.unit.environment.get("PYTHONPATH")
    if patched:
        out["PYTHONPATH"] = f"{OVERLAY}:{held}" if held else OVERLAY
    elif "PYTHONPATH" in host.environment:
        out["PYTHONPATH"] = str(held)
    out["DDTREE_RELEASE"] = RELEASE
    return out


def _all_environment(facts: Facts, ours: Mapping[str, str]) -> dict[str, str]:
    held = {
        n: f"${{{v.secret}}}" if isinstance(v, SecretName) else v for n, v in facts.unit.environment.items()
    }
    return {**held, **ours}
