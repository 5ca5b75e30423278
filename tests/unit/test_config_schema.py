"""The shipped JSON Schema is the model's, and names what the model takes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ddtree_ops.config.model import HostEntry, Timeouts
from ddtree_ops.config.schema import hosts_schema, schema_text

pytestmark = pytest.mark.tier("main")
ROOT = Path(__file__).resolve().parents[2]


def test_the_shipped_schema_is_current() -> None:
    shipped = (ROOT / "hosts.schema.json").read_text(encoding="utf-8")
    assert shipped == schema_text(), "run: ddtree-ops schema > hosts.schema.json"


def test_it_describes_every_key_and_no_other() -> None:
    schema = json.loads(json.dumps(hosts_schema()))
    host = schema["$defs"]["HostEntry"]
    assert set(host["properties"]) == set(HostEntry.model_fields)
    assert host["additionalProperties"] is False
    assert all("description" in p for p in host["properties"].values())
    aliases = {f.alias or n for n, f in Timeouts.model_fields.items()}
    assert set(schema["$defs"]["Timeouts"]["properties"]) == aliases
    assert schema["required"] == ["version", "hosts"]
