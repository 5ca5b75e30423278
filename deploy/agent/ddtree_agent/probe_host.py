"""Facts about the machine itself: who we are, room on its disks, memory, GPUs, the service's user."""

import grp
import os
import platform
import pwd
import shutil
import socket
import time
from typing import Any, Dict, Optional

from . import caps, systemd
from .layout import OPT


def session() -> Dict[str, Any]:
    """Who we are and what runs as PID 1."""
    return {
        "uid": os.geteuid(),
        "python": platform.python_version(),
        "hostname": socket.gethostname(),
        "kernel": platform.release(),
        "machine_id": _read("/etc/machine-id"),
        "boot_id": _read("/proc/sys/kernel/random/boot_id"),
        "time": time.time(),
        "systemd": caps.systemd_version(),
        "pid1": _read("/proc/1/comm"),
        # sd_booted(3): the directory exists exactly when systemd is the init of this machine.
        "systemd_is_init": os.path.isdir("/run/systemd/system"),
    }


def specifiers() -> Dict[str, str]:
    """What those %-specifiers mean that only the host knows (systemd.unit(5), table "Specifiers")."""
    release: Dict[str, str] = {}
    for line in (_read("/etc/os-release") or "").splitlines():
        name, _, value = line.partition("=")
        release[name] = value.strip("\"'")
    arch = {"x86_64": "x86-64", "aarch64": "arm64"}
    found = {
        "a": arch.get(platform.machine(), ""),
        "b": (_read("/proc/sys/kernel/random/boot_id") or "").replace("-", ""),
        "H": socket.gethostname(),
        "l": socket.gethostname().partition(".")[0],
        "m": _read("/etc/machine-id") or "",
        "v": platform.release(),
        "o": release.get("ID", ""),
        "w": release.get("VERSION_ID", ""),
        "B": release.get("BUILD_ID", ""),
        "W": release.get("VARIANT_ID", ""),
    }
    return {letter: value for letter, value in found.items() if value}


def storage(asked: Dict[str, Any]) -> Dict[str, Any]:
    """Free room where we write, and whether /opt/ddtree is one filesystem (releases move there by rename).

    {opt|var|run: {path, bytes, inodes, read_only, noexec, device}, one_filesystem, package_device?}
    """
    found = {name: _room(path) for name, path in (("opt", OPT), ("var", "/var/lib/ddtree"), ("run", "/run"))}
    parts = [os.path.join(OPT, name) for name in ("releases", "staging", "failed")]
    devices = {os.stat(path).st_dev for path in [OPT, *parts] if os.path.isdir(path)}
    origin = (asked.get("modules") or {}).get("sglang")
    answer: Dict[str, Any] = dict(found, one_filesystem=len(devices) < 2)
    if origin:
        answer["package_device"] = os.stat(origin).st_dev
    return answer


def memory(show: Dict[str, str]) -> Dict[str, Any]:
    """Bytes: {total, available, limit} (limit: the unit's MemoryMax, null for none)."""
    found: Dict[str, int] = {}
    with open("/proc/meminfo", encoding="ascii") as file:
        for line in file:
            name, _, rest = line.partition(":")
            found[name] = int(rest.split()[0]) * 1024
    limit = show.get("MemoryMax", "infinity")
    return {
        "total": found.get("MemTotal"),
        "available": found.get("MemAvailable"),
        "limit": int(limit) if limit.isdigit() else None,
    }


def gpu() -> Dict[str, Any]:
    """{present, count, driver}: what nvidia-smi lists; its silence proves nothing about CUDA."""
    driver = _read("/proc/driver/nvidia/version")
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return {"present": False, "count": 0, "driver": driver}
    status, out, err = systemd.run([tool, "-L"], 45)
    lines = [line for line in out.splitlines() if line.startswith("GPU ")]
    answer: Dict[str, Any] = {"present": True, "count": len(lines), "driver": driver}
    if status != 0:
        answer["error"] = (err or out).strip().splitlines()[:1] or [f"nvidia-smi ended with {status}"]
        answer["error"] = answer["error"][0]
    return answer


def user(show: Dict[str, str]) -> Dict[str, Any]:
    """The service's user and whether it exists. One that systemd makes up (DynamicUser=) does while the service
    runs, and is in no database of a host without libnss-systemd."""
    name = show.get("User") or "root"
    try:
        found = pwd.getpwuid(int(name)) if name.isdigit() else pwd.getpwnam(name)
    except KeyError:
        return {"name": name, "exists": show.get("DynamicUser") == "yes"}
    group = show.get("Group") or ""
    return {
        "name": name, "exists": True, "uid": found.pw_uid, "home": found.pw_dir,
        "missing_group": group if group and gid_of(group) is None else None,
    }  # fmt: skip


def gid_of(group: str) -> Optional[int]:
    """A group's number; null where it is in no database."""
    try:
        return int(group) if group.isdigit() else grp.getgrnam(group).gr_gid
    except KeyError:
        return None


def identity(show: Dict[str, str]) -> Dict[str, Any]:
    """Arguments for subprocess that run a program as the service's user; {} where that is root or we are not.

    A virtual environment that its user can write must not run its sitecustomize as root.
    """
    who = user(show)
    if os.geteuid() != 0 or not who.get("uid"):
        return {}
    entry = pwd.getpwuid(who["uid"])
    group = show.get("Group") or ""
    named = gid_of(group) if group else None
    gid = entry.pw_gid if named is None else named
    return {"user": entry.pw_uid, "group": gid, "extra_groups": os.getgrouplist(entry.pw_name, gid)}


def _room(path: str) -> Dict[str, Any]:
    there = path
    while not os.path.isdir(there):
        there = os.path.dirname(there)
    room = os.statvfs(there)
    return {
        "path": there,
        "bytes": room.f_bavail * room.f_frsize,
        # 0 of 0 inodes: a filesystem that does not count them (btrfs)
        "inodes": room.f_favail if room.f_files else None,
        "read_only": bool(room.f_flag & os.ST_RDONLY),
        "noexec": bool(room.f_flag & os.ST_NOEXEC),
        "device": os.stat(there).st_dev,
    }


def _read(path: str) -> Optional[str]:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(4096).strip()
    except OSError:
        return None
