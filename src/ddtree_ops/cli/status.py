"""`status`: what runs on the hosts, by their own evidence."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from ddtree_ops.cli._options import ConfigOpt, HostOpt, JsonOpt


def status(
    host: HostOpt = None,
    config: ConfigOpt = None,
    json: JsonOpt = False,
    exit_code: Annotated[bool, typer.Option("--exit-code", help="Exit 5 on drift.")] = False,
) -> None:
    """Running and confirmed release, open transaction, drift. Without --host: every host."""
    from ddtree_ops.cli._common import select
    from ddtree_ops.cli._run import connector
    from ddtree_ops.cli._sinks import document, say
    from ddtree_ops.core.errors import OpsError, PendingChanges

    inventory, hosts = select(config, host, everything=True)
    found: dict[str, Any] = {}
    failed: OpsError | None = None
    for chosen in hosts:
        try:
            with connector(inventory, chosen)() as client:
                found[chosen.name] = client.call("status", {})["status"]
        except OpsError as error:
            found[chosen.name], failed = {"error": error.to_json()}, error
    if json:
        document({"hosts": found})
    for name, seen in found.items():
        say(describe(name, seen))
    if failed is not None:
        raise (
            failed
            if len(hosts) == 1
            else type(failed)("not every host answered", next="ddtree-ops status --json")
        )
    drifting = [name for name, seen in found.items() if seen.get("drift")]
    if exit_code and drifting:
        raise PendingChanges("drift on " + ", ".join(drifting))


def describe(name: str, seen: dict[str, Any]) -> str:
    """One host, a line or a few."""
    if "error" in seen:
        return f"{name}: {seen['error']['what']}"
    modes = {entry["release"]: entry.get("mode") for entry in seen["releases"]}
    now, record = seen["running"], seen["confirmed"]
    lines = [
        f"{name}: {seen['service']} {seen['active']} ({seen['sub']}), main PID {seen['main_pid']}, "
        f"runs {_named(now, modes) if now else 'nothing'}"
        + (
            ", confirmed; "
            if now == record["release"]
            else f"; {_named(record['release'], modes)} is confirmed; "
        )
        + _before(record, modes)
    ]
    if seen.get("runtime"):
        lines.append(f"  on runtime {seen['runtime']['runtime']}: {', '.join(seen['runtime']['dists'])}")
    if seen["transaction"]:
        lines.append(f"  open: {seen['transaction']['txn']} is {seen['transaction']['state']}")
    if seen["held_by"]:
        lines.append(f"  held by {seen['held_by']}")
    if seen.get("hold"):
        lines.append(f"  on hold {seen['hold']['text']} (ddtree-ops unhold --host {name})")
    lines += [f"  drift: {text}" for text in seen["drift"]]
    lines += _failed(seen.get("last"))
    return "\n".join(lines)


def _failed(last: dict[str, Any] | None) -> list[str]:
    """The last rollout and why it failed, for whoever comes after it; nothing where it did not fail."""
    from ddtree_ops.cli.history import describe as told

    if not last or not last.get("failure"):
        return []
    return ["  the last rollout failed:", *(f"  {line}" for line in told(last).splitlines())]


def _named(release: str, modes: dict[str, str | None]) -> str:
    """A release with its mode: `shadow 4ab3…`."""
    if release == "baseline":
        return release
    return f"{modes.get(release) or 'a release that is gone,'} {release}"


def _before(record: dict[str, Any], modes: dict[str, str | None]) -> str:
    """What a rollback would do: undo the last change, or nothing because the last one was undone already."""
    if record.get("undo"):
        return f"before it {_named(record['undo'], modes)}"
    if record.get("abandoned"):
        return f"{_named(record['abandoned'], modes)} was rolled back, no change is left to undo"
    return "nothing before it"
