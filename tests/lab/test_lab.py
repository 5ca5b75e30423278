"""The lab itself: hosts are reached as real ones are, faults do what they say, nothing outlives the supervisor."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from ddtree_lab import cgroup, faults, guard, image, state
from ddtree_lab.client import Lab, LabHost
from ddtree_lab.host import Host
from ddtree_lab.net import Port
from ddtree_lab.problem import LabProblem
from ddtree_lab.spec import HostSpec
from ddtree_lab.state import project

pytestmark = [pytest.mark.tier("main"), pytest.mark.lab]

CHECKOUT = Path(__file__).resolve().parents[2]
NewHost = Callable[..., LabHost]
FAST = ("-o", "ConnectTimeout=1")


@pytest.fixture(scope="module")
def host(lab: Lab) -> Iterator[LabHost]:
    """One host that the tests of this module leave as they found it."""
    lab.add(HostSpec("ct129"))
    yield lab.host("ct129")
    lab.remove("ct129")


def cli(lab: Lab, *words: str) -> subprocess.CompletedProcess[str]:
    """`ddtree-ops lab …` in a process of its own, for the lab of this session."""
    return subprocess.run(
        [sys.executable, "-m", "ddtree_ops", "lab", *words],
        env={**os.environ, "DDTREE_LAB_STATE": str(lab.state.root), "PYTHONPATH": str(CHECKOUT / "src")},
        capture_output=True,
        text=True,
        timeout=60,
    )


def can_connect(host: LabHost) -> bool:
    return host.ssh("true", 30)[0] == 0


# --- reaching hosts -----------------------------------------------------------------------------------------------


def test_two_hosts_are_reached_by_plain_ssh_and_differ(host: LabHost, new_host: NewHost) -> None:
    other = new_host("ct200")
    ids = set()
    for each in (host, other):
        command = [
            "ssh",
            "-F",
            str(each.lab.state.ssh_config),
            each.name,
            "hostname; cat /etc/machine-id /proc/1/comm",
        ]
        said = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout.split()
        assert said[0] == each.name
        assert said[2] == "systemd"
        ids.add(said[1])
    assert len(ids) == 2
    keys = [line.split()[2] for line in host.lab.state.known_hosts.read_text().splitlines()]
    assert len(set(keys)) == 2


def test_a_host_is_reached_by_its_address_and_by_the_one_in_hosts_yaml(new_host: NewHost) -> None:
    host = new_host("prod1", aliases=("192.0.2.7",))
    for name in (host.address, "192.0.2.7"):
        command = ["ssh", "-F", str(host.lab.state.ssh_config), "-p", "2222", name, "hostname"]
        assert (
            subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout
            == "prod1\n"
        )


def test_paramiko_reaches_a_host_through_the_ssh_config(host: LabHost) -> None:
    paramiko = pytest.importorskip("paramiko")
    entry = paramiko.SSHConfig.from_path(str(host.lab.state.ssh_config)).lookup(host.name)
    client = paramiko.SSHClient()
    client.load_host_keys(entry["userknownhostsfile"])
    client.set_missing_host_key_policy(paramiko.RejectPolicy())
    client.connect(
        entry["hostname"],
        username=entry["user"],
        key_filename=entry["identityfile"],
        sock=paramiko.ProxyCommand(entry["proxycommand"]),
        allow_agent=False,
        look_for_keys=False,
    )
    try:
        size = 5_000_000
        stdin, stdout, _ = client.exec_command("wc -c")
        stdin.write(b"x" * size)
        stdin.channel.shutdown_write()
        assert stdout.read().split() == [str(size).encode()]
    finally:
        client.close()


def test_a_changed_host_key_is_refused(host: LabHost, new_host: NewHost) -> None:
    impostor = new_host()
    impostor.check(
        "rm /etc/ssh/ssh_host_ed25519_key*; ssh-keygen -q -t ed25519 -N '' -f /etc/ssh/ssh_host_ed25519_key"
    )
    status, said = impostor.ssh("true", 20)
    assert status == 255
    assert "REMOTE HOST IDENTIFICATION HAS CHANGED" in said


def test_the_controller_reaches_nothing_but_the_lab(lab: Lab) -> None:
    routes = ["nsenter", f"--net={lab.controller_netns}", "ip", "route"]
    assert (
        subprocess.run(routes, capture_output=True, text=True, check=True).stdout.split()[0] == "10.77.0.0/24"
    )
    assert len(subprocess.run(routes, capture_output=True, text=True, check=True).stdout.splitlines()) == 1


def test_systemd_learns_that_the_last_process_of_a_unit_is_gone(host: LabHost) -> None:
    """Else a stop lasts its whole TimeoutStopSec, which no real host shows (cgroup v1 guests do)."""
    unit = "--service-type=oneshot -p TimeoutStopSec=600 -p KillMode=mixed"
    host.check(f"systemd-run -q --wait {unit} sh -c 'setsid sleep 600 & exit 0'", 60)


# --- faults -------------------------------------------------------------------------------------------------------


def test_a_crash_keeps_the_disk_and_the_last_boots_journal(new_host: NewHost) -> None:
    host = new_host()
    host.check("mkdir -p /opt/x; echo kept > /opt/x/file; echo volatile > /run/file; journalctl --flush")
    boot = host.boot_id()
    host.fault("crash")
    assert not host.alive
    assert "timed out" in host.ssh("true", 20, FAST)[1]
    assert "SSH answers" in host.fault("start")
    assert host.boot_id() != boot
    assert host.ssh("cat /opt/x/file; test -e /run/file || echo gone")[1] == "kept\ngone\n"
    assert len(host.check("journalctl --list-boots --no-pager -q").strip().splitlines()) == 2


def test_a_reboot_from_inside_comes_back(new_host: NewHost) -> None:
    host = new_host()
    boot = host.boot_id()
    host.fault("reboot")
    host.wait_boot(boot)
    assert host.alive


def test_a_power_off_from_inside_stays_off_until_start(new_host: NewHost) -> None:
    host = new_host()
    host.exec("systemctl poweroff")
    while host.alive:
        pass
    with pytest.raises(LabProblem, match="is down"):
        host.check("true")
    host.fault("start")
    assert can_connect(host)


def test_a_cut_link_is_silent_and_mends(host: LabHost) -> None:
    host.fault("link-down")
    status, said = host.ssh("true", 20, FAST)
    assert status == 255
    assert "timed out" in said
    host.fault("link-up")
    assert can_connect(host)


def test_a_frozen_host_hangs_and_then_goes_on(host: LabHost) -> None:
    host.fault("freeze")
    assert host.ssh("true", 2)[0] == 124
    host.fault("thaw")
    assert can_connect(host)


def test_a_session_killed_in_mid_transfer_leaves_a_part(host: LabHost) -> None:
    sender = subprocess.Popen(
        ["ssh", "-F", str(host.lab.state.ssh_config), host.name, "cat > /opt/part"],
        stdin=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert sender.stdin
    sender.stdin.write(b"x" * 1_000_000)
    sender.stdin.flush()
    while host.exec("test -s /opt/part")[0]:
        assert sender.poll() is None
    assert re.search(r"killed [1-9]", host.fault("kill-sshd"))
    assert sender.wait(20) == 255
    assert 0 < int(host.ssh("stat -c %s /opt/part; rm /opt/part")[1]) <= 1_000_000


def test_a_stopped_sshd_refuses_and_the_host_lives(host: LabHost) -> None:
    host.fault("sshd-stop")
    assert "Connection refused" in host.ssh("true", 20)[1]
    host.fault("sshd-start")
    assert can_connect(host)


def test_a_full_disk_refuses_writes_and_keeps_what_was_written(host: LabHost) -> None:
    host.check("mkdir -p /opt/full; echo old > /opt/full/a; echo old > /opt/full/b")
    host.fault("disk-full", "/opt/full", 64)
    status, said = host.exec(
        "cat /opt/full/a; echo new > /opt/full/c; rm /opt/full/b; head -c 200k /dev/zero > /opt/full/d"
    )
    assert status != 0
    assert said.startswith("old\n")
    assert "No space left" in said
    host.fault("disk-restore", "/opt/full")
    assert host.check("cd /opt/full; cat a c; ls").split() == ["old", "new", "a", "c", "d"]
    host.check("head -c 200k /dev/zero > /opt/full/d; rm -r /opt/full")


def test_a_read_only_disk_refuses_and_mends_with_the_mounts_below(host: LabHost) -> None:
    host.check("mkdir -p /opt/ro/below; mount -t tmpfs tmpfs /opt/ro/below; echo seen > /opt/ro/below/file")
    host.fault("read-only", "/opt/ro")
    assert "Read-only file system" in host.exec("touch /opt/ro/x")[1]
    host.fault("read-only-restore", "/opt/ro")
    assert host.check("touch /opt/ro/x; cat /opt/ro/below/file") == "seen\n"
    host.check("umount /opt/ro/below; rm -r /opt/ro")


def test_a_device_node_goes_and_comes_back(host: LabHost) -> None:
    host.check("mknod /dev/nvidia0 c 195 0")
    host.fault("device-gone", "/dev/nvidia0")
    assert host.exec("test -e /dev/nvidia0")[0] == 1
    host.fault("device-back", "/dev/nvidia0")
    assert host.check("stat -c %t,%T /dev/nvidia0; rm /dev/nvidia0") == "c3,0\n"


def test_the_cpu_quota_binds(host: LabHost) -> None:
    burn = "python3 -c 'sum(range(3_000_000))'"
    host.ssh(burn)
    assert _throttled(host) == 0
    host.fault("cpu", 5)
    host.ssh(burn)
    host.fault("cpu", 0)
    limited = _throttled(host)
    assert limited > 0
    host.ssh(burn)
    assert _throttled(host) == limited


def _throttled(host: LabHost) -> int:
    for parent in cgroup.parents():
        path = parent / host.lab.state.tag / host.name / "cpu.stat"
        if path.exists() and (found := re.search(r"nr_throttled (\d+)", path.read_text())):
            return int(found[1])
    return 0


@pytest.mark.skipif(not shutil.which("gcc"), reason="the wan fault compiles wan.c, which needs gcc")
def test_a_wan_delays_and_leaves_connections_alive(host: LabHost) -> None:
    def ping() -> float:
        words = ["nsenter", f"--net={host.lab.controller_netns}", sys.executable, "-c", CONNECT, host.address]
        return float(subprocess.run(words, capture_output=True, text=True, check=True, timeout=20).stdout)

    session = subprocess.Popen(
        ["ssh", "-F", str(host.lab.state.ssh_config), host.name, "cat"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert session.stdin
    assert session.stdout
    session.stdin.write(b"before\n")
    session.stdin.flush()
    assert session.stdout.readline() == b"before\n"
    host.fault("wan", 200)
    assert ping() >= 0.2
    session.stdin.write(b"after\n")
    session.stdin.close()
    assert session.stdout.read() == b"after\n"
    assert session.wait(20) == 0
    host.fault("wan", 0)
    assert can_connect(host)


CONNECT = """
import socket, sys, time
t = time.monotonic(); socket.create_connection((sys.argv[1], 22), 10); print(time.monotonic() - t)
"""


def test_every_fault_that_does_not_exist_or_lacks_an_argument_is_named(host: LabHost) -> None:
    for name, args, said in (
        ("frezee", (), "did you mean freeze"),
        ("cpu", (), "cpu takes PCT"),
        ("cpu", ("fast",), "PCT is 'fast'"),
        ("wan", ("-1",), "RTT_MS is '-1'"),
        ("crash", ("now",), "takes no arguments"),
        ("device-gone", ("/dev/none",), "/dev/none"),
    ):
        with pytest.raises(LabProblem, match=re.escape(said)):
            host.fault(name, *args)


# --- engines ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("baseline", ["plain", "nextn", "dflash"])
def test_a_standin_host_serves_its_baseline(baseline: str, standin_host: NewHost) -> None:
    host = standin_host(baseline=baseline)
    status, body = host.http("/get_server_info")
    assert status == 200
    algorithm = json.loads(body)["speculative_algorithm"]
    assert (
        algorithm == {"plain": None, "nextn": "EAGLE", "dflash": "DFLASH"}[baseline]
    )  # 0.5.11 renames NEXTN
    assert host.check("systemctl is-enabled sglang").strip() == "enabled"
    assert host.main_pid() > 0


@pytest.mark.engine
def test_the_real_engine_serves_at_tp_2_and_its_packages_are_this_hosts_own(engine_host: NewHost) -> None:
    host = engine_host(baseline="dflash", tp=2)
    ask = {"input_ids": [65, 66, 65], "sampling_params": {"temperature": 0, "max_new_tokens": 16}}
    status, body = host.http("/generate", ask, timeout=60)
    assert status == 200
    answer = json.loads(body)
    assert answer["output_ids"] == [66, 65] * 8
    assert answer["meta_info"]["spec_accept_length"] == 2.0

    site = "/root/ml-env/lib/python3.11/site-packages"
    before = host.tree_hash([f"{site}/sglang"])
    host.check(f"echo '# edited by hand' >> {site}/sglang/version.py")
    assert host.tree_hash([f"{site}/sglang"]) != before
    assert (
        "edited"
        not in (project() / ".venv-engine/lib/python3.11/site-packages/sglang/version.py").read_text()
    )
    assert "Read-only file system" in host.exec(f"touch {site}/torch/x")[1]


# --- command line -------------------------------------------------------------------------------------------------


def test_the_command_line_reports_and_injects(host: LabHost) -> None:
    lab = host.lab
    assert '"ct129"' in cli(lab, "status", "--json").stdout
    assert cli(lab, "ssh", "ct129", "hostname", "-s").stdout == "ct129\n"
    assert cli(lab, "fault", "ct129", "sshd-stop").returncode == 0
    assert cli(lab, "fault", "ct129", "sshd-start").returncode == 0
    wrong = cli(lab, "fault", "ct129", "nonsense")
    assert wrong.returncode == 2
    assert "Traceback" not in wrong.stderr
    assert cli(lab, "ssh", "nobody").returncode == 2


def test_help_names_every_fault(lab: Lab) -> None:
    text = cli(lab, "fault", "--help").stdout
    for name in faults.FAULTS:
        assert re.search(rf"\b{name}\b", text), name


# --- what is left, what is refused --------------------------------------------------------------------------------


def _leftovers(root: Path) -> list[str]:
    """Processes with `root` in their command line or mounts, this process apart."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        for name in ("cmdline", "mountinfo"):
            try:
                text = (process / name).read_bytes()
            except OSError:
                continue
            if str(root).encode() in text and int(process.name) != os.getpid():
                found.append(f"{process.name} {name}")
    return found


def test_killing_the_supervisor_leaves_no_process_and_no_mount(spare_lab: Lab) -> None:
    root = spare_lab.state.root
    for name in ("ct129", "ct200"):
        spare_lab.add(HostSpec(name))
    command = ["ssh", "-F", str(spare_lab.state.ssh_config), "ct129", "echo in; sleep 600"]
    session = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert session.stdout
    assert session.stdout.readline() == b"in\n"
    spare_lab.host("ct129").fault("link-down")  # no word of the end comes over this line
    spare_lab.host("ct200").fault("freeze")
    assert _leftovers(root), "the probe must see a lab that is up"
    spare_lab.kill()
    assert session.wait(20) == 255
    assert not _leftovers(root)
    assert not spare_lab.alive
    status, said = spare_lab.host("ct129").ssh("true", 20)
    assert status == 255
    assert "ddtree-ops lab up" in said
    spare_lab.up([HostSpec("ct129")])
    assert can_connect(spare_lab.host("ct129"))


def test_going_down_leaves_no_cgroup_and_no_sign(spare_lab: Lab) -> None:
    spare_lab.add(HostSpec("ct129"))
    spare_lab.host("ct129").fault("freeze")
    assert spare_lab.state.active.exists()
    groups = [top / spare_lab.state.tag for top in cgroup.parents()]
    assert any(group.exists() for group in groups)
    spare_lab.down()
    assert not spare_lab.state.active.exists()
    assert not any(group.exists() for group in groups)
    assert not _leftovers(spare_lab.state.root)


def test_this_machines_own_root_is_refused_under_any_name() -> None:
    roots = guard.own_roots()
    for path in ("/", "/..", "/proc/self/root/"):
        with pytest.raises(LabProblem, match="own root"):
            guard.refuse_own_root(Path(path), roots)
    guard.refuse_own_root(image.image_path(), roots)


def test_a_bind_mount_of_our_root_is_refused_as_a_lower_layer_and_as_a_root(lab: Lab) -> None:
    place = lab.state.root / "bind"
    place.mkdir()
    script = (
        "import sys; from pathlib import Path\n"
        "from ddtree_lab import guard; from ddtree_lab.problem import LabProblem\n"
        "try: guard.refuse_own_root(Path(sys.argv[1]), guard.own_roots())\n"
        "except LabProblem: print('refused')"
    )
    command = f'mount --bind / {place} && {sys.executable} -c "$0" {place}'
    try:
        said = subprocess.run(
            ["unshare", "--mount", "--propagation", "private", "sh", "-c", command, script],
            env={**os.environ, "PYTHONPATH": str(state.SOURCES)},
            capture_output=True,
            text=True,
        )
        assert said.stdout == "refused\n", said.stderr
    finally:
        place.rmdir()


def test_a_host_on_our_root_never_boots(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[object] = []
    monkeypatch.setattr(subprocess, "Popen", lambda *a, **k: started.append(a))
    host = Host(HostSpec("own"), lab.state, Port("own", 250), Path("/"), guard.own_roots())
    with pytest.raises(LabProblem, match="own root"):
        host.prepare([])
    host.root = Path("/")
    with pytest.raises(LabProblem, match="own root"):
        host.start()
    assert not started


def test_state_under_tmp_is_refused() -> None:
    with pytest.raises(LabProblem, match="under /tmp"):
        state.State.at(Path("/tmp/lab"))


def test_a_missing_tool_is_one_sentence_with_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        shutil, "which", lambda tool: None if tool in ("systemd-nspawn", "mmdebstrap") else "/x"
    )
    with pytest.raises(LabProblem) as caught:
        guard.tools(image_cached=False)
    assert caught.value.next == "apt-get install -y mmdebstrap systemd-container"
    assert "\n" not in caught.value.what


def test_who_is_not_root_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(LabProblem, match="needs root"):
        guard.root_on_linux()


@pytest.mark.parametrize(
    "words", [["up"], ["down"], ["status"], ["ssh", "ct129"], ["fault", "ct129", "crash"]]
)
def test_every_verb_tells_who_is_not_root(
    words: list[str], monkeypatch: pytest.MonkeyPatch, lab: Lab
) -> None:
    from ddtree_ops.cli import app

    monkeypatch.setenv("DDTREE_LAB_STATE", str(lab.state.root))
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert app.run(["lab", *words]) == 3
    assert lab.alive
