"""Puts the agent on the host, outside any release, and never runs one that is not what its name says."""

import hashlib
import os
from typing import List

from .layout import Layout, write_atomic
from .wire import AgentError

NAME = "ddtree-agent.pyz"


def installed(layout: Layout, archive: str, digest: str) -> str:
    """Install the zip that runs now, unless the host has it whole; return its path.

    digest: the first 16 hex digits of its sha256. Raises AgentError where what arrived is something else.
    """
    with open(archive, "rb") as file:
        data = file.read()
    if digest_of(data) != digest:
        raise AgentError(
            "precondition",
            f"the agent arrived changed: its sha256 begins with {digest_of(data)}, not {digest}",
            meaning="nothing was touched",
            next="type the same command again",
        )
    target = os.path.join(layout.agents, digest, NAME)
    if not is_whole(target, digest):
        write_atomic(target, data)
    return target


def for_rollback(layout: Layout, archive: str, digest: str) -> str:
    """As `installed`; on a disk that takes no write, the agent of an earlier rollout."""
    try:
        return installed(layout, archive, digest)
    except OSError:
        earlier = whole_agents(layout)
        if not earlier:
            raise
        return earlier[-1]


def is_whole(path: str, digest: str) -> bool:
    """Whether a file is the agent that `digest` names."""
    try:
        with open(path, "rb") as file:
            return digest_of(file.read()) == digest
    except OSError:
        return False


def digest_of(data: bytes) -> str:
    """An agent's name: the first 16 hex digits of its sha256."""
    return hashlib.sha256(data).hexdigest()[:16]


def whole_agents(layout: Layout) -> List[str]:
    """Paths of the agents on this host that are what their names say, the last installed last."""
    names = os.listdir(layout.agents) if os.path.isdir(layout.agents) else []
    paths = [os.path.join(layout.agents, name, NAME) for name in names]
    whole = [path for path in paths if is_whole(path, os.path.basename(os.path.dirname(path)))]
    return sorted(whole, key=lambda path: os.stat(path).st_mtime)
