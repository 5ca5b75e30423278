"""Reads two hosts' packages, and carries a consistent set from one to the other through the operator."""

from __future__ import annotations

import base64
import gzip
import io
import tarfile
from collections.abc import Callable, Iterator
from typing import Any

from ddtree_ops.apply import who
from ddtree_ops.apply.agent import AgentClient
from ddtree_ops.apply.prepare import starts
from ddtree_ops.config.model import HostConfig, Inventory
from ddtree_ops.core import envdiff, envset
from ddtree_ops.core.envdiff import Env
from ddtree_ops.core.errors import Unreachable
from ddtree_ops.units.facts import load_facts

OnEvent = Callable[[str], None]
#: Hashing, copying and compiling gigabytes: the host says every few seconds how far it is, compiling excepted.
_SILENCE_S = 600.0


def describe(inventory: Inventory, host: HostConfig, client: AgentClient, runtime: str | None) -> Env:
    """What the service's interpreter on a host imports, with the packages of `runtime` first."""
    request = {**_starts(inventory, host), "runtime": runtime}
    return envdiff.read(host.name, client.call("env", request, timeout=_SILENCE_S)["env"])


def sync(
    inventory: Inventory,
    source: tuple[HostConfig, AgentClient],
    target: tuple[HostConfig, AgentClient],
    say: OnEvent,
) -> dict[str, Any]:
    """Carry the CUDA-bound packages of the source host over as a runtime on the target; neither's own are changed.

    Returns {runtime: digest | None (nothing differs), packages, left: sentences, files, local, reused, travelled:
    {files, bytes}}. Raises PreconditionFailed where they do not fit or a file is damaged; what arrived is kept for the
    next run.
    """
    (a_host, a), (b_host, b) = source, target
    one = describe(inventory, a_host, a, a_host.runtime)
    two = describe(inventory, b_host, b, None)
    envset.match(one, two)
    differing = envdiff.differing(one, two)
    if not differing:
        return {"runtime": None, "packages": [], "left": []}
    say(f"differing: {', '.join(differing)}")
    chosen = envset.choose(one, two)
    for note in chosen.left:
        say(note)
    names = list(chosen.names)
    asked = {**_starts(inventory, a_host), "runtime": a_host.runtime, "names": names}
    manifest = _last(a, "env-manifest", asked, say, a_host.name)["manifest"]
    here = {
        **_starts(inventory, b_host),
        "interpreter": two.interpreter,
        "who": who.operator(),
        "from": a_host.name,
    }
    plan = _last(b, "env-prepare", {**here, "manifest": manifest}, say, b_host.name)
    if not plan["there"]:
        missing = plan["missing"]
        say(
            f"{len(missing)} files travel, {plan['bytes']} bytes; {plan['local']} are on {b_host.name} already"
        )
        payload = _payload(a, {**asked, "want": missing}) if missing else iter([_nothing()])
        try:
            _last(b, "env-receive", {**here, "runtime": manifest["runtime"]}, say, b_host.name, payload)
        except Unreachable as error:
            raise Unreachable(
                "the line was cut while the packages travelled",
                host=error.host,
                evidence=error.what,
                meaning="nothing that runs has changed; the files that arrived whole are kept",
                next=f"ddtree-ops env sync --from {a_host.name} --to {b_host.name}",
            ) from None
    return {
        "runtime": manifest["runtime"],
        "packages": [f"{dist['name']} {dist['version']}" for dist in manifest["dists"]],
        "left": list(chosen.left),
        "files": len(manifest["files"]),
        "local": plan["local"],
        "reused": plan["reused"],
        "travelled": {"files": len(plan["missing"]), "bytes": plan["bytes"]},
    }


def _starts(inventory: Inventory, host: HostConfig) -> dict[str, Any]:
    path = inventory.facts_path(host.name)
    return starts(host, load_facts(path) if path.exists() else None)


def _last(
    client: AgentClient,
    op: str,
    request: dict[str, Any],
    say: OnEvent,
    host: str,
    payload: Iterator[bytes] | None = None,
) -> dict[str, Any]:
    """Run a verb, tell its notes, return its result. Raises as AgentClient.call."""
    return client.call(op, request, payload or (), _SILENCE_S, lambda note: say(f"{host}  {note}"))


def _payload(client: AgentClient, request: dict[str, Any]) -> Iterator[bytes]:
    """The files as they come from the source: read only as fast as the target takes them, never held whole."""
    for event in client.events("env-send", request, timeout=_SILENCE_S):
        if event.get("ev") == "chunk":
            yield base64.b64decode(event["data"])


def _nothing() -> bytes:
    """An archive of no files."""
    sink = io.BytesIO()
    with gzip.GzipFile(fileobj=sink, mode="wb", mtime=0) as zipped, tarfile.open(fileobj=zipped, mode="w"):
        pass
    return sink.getvalue()
