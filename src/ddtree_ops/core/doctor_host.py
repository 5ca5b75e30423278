"""Preflight rules about the host: root, systemd, room, users, port, models, who else is at work."""

from __future__ import annotations

from ddtree_ops.core.checks.checkpoint_facts import CHECKPOINTS, Checkpoints
from ddtree_ops.core.facts_live import (
    Capabilities,
    Checkpoint,
    Engine,
    Launch,
    Live,
    Model,
    Port,
    Room,
    Service,
    Session,
    State,
    Storage,
    User,
)
from ddtree_ops.core.finding import Finding, block, ok, warn
from ddtree_ops.core.wanted import Wanted

MIB = 1 << 20
#: What a release needs beside the copy of the package: manifest, bytecode, the failed one that is kept.
SPARE_BYTES = 256 * MIB
SPARE_INODES = 2000
STATE_BYTES = 16 * MIB
OLDEST_PYTHON = (3, 9)
OLDEST_SYSTEMD = 240


def root(session: Session, _: Live, wanted: Wanted) -> list[Finding]:
    """The agent writes units and restarts them."""
    if session.uid == 0:
        return [ok("root", "the agent runs as root")]
    remedy = f"hosts.yaml: user: root for {wanted.host}, or allow it NOPASSWD sudo for python3"
    return [block("root", f"no root on the host: uid {session.uid}", remedy)]


def systemd(session: Session, _: Live, wanted: Wanted) -> list[Finding]:
    """systemd must be the init of the host, and the host's python3 new enough for the agent."""
    python = tuple(int(part) for part in session.python.split(".")[:2])
    if python < OLDEST_PYTHON:
        return [
            block("systemd", f"python3 there is {session.python}", "install Python 3.9 or newer as python3")
        ]
    if not session.systemd_is_init:
        said = f"PID 1 is {session.pid1 or 'unknown'}, not systemd"
        return [
            block(
                "systemd",
                said,
                f"ssh {wanted.host} systemctl is-system-running, on a host booted with systemd",
            )
        ]
    if session.systemd is None:
        return [
            warn("systemd", "the version of systemd is unknown", f"ssh {wanted.host} systemctl --version")
        ]
    if session.systemd < OLDEST_SYSTEMD:
        return [warn("systemd", f"systemd {session.systemd} was never tested, 240 is the oldest", None)]
    return [ok("systemd", f"systemd {session.systemd} is PID 1, python3 {session.python}")]


def interpreter(launch: Launch, live: Live, wanted: Wanted) -> list[Finding]:
    """The engine's Python must be there and start."""
    if not launch.exists:
        said = f"{launch.interpreter} does not exist on the host or is not executable"
        return [
            block("interpreter", said, f"hosts.yaml: interpreter: /path/to/bin/python3 for {wanted.host}")
        ]
    if isinstance(live.engine, Engine):
        return [ok("interpreter", f"{launch.interpreter} is Python {live.engine.python}")]
    return [
        warn(
            "interpreter",
            f"{launch.interpreter}: {live.engine.why}",
            f"{launch.interpreter} --version, there",
        )
    ]


def user(who: User, _: Live, wanted: Wanted) -> list[Finding]:
    """The service's user."""
    if who.missing_group:
        said = f"the service's group {who.missing_group} does not exist: status=216/GROUP"
        return [block("user", said, f"groupadd --system {who.missing_group}, there")]
    if who.exists:
        return [ok("user", f"the service runs as {who.name}")]
    return [
        block("user", f"the service's user {who.name} does not exist", f"useradd --system {who.name}, there")
    ]


def disk(storage: Storage, live: Live, wanted: Wanted) -> list[Finding]:
    """Room for two copies of the package (the new release and a failed one), and for our own state."""
    size, count = (live.engine.size, live.engine.count) if isinstance(live.engine, Engine) else (0, 0)
    found = []
    for room, need, inodes in (
        (storage.opt, 2 * size + SPARE_BYTES, 2 * count + SPARE_INODES),
        (storage.var, STATE_BYTES, 100),
        (storage.run, MIB, 20),
    ):
        found += _room(room, need, inodes, wanted)
    if storage.opt.noexec:
        remedy = f"mount -o remount,exec {storage.opt.path}, there"
        found.append(
            block("disk", f"{storage.opt.path} is mounted noexec: libraries there do not load", remedy)
        )
    if not storage.one_filesystem:
        said = "/opt/ddtree is spread over several filesystems: a release could not be moved in one step"
        found.append(block("disk", said, "findmnt -R /opt/ddtree, there"))
    if isinstance(live.engine, Engine):
        return found or [
            ok("disk", f"{storage.opt.bytes // MIB} MiB and {storage.opt.inodes} inodes free for /opt")
        ]
    return found or [warn("disk", "enough for our own files; the package's size is unknown", None)]


def port(seen: Port, live: Live, wanted: Wanted) -> list[Finding]:
    """The service's port must be its own, or free."""
    strangers = [owner for owner in seen.owners if not owner.ours]
    if strangers:
        who = strangers[0]
        said = f"port {seen.port} is held by pid {who.pid} ({who.command}), which is not {wanted.service}'s"
        return [
            block("port", said, f"ssh {wanted.host} ss -ltnp 'sport = :{seen.port}', then stop that process")
        ]
    if seen.unknown:
        said = f"port {seen.port} is held by a process that the agent cannot see"
        return [warn("port", said, f"ssh {wanted.host} ss -ltnp 'sport = :{seen.port}'")]
    if seen.owners:
        return [ok("port", f"port {seen.port} is {wanted.service}'s own")]
    if isinstance(live.service, Service) and live.service.active_state == "active":
        return [
            warn(
                "port",
                f"{wanted.service} is active, but nobody listens on port {seen.port}",
                "ddtree-ops logs",
            )
        ]
    return [ok("port", f"port {seen.port} is free")]


def models(model: Model, live: Live, wanted: Wanted) -> list[Finding]:
    """Target and draft: present, readable, no shard missing."""
    found: list[Finding] = []
    for name, side in (("model", model.target), ("draft", model.draft)):
        if side is not None and side.exists is False and _mounted(live, name):
            found.append(ok(name, f"{side.path} is there for the service alone (a mount of its unit's)"))
        elif side is not None:
            found.append(_checkpoint(name, side, wanted))
        elif name == "model":
            found.append(warn(name, "no model path is known", f"hosts.yaml: model: for {wanted.host}"))
        elif wanted.needs_draft:
            found.append(block(name, "no draft path is known", f"hosts.yaml: draft: for {wanted.host}"))
    return found


def _mounted(live: Live, name: str) -> bool:
    """Whether the service sees a checkpoint that root does not: BindPaths= and its kin."""
    seen = live.of(CHECKPOINTS)
    side = (seen.target if name == "model" else seen.draft) if isinstance(seen, Checkpoints) else None
    return side is not None and side.exists is True


def locks(state: State, _: Live, wanted: Wanted) -> list[Finding]:
    """Nobody else may be at work on this service; that it is on hold stops a deploy, but no look at it."""
    if state.hold is None:
        return _at_work(state, wanted)
    said = f"{wanted.service} is on hold {state.hold.get('text')}: no deploy begins"
    return [warn("hold", said, f"ddtree-ops unhold --host {wanted.host}"), *_at_work(state, wanted)]


def _at_work(state: State, wanted: Wanted) -> list[Finding]:
    if state.open is not None:
        who = state.open.who or "someone"
        said = f"transaction {state.open.id} by {who} is open ({state.open.state})"
        if state.open.running or state.lock:
            return [block("transaction", said, f"ddtree-ops status --host {wanted.host}")]
        # Its runner is gone (a reboot, say): the next change on the host closes it first.
        return [warn("transaction", f"{said} and nobody works on it: the next change closes it first")]
    if state.lock:
        said = f"another operation holds {wanted.service}: {state.lock}"
        return [block("transaction", said, f"ddtree-ops status --host {wanted.host}")]
    return [ok("transaction", "nobody else is at work")]


def log_target(caps: Capabilities, _: Live, wanted: Wanted) -> list[Finding]:
    """A watch without log lines can only say that a process died, not why."""
    if caps.log == "none":
        said = "the service's lines go to no journal and no file: a failure could not be explained"
        return [warn("log", said, "StandardOutput=journal in a drop-in, then ddtree-ops adopt")]
    return [ok("log", f"the service's lines go to {caps.log}")]


def _room(room: Room, need: int, inodes: int, wanted: Wanted) -> list[Finding]:
    if room.read_only:
        return [
            block(
                "disk",
                f"{room.path} is mounted read-only",
                f"ssh {wanted.host} dmesg, then mount -o remount,rw",
            )
        ]
    if room.bytes < need:
        said = f"{room.path} has {room.bytes // MIB} MiB free, {need // MIB} MiB are needed"
        return [block("disk", said, f"ssh {wanted.host} du -xh --max-depth=1 {room.path}")]
    if room.inodes is not None and room.inodes < inodes:
        said = f"{room.path} has {room.inodes} inodes free, {inodes} are needed"
        return [block("disk", said, f"ssh {wanted.host} df -i {room.path}")]
    return []


def _checkpoint(name: str, side: Checkpoint, wanted: Wanted) -> Finding:
    if side.exists is None:
        return warn(
            name, f"{side.path} is a hub name: nothing can be checked", f"hosts.yaml: {name}: a local path"
        )
    if not side.exists:
        return block(
            name, f"{side.path} does not exist on the host", f"hosts.yaml: {name}: for {wanted.host}"
        )
    if side.error:
        return block(name, f"{side.path}: {side.error}", f"ssh {wanted.host} ls -l {side.path}")
    if side.missing_shards:
        said = f"{side.path} lacks {', '.join(side.missing_shards[:3])}"
        return block(name, said, f"ssh {wanted.host} ls -l {side.path}, then copy it again")
    return ok(name, f"{side.path} ({', '.join(side.architectures) or 'architecture unknown'})")
