"""`env diff` and `env sync`: two hosts' packages compared; a consistent set carried over as part of a release."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ddtree_ops.cli._options import ConfigOpt, JsonOpt, YesOpt, complete_hosts

if TYPE_CHECKING:
    from ddtree_ops.apply.agent import AgentClient
    from ddtree_ops.config import HostConfig, Inventory
    from ddtree_ops.core.envdiff import Env, Row

app = typer.Typer(
    help="Compare two hosts' packages; carry a consistent set over.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

HostArg = Annotated[str, typer.Argument(metavar="HOST", autocompletion=complete_hosts)]


@app.callback()
def env() -> None:
    """Compare two hosts' packages; carry a consistent set over."""


@app.command()
def diff(
    a: HostArg,
    b: HostArg,
    config: ConfigOpt = None,
    exit_code: Annotated[bool, typer.Option("--exit-code", help="Exit 5 where they differ.")] = False,
    json: JsonOpt = False,
) -> None:
    """Package by package, as the next release of each host would import them, and what the differences mean."""
    from ddtree_ops.apply.env import describe
    from ddtree_ops.cli._sinks import document, say
    from ddtree_ops.core import envdiff
    from ddtree_ops.core.errors import PendingChanges

    inventory, one, two = _pair(config, a, b)
    seen: list[Env] = []
    for host in (one, two):
        with _client(inventory, host) as client:
            seen.append(describe(inventory, host, client, host.runtime))
    rows, means = envdiff.rows(*seen), envdiff.consequences(*seen)
    differing = [row for row in rows if not row.same]
    if json:
        packages = [
            {"name": row.name, "a": row.a, "b": row.b, "same": row.same, "cuda_bound": row.bound}
            | {
                f"{side}_details": envdiff.details(env, row.name)
                for side, env in zip("ab", seen, strict=True)
            }
            for row in rows
        ]
        hosts = {"a": one.name, "b": two.name}
        document({**hosts, "equal": not differing, "packages": packages, "consequences": means})
    say(table(seen, differing, means))
    if exit_code and differing:
        raise PendingChanges(
            f"{one.name} and {two.name} differ in {len(differing)} packages",
            next=f"ddtree-ops env sync --from {one.name} --to {two.name}",
        )


@app.command()
def sync(
    source: Annotated[
        str, typer.Option("--from", metavar="HOST", help="Whose packages.", autocompletion=complete_hosts)
    ],
    target: Annotated[
        str, typer.Option("--to", metavar="HOST", help="Where they go.", autocompletion=complete_hosts)
    ],
    config: ConfigOpt = None,
    yes: YesOpt = False,
    json: JsonOpt = False,
) -> None:
    """Carry the packages that are built for one CUDA over, as /opt/ddtree/runtimes/DIGEST, which releases may name.

    The site-packages of both hosts stay as they are, and nothing that runs changes: the next deploy on the target uses
    the runtime once hosts.yaml names it (asked, or --yes; else the line to add is printed).
    """
    from ddtree_ops.apply.env import sync as execute
    from ddtree_ops.cli._sinks import document, say

    inventory, one, two = _pair(config, source, target)
    with _client(inventory, one) as a, _client(inventory, two) as b:
        found = execute(inventory, (one, a), (two, b), say)
    if found["runtime"] is None:
        say(f"{two.name}: has the CUDA-bound packages of {one.name} already: no runtime is needed")
        written = False
    else:
        say(_carried(one.name, two.name, found))
        written = _name_it(inventory, two, found["runtime"], yes, json)
    if json:
        document({"from": one.name, "to": two.name, **found, "hosts_yaml": written})


def table(seen: list[Env], differing: list[Row], means: list[str]) -> str:
    """The differences as a person reads them: what is CUDA-bound first, then what they mean."""
    one, two = (env.host for env in seen)
    if not differing:
        lines = [f"{one} and {two} import the same packages"]
    else:
        cells = [("", one, two), *((row.name, row.a or "none", row.b or "none") for row in differing)]
        widths = [max(len(cell[i]) for cell in cells) for i in range(2)]
        lines = [f"  {name:<{widths[0]}}  {x:<{widths[1]}}  {y}".rstrip() for name, x, y in cells]
    for env in seen:
        for name, paths in sorted(env.shadowed.items()):
            lines.append(
                f"  {env.host}: {name} is there {len(paths) + 1} times; {env.dists[name].path} is imported"
            )
    return "\n".join([*lines, *(f"→ {said}" for said in means)])


def _carried(source: str, target: str, found: dict[str, Any]) -> str:
    sent = found["travelled"]
    return (
        f"{target}: runtime {found['runtime']} is sealed: {', '.join(found['packages'])}\n"
        f"  {found['files']} files: {sent['files']} travelled from {source} ({sent['bytes']} bytes), "
        f"{found['local']} were on {target}, {found['reused']} were left by an earlier run"
    )


def _name_it(inventory: Inventory, host: HostConfig, runtime: str, yes: bool, machine: bool) -> bool:
    """Let hosts.yaml name the runtime for the host, if the person agrees; otherwise say the line. True if it does."""
    from ddtree_ops.cli._common import ask, load
    from ddtree_ops.cli._sinks import say
    from ddtree_ops.core.errors import UsageProblem
    from ddtree_ops.units.inventory_edit import set_key

    deploy = f"then: ddtree-ops deploy --host {host.name}"
    if host.runtime == runtime:
        say(f"  {inventory.path.name} names it; {deploy}")
        return True
    before = inventory.path.read_bytes()
    try:
        ask(f"{inventory.path.name}: set runtime: of {host.name}", yes, machine)
        set_key(inventory.path, host.name, "runtime", runtime)
        if load(inventory.path).hosts[host.name].runtime != runtime:
            raise UsageProblem("something else in it wins")
    except UsageProblem:
        if inventory.path.read_bytes() != before:
            inventory.path.write_bytes(before)
        say(
            f'  to be used, {inventory.path} must say, under {host.name}:\n    runtime: "{runtime}"\n  {deploy}'
        )
        return False
    say(f"  {inventory.path.name} names it now; {deploy}")
    return True


def _pair(config: Path | None, a: str, b: str) -> tuple[Inventory, HostConfig, HostConfig]:
    """Two different hosts of hosts.yaml by name. Raises UsageProblem."""
    from ddtree_ops.cli._common import one_host
    from ddtree_ops.core.errors import UsageProblem

    inventory, one = one_host(config, [a])
    _, two = one_host(config, [b])
    if one.name == two.name:
        raise UsageProblem(f"{a} and {b} are the same host", next="ddtree-ops env --help")
    return inventory, one, two


@contextmanager
def _client(inventory: Inventory, host: HostConfig) -> Iterator[AgentClient]:
    from ddtree_ops.cli._run import connector

    with connector(inventory, host)() as client:
        yield client
