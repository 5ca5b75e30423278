"""Healthy sections of unit, sandbox, limits, network, processes, last run and transport: a host with two GPUs."""

from __future__ import annotations

from typing import Any

FRAGMENT = "/etc/systemd/system/sglang.service"
PYTHON = "/v/bin/python3"
_SETTINGS = (
    ("Unit", "Description", "SGLang"), ("Unit", "StartLimitIntervalSec", "600"), ("Unit", "StartLimitBurst", "3"),
    ("Service", "Type", "exec"), ("Service", "WorkingDirectory", "/"), ("Service", "Environment", None),
    ("Service", "EnvironmentFile", "-/etc/sglang.env"), ("Service", "ExecStart", None),
    ("Service", "Restart", "always"), ("Service", "RestartSec", "10"), ("Service", "KillMode", "mixed"),
    ("Service", "TimeoutStopSec", "60"),
    ("Service", "LogRateLimitIntervalSec", "0"), ("Service", "LimitNOFILE", "1048576"),
    ("Service", "LimitMEMLOCK", "infinity"), ("Install", "WantedBy", "multi-user.target"),
)  # fmt: skip


def settings(*changed: tuple[str, str, str | None]) -> list[dict[str, Any]]:
    """The unit's lines, with some set otherwise or added at the end."""
    kept = [s for s in _SETTINGS if s[:2] not in [c[:2] for c in changed]]
    return [
        {"file": FRAGMENT, "line": n, "section": section, "key": key, "value": value}
        for n, (section, key, value) in enumerate([*kept, *changed], 2)
    ]


def command(**changed: Any) -> dict[str, Any]:
    """The shape of an Exec…= line with nothing against it."""
    found: dict[str, Any] = {
        "file": FRAGMENT, "line": 9, "key": "ExecStart", "program": PYTHON, "prefixes": "", "unset": [],
        "optional_unset": [], "specifiers": [], "json": [], "open_quote": False, "glued": [], "shell": [],
    }  # fmt: skip
    return {**found, **changed}


def process(pid: int, name: str, **changed: Any) -> dict[str, Any]:
    """A process of the service."""
    found: dict[str, Any] = {
        "pid": pid, "ppid": 77, "parent": "python3", "state": "S", "name": name, "unit": "sglang.service",
        "cgroup": "/system.slice/sglang.service", "ours": True, "container": False, "gpu": True, "rss": 4 << 30,
    }  # fmt: skip
    return {**found, **changed}


NO_PROXY: dict[str, Any] = {"http": False, "names": [], "no_proxy": []}
SECTIONS: dict[str, Any] = {
    "unit_lint": {
        "properties": {
            "LoadState": "loaded", "UnitFileState": "enabled", "Type": "exec", "NotifyAccess": "none",
            "KillMode": "mixed", "KillSignal": "15", "SendSIGKILL": "yes", "Restart": "always", "RestartUSec": "10s",
            "RemainAfterExit": "no", "TimeoutStartUSec": "1min 30s", "TimeoutStopUSec": "1min",
            "RuntimeMaxUSec": "infinity", "WatchdogUSec": "0", "StartLimitIntervalUSec": "10min",
            "StartLimitBurst": "3", "LogRateLimitIntervalUSec": "0", "StandardOutput": "journal", "User": "",
            "PrivateTmp": "no", "PrivateDevices": "no", "PrivateNetwork": "no", "ProtectSystem": "no",
            "ProtectHome": "no", "MemoryDenyWriteExecute": "no", "RestrictAddressFamilies": "", "DevicePolicy": "auto",
            "DeviceAllow": "", "ProcSubset": "all", "IPAddressDeny": "", "IPAddressAllow": "", "LimitNOFILE": "1048576",
            "LimitMEMLOCK": "infinity", "TasksMax": "infinity", "UMask": "0022",
        },
        "unread": [],
        "settings": settings(),
        "commands": [command()],
        "environment": [],
        "dropped": [],
        "stale": [],
        "environment_files": [
            {
                "file": FRAGMENT, "line": 8, "path": "/etc/sglang.env", "optional": True, "absolute": True,
                "exists": True, "readable": True, "names": ["HF_TOKEN"], "ignored": [],
            }
        ],
        "working_directory": {"path": "/", "optional": False, "exists": True, "written": "/"},
        "programs": [
            {
                "path": PYTHON, "exists": True, "executable": True, "runs": True, "interpreter": None,
                "interpreter_exists": None,
            }
        ],
        "notifies": False,
        "verify": {"status": 0, "lines": []},
        "journald": {"interval": None, "burst": None},
        "paths": [
            {"file": FRAGMENT, "line": 20, "key": "ReadWritePaths", "path": "/var/lib/llm", "exists": True},
        ],
        "conditions": [
            {"file": FRAGMENT, "line": 3, "key": "ConditionPathExists", "path": "/v/bin/python3", "met": True},
        ],
        "units": [{"name": "mnt-models.mount", "tie": "Requires", "load": "loaded", "active": "active"}],
    },
    "sandbox": {
        "uid": 0,
        "umask": 0o022,
        "home": {"set": True, "path": "/root", "exists": True},
        "tmp_private": False,
        "inductor": False,
        "rlimits": {
            "nofile": [1048576, 1048576], "memlock": [None, None], "nproc": [500000, 500000], "stack": [8388608, None],
            "as": [None, None], "core": [0, None], "fsize": [None, None], "data": [None, None],
        },
        "read": [{"what": "engine package", "path": "/v/sglang", "exists": True, "problem": None}],
    },
    "sandbox_network": {
        "proxies": NO_PROXY,
        "hostname": "ct129",
        "addresses": ["10.77.0.10"],
        "local": True,
        "bind": {"host": "0.0.0.0", "port": 30000, "error": None},
    },
    "limits": {
        "memory": {"total": 512 << 30, "available": 400 << 30, "swap_total": 8 << 30, "swap_free": 8 << 30},
        "cgroup": {
            "version": 2, "memory_max": None, "memory_high": None, "swap_max": None,
            "pids_max": {"value": 618000, "at": "/system.slice/sglang.service"}, "memory_current": 90 << 30,
            "pids_current": 900, "oom_kills": 0,
        },
    },
    "network": {
        "host": "0.0.0.0",
        "port": 30000,
        "ports": [
            {
                "flag": "--port", "port": 30000, "unknown": 0,
                "owners": [{"pid": 77, "command": "python3", "cgroup": "/system.slice/sglang.service", "ours": True}],
            }
        ],
        "ephemeral": [32768, 60999],
        "reserved": "",
        "unprivileged": 1024,
        "running": NO_PROXY,
    },
    "processes": {
        "main_pid": 77,
        "unit_active": True,
        "processes": [
            process(77, "sglang.launch_server", ppid=1, parent="systemd"),
            process(91, "sglang::scheduler_TP0"),
            process(92, "sglang::scheduler_TP1"),
            process(93, "sglang::detokenizer", gpu=False),
        ],
        "more": 0,
    },
    "last_run": {
        "result": "success", "active": "active", "sub": "running", "restarts": 0, "status": 0, "start_limit": False,
        "log": True, "fatal": None,
    },
    "transport": {"sent": 1.0, "answered": 3.0, "noise": [], "noise_lines": 0},
}  # fmt: skip
