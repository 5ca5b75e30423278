"""Rules on how the unit starts, stops, restarts, confines and logs: valid settings that are wrong for this server."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ddtree_ops.core.checks.judge import rule
from ddtree_ops.core.checks.rule import Rule
from ddtree_ops.core.checks.unit_files import SECTION, UnitFiles, edit
from ddtree_ops.core.facts_live import Capabilities, Live, Service, Session
from ddtree_ops.core.finding import Finding, block, ok, warn
from ddtree_ops.core.wanted import Wanted

#: A start with cold compile caches takes minutes; a load from a network file system more (shared/failures.md, SLOW).
_SHORT_S, _ENOUGH_S = 600.0, 1800.0
_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0, "month": 2629800.0,
          "y": 31557600.0}  # fmt: skip
_PART = re.compile(r"([0-9.]+)\s*(us|ms|min|month|s|h|d|w|y)?")
_JOURNAL = ("journal", "journal+console", "syslog", "kmsg", "inherit", "")


def seconds(text: str | None) -> float | None:
    """A time span as `systemctl show` prints it ("1min 30s", "infinity"); None where it is none."""
    if not text:
        return None
    if text == "infinity":
        return float("inf")
    parts = _PART.findall(text)
    if not parts or _PART.sub("", text).strip():
        return None
    return sum(float(number) * _UNITS[unit or "s"] for number, unit in parts)


def _yes(facts: UnitFiles, key: str) -> bool:
    return facts.properties.get(key, "").lower() in ("yes", "true", "1", "on")


def _active(live: Live) -> bool:
    return isinstance(live.service, Service) and live.service.active_state == "active"


def _type(facts: UnitFiles, live: Live, wanted: Wanted) -> Iterator[Finding]:
    """SGLang sends no readiness message and does not fork itself into the background."""
    id, kind = "unit-type", facts.properties.get("Type", "")
    use = f"Type=exec (readiness is watched from outside); {edit(wanted)}"
    limit = seconds(facts.properties.get("TimeoutStartUSec"))
    says_ready = facts.notifies or _active(live)
    if not kind:
        yield warn(
            id,
            "unknown: systemd does not say the unit's Type",
            f"ssh {wanted.host} systemctl cat {wanted.service}",
        )
    elif kind == "oneshot":
        text = "Type=oneshot: the start waits for the server's end, and its death stays unnoticed"
        yield block(id, text, use)
    elif kind in ("notify", "notify-reload", "dbus", "forking") and not says_ready:
        what = "never daemonizes" if kind == "forking" else "sends no READY=1"
        text = (
            f"Type={kind}, but the server {what}: the unit stays activating until TimeoutStartSec= kills it"
        )
        yield block(id, text, use)
    elif kind in ("notify", "notify-reload", "forking") and limit is not None and limit < _SHORT_S:
        text = f"Type={kind} with a start limit of {limit:g} s: systemd kills a load that takes longer"
        yield block(id, text, f"TimeoutStartSec=infinity; {edit(wanted)}")
    elif kind == "forking":
        yield warn(id, "Type=forking: systemd guesses the main process, so its death may stay unnoticed", use)
    elif _yes(facts, "RemainAfterExit"):
        yield warn(
            id,
            "RemainAfterExit=yes: the unit stays active after its server ended",
            f"RemainAfterExit=no; {edit(wanted)}",
        )
    else:
        yield ok(id, f"Type={kind}")


def _limits(facts: UnitFiles, live: Live, wanted: Wanted) -> Iterator[Finding]:
    """Time limits of systemd that end a healthy server."""
    id, bad = "unit-time-limits", False
    start = seconds(facts.properties.get("TimeoutStartUSec"))
    before = any(command.key == "ExecStartPre" for command in facts.commands)
    waits = before or facts.properties.get("Type") in ("notify", "notify-reload", "forking")
    if waits and start is not None and start < _ENOUGH_S:
        bad = True
        what = "ExecStartPre= counts against it" if before else "a cold start can take longer"
        text = f"TimeoutStartSec= is {start:g} s: {what}"
        yield warn(id, text, f"TimeoutStartSec=infinity, the watch has its own limits; {edit(wanted)}")
    life = seconds(facts.properties.get("RuntimeMaxUSec"))
    if life is not None and life != float("inf") and life > 0:
        bad = True
        text = f"RuntimeMaxSec= is {life:g} s: systemd ends the server then, however healthy"
        fix = f"RuntimeMaxSec=infinity; {edit(wanted)}"
        yield block(id, text, fix) if life < _ENOUGH_S else warn(id, text, fix)
    dog = seconds(facts.properties.get("WatchdogUSec"))
    if dog is not None and 0 < dog != float("inf") and not facts.notifies:
        bad = True
        text = f"WatchdogSec= is {dog:g} s, and the server sends no WATCHDOG=1: systemd kills it then"
        yield block(id, text, f"remove WatchdogSec=; {edit(wanted)}")
    if not bad:
        yield ok(id, "no limit of systemd's ends a slow start")


def _stop(facts: UnitFiles, live: Live, wanted: Wanted) -> Iterator[Finding]:
    """A stop must leave no scheduler behind: it would keep GPU memory and ports from the next start."""
    id, bad = "unit-stop", False
    mode = facts.properties.get("KillMode", "")
    if mode in ("process", "none"):
        bad = True
        text = f"KillMode={mode}: schedulers and workers may outlive a stop and keep their GPU memory"
        yield block(id, text, f"KillMode=mixed or control-group; {edit(wanted)}")
    if facts.properties.get("SendSIGKILL", "yes") == "no":
        bad = True
        yield block(
            id,
            "SendSIGKILL=no: a process that ignores SIGTERM is never ended",
            f"SendSIGKILL=yes; {edit(wanted)}",
        )
    limit = seconds(facts.properties.get("TimeoutStopUSec"))
    if limit == float("inf"):
        bad = True
        text = (
            "TimeoutStopSec=infinity: during a load SGLang does not handle SIGTERM, so such a stop never ends"
        )
        yield warn(id, text, f"TimeoutStopSec=60; {edit(wanted)}")
    elif limit is not None and limit < 5:
        bad = True
        yield warn(
            id,
            f"TimeoutStopSec= is {limit:g} s: requests in flight are cut off",
            f"TimeoutStopSec=60; {edit(wanted)}",
        )
    old = isinstance(live.session, Session) and (live.session.systemd or 999) < 246
    if old and mode == "mixed" and any(command.key == "ExecStopPost" for command in facts.commands):
        bad = True
        text = (
            "KillMode=mixed with ExecStopPost= leaves processes in the cgroup with this systemd (before 246)"
        )
        yield warn(id, text, f"KillMode=control-group; {edit(wanted)}; after a stop look at cgroup.procs")
    if not bad:
        shown = "" if limit is None else f", {limit:g} s for a stop"
        yield ok(id, f"KillMode={mode or 'control-group'}{shown}")


def _restart(facts: UnitFiles, live: Live, wanted: Wanted) -> Iterator[Finding]:
    """SGLang ends with status 0 after its scheduler crashed: only Restart=always brings it back."""
    id, policy = "unit-restart", facts.properties.get("Restart", "")
    fine = (facts.written("RestartForceExitStatus") or facts.written("ExecStopPost")) is not None
    if policy == "always" or (fine and policy not in ("", "no")):
        yield ok(id, f"Restart={policy}")
    elif policy == "":
        yield warn(
            id,
            "unknown: systemd does not say the unit's Restart",
            f"ssh {wanted.host} systemctl cat {wanted.service}",
        )
    else:
        text = f"Restart={policy}: the engine exits with 0 after a child crash, and nobody starts it again"
        yield warn(id, text, f"Restart=always with RestartSec=10; {edit(wanted)}")


def _sandbox(facts: UnitFiles, live: Live, wanted: Wanted) -> Iterator[Finding]:
    """Hardening that an inference server cannot live with."""
    id, bad = "unit-sandbox", False
    cuda = live.cuda is not False
    for text, fix, hard in _confined(facts, cuda):
        bad = True
        yield (
            block(id, text, f"{fix}; {edit(wanted)}") if hard else warn(id, text, f"{fix}; {edit(wanted)}")
        )
    caps = live.capabilities
    if (
        _yes(facts, "PrivateTmp")
        and isinstance(caps, Capabilities)
        and re.match(r"file:/(var/)?tmp/", caps.log)
    ):
        bad = True
        text = f"the log {caps.log[5:]} lies in a /tmp that is the unit's own (PrivateTmp=yes): nobody can follow it"
        yield warn(id, text, f"StandardOutput=append:/var/log/…; {edit(wanted)}")
    if not bad:
        yield ok(id, "nothing in the sandbox is known to stop the engine")


def _confined(facts: UnitFiles, cuda: bool) -> Iterator[tuple[str, str, bool]]:
    """(what is wrong, what helps, whether it stops the engine for sure)."""
    shown = facts.properties
    devices = shown.get("DeviceAllow", "")
    if cuda and _yes(facts, "PrivateDevices"):
        yield "PrivateDevices=yes hides /dev/nvidia* from the service", "PrivateDevices=no", True
    elif cuda and shown.get("DevicePolicy") in ("closed", "strict") and "nvidia" not in devices:
        yield (
            f"DevicePolicy={shown['DevicePolicy']} without DeviceAllow= for nvidia devices",
            "DevicePolicy=auto",
            True,
        )
    elif cuda and devices and "nvidia" not in devices and shown.get("DevicePolicy") != "auto":
        yield "DeviceAllow= names no nvidia device", "DeviceAllow=char-nvidia rw", False
    if _yes(facts, "PrivateNetwork"):
        yield "PrivateNetwork=yes: nobody reaches the server's port", "PrivateNetwork=no", True
    families = shown.get("RestrictAddressFamilies", "")
    if families and not families.startswith("~"):
        lacks = [name for name in ("AF_UNIX", "AF_INET") if name not in families.split()]
        if lacks:
            yield (
                f"RestrictAddressFamilies= lacks {', '.join(lacks)}",
                "RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK",
                True,
            )
        elif "AF_NETLINK" not in families.split():
            yield (
                "RestrictAddressFamilies= lacks AF_NETLINK, which NCCL lists interfaces with",
                "add AF_NETLINK",
                False,
            )
    if _yes(facts, "MemoryDenyWriteExecute"):
        text = "MemoryDenyWriteExecute=yes: compiled kernels (Triton, CUDA, Inductor) cannot be mapped"
        yield text, "MemoryDenyWriteExecute=no", cuda
    if shown.get("ProcSubset") == "pid":
        yield "ProcSubset=pid hides /proc/meminfo and /proc/cpuinfo from the engine", "ProcSubset=all", False
    if re.search(r"(^|\s)(0\.0\.0\.0/0|any)(\s|$)", shown.get("IPAddressDeny", "")):
        yield (
            "IPAddressDeny= forbids every address that IPAddressAllow= does not name",
            "IPAddressDeny=",
            shown.get("IPAddressAllow") == "",
        )


def _log_rate(facts: UnitFiles, live: Live, wanted: Wanted) -> Iterator[Finding]:
    """journald drops what comes too fast: a silent log then looks like a hang."""
    id = "unit-log-rate"
    output = facts.properties.get("StandardOutput", "journal").partition(":")[0]
    if output not in _JOURNAL:
        yield ok(id, f"the log goes to {output}, which drops nothing")
        return
    version = live.session.systemd if isinstance(live.session, Session) else None
    # NEWS of systemd 240 raised the default from 1000 to 10000 lines in 30 s.
    default = "1000" if version is not None and version < 240 else "10000"
    own = facts.written("LogRateLimitIntervalSec"), facts.written("LogRateLimitBurst")
    interval = (own[0].value if own[0] else None) or facts.journald.get("interval") or "30s"
    burst = (own[1].value if own[1] else None) or facts.journald.get("burst") or default
    span = seconds(interval)
    if span == 0 or burst == "0":
        yield ok(id, "journald drops no lines of this unit")
    elif burst.isdigit() and int(burst) < 5000:
        text = f"journald drops lines beyond {burst} in {interval}: a burst ends in silence that looks like a hang"
        yield warn(
            id,
            text,
            f"LogRateLimitIntervalSec=0, or a log file beside it (StandardOutput=append:); {edit(wanted)}",
        )
    else:
        yield ok(id, f"journald takes {burst} lines in {interval}")


RULES: tuple[Rule[UnitFiles], ...] = (
    rule(
        SECTION, "unit-type", _type,
        "systemd waits for a message that never comes, kills the start, and it begins anew.", "F162", "F163",
    ),
    rule(
        SECTION, "unit-time-limits", _limits,
        "A healthy slow start, or a healthy server, is killed by a timer.", "F135", "F163", "F164",
    ),
    rule(
        SECTION, "unit-stop", _stop,
        "Processes that outlive a stop hold GPU memory and ports: neither the new release nor the old one starts.",
        "F154", "F159", "F160",
    ),
    rule(
        SECTION, "unit-restart", _restart,
        "The service stays down after a crash that looks like a clean exit.", "F156",
    ),
    rule(SECTION, "unit-sandbox", _sandbox, "The engine starts in a shell and fails in the unit."),
    rule(
        SECTION, "unit-log-rate", _log_rate, "The watch sees no progress where there is some.", "F179", "F180",
    ),
)  # fmt: skip
