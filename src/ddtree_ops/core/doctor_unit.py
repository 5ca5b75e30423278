"""Preflight rules about the unit: masked, stale, overridden by somebody else, drifted from the recorded facts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ddtree_ops.core.facts_live import Capabilities, Engine, FileHash, Live, Service, State
from ddtree_ops.core.finding import Finding, block, ok, warn
from ddtree_ops.core.wanted import Wanted

#: What our drop-in sets: a later one that sets it too would win.
OURS = ("ExecStart", "PYTHONPATH", "UnsetEnvironment")


def loaded(service: Service, _: Live, wanted: Wanted) -> list[Finding]:
    """systemd must have loaded what is on disk."""
    if service.masked:
        said = f"{wanted.service} is masked"
        return [block("unit", said, f"ssh {wanted.host} systemctl unmask {wanted.service}")]
    if service.need_daemon_reload or service.unread:
        which = f": {service.unread[0]}" if service.unread else ""
        said = f"{wanted.service} changed on disk and systemd has not read it{which}"
        return [block("unit", said, f"ssh {wanted.host} systemctl daemon-reload")]
    if service.load_state == "not-found":
        return [warn("unit", f"{wanted.service} does not exist on the host yet", None)]
    if service.load_state != "loaded":
        said = f"{wanted.service} does not load: {service.load_state}"
        return [block("unit", said, f"ssh {wanted.host} systemctl status {wanted.service}")]
    if service.unit_file_state == "disabled":
        said = f"{wanted.service} is {service.active_state}, but disabled: after a reboot nothing starts it"
        return [warn("unit", said, f"ssh {wanted.host} systemctl enable {wanted.service}")]
    if service.active_state == "active":
        return [
            ok(
                "unit",
                f"{wanted.service} is {service.active_state} ({service.sub_state}), pid {service.main_pid}",
            )
        ]
    said = f"{wanted.service} is {service.active_state} ({service.sub_state}, result {service.result})"
    return [warn("unit", said + ": there is nothing running to fall back to", "ddtree-ops logs")]


def overridden(service: Service, _: Live, wanted: Wanted) -> list[Finding]:
    """An operator's drop-in that sorts after ours and sets the same thing would win."""
    found = []
    for late in service.late_dropins:
        move = f"ssh {wanted.host} mv {late.path} to a name before 50-ddtree.conf, then ddtree-ops adopt"
        if late.sets is None:
            found.append(warn("dropins", f"{late.path} sorts after ours and cannot be read", move))
        elif same := [name for name in OURS if name in late.sets]:
            said = f"{late.path} sorts after ours and sets {', '.join(same)}: it would win"
            found.append(block("dropins", said, move))
    return found or [ok("dropins", "no drop-in of the operator's overrides ours")]


def confirmed(state: State, live: Live, wanted: Wanted) -> list[Finding]:
    """The host must be as the last confirm left it: a deploy overwrites nothing that nobody has looked at."""
    named = {word.rstrip(":;,") for said in _recorded(live, wanted) for word in said.split() if "/" in word}
    # an edited unit file differs from the recorded facts as well, whose rule has named it
    found = [said for said in state.unknown if not named & {word.rstrip(":;,") for word in said.split()}]
    remedy = f"ddtree-ops deploy --host {wanted.host} --adopt, to take the host over as it is; or put it back"
    return [block("drift", said, remedy) for said in found] or [ok("drift", "as the last confirm left it")]


def _recorded(live: Live, wanted: Wanted) -> list[str]:
    """What the rule on facts says of the unit's files, damage aside, which it says itself."""
    if not isinstance(live.service, Service):
        return []
    try:
        return list(_unit(live.service, (wanted.recorded or {})["unit"]))
    except (KeyError, TypeError, AttributeError):
        return []


def drift(service: Service, live: Live, wanted: Wanted) -> list[Finding]:
    """The host must be what facts/<host>.yaml says: render and the plan are made from it."""
    if wanted.recorded is None:
        said = "no facts are recorded for this host"
        return [warn("facts", said, f"ddtree-ops adopt --host {wanted.host}")]
    adopt = f"ddtree-ops adopt --host {wanted.host}"
    record = f"ddtree-ops doctor --host {wanted.host} --record"
    try:
        units = list(_unit(service, wanted.recorded["unit"]))
        others = list(_engine(live, wanted.recorded)) + list(_capabilities(live, wanted.recorded))
    except (KeyError, TypeError, AttributeError) as error:
        return [block("facts", f"the recorded facts are damaged: {error} is missing", adopt)]
    found = [block("facts", said, adopt) for said in units] + [
        block("facts", said, record) for said in others
    ]
    found += [warn("facts", f"not compared: {said}", record) for said in _blind(live, wanted.recorded)]
    return found or [ok("facts", f"as recorded {wanted.recorded.get('recorded', '')}".rstrip())]


def _unit(service: Service, unit: Mapping[str, Any]) -> Iterator[str]:
    was = unit["fragment"]
    now = service.fragment
    if was.get("path") and now is None:
        yield f"the unit file {was['path']} is gone"
    elif now is not None:
        yield from _file("unit file", was.get("path"), was.get("sha256"), now)
    yield from _files("drop-in", unit.get("dropins") or (), service.dropins)
    yield from _files("environment file", unit.get("environment_files") or (), service.environment_files)
    enabled = unit.get("enabled")
    if enabled and enabled != service.unit_file_state:
        yield f"the unit was {enabled}, now it is {service.unit_file_state or 'none'}"


def _files(kind: str, before: Any, now: tuple[FileHash, ...]) -> Iterator[str]:
    recorded = {item["path"]: item.get("sha256") for item in before}
    seen = {item.path: item for item in now}
    for path in recorded:
        if path not in seen:
            yield f"{kind} {path} is gone"
    for path, item in seen.items():
        if path not in recorded:
            yield f"{kind} {path} is new"
        else:
            yield from _file(kind, path, recorded[path], item)


def _file(kind: str, path: str | None, digest: str | None, now: FileHash) -> Iterator[str]:
    if path != now.path:
        yield f"{kind} was {path or 'none'}, now it is {now.path}"
    elif digest != now.sha256:
        yield f"{kind} {path} changed: recorded {_short(digest)}, now {_short(now.sha256)}"


def _engine(live: Live, recorded: Mapping[str, Any]) -> Iterator[str]:
    was = recorded.get("engine") or {}
    if not isinstance(live.engine, Engine) or live.engine.missing:
        return  # its own rules say so
    now = live.engine
    for name, before, after in (
        ("version", was.get("version"), now.version),
        ("interpreter", was.get("interpreter"), now.interpreter),
        ("package", was.get("package"), now.package),
    ):
        if before and before != after:
            yield f"engine {name} was {before}, now it is {after}"
    if was.get("tree") and was["tree"] != now.tree:
        yield f"the engine's files changed: recorded tree {_short(was['tree'])}, now {_short(now.tree)}"


def _capabilities(live: Live, recorded: Mapping[str, Any]) -> Iterator[str]:
    was = recorded.get("capabilities") or {}
    if not isinstance(live.capabilities, Capabilities):
        return
    for name in ("systemd", "load_credential", "nft", "log"):
        now = getattr(live.capabilities, name)
        if name in was and was[name] is not None and now is not None and was[name] != now:
            yield f"capability {name} was {was[name]}, now it is {now}"


def _blind(live: Live, recorded: Mapping[str, Any]) -> Iterator[str]:
    """What is recorded and could not be seen this time."""
    if recorded.get("engine") and not isinstance(live.engine, Engine):
        yield f"the engine ({live.engine.why})"
    was = recorded.get("capabilities") or {}
    caps = live.capabilities
    if not isinstance(caps, Capabilities):
        yield f"capabilities ({caps.why})"
    elif gone := [name for name in was if was[name] is not None and getattr(caps, name, None) is None]:
        yield f"capabilities ({', '.join(gone)} not measured)"


def _short(digest: str | None) -> str:
    return digest[:12] if digest else "absent"
