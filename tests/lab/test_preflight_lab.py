"""The preflight on a real host: one channel, a frozen nvidia-smi costs itself, and a rule that a person waived."""

from __future__ import annotations

from typing import Any

import pytest
from rig import STANDIN_SERIES, UNIT, Rig

from ddtree_ops.apply.agent import connect
from ddtree_ops.apply.prepare import adopted, probe, wanted
from ddtree_ops.config import load_inventory
from ddtree_ops.core.doctor import examine
from ddtree_ops.core.finding import Level
from ddtree_ops.engine.find import find_series

pytestmark = [pytest.mark.lab, pytest.mark.tier("preflight")]
#: Names of sections that ask nvidia-smi; every other one must be answered though it hangs.
ASK_NVIDIA_SMI = {"gpu", "gpus", "gpu_processes", "topology"}


@pytest.fixture(scope="module")
def rig(module_standin_host: Any, tmp_path_factory: pytest.TempPathFactory) -> Rig:
    made = Rig(module_standin_host("ct129"), tmp_path_factory.mktemp("project"))
    made.adopt()
    return made


def sshd_said(rig: Rig, words: str) -> int:
    """How often the host's own sshd wrote these words."""
    return int(rig.host.check(f"journalctl -t sshd -o cat --no-pager | grep -c '{words}' || true"))


def test_the_whole_preflight_is_one_channel_of_one_login(rig: Rig) -> None:
    before = [sshd_said(rig, words) for words in ("Accepted publickey", "Starting session")]
    assert rig.cli("doctor").rc == 0
    rig.wait(f"test $(journalctl -t sshd -o cat --no-pager | grep -c 'Accepted publickey') -gt {before[0]}")
    after = [sshd_said(rig, words) for words in ("Accepted publickey", "Starting session")]
    assert [now - then for now, then in zip(after, before, strict=True)] == [1, 1]


def test_a_frozen_nvidia_smi_leaves_every_other_section_answered(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DDTREE_OPS_SSH_CONFIG", rig.env["DDTREE_OPS_SSH_CONFIG"])
    rig.host.write("/usr/local/bin/nvidia-smi", "#!/bin/sh\necho $$ >> /run/asked\nexec sleep 600\n", 0o755)
    inventory = load_inventory(rig.project / "hosts.yaml")
    host = inventory.hosts[rig.host.name]
    facts, series = adopted(inventory, host), find_series(str(STANDIN_SERIES), inventory.base)
    assert facts.unit.exec is not None
    # as on a host with a GPU: with --device cpu nobody would ask for one
    argv = [word for word in facts.unit.exec.argv if word not in ("--device", "cpu")]
    cuda = facts.unit.exec.model_copy(update={"argv": [*argv, "--device", "cuda"]})
    facts = facts.model_copy(update={"unit": facts.unit.model_copy(update={"exec": cuda})})
    try:
        with connect(inventory, host) as client:
            seen = probe(client, host, facts, series)
        asked = rig.host.read("/run/asked").split()
        left = rig.host.exec(f"ls -d {' '.join(f'/proc/{pid}' for pid in asked)} 2>/dev/null")[1].split()
    finally:
        rig.host.check("rm -f /usr/local/bin/nvidia-smi /run/asked")
    assert asked, "nobody asked nvidia-smi"
    assert left == [], "it was left behind"
    unknown = {
        name: part["error"] for name, part in seen.items() if isinstance(part, dict) and "error" in part
    }
    assert set(unknown) <= ASK_NVIDIA_SMI, unknown
    assert unknown["gpu"] == "no answer in 45 s"
    assert seen["gpus"]["said"] == ["nvidia-smi -L: no answer in 45 s"]
    blocks = {f.rule: f for f in examine(seen, wanted(host, facts, series, None)) if f.level is Level.BLOCK}
    assert "no answer in 45 s" in blocks["gpu-visible"].evidence


def test_a_rule_that_blocks_is_waived_with_a_reason_that_the_plan_and_the_history_keep(rig: Rig) -> None:
    """A proxy in the unit: the warm-up of the real engine would fail, the stand-in has none."""
    reason = "the stand-in asks itself nothing"
    dropin = f"/etc/systemd/system/{UNIT}.d/10-proxy.conf"
    rig.host.write(dropin, "[Service]\nEnvironment=http_proxy=http://10.9.9.9:3128\n")
    rig.host.check(["systemctl", "daemon-reload"])
    rig.host.check(["systemctl", "restart", UNIT])
    rig.host.wait_http(limit_s=30)
    rig.adopt()
    try:
        pid, theirs, ours = rig.host.main_pid(), rig.theirs(), rig.ours()
        refused = rig.cli("deploy", "--mode", "shadow")
        assert refused.rc == 3, refused.err
        assert "http_proxy" in refused.err
        assert "nothing was touched" in refused.err
        assert (rig.host.main_pid(), rig.theirs(), rig.ours()) == (pid, theirs, ours)
        assert rig.transactions() == set()
        assert rig.status_releases() == []

        rig.configure(waive={"proxy": reason})
        planned = rig.cli("plan", "--mode", "shadow", "--json")
        assert planned.rc == 0, planned.err
        assert reason in planned.out
        told = rig.cli("plan", "--mode", "shadow")
        assert reason in told.out + told.err
        done = rig.cli("deploy", "--mode", "shadow", "--json")
        assert done.rc == 0, done.err
        assert reason in done.out
        assert f"waived: {reason}" in done.err
        assert rig.serving() == "DDTREE"
        entry = rig.cli("history", "--json").json["history"][-1]
        assert entry["outcome"] == "confirmed"
        assert any(said.startswith(f"proxy: {reason}") for said in entry["waived"])
        assert reason in rig.cli("history").out + rig.cli("history").err
    finally:
        rig.configure()
        rig.cli("rollback", "--to", "baseline")
        rig.host.check(f"rm -f {dropin}; systemctl daemon-reload; systemctl restart {UNIT}")
        rig.host.wait_http(limit_s=30)
        rig.adopt()


def test_what_only_the_units_own_sandbox_shows_is_seen_there(rig: Rig) -> None:
    """A model behind BindReadOnlyPaths= exists for the service and for nobody else; a closed unit is no open one."""
    dropin = f"/etc/systemd/system/{UNIT}.d/20-closed.conf"
    argv = rig.host.check(
        ["sh", "-c", f"systemctl show -P ExecStart {UNIT} | sed 's/.*argv\\[\\]=//; s/ ; ignore_errors.*//'"]
    )
    assert "/models/cyc_target" in argv
    closed = """[Service]
BindReadOnlyPaths=/models:/bound/models
TemporaryFileSystem=/srv:ro
ProtectKernelTunables=yes
ProtectControlGroups=yes
RestrictNamespaces=yes
LockPersonality=yes
UnsetEnvironment=LS_COLORS
SystemCallArchitectures=native
SystemCallFilter=@system-service @mount
CapabilityBoundingSet=CAP_NET_BIND_SERVICE CAP_SYS_PTRACE CAP_DAC_READ_SEARCH CAP_DAC_OVERRIDE
ExecStart=
ExecStart=""" + argv.strip().replace("/models/cyc_target", "/bound/models/cyc_target")
    rig.host.write(dropin, closed + "\n")
    try:
        rig.host.check(["systemctl", "daemon-reload"])
        rig.host.check(["systemctl", "restart", UNIT])
        assert rig.serving() == "None"
        rig.configure(draft="/bound/models/cyc_draft")
        assert rig.cli("adopt", "--yes").rc == 0
        done = rig.cli("doctor", "--json")
        said = {
            (f["rule"], f["level"]): f["evidence"]
            for f in done.json["hosts"][rig.host.name]["findings"]
            if f["level"] == "BLOCK"
        }
        assert said == {}, said
        assert "not run in the unit's sandbox" not in done.out
        run = rig.cli("deploy")
        assert run.rc == 0, run.err
        assert rig.cli("rollback", "--to", "baseline").rc == 0
    finally:
        rig.host.check(["rm", "-f", dropin])
        rig.host.check(["systemctl", "daemon-reload"])
        rig.host.check(["systemctl", "restart", UNIT])
        rig.configure()
        rig.adopt()
