"""`gc`: free what no service of a host needs any more."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from ddtree_ops.cli._options import ConfigOpt, HostOpt, JsonOpt


def gc(
    host: HostOpt = None,
    keep: Annotated[int, typer.Option("--keep", metavar="N", min=1, help="Newest releases that stay.")] = 3,
    failed_bytes: Annotated[
        str, typer.Option("--failed-bytes", metavar="SIZE", help="Cap on the evidence of failed releases.")
    ] = "64M",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would go; remove nothing.")] = False,
    config: ConfigOpt = None,
    json: JsonOpt = False,
) -> None:
    """Remove old releases, evidence, agents and records of ours, and what a crash left.

    Never a release that is confirmed, that a rollback goes to, that a drop-in names or that a process runs, for any
    service of the host. Refused (exit 4) while a rollout is open.
    """
    from ddtree_ops.apply.gc import gc as execute
    from ddtree_ops.cli._common import one_host
    from ddtree_ops.cli._run import connector
    from ddtree_ops.cli._sinks import document, say
    from ddtree_ops.core.when import parse_bytes

    cap = parse_bytes(failed_bytes, "--failed-bytes")
    inventory, chosen = one_host(config, host)
    with connector(inventory, chosen)() as client:
        found = execute(chosen, client, keep=keep, failed_bytes=cap, dry_run=dry_run)
    if json:
        document({"host": chosen.name, **found})
    say(describe(chosen.name, found))


def describe(name: str, found: dict[str, Any]) -> str:
    """What went, what of the releases stays, and the bytes."""
    verb, freed = ("would go", "would be freed") if found["dry_run"] else ("removed", "freed")
    lines = [
        f"  {verb}: {one['kind']} {one['name']} ({one['bytes']} bytes): {one['why']}"
        for one in found["removed"]
    ]
    lines += [
        f"  kept: {one['kind']} {one['name']}: {one['why']}"
        for one in found["kept"]
        if one["kind"] in ("release", "runtime")
    ]
    return "\n".join([f"{name}: {found['freed']} bytes {freed}", *lines])
