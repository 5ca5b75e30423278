"""A ready project for the lab's hosts: the hosts.yaml that fits what they run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .baseline import MODELS
from .state import State

STANDIN_SERIES = Path(__file__).resolve().parents[1] / "standin" / "series"


def write(state: State, hosts: Mapping[str, Mapping[str, Any]]) -> Path:
    """Write `<state>/project/hosts.yaml` for the hosts that are up (as Lab.status() has them); return the directory.

    Facts of an earlier lab are removed: they would speak of hosts that are no more. Those of a host that has run since
    before they were written stay.
    """
    project = state.root / "project"
    (project / "facts").mkdir(parents=True, exist_ok=True)
    for left in (project / "facts").glob("*.yaml"):
        made = state.hosts / left.stem / "root"
        if not made.exists() or made.stat().st_ctime > left.stat().st_mtime:
            left.unlink()
    lines = ["# Written by `ddtree-ops lab up`.", "version: 1", "hosts:"]
    for name, host in sorted(hosts.items()):
        keys: dict[str, Any] = {"ssh_config": str(state.ssh_config)}
        if host["engine"] != "none":
            keys |= {
                "draft": f"/models/{MODELS[str(host['pair'])][1]}",
                "budget": 6,
                "topk": 3,
                "shadow_every": 2,
            }
        if host["engine"] == "standin":
            keys["series"] = str(STANDIN_SERIES)
        lines.append(f"  {name}: {json.dumps(keys)}")
    (project / "hosts.yaml").write_text("\n".join(lines) + "\n")
    return project
