"""Which values systemd takes for the settings whose wrong value it ignores (load-fragment.c, time-util.c)."""

from __future__ import annotations

import re


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


_ENUMS = {
    "Restart": "no on-success on-failure on-abnormal on-watchdog on-abort always",
    "Type": "simple forking oneshot dbus notify idle exec notify-reload",
    "KillMode": "control-group process mixed none",
    "NotifyAccess": "none main exec all",
    "OOMPolicy": "continue stop kill",
    "ExitType": "main cgroup",
}
_BOOLS = _names(
    """
    DynamicUser BlockIOAccounting CPUAccounting CPUSchedulingResetOnFork GuessMainPID IOAccounting IPAccounting
    IgnoreSIGPIPE LockPersonality MemoryAccounting MemoryDenyWriteExecute NoNewPrivileges NonBlocking
    PermissionsStartOnly PrivateDevices PrivateIPC PrivateMounts PrivateNetwork PrivateTmp PrivateUsers ProtectClock
    ProtectControlGroups ProtectHostname ProtectKernelLogs ProtectKernelModules ProtectKernelTunables
    RemainAfterExit RemoveIPC RestrictRealtime RestrictSUIDSGID RootDirectoryStartOnly SendSIGHUP SendSIGKILL
    SyslogLevelPrefix TTYReset TTYVHangup TTYVTDisallocate TasksAccounting AllowIsolate DefaultDependencies
    IgnoreOnIsolate RefuseManualStart RefuseManualStop StopWhenUnneeded OnFailureIsolate
    """
)
_BOOL = _names("1 yes y true t on 0 no n false f off")
_TIMES = _names(
    """
    TimeoutSec TimeoutStartSec TimeoutStopSec RestartSec RuntimeMaxSec WatchdogSec TimeoutCleanSec
    LogRateLimitIntervalSec StartLimitIntervalSec StartLimitInterval JobTimeoutSec JobRunningTimeoutSec
    """
)
# An empty assignment of these is ignored as well; of all others it resets.
_NEVER_EMPTY = (
    (
        _BOOLS
        | _TIMES
        | _names("Restart Type NotifyAccess OOMPolicy ExitType StandardOutput StandardError StandardInput")
    )
    | _names(
        "UMask KillSignal FinalKillSignal RestartKillSignal WatchdogSignal ProtectHome ProtectSystem Slice"
    )
    | _names(
        "LogLevelMax SyslogLevel SyslogFacility StartLimitBurst LogRateLimitBurst KeyringMode DevicePolicy"
    )
    | _names(
        "StartLimitAction FailureAction SuccessAction CollectMode TimeoutStartFailureMode TimeoutStopFailureMode"
    )
)
_OUTPUTS = _names(
    "inherit null tty journal kmsg journal+console kmsg+console socket fd syslog syslog+console"
)
_LIMIT = re.compile(r"(?:infinity|[0-9.]+\s*[KMGTPE]?)(?::(?:infinity|[0-9.]+\s*[KMGTPE]?))?")
_SECONDS = {
    "": 1.0, "s": 1, "sec": 1, "second": 1, "seconds": 1, "m": 60, "min": 60, "minute": 60, "minutes": 60,
    "h": 3600, "hr": 3600, "hour": 3600, "hours": 3600, "d": 86400, "day": 86400, "days": 86400,
    "w": 604800, "week": 604800, "weeks": 604800, "M": 2629800, "month": 2629800, "months": 2629800,
    "y": 31557600, "year": 31557600, "years": 31557600, "ms": 1e-3, "msec": 1e-3, "us": 1e-6, "usec": 1e-6,
    "µs": 1e-6,
}  # fmt: skip

_UNITS = "|".join(sorted(_SECONDS, key=len, reverse=True))
_SPAN = re.compile(rf"([0-9]+\.?[0-9]*|\.[0-9]+)(\s*)({_UNITS})")


def seconds(text: str) -> float | None:
    """Return a time span in seconds (`5min 20s`, `90`, `infinity`), None where it is none (systemd.time(7))."""
    rest = text.strip()
    if rest == "infinity":
        return float("inf")
    total = 0.0
    while match := _SPAN.match(rest):
        number, blank, unit = match.groups()
        if not blank and not unit and match.end() < len(rest):  # `1.5.5` is none, `1.5 .5` is one
            return None
        total += float(f"0{number}0" if number.startswith(".") else number) * _SECONDS[unit]
        rest = rest[match.end() :].lstrip()
        if not rest:
            return total
    return None


def refusal(key: str, value: str) -> str | None:
    """Return why systemd ignores `key=value`, None where it takes it (or where this table does not know)."""
    kept = f"{key}={value} is no value that systemd knows, it keeps what was set before"
    if not value:
        return kept if key in _NEVER_EMPTY or key.startswith("Limit") else None
    if key in _ENUMS and value not in _ENUMS[key].split():
        return kept
    if key in _BOOLS and value.lower() not in _BOOL:
        return f"{key}={value} is neither yes nor no, systemd ignores it"
    if key in _TIMES and seconds(value) is None:
        return f"{key}={value} is no time span, systemd ignores it"
    if key in ("StandardOutput", "StandardError") and not _output(value):
        return kept
    if key in (
        "LimitNOFILE",
        "LimitMEMLOCK",
        "LimitNPROC",
        "LimitSTACK",
        "LimitCORE",
    ) and not _LIMIT.fullmatch(value):
        return kept
    return None


def _output(value: str) -> bool:
    kind, colon, rest = value.partition(":")
    if not colon:
        return value in _OUTPUTS
    if kind in ("file", "append", "truncate"):
        return rest.startswith(("/", "%")) and ".." not in rest.split("/")
    return kind == "fd"
