"""Adopts the example's two units into facts/: run it after a change of what adoption records."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from ddtree_ops.units.adopt import Adopted, adopt
from ddtree_ops.units.facts import CapabilityFact, EngineFact, Facts, ModelFact, dump_facts

UNITS = Path(__file__).resolve().parent / "units"
RECORDED = "2026-11-29T15:40:00Z"
API_KEY = "golden-server-key-0123456789"
SERVER_ENV = (
    f"# hub and model\nMODEL=/models/qwen3-8b\nDRAFT=/models/qwen3-8b-dflash\nSERVER_API_KEY={API_KEY}\n"
)


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def raw(host: str) -> dict[str, Any]:
    """A unit as the agent's read-unit sends it."""
    text = (UNITS / f"{host}.service").read_text(encoding="utf-8")
    files = []
    if host == "ct200":
        path = "/etc/sglang/server.env"
        files.append({"path": path, "text": SERVER_ENV, "sha256": sha256(SERVER_ENV), "optional": False})
    path = "/etc/systemd/system/sglang.service"
    return {
        "fragment": {"path": path, "text": text, "sha256": sha256(text)},
        "environment_files": files,
        "enabled": "enabled",
    }


def facts(host: str) -> Facts:
    """The example's facts of a host."""
    adopted = adopt(raw(host))
    assert isinstance(adopted, Adopted), adopted.reason
    ct129 = host == "ct129"
    root = "/root/ml-env" if ct129 else "/opt/sglang"
    return Facts(
        host=host,
        recorded=RECORDED,
        service="sglang.service",
        unit=adopted.unit,
        engine=EngineFact(
            version="0.5.11",
            interpreter=f"{root}/bin/python3" if ct129 else f"{root}/bin/python",
            package=f"{root}/lib/python3.11/site-packages/sglang",
            tree=sha256(host),
        ),
        capabilities=CapabilityFact(
            load_credential=ct129, log="journal" if ct129 else "file:/var/log/sglang/server.log"
        ),
        model=ModelFact(target_hybrid=ct129, context_length=32768, block_size=16),
    )


if __name__ == "__main__":
    for name in ("ct129", "ct200"):
        target = UNITS.parent.parent.parent / "facts" / f"{name}.yaml"
        target.write_text(dump_facts(facts(name)), encoding="utf-8")
