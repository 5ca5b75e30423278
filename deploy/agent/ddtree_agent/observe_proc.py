"""What /proc says about the service's processes: how much they move, and whose socket listens on its port."""

import os
import re
import socket
from typing import Dict, Iterable, List, NamedTuple, Set, Tuple

from . import sockets
from .service import pids as cgroup_pids

_HZ = os.sysconf("SC_CLK_TCK")
#: Programs that a just-in-time build runs; the kernel cuts names to 15 characters (proc(5), comm).
_COMPILER = re.compile(
    r"nvcc|cicc|ptxas.*|fatbinary|nvlink|cudafe\+\+|ninja|gcc|g\+\+|cc|c\+\+|cc1|cc1plus|as|ld|collect2|clang.*|lld"
)
_WILD4, _WILD6 = "00000000", "0" * 32
_MAPPED = "0000000000000000FFFF0000"


class Usage(NamedTuple):
    """Sums over a process tree: CPU in hundredths of a second, bytes that went to or came from storage, living
    processes, and how many of them compile."""

    cpu_ticks: int
    io_bytes: int
    procs: int
    compilers: int


def tree(control_group: str, main_pid: int) -> List[int]:
    """The service's processes: its cgroup (v1 or v2) and, where no cgroup is visible, its main PID's descendants."""
    found = cgroup_pids(control_group)
    return found if found or not main_pid else _descendants(main_pid)


def usage(pids: Iterable[int]) -> Usage:
    """Read the counters of these processes (proc(5): stat fields 14 to 17, io). Processes that end meanwhile do not
    count."""
    cpu = moved = living = compilers = 0
    for pid in pids:
        name, fields = _stat(pid)
        if not fields or fields[0] == "Z":
            continue
        living += 1
        compilers += _COMPILER.fullmatch(name) is not None
        cpu += sum(
            int(field) for field in fields[11:15]
        )  # with waited-for children, so that a sum rarely falls
        moved += _io(pid)
    return Usage(cpu * 100 // _HZ, moved, living, compilers)


def owner(port: int, ours: Iterable[int], host: str = "127.0.0.1") -> Tuple[str, str]:
    """Who answers on TCP `host`:`port`: ("ours", ""), ("other", "pid 12 (nc -l)") or ("none", "")."""
    listening = sockets.listening(port)
    if not listening:
        return "none", ""
    for pid in ours:
        if sockets.held_by(pid) & set(listening):
            return "ours", ""
    foreign = {inode for inode, address in listening.items() if _covers(address, host)}
    return ("other", _holder(foreign)) if foreign else ("none", "")


def _descendants(root: int) -> List[int]:
    children: Dict[int, List[int]] = {}
    for entry in filter(str.isdigit, os.listdir("/proc")):
        _, fields = _stat(int(entry))
        if fields:
            children.setdefault(int(fields[1]), []).append(int(entry))
    found, queue = [], [root]
    while queue:
        pid = queue.pop()
        found.append(pid)
        queue += children.get(pid, [])
    return sorted(found)


def _stat(pid: int) -> Tuple[str, List[str]]:
    """Name and the fields from `state` on; the name may hold spaces and brackets."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            head, _, tail = file.read().rpartition(")")
    except OSError:
        return "", []
    return head.partition("(")[2], tail.split()


def _io(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/io") as file:
            pairs = dict(line.split(":") for line in file)
    except (OSError, ValueError):
        return 0
    return int(pairs.get("read_bytes", 0)) + int(pairs.get("write_bytes", 0))


def _covers(address: str, host: str) -> bool:
    if address in (_WILD4, _WILD6):
        return True
    try:
        packed = socket.inet_aton(socket.gethostbyname(host))
    except OSError:
        return True
    return address.replace(_MAPPED, "", 1) == packed[::-1].hex().upper()


def _holder(inodes: Set[str]) -> str:
    for entry in filter(str.isdigit, os.listdir("/proc")):
        if sockets.held_by(int(entry)) & inodes:
            return f"pid {entry} ({sockets.command(int(entry))})"
    return "a process of another namespace"
