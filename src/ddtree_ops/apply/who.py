"""Who does this, from where: for the host's history and for the second operator's error message."""

from __future__ import annotations

import getpass
import os
import secrets
import socket
import time


def operator() -> str:
    """`user@machine`, and the CI job where one is named."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = f"uid{os.getuid()}"
    job = os.environ.get("CI_JOB_URL") or os.environ.get("GITHUB_RUN_ID")
    return f"{user}@{socket.gethostname()}" + (f" ({job})" if job else "")


def new_txn() -> str:
    """A transaction's id: sorts by time, unique across operators."""
    return f"{int(time.time() * 1000):x}-{secrets.token_hex(3)}"


def new_nonce() -> str:
    """What a confirm must bring."""
    return secrets.token_hex(16)
