"""`deploy --rehearse` on the real SGLang 0.5.11: its own code runs on dummy weights beside the live server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from rig import Rig

pytestmark = [pytest.mark.lab, pytest.mark.engine, pytest.mark.full, pytest.mark.tier("preflight")]
PACKAGE = "/root/ml-env/lib/python3.11/site-packages/sglang"


def test_shadow_and_full_are_rehearsed_before_they_are_deployed(engine_host: Any, tmp_path: Path) -> None:
    rig = Rig(engine_host("ct129", pair="cycle"), tmp_path / "project")
    rig.configure(series="sglang-0.5.11", draft="/models/cyc_draft", budget=6, topk=3)
    rig.adopt()
    before, package = rig.theirs(), rig.host.tree_hash([PACKAGE])
    for mode in ("shadow", "full"):
        run = rig.cli("deploy", "--mode", mode, "--rehearse")
        print(run.err)
        assert run.rc == 0, run.err
        assert "tokens as the target's own next token" in run.err
    assert "rehearsed in" in rig.cli("history", "--json").json["history"][-1]["rehearsed"]
    assert rig.cli("rollback", "--to", "baseline").rc == 0
    assert (rig.theirs(), rig.host.tree_hash([PACKAGE])) == (before, package)
