"""Ground truth on one host: every kind of drift is named, refused, adopted; history, plan, time and secrets."""

from __future__ import annotations

import getpass
import json
import signal
import subprocess
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from canary import leaks
from rig import CHECKOUT, UNIT, Rig

pytestmark = [pytest.mark.lab, pytest.mark.tier("transaction")]
FRAGMENT = f"/etc/systemd/system/{UNIT}"
DROPINS = f"{FRAGMENT}.d"
ENVIRONMENT = "/etc/default/standin"
KEPT = f"{DROPINS}/50-ddtree.conf"
MINE = f"{DROPINS}/10-mine.conf"
CANARY = "canary-5f1e0c77b2d94a-in-a-token"


@pytest.fixture(scope="module")
def rig(module_standin_host: Any, tmp_path_factory: pytest.TempPathFactory) -> Rig:
    """A host in shadow mode, its unit with an environment file of the operator's own."""
    made = Rig(module_standin_host("truth"), tmp_path_factory.mktemp("project"))
    made.host.write(ENVIRONMENT, "COLOUR=blue\n")
    made.host.check(f"sed -i '/^ExecStart=/i EnvironmentFile={ENVIRONMENT}' {FRAGMENT}")
    made.host.check(f"systemctl daemon-reload; systemctl restart {UNIT}")
    made.host.wait_http(limit_s=30)
    made.adopt()
    done = made.cli("deploy", "--why", "the first one")
    assert done.rc == 0, done.err
    assert "CONFIRMED" in done.err
    return made


def refused(rig: Rig, *words: str) -> None:
    """Status names these words as drift, exit 5; a deploy refuses them, exit 3, and leaves the process alone."""
    pid = rig.host.main_pid()
    seen = rig.cli("status", "--exit-code", "--json")
    assert seen.rc == 5, seen.err
    release = seen.json["hosts"][rig.host.name]["confirmed"]["release"]
    run = rig.cli("deploy")
    assert run.rc == 3, run.err
    for word in words:
        assert word in seen.err, seen.err
        assert word in run.err, run.err
    assert "--adopt" in run.err
    assert f"serving now: shadow {release}" in run.err
    assert rig.host.main_pid() == pid


def adopt(rig: Rig) -> None:
    """The operator takes it over: afterwards nothing differs."""
    run = rig.cli("deploy", "--adopt")
    assert run.rc == 0, run.err
    after = rig.cli("status", "--exit-code")
    assert after.rc == 0, after.err


def test_truth_is_shown_with_modes_and_no_drift(rig: Rig) -> None:
    run = rig.cli("status", "--exit-code", "--json")
    assert run.rc == 0, run.err
    seen = run.json["hosts"][rig.host.name]
    assert f"runs shadow {seen['running']}, confirmed; before it baseline" in run.err
    assert (seen["mode"], seen["overlay"]["verified"]) == ("shadow", True)
    assert set(seen["unit"]["files"]) == {FRAGMENT, ENVIRONMENT}
    assert seen["confirmed"]["files"] == seen["unit"]["files"]


def test_an_edited_environment_file(rig: Rig) -> None:
    rig.host.write(ENVIRONMENT, "COLOUR=red\n")
    refused(rig, f"environment file {ENVIRONMENT}")
    plan = rig.cli("plan")
    assert plan.rc == 0, plan.err
    assert f"drift: environment file {ENVIRONMENT}" in plan.err
    pid = rig.host.main_pid()
    adopt(rig)
    assert rig.host.main_pid() == pid  # the same release is confirmed: nothing is restarted for it


def test_an_edited_unit_and_a_new_drop_in_become_the_new_facts(rig: Rig) -> None:
    rig.host.check(f"printf '# by hand\\n' >> {FRAGMENT}")
    rig.host.write(MINE, "[Service]\nEnvironment=MINE=1\n")
    rig.host.check("systemctl daemon-reload")
    refused(rig, f"unit file {FRAGMENT}", f"drop-in {MINE}")
    adopt(rig)
    assert MINE in (rig.project / "facts" / "truth.yaml").read_text()
    assert rig.host.read(FRAGMENT).endswith("# by hand\n")  # taken over, never changed
    rig.host.check(f"mv {MINE} /root/mine; systemctl daemon-reload")
    assert f"drop-in {MINE} is gone" in rig.cli("status").err
    rig.host.check(f"mv /root/mine {MINE}; systemctl daemon-reload")


def test_an_edited_kept_drop_in_is_replaced_only_when_the_operator_says_so(rig: Rig) -> None:
    text = rig.host.read(KEPT)
    rig.host.check(f"sed -i 's/budget 6/budget 4/' {KEPT}; systemctl daemon-reload")
    refused(rig, f"{KEPT} is not what release")
    assert "budget 4" in rig.host.read(KEPT)
    adopt(rig)
    assert rig.host.read(KEPT) == text
    entry = rig.cli("history", "--json").json["history"][-1]
    assert any(KEPT in said for said in entry["adopted"]), entry


def test_an_edited_overlay_file_is_no_release_to_go_back_to(rig: Rig) -> None:
    release = rig.status()["confirmed"]["release"]
    path = f"/opt/ddtree/releases/{release}/overlay/sglang/srt/server_args.py"
    rig.host.check(f"chmod u+w {path}; printf '# by hand\\n' >> {path}")
    refused(rig, "srt/server_args.py")
    rig.configure(budget=5)
    pid = rig.host.main_pid()
    other = rig.cli("deploy", "--adopt")
    assert other.rc == 3, other.err
    assert "go back to does not verify" in other.err
    assert rig.host.main_pid() == pid
    rig.configure()
    adopt(rig)  # the same release, built anew
    assert "# by hand" not in rig.host.read(path)


def test_a_process_of_another_release(rig: Rig) -> None:
    text = rig.host.read(KEPT)
    rig.host.check(f"rm {KEPT}; systemctl daemon-reload; systemctl restart {UNIT}")
    rig.host.wait_http(limit_s=30)
    run = rig.cli("deploy")
    assert run.rc == 3, run.err
    assert "the main process runs baseline" in run.err
    assert f"{KEPT} is missing" in run.err
    assert "serving now: the baseline" in run.err
    adopt(rig)
    assert rig.host.read(KEPT) == text


def test_the_plan_shows_what_runs_now_and_for_how_long_nobody_serves(rig: Rig) -> None:
    rig.configure(budget=5, max_downtime=0.1)
    plan = rig.cli("plan")
    assert plan.rc == 0, plan.err
    changed = [line for line in plan.err.splitlines() if line.startswith(("-", "+")) and line[1:].isdigit()]
    assert changed == ["-6", "+5"], plan.err  # against the confirmed release, not the baseline
    assert "+--speculative-algorithm" not in plan.err
    assert "in shadow here), " in plan.err
    assert "max_downtime is 0.1 s: a deploy is refused" in plan.err
    run = rig.cli("deploy")
    assert run.rc == 3, run.err
    assert "max_downtime is 0.1 s" in run.err
    rig.configure()


def test_the_history_says_who_from_where_what_why_and_how_long(rig: Rig) -> None:
    entries = rig.cli("history", "--json", "-n", "100").json["history"]
    first = entries[0]
    assert first["schema_version"] == 1
    assert first["who"].startswith(f"{getpass.getuser()}@")
    assert first["origin"] in rig.host.check(
        ["sh", "-c", "journalctl --no-pager -o cat -u 'ssh*' | grep Accepted"]
    )
    assert (first["kind"], first["mode"], first["why"]) == ("deploy", "shadow", "the first one")
    assert first["outcome"] == "confirmed"
    assert {"import", "weights", "serve"} <= set(first["phases"])
    assert 0 < first["stop"]["seconds"] <= first["downtime_s"]
    assert "why: the first one" in rig.cli("history", "-n", "100").out


def until(process: subprocess.Popen[str], word: str) -> str:
    """What a running command says, up to the line with `word`."""
    assert process.stderr is not None
    said = ""
    while word not in said:
        line = process.stderr.readline()
        assert line, said
        said += line
    return said


def at(seconds: float) -> str:
    return (datetime.now() + timedelta(seconds=seconds)).isoformat(timespec="seconds")


def test_a_deploy_at_a_time_waits_on_the_operators_side(rig: Rig) -> None:
    rig.configure(budget=5)
    waiting = rig.start("deploy", "--at", "2099-01-01T03:00")
    said = until(waiting, "begins at 2099-01-01")
    assert "sealed" in said
    waiting.send_signal(signal.SIGINT)
    _, err = waiting.communicate(timeout=60)
    assert waiting.returncode == 130, err
    assert "nothing was touched" in err
    assert rig.transactions() == rig.before
    waiting = rig.start("deploy", "--at", at(20))
    said = until(waiting, "begins at")
    assert "STOPPED" not in said
    _, err = waiting.communicate(timeout=120)
    assert waiting.returncode == 0, err
    assert "CONFIRMED" in err
    rig.configure()


def test_a_host_that_changes_during_the_wait_is_left_alone(rig: Rig) -> None:
    waiting = rig.start("deploy", "--at", at(20))
    until(waiting, "begins at")
    before = rig.host.read(ENVIRONMENT)
    rig.host.write(ENVIRONMENT, "COLOUR=green\n")
    _, err = waiting.communicate(timeout=120)
    assert waiting.returncode == 3, err
    assert ENVIRONMENT in err
    assert rig.transactions() == rig.before
    rig.host.write(ENVIRONMENT, before)


def test_a_rollback_says_what_is_left_before_it(rig: Rig) -> None:
    release = rig.status()["confirmed"]["release"]
    assert rig.cli("rollback").rc == 0
    told = rig.cli("status", "--exit-code")
    assert told.rc == 0, told.err
    assert f"shadow {release} was rolled back, no change is left to undo" in told.err


def test_a_secret_is_in_its_own_file_and_nowhere_else(rig: Rig, tmp_path: Path) -> None:
    key = tmp_path / "token"
    key.write_text(CANARY + "\n")
    rig.configure(environment={"HF_TOKEN": {"secret": f"file:{key}"}})
    runs = [
        rig.cli("plan", "-o", str(rig.project / "plan.json")),
        rig.cli("deploy", "-v", "--events"),
        rig.cli("status", "--json", "--exit-code"),
        rig.cli("deploy", "--adopt"),
        rig.cli("history", "--json"),
        rig.cli("logs", "-n", "500"),
    ]
    assert [run.rc for run in runs] == [0] * 6, [run.err for run in runs]
    assert "nothing to do" in runs[3].err  # our own file of secrets is no drift
    assert CANARY in rig.host.check(["sh", "-c", "cat /etc/ddtree/secrets-*.env"])
    local = [rig.project, CHECKOUT / ".lab-test" / "operator-state"]
    assert leaks(rig, CANARY, runs, local) == []
    # the control: the search finds what lies there
    rig.host.write("/var/lib/ddtree/left", json.dumps({"token": CANARY}))
    assert leaks(rig, CANARY, runs, local) == ["/var/lib/ddtree/left"]
    rig.host.check("rm /var/lib/ddtree/left")
