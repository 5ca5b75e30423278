"""The independent reader against a real host: a sound one violates nothing, a spoiled one is named."""

from __future__ import annotations

from typing import Any

import pytest
import reader
from invariants import Asked
from rig import UNIT, Rig

pytestmark = [pytest.mark.lab, pytest.mark.tier("transaction")]
CANARY = "canary-5b1f0c2e"


def test_what_the_reader_sees(module_standin_host: Any, tmp_path_factory: pytest.TempPathFactory) -> None:
    rig = Rig(module_standin_host("read"), tmp_path_factory.mktemp("project"))
    rig.adopt()
    before = reader.read(rig.host)
    assert reader.check(before, before, None, None) == []
    deploy = rig.cli("deploy", "--json")
    reader.settle(rig.host)
    after = reader.read(rig.host)
    wanted = Asked(wanted=deploy.json["result"]["release"], swept=True)
    assert reader.check(after, before, deploy.rc, deploy.json, wanted) == []
    assert after["confirmed"]["release"] == after["service"]["release"] == wanted.wanted
    spoil = [
        ("I1", "mkdir -p /run/systemd/system/{u}.d; cp {k} /run/systemd/system/{u}.d/60-ddtree-trial.conf"),
        (
            "I1",
            "rm /run/systemd/system/{u}.d/60-ddtree-trial.conf; systemctl daemon-reload; systemctl stop {u}",
        ),
        ("I2", "systemctl start {u}; echo >> /opt/ddtree/releases/{r}/overlay/sglang/version.py"),
        ("I5", "systemd-run --unit=ddtree-test flock /var/lib/ddtree/{u}/lock sleep 60"),
        ("I10", "systemctl stop ddtree-test; echo {c} > /var/lib/ddtree/{u}/note"),
        ("I12", "rm /var/lib/ddtree/{u}/note; echo note >> /etc/systemd/system/{u}.d/99-own.conf"),
    ]
    names = {
        "u": UNIT,
        "k": f"/etc/systemd/system/{UNIT}.d/50-ddtree.conf",
        "r": wanted.wanted,
        "c": CANARY,
    }
    for invariant, command in spoil:
        rig.host.check(command.format(**names))
        found = reader.check(reader.read(rig.host, (CANARY,)), after, None, None)
        assert invariant in {sentence.split(":")[0] for sentence in found}, (command, found)
