"""`hold`: let no deploy begin on a host, and say why."""

from __future__ import annotations

from typing import Annotated

import typer

from ddtree_ops.cli._options import ConfigOpt, HostOpt, JsonOpt


def hold(
    host: HostOpt = None,
    why: Annotated[
        str,
        typer.Option("--why", metavar="TEXT", help="What others read who are refused.", show_default=False),
    ] = "",
    span: Annotated[
        str | None, typer.Option("--for", metavar="SPAN", help="2h, 90m, 3d; else until `unhold`.")
    ] = None,
    until: Annotated[
        str | None, typer.Option("--until", metavar="TIME", help="2026-12-01T08:00Z; else until `unhold`.")
    ] = None,
    config: ConfigOpt = None,
    json: JsonOpt = False,
) -> None:
    """Refuse deploys (exit 4) until the time given, or until `unhold`.

    Rollbacks, and a rollout that is open already, go on.
    """
    from ddtree_ops.apply.who import operator
    from ddtree_ops.cli._common import one_host
    from ddtree_ops.cli._run import connector
    from ddtree_ops.cli._sinks import document, say
    from ddtree_ops.config.secrets import redact
    from ddtree_ops.core.errors import UsageProblem
    from ddtree_ops.core.text import one_line
    from ddtree_ops.core.when import parse_moment, parse_span

    text = redact(one_line(why))
    if not text:
        raise UsageProblem("a hold needs a reason", next='--why "GPU 3 is being replaced"')
    if span is not None and until is not None:
        raise UsageProblem("--for and --until say the same: choose one", next="drop one of them")
    request = {
        "who": operator(),
        "why": text,
        "for_s": None if span is None else parse_span(span, "--for"),
        "until": None if until is None else parse_moment(until, "--until"),
    }
    inventory, chosen = one_host(config, host)
    with connector(inventory, chosen)() as client:
        answer = client.call("hold", request)
    if json:
        document({"host": chosen.name, "hold": answer["hold"], "replaced": answer["replaced"]})
    say(f"{chosen.name}: {chosen.service} is on hold {answer['hold']['text']}")
    if answer["replaced"]:
        say(f"  in place of the hold {answer['replaced']['text']}")
