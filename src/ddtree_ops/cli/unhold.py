"""`unhold`: lift the hold of a host."""

from __future__ import annotations

from ddtree_ops.cli._options import ConfigOpt, HostOpt, JsonOpt


def unhold(host: HostOpt = None, config: ConfigOpt = None, json: JsonOpt = False) -> None:
    """Lift the hold, whoever put it there; says whose it was."""
    from ddtree_ops.cli._common import one_host
    from ddtree_ops.cli._run import connector
    from ddtree_ops.cli._sinks import document, say

    inventory, chosen = one_host(config, host)
    with connector(inventory, chosen)() as client:
        lifted = client.call("unhold", {})["lifted"]
    if json:
        document({"host": chosen.name, "lifted": lifted})
    said = f"the hold {lifted['text']} is lifted" if lifted else "nothing to do: there is no hold"
    say(f"{chosen.name}: {said}")
