"""The runtime section of healthy hosts: none is named, the host's own packages are used alone."""

from __future__ import annotations

from typing import Any

SECTIONS: dict[str, dict[str, Any]] = {
    "runtime": {
        "named": None,
        "present": False,
        "problem": None,
        "soabi": None,
        "dists": [],
        "interpreter_soabi": "cpython-311-x86_64-linux-gnu",
    }
}
