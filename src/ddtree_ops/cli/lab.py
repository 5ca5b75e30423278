"""`ddtree-ops lab`: throwaway hosts on this machine to rehearse on."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer

from ddtree_ops.cli._options import JsonOpt
from ddtree_ops.core.errors import PreconditionFailed, UsageProblem

NAMES = ["ct129", "ct200"]  # where there is no hosts.yaml to say which

app = typer.Typer(
    help="Throwaway hosts on this machine (systemd, sshd, an engine) to rehearse on.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


class Engine(str, Enum):
    real = "real"
    standin = "standin"
    none = "none"


class Baseline(str, Enum):
    plain = "plain"
    nextn = "nextn"
    dflash = "dflash"


class Pair(str, Enum):
    cycle = "cycle"
    context = "context"


HostArg = Annotated[str, typer.Argument(metavar="HOST", help="A host of the lab.")]


def _part(module: str) -> Any:
    """A module of deploy/lab, which is found beside our data files and not among our packages."""
    from ddtree_ops.data import data_dir

    home = str(data_dir("deploy") / "lab")
    if home not in sys.path:
        sys.path.insert(0, home)
    return importlib.import_module(f"ddtree_lab.{module}")


@contextmanager
def _lab() -> Iterator[Any]:
    """The lab of this project; turns what the lab raises into our errors."""
    problem = _part("problem").LabProblem
    try:
        _part("guard").root_on_linux()
        yield _part("client").Lab(_part("state").State.resolve(_beside()))
    except problem as error:
        kind = UsageProblem if error.usage else PreconditionFailed
        raise kind(error.what, next=error.next) from None


def _beside() -> Path | None:
    """The directory of hosts.yaml: there the transport looks for a lab that is up."""
    from ddtree_ops.config import discover

    try:
        found = discover().absolute().parent
        # The project that `lab up` wrote lies in the state of the lab that it speaks of.
        return found.parent.parent if found.parent.name == ".lab" else found
    except UsageProblem:
        return None


def _known() -> dict[str, tuple[str, ...]]:
    """Names to boot by default, each with the address that hosts.yaml has for it: it must lead to the lab too."""
    from ddtree_ops.config import discover, load_inventory

    try:
        path = discover()
    except UsageProblem:
        return dict.fromkeys(NAMES, ())
    hosts = load_inventory(path).hosts
    return {name: (host.address,) if host.address else () for name, host in hosts.items()}


@app.command()
def up(
    hosts: Annotated[
        list[str] | None, typer.Argument(metavar="[HOST]...", help="Names [default: those of hosts.yaml].")
    ] = None,
    engine: Annotated[Engine, typer.Option(help="What serves there.")] = Engine.real,
    baseline: Annotated[Baseline, typer.Option(help="Speculation of the unit found there.")] = Baseline.plain,
    pair: Annotated[Pair, typer.Option(help="Target and draft model.")] = Pair.cycle,
    tp: Annotated[int, typer.Option(min=1, help="Tensor parallel size.")] = 1,
) -> None:
    """Boot hosts, as an operator would have left them: a baseline service enabled and running."""
    from ddtree_ops.cli._sinks import say

    asked = {"engine": engine.value, "baseline": baseline.value, "pair": pair.value, "tp": tp}
    known = _known()
    with _lab() as lab:
        spec = _part("spec").HostSpec
        names = hosts or list(known)
        booted = lab.up([spec(name=name, aliases=known.get(name, ()), **asked) for name in names], say)
        there = lab.status()
        for host in booted:
            if there[host.name]["engine"] != "none":
                say(f"{host.name}: the baseline answers after {host.wait_http()} s")
        project = _part("rehearsal").write(lab.state, there)
        say(f"a project to rehearse in: cd {project}; ddtree-ops adopt --host {booted[0].name} --yes")
        say(f"from a project of your own: export DDTREE_OPS_SSH_CONFIG={lab.state.ssh_config}")


@app.command()
def down() -> None:
    """Remove every host of the lab, with its disk."""
    from ddtree_ops.cli._sinks import say

    with _lab() as lab:
        lab.down()
        say("the lab is down")


@app.command()
def status(json: JsonOpt = False) -> None:
    """What runs in the lab."""
    from ddtree_ops.cli._sinks import document, say

    with _lab() as lab:
        up = lab.alive
        hosts = lab.status() if up else {}
        if json:
            document({"ok": True, "up": up, "state": str(lab.state.root), "hosts": hosts})
            return
        say(f"the lab in {lab.state.root} is {'up' if up else 'down'}")
        for name, host in hosts.items():
            engine = (
                f"{host['engine']} engine, {host['baseline']} baseline"
                if host["engine"] != "none"
                else "no engine"
            )
            say(f"{name}  {host['address']}  {'running' if host['alive'] else 'down'}  {engine}")


@app.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
def ssh(
    host: HostArg,
    command: Annotated[
        list[str] | None, typer.Argument(metavar="[CMD]...", help="What to run there.")
    ] = None,
) -> None:
    """Open a shell on a lab host, or run a command there."""
    with _lab() as lab:
        if host not in lab.status():
            raise UsageProblem(f"no host {host!r} in this lab", next="ddtree-ops lab status")
        os.execvp("ssh", ["ssh", "-F", str(lab.state.ssh_config), host, *(command or [])])


@app.command(context_settings={"ignore_unknown_options": True})
def fault(
    host: HostArg,
    name: Annotated[str, typer.Argument(metavar="FAULT", help="One of those above.")],
    args: Annotated[list[str] | None, typer.Argument(metavar="[ARG]...")] = None,
) -> None:
    """Break a lab host, or mend it.

    crash, start, reboot, link-down, link-up, wan RTT_MS [LOSS], freeze, thaw, cpu PCT, disk-full [DIR] [FREE_KIB],
    disk-restore [DIR], read-only [DIR], read-only-restore [DIR], kill-sshd, sshd-stop, sshd-start, device-gone PATH,
    device-back PATH. DIR is /opt unless given.
    """
    from ddtree_ops.cli._sinks import say

    with _lab() as lab:
        say(lab.host(host).fault(name, *(args or [])))
