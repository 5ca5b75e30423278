"""Bad input on a real host: one sentence, the right exit code, the next command, and the old service still serving."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rig import STANDIN_SERIES, UNIT, Rig, Run

pytestmark = [pytest.mark.lab, pytest.mark.tier("main")]
PACKAGE = "/opt/standin/lib/python3.11/site-packages/sglang"


@pytest.fixture(scope="module")
def rig(module_standin_host: Any, tmp_path_factory: pytest.TempPathFactory) -> Rig:
    made = Rig(module_standin_host("ct200"), tmp_path_factory.mktemp("project"))
    made.adopt()
    return made


@pytest.fixture(autouse=True)
def untouched(rig: Rig) -> Iterator[None]:
    """Whatever is wrong, the service is not restarted, and nothing of ours is in force afterwards."""
    rig.configure()
    pid = rig.host.main_pid()
    assert pid
    yield
    rig.configure()
    assert rig.host.main_pid() == pid
    assert rig.host.wait_http(limit_s=10) is not False
    assert rig.ours() == []


def refused(run: Run, rc: int, *words: str) -> None:
    """A sentence with these words, this code, a next command, and no traceback."""
    assert run.rc == rc, run.err
    for word in words:
        assert word in run.err, run.err
    assert "Traceback" not in run.err
    assert "next:" in run.err, run.err


def test_an_unknown_host_gets_a_suggestion_before_any_connection(rig: Rig) -> None:
    run = rig.cli("deploy", "--host", "ct20", "--mode", "shadow", host=False)
    refused(run, 2, "ct200")


def test_an_unknown_mode_names_the_modes(rig: Rig) -> None:
    refused(rig.cli("deploy", "--mode", "shadwo"), 2, "shadow")


def test_an_unknown_key_is_placed(rig: Rig) -> None:
    rig.configure(budgte=6)
    refused(rig.cli("deploy"), 2, "hosts.yaml:1:", "budgte", "budget")


def test_the_baseline_is_not_deployed_but_gone_back_to(rig: Rig) -> None:
    refused(rig.cli("deploy", "--mode", "baseline"), 2, "rollback --host ct200 --to baseline")


def test_an_unreachable_host(rig: Rig) -> None:
    rig.configure(timeouts={"connect": 3})
    rig.host.fault("link-down")
    try:
        run = rig.cli("deploy")
    finally:
        rig.host.fault("link-up")
    refused(run, 13, "ct200")
    assert run.seconds < 60


def test_a_changed_host_key(rig: Rig) -> None:
    known = Path(rig.env["DDTREE_OPS_SSH_CONFIG"]).parent / "known_hosts"
    before = known.read_text()
    stranger = "AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJl"
    changed = [
        " ".join([*line.split()[:2], stranger]) if "ct200" in line else line for line in before.splitlines()
    ]
    known.write_text("\n".join(changed) + "\n")
    try:
        run = rig.cli("deploy")
    finally:
        known.write_text(before)
    refused(run, 13, "key", "known_hosts")


def test_a_wrong_interpreter(rig: Rig) -> None:
    rig.configure(interpreter="/opt/nowhere/bin/python3")
    refused(rig.cli("deploy"), 3, "/opt/nowhere/bin/python3")


def test_an_interpreter_without_the_engine(rig: Rig) -> None:
    rig.configure(interpreter="/usr/bin/python3")
    refused(rig.cli("deploy"), 3, "/usr/bin/python3")


def test_a_missing_draft_model(rig: Rig) -> None:
    rig.configure(draft="/models/nowhere")
    refused(rig.cli("deploy"), 3, "/models/nowhere")


def test_hand_edited_site_packages_are_named_with_the_file(rig: Rig) -> None:
    path = f"{PACKAGE}/srt/managers/scheduler.py"
    rig.host.check(f"cp -p {path} /root/saved.py; printf '# tried something\\n' >> {path}")
    try:
        run = rig.cli("deploy")
    finally:
        rig.host.check(f"cp -p /root/saved.py {path}; rm /root/saved.py")
    refused(run, 3, "scheduler.py")


def test_a_half_patched_tree_is_named_with_file_and_hash(rig: Rig) -> None:
    path = f"{PACKAGE}/srt/server_args.py"
    rig.host.check(f"cp -p {path} /root/saved.py; sed -i '0,/DFLASH/s//DFLASH2/' {path}")
    try:
        run = rig.cli("deploy")
    finally:
        rig.host.check(f"cp -p /root/saved.py {path}; rm /root/saved.py")
    refused(run, 3, "server_args.py")


def test_sources_that_the_series_was_not_made_for(rig: Rig, tmp_path: Path) -> None:
    base = json.loads((STANDIN_SERIES / "base.json").read_text())
    base["files"] = dict.fromkeys(base["files"], "0" * 64)
    for file in STANDIN_SERIES.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "base.json").write_text(json.dumps(base))
    rig.configure(series=str(tmp_path))
    refused(rig.cli("deploy"), 3, f"{PACKAGE}/srt/", "expected 0000", "found")


def test_a_cuda_build_mismatch_blocks_before_anything_stops(rig: Rig) -> None:
    version = "/opt/standin/lib/python3.11/site-packages/torch/version.py"
    unit = f"/etc/systemd/system/{UNIT}"
    # As on a GPU host: the unit says --device cuda, torch is a cu128 build, the kernel wheel a cu130 one.
    rig.host.check(f'cp -p {version} /root/version.py; sed -i "s/13\\.0/12.8/; s/cu130/cu128/" {version}')
    rig.host.check(
        f"cp -p {unit} /root/unit; sed -i 's/--device cpu/--device cuda/' {unit}; systemctl daemon-reload"
    )
    try:
        rig.adopt()
        run = rig.cli("deploy")
        doctor = rig.cli("doctor")
    finally:
        rig.host.check(
            f"cp -p /root/version.py {version}; cp -p /root/unit {unit}; rm /root/version.py /root/unit"
        )
        rig.host.check("systemctl daemon-reload")
        rig.adopt()
    refused(run, 3, "cu130", "12.8")
    assert doctor.rc == 3


def test_a_unit_that_changed_since_adoption(rig: Rig) -> None:
    unit = f"/etc/systemd/system/{UNIT}"
    rig.host.check(f"printf '# by hand\\n' >> {unit}; systemctl daemon-reload")
    try:
        run = rig.cli("deploy")
    finally:
        rig.host.check(f"sed -i '$d' {unit}; systemctl daemon-reload")
    refused(run, 3, unit, "adopt")


def test_an_operators_drop_in_that_would_win_is_named(rig: Rig) -> None:
    path = f"/etc/systemd/system/{UNIT}.d/90-mine.conf"
    rig.host.write(path, "[Service]\nExecStart=\nExecStart=/bin/true\n")
    rig.host.check("systemctl daemon-reload")
    try:
        run = rig.cli("deploy")
    finally:
        rig.host.check(f"rm -r {Path(path).parent}; systemctl daemon-reload")
    refused(run, 3, "90-mine.conf")


def test_no_root(rig: Rig) -> None:
    rig.host.check(
        "id plain >/dev/null 2>&1 || useradd -m plain; install -d -o plain -m 700 /home/plain/.ssh"
    )
    rig.host.check("install -o plain -m 600 /root/.ssh/authorized_keys /home/plain/.ssh/authorized_keys")
    rig.configure(user="plain")
    refused(rig.cli("deploy"), 3, "sudo")


def test_a_full_disk_is_refused_before_the_stop(rig: Rig) -> None:
    rig.host.check("mkdir -p /opt/ddtree")
    rig.host.fault("disk-full", "/opt/ddtree")
    try:
        run = rig.cli("deploy")
    finally:
        rig.host.fault("disk-restore", "/opt/ddtree")
    refused(run, 3, "/opt")


def test_never_adopted(rig: Rig) -> None:
    facts = rig.project / "facts" / "ct200.yaml"
    text = facts.read_text()
    facts.unlink()
    try:
        run = rig.cli("deploy")
    finally:
        facts.write_text(text)
    refused(run, 3, "ddtree-ops adopt --host ct200")


def test_a_rollback_to_an_unknown_release(rig: Rig) -> None:
    refused(rig.cli("rollback", "--to", "abcdef"), 2, "abcdef", "baseline")
