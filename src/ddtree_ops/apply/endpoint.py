"""Where the engine of a host listens and logs: from hosts.yaml and the adopted command line."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from ddtree_ops.config.model import HostConfig
from ddtree_ops.core.errors import PreconditionFailed
from ddtree_ops.core.modes import scan
from ddtree_ops.units.facts import Facts

DEFAULT_PORT = 30000
_EVERYWHERE = ("0.0.0.0", "::", "")


@dataclass(frozen=True)
class Endpoint:
    """`address`: where probes on the host reach the engine; `log`: journal, none, or file:/path."""

    port: int = DEFAULT_PORT
    address: str = "127.0.0.1"
    log: str = "journal"

    def to_json(self) -> dict[str, Any]:
        """As the agent's requests take it."""
        return asdict(self)


def endpoint(host: HostConfig, facts: Facts | None) -> Endpoint:
    """The endpoint of a host; the defaults where it was never adopted.

    Raises PreconditionFailed for a server that our probes cannot ask (TLS, embeddings).
    """
    if facts is None:
        return Endpoint(port=host.port or DEFAULT_PORT)
    spans = {span.name: span.value for span in scan(facts.unit.exec.argv)} if facts.unit.exec else {}
    for flag, why in (
        ("--ssl-certfile", "the engine serves HTTPS itself, which the gates cannot ask yet"),
        ("--is-embedding", "an embedding model generates no tokens, so that speculation has no meaning"),
    ):
        if flag in spans:
            raise PreconditionFailed(
                f"{why} ({flag})",
                host=host.name,
                meaning="nothing was touched",
                next="terminate TLS in front of the engine" if "ssl" in flag else "choose another host",
            )
    said = spans.get("--host") or "127.0.0.1"
    return Endpoint(
        port=host.port or facts.port or DEFAULT_PORT,
        address="127.0.0.1" if said in _EVERYWHERE else said,
        log=facts.capabilities.log,
    )
