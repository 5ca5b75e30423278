"""The JSON Schema of hosts.yaml, for editors and CI; the repository's `hosts.schema.json` is this."""

from __future__ import annotations

import json
from typing import Any

from ddtree_ops.config.model import InventoryFile
from ddtree_ops.core.doctor import known


def hosts_schema() -> dict[str, Any]:
    """Return the schema (draft 2020-12)."""
    schema = InventoryFile.model_json_schema(by_alias=True)
    names = [name for name, rule in known().items() if rule.waivable]
    schema["$defs"]["HostEntry"]["properties"]["waive"]["propertyNames"] = {"enum": names}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **schema,
        "title": "ddtree-ops hosts.yaml",
    }


def schema_text() -> str:
    """Return the schema as the file's text, byte for byte."""
    return json.dumps(hosts_schema(), indent=2, ensure_ascii=False) + "\n"
