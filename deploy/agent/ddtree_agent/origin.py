"""From where the operator came: the address that sshd noted, for the history."""

import os
from typing import Optional


def origin() -> Optional[str]:
    """The client's address of the SSH session that we run in (SSH_CONNECTION, sshd(8)); None on the host itself.

    sudo takes the variable away from us, so that our parents are asked as well.
    """
    pid = os.getpid()
    while pid > 1:
        found = _connection(pid)
        if found:
            return found
        pid = _parent(pid)
    return None


def _connection(pid: int) -> Optional[str]:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            pairs = file.read().split(b"\0")
    except OSError:
        return None
    for pair in pairs:
        name, _, value = pair.partition(b"=")
        if name in (b"SSH_CONNECTION", b"SSH_CLIENT") and value:
            return value.split()[0].decode("ascii", "replace")
    return None


def _parent(pid: int) -> int:
    """PPid, the second field after the name (proc_pid_stat(5)); 0 where it is gone."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return int(file.read().rsplit(")", 1)[1].split()[1])
    except (OSError, ValueError, IndexError):
        return 0
