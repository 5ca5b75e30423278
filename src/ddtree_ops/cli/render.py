"""`render`: the units of every host and mode, from committed files alone; with --check, what CI runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from ddtree_ops.cli._options import ConfigOpt, HostOpt, JsonOpt

if TYPE_CHECKING:
    from ddtree_ops.config import HostConfig, Inventory
    from ddtree_ops.units.facts import Facts
    from ddtree_ops.units.render import Rendered

AllOpt = Annotated[bool, typer.Option("--all", help="Every host of hosts.yaml (what no --host means too).")]
ModeOpt = Annotated[
    Optional[list[str]],
    typer.Option("--mode", metavar="MODE", help="Mode; repeatable [default: all].", show_default=False),
]
CheckOpt = Annotated[
    bool, typer.Option("--check", help="Compare with the committed files, verify and lint; exit 5 on drift.")
]
OutputOpt = Annotated[
    Optional[Path],
    typer.Option(
        "--output",
        "-o",
        metavar="DIR",
        help="Where [default: rendered/ beside hosts.yaml].",
        show_default=False,
    ),
]


def render(
    host: HostOpt = None,
    everything: AllOpt = False,
    mode: ModeOpt = None,
    check: CheckOpt = False,
    output: OutputOpt = None,
    config: ConfigOpt = None,
    json: JsonOpt = False,
) -> None:
    """Write rendered/HOST/MODE.conf (our drop-in) and MODE.service (the whole unit as systemd would see it)."""
    from ddtree_ops.cli import _rendered
    from ddtree_ops.cli._common import select
    from ddtree_ops.cli._sinks import document, say
    from ddtree_ops.core.errors import UsageProblem

    if everything and host:
        raise UsageProblem("--all and --host exclude each other", next="drop one of them")
    inventory, hosts = select(config, host, everything=True)
    root = output or inventory.base / "rendered"
    files: dict[Path, str] = {}
    shown: list[dict[str, object]] = []
    problems: list[str] = []
    for one in hosts:
        facts = load(inventory, one)
        for item in _all_modes(inventory, one, facts, mode):
            if isinstance(item, str):
                say(item)
                continue
            for suffix, text in (("conf", item.dropin), ("service", item.effective)):
                if text is not None:
                    files[root / item.host / f"{item.mode}.{suffix}"] = text
            shown.append(_rendered.summary(item))
            if check:
                problems += _rendered.problems(item, facts)
            else:
                say(_rendered.sentence(item))
    if check:
        whole = not mode and not host
        _rendered.check(files, root, whole, problems)
        say(f"{len(files)} files are as committed")
    else:
        _rendered.write(files)
        say(f"{len(files)} files written under {root}")
    if json:
        document({"ok": True, "rendered": shown})


def load(inventory: Inventory, host: HostConfig) -> Facts:
    """Return the committed facts of a host. Raises UsageProblem where there are none."""
    from ddtree_ops.core.errors import UsageProblem
    from ddtree_ops.units.facts import load_facts

    path = inventory.facts_path(host.name)
    if not path.exists():
        raise UsageProblem(
            f"never adopted: {path} does not exist",
            host=host.name,
            next=f"ddtree-ops adopt --host {host.name}",
        )
    return load_facts(path)


def _all_modes(
    inventory: Inventory, host: HostConfig, facts: Facts, asked: list[str] | None
) -> list[Rendered | str]:
    """Render the modes asked for, or all: then one that is not available here is a sentence, not an error."""
    from ddtree_ops.core.modes import BASELINE
    from ddtree_ops.engine.find import find_series
    from ddtree_ops.units.render import render as render_one

    modes = find_series(host.series, inventory.base).modes
    out: list[Rendered | str] = []
    for name in asked or [BASELINE, *modes.modes]:
        if not asked and name != BASELINE and (why := modes.get(name).refused(facts.model.target_hybrid)):
            out.append(f"{host.name}: mode {name} is not available: {why}")
            continue
        out.append(render_one(host, facts, name, modes))
    return out
