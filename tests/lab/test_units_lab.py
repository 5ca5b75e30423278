"""Units as operators really write them, on a real host: logs in files and pipes, keys in the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from canary import leaks
from rig import CHECKOUT, UNIT, Rig

pytestmark = [pytest.mark.lab, pytest.mark.tier("main")]
PATH = f"/etc/systemd/system/{UNIT}"
CANARY = "sk-canary-5f1e0c77b2d94a"
FATAL = "ImportError: libcudart.so.13: cannot open shared object file: No such file or directory"
DIES = {
    "when": {"algorithm": "DDTREE"},
    "then": {"raise": {"spawn": ["Traceback (most recent call last):", FATAL]}},
}


def rig_with(standin_host: Any, project: Path, edit: str) -> Rig:
    """A host whose unit was edited by this sed script before adoption."""
    rig = Rig(standin_host(), project)
    rig.host.check(f"sed -i '{edit}' {PATH}; systemctl daemon-reload; systemctl restart {UNIT}")
    rig.host.wait_http(limit_s=30)
    rig.adopt()
    return rig


def test_the_first_fatal_line_is_read_from_an_appended_file(standin_host: Any, tmp_path: Path) -> None:
    where = "/var/log/sglang.log"
    rig = rig_with(
        standin_host, tmp_path, f"/^Restart=/i StandardOutput=append:{where}\\nStandardError=append:{where}"
    )
    rig.scenario(DIES)
    run = rig.cli("deploy")
    assert run.rc == 10, run.err
    assert FATAL in run.err
    assert FATAL in rig.cli("logs", "-n", "2000").out


def test_the_first_fatal_line_is_read_through_a_tee(standin_host: Any, tmp_path: Path) -> None:
    rig = Rig(standin_host(), tmp_path)
    text = rig.host.read(PATH).replace("\\\n", " ")
    lines = []
    for line in text.splitlines():
        if line.startswith("ExecStart="):
            command = " ".join(line.removeprefix("ExecStart=").split())
            line = f"ExecStart=/bin/bash -c 'exec {command} 2>&1 | tee -a /var/log/sglang-tee.log'"
        lines.append(line)
    rig.host.write(PATH, "\n".join(lines) + "\n")
    rig.host.check(f"systemctl daemon-reload; systemctl restart {UNIT}")
    rig.host.wait_http(limit_s=30)
    adopted = rig.cli("adopt", "--yes")
    assert adopted.rc == 0, adopted.err
    assert rig.cli("deploy").rc == 0
    assert "DDTREE" in rig.serving()
    assert rig.cli("rollback").rc == 0
    rig.scenario(DIES)
    run = rig.cli("deploy")
    assert run.rc == 10, run.err
    assert FATAL in run.err
    assert rig.serving() == "None"


def test_a_key_in_the_command_line_is_nowhere_but_on_the_host(standin_host: Any, tmp_path: Path) -> None:
    rig = Rig(standin_host(), tmp_path)
    rig.host.check(f"sed -i 's/--grammar-backend/--api-key {CANARY} --grammar-backend/' {PATH}")
    rig.host.check(f"systemctl daemon-reload; systemctl restart {UNIT}")
    runs = []
    for verb, args in (
        ("adopt", ["--yes"]),
        ("render", []),
        ("doctor", []),
        ("plan", ["-o", str(tmp_path / "plan.json")]),
        ("deploy", ["-v", "--events"]),
        ("status", ["--json"]),
        ("history", ["--json"]),
        ("logs", ["-n", "2000"]),
        ("rollback", ["-v"]),
    ):
        run = rig.cli(verb, *args)
        assert run.rc == 0, (verb, run.err)
        runs.append(run)
        if verb == "deploy":
            mode = rig.host.check(["sh", "-c", "stat -c '%a %U' /etc/ddtree/secrets-*.env"]).split()
            assert mode == ["600", "root"]
            # the operator's own unit holds the key, and nothing else
            assert leaks(rig, CANARY, runs, unit=False) == []
            status, _ = rig.host.http("/get_server_info")
            assert status == 401  # the trial is as closed as the baseline was
    local = [tmp_path, CHECKOUT / ".lab-test" / "operator-state"]
    assert leaks(rig, CANARY, runs, local, unit=False) == []
