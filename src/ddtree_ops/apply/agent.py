"""Calls the agent's verbs on a host: one SSH round trip each, nothing installed for a read."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from ddtree_ops.apply import agentzip
from ddtree_ops.config.model import HostConfig, Inventory
from ddtree_ops.core import errors
from ddtree_ops.core.log_text import clean
from ddtree_ops.core.refusals import explain
from ddtree_ops.transport.base import Transport

#: Loads the agent from its own stdin, in memory: a read leaves no file behind (memfd_create(2), Python 3.8+).
BOOT = (
    "import os,sys;r=sys.stdin.buffer;d=r.read(int(r.readline()));f=os.memfd_create('ddtree-agent');"
    "open(f,'wb',closefd=False).write(d);sys.path.insert(0,'/proc/%d/fd/%d'%(os.getpid(),f));"
    "from ddtree_agent.main import main;sys.exit(main(sys.argv[1:],r))"
)
PREFIX = b"@ddt "
_KINDS = {
    kind.kind: kind
    for kind in (
        errors.UsageProblem,
        errors.PreconditionFailed,
        errors.HostLocked,
        errors.RolledBack,
        errors.RollbackFailed,
        errors.Unreachable,
        errors.OutcomeUnknown,
    )
}


class AgentSilent(errors.PreconditionFailed):
    """The agent gave no framed answer at all: for a first call nothing was touched, in a rollout try again."""


class AgentClient:
    """The agent on one host, behind a transport. Errors arrive as core.errors with the host's name filled in."""

    def __init__(self, transport: Transport, host: HostConfig) -> None:
        self.transport, self.host = transport, host
        #: How the line behaved in the last call: the probe's section `transport` (core/checks/transport.py).
        self.line: dict[str, Any] = {}

    def call(
        self,
        op: str,
        request: dict[str, Any],
        payload: Iterable[bytes] = (),
        timeout: float | None = None,
        on_note: Callable[[str], None] | None = None,
    ) -> dict[str, Any]:
        """Run a verb and return its result frame. `timeout`: seconds of silence allowed; `on_note`: hears its notes.

        Raises the OpsError that the agent names, Unreachable where the line fails, and OpsError (a bug) where the
        answer is not framed.
        """
        last: dict[str, Any] | None = None
        for event in self.events(op, request, payload, timeout):
            last = event
            if on_note is not None and event.get("ev") == "note":
                on_note(str(event["text"]))
        if last is None or last.get("ev") != "result":
            raise errors.Unreachable(
                f"the line was cut before {op} answered", host=self.host.name, next="ddtree-ops status"
            )
        return last

    def events(
        self, op: str, request: dict[str, Any], payload: Iterable[bytes] = (), timeout: float | None = None
    ) -> Iterator[dict[str, Any]]:
        """Run a verb and yield its frames as they come; a failed result is raised."""
        # -B: no bytecode; -I: neither the operator's environment nor a working directory of the host leaks in.
        argv = ["python3", "-I", "-B", "-c", BOOT, "--service", self.host.service, op]
        if self.host.user != "root":
            argv = ["sudo", "-n", *argv]
        idle = self.host.timeouts.command if timeout is None else timeout
        sent = time.time()
        stream = self.transport.stream(argv, self._input(request, payload), idle)
        noise: list[str] = []
        framed = False
        for line in stream:
            if not line.startswith(PREFIX):
                noise.append(line.decode("utf-8", "replace"))
                continue
            if not framed:
                self.line = _line(sent, noise)
            framed = True
            event: dict[str, Any] = json.loads(line[len(PREFIX) :])
            self.line["answered"] = time.time()
            if event.get("ev") == "result" and not event.get("ok"):
                raise self._error(event["error"])
            yield event
        if not framed:
            raise self._no_agent(stream.rc, noise, stream.err)

    def _input(self, request: dict[str, Any], payload: Iterable[bytes]) -> Iterator[bytes]:
        archive = agentzip.build()
        body = json.dumps({"service": self.host.service, **request}).encode()
        yield b"%d\n" % len(archive) + archive + b"%d\n" % len(body) + body
        yield from payload

    def _error(self, fields: dict[str, Any]) -> errors.OpsError:
        kind = _KINDS.get(str(fields.get("kind")), errors.OpsError)
        then = fields.get("next")
        if then and then.startswith("ddtree-ops ") and "--host" not in then:
            verb, *rest = then.removeprefix("ddtree-ops ").split(" ", 1)
            name = verb.rstrip(",;")
            then = (
                f"ddtree-ops {name} --host {self.host.name}{verb[len(name) :]}{' ' + rest[0] if rest else ''}"
            )
        return kind(
            str(fields["what"]),
            host=self.host.name,
            evidence=fields.get("evidence"),
            meaning=fields.get("meaning"),
            next=then,
        )

    def _no_agent(self, rc: int | None, noise: list[str], err: bytes) -> AgentSilent:
        said = [line for line in [*err.decode("utf-8", "replace").splitlines(), *noise] if line.strip()]
        evidence = said[-1] if said else f"exit status {rc}"
        known = next(((text, found) for text in reversed(said) if (found := explain(text))), None)
        if known is not None:
            evidence, found = known
            root = "no root on the host: " if found.id == "sudo" else ""
            return AgentSilent(
                root + found.what.replace("{user}", self.host.user),
                host=self.host.name,
                evidence=evidence,
                meaning=f"{found.meaning.replace('{user}', self.host.user)}; nothing was touched",
                next=found.then(self.host.name, self.host.user),
            )
        if "sudo" in evidence:
            return AgentSilent(
                f"no root on the host: sudo -n is refused for {self.host.user}",
                host=self.host.name,
                evidence=evidence,
                meaning="nothing was touched",
                next="set user: root in hosts.yaml, or allow NOPASSWD sudo for python3",
            )
        if rc == 127 or "not found" in evidence:
            return AgentSilent(
                "the host has no python3 for the agent",
                host=self.host.name,
                evidence=evidence,
                meaning="the agent needs Python 3.9 or newer as python3; nothing was touched",
                next="apt-get install python3, on the host",
            )
        return AgentSilent(
            "the agent could not start on the host",
            host=self.host.name,
            evidence=evidence,
            meaning="nothing was touched",
            next=f"ddtree-ops doctor --host {self.host.name}",
        )


def _line(sent: float, noise: list[str]) -> dict[str, Any]:
    """What came before the agent's first frame: what an rc file prints, cut and without control characters."""
    said = [clean(re.sub(r"[\x00-\x1f\x7f]", "", text))[:120] for text in noise if text.strip()]
    return {"sent": sent, "answered": sent, "noise": said[:3], "noise_lines": len(said)}


@contextmanager
def connect(inventory: Inventory, host: HostConfig) -> Iterator[AgentClient]:
    """A client over a fresh SSH connection. Raises Unreachable."""
    from ddtree_ops.transport import open_transport

    transport = open_transport(inventory, host)
    try:
        yield AgentClient(transport, host)
    finally:
        transport.close()
