"""What a host is held against: its name, the series that is to run there, the facts recorded for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ddtree_ops.core.features import Loss, Need


@dataclass(frozen=True)
class Wanted:
    """host: its name in hosts.yaml. version: the engine release the series was made for. base: {path relative to the
    package: sha256 of the pre-image} (`base.json`). patched: the same for the post-images, where they are known.
    recorded: the document of facts/<host>.yaml (protocol section 2), None where there is none. draft: needed.
    mode, loses, needs: what is asked for, what its clients lose by it, what they must keep. argv: the rendered command
    line of that mode. accepts: {flag that the series' modes set: values it adds to the engine's own choices}.
    hybrid_refused: why the mode does not run on a hybrid model. waive: {rule: reason} of the BLOCKs that a person lets
    pass."""

    host: str
    service: str
    version: str | None = None
    series: str | None = None
    base: Mapping[str, str] = field(default_factory=dict)
    patched: Mapping[str, str] = field(default_factory=dict)
    recorded: Mapping[str, Any] | None = None
    needs_draft: bool = False
    mode: str | None = None
    loses: tuple[Loss, ...] = ()
    needs: tuple[Need, ...] = ()
    argv: tuple[str, ...] = ()
    accepts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    hybrid_refused: str | None = None
    waive: Mapping[str, str] = field(default_factory=dict)
