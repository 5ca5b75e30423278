"""Who listens on a TCP port, by /proc (proc(5)): sockets, the processes that hold them, their command lines."""

import os
from typing import Dict, Optional, Set

_LISTEN = "0A"


def listening(port: int) -> Dict[str, str]:
    """Inode -> local address (hexadecimal, as the kernel prints it) of the sockets that listen on `port`."""
    found: Dict[str, str] = {}
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            with open(table, encoding="ascii") as file:
                rows = [line.split() for line in file][1:]
        except OSError:
            continue
        for row in rows:
            address, _, number = row[1].rpartition(":")
            if row[3] == _LISTEN and int(number, 16) == port:
                found[row[9]] = address
    return found


def held_by(pid: int) -> Set[str]:
    """Inodes of the sockets that a process has open; what it closes meanwhile is left out."""
    found: Set[str] = set()
    try:
        entries = os.listdir(f"/proc/{pid}/fd")
    except OSError:
        return found
    for entry in entries:
        try:
            target = os.readlink(f"/proc/{pid}/fd/{entry}")
        except OSError:
            continue
        if target.startswith("socket:["):
            found.add(target[8:-1])
    return found


def holder(port: int) -> Optional[str]:
    """Who listens on `port` ("pid 12 (nc -l)"), None where nobody does."""
    inodes = set(listening(port))
    if not inodes:
        return None
    for entry in filter(str.isdigit, os.listdir("/proc")):
        if held_by(int(entry)) & inodes:
            return f"pid {entry} ({command(int(entry))})"
    return "a process of another namespace"


def words(pid: int) -> "list[str]":
    """A process's argument list; [] where it is gone."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read().decode("utf-8", "replace").rstrip("\0").split("\0")
    except OSError:
        return []


def command(pid: int) -> str:
    """The first words of a command line, for messages: no argument that could be a key."""
    return " ".join(words(pid)[:3]).strip() or "?"
