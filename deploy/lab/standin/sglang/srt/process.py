"""What every process of the stand-in shares with the engine's: its title, and dying with its parent."""

import ctypes
import os
import signal

PR_SET_PDEATHSIG, PR_SET_NAME = 1, 15


def become(title: str) -> None:
    """Show `title` in ps and /proc (comm and cmdline), and be killed when the parent dies. Linux, prctl(2), proc(5)."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    libc.prctl(PR_SET_NAME, title.encode()[:15], 0, 0, 0)
    with open("/proc/self/stat", encoding="ascii", errors="replace") as stream:
        fields = stream.read().rsplit(")", 1)[1].split()
    start, end = int(fields[45]), int(fields[46])
    if 0 < start < end:
        ctypes.memmove(start, title.encode()[: end - start - 1].ljust(end - start, b"\0"), end - start)


def tell_parent_of_failure() -> None:
    """SIGQUIT to the main process: the engine's way to say that a child failed."""
    os.kill(os.getppid(), signal.SIGQUIT)
