"""An operator's project directory and command line against one lab host."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ddtree_lab.client import LabHost

CHECKOUT = Path(__file__).resolve().parents[2]
STANDIN_SERIES = CHECKOUT / "deploy" / "lab" / "standin" / "series"
UNIT = "sglang.service"
#: What design section 3 lets us write; everything else on a host must stay as it was.
OURS = (
    "/opt/ddtree",
    "/var/lib/ddtree",
    "/etc/ddtree",
    f"/etc/systemd/system/{UNIT}.d",
    "/run/systemd/system",
)
#: Where an operator's own things lie on a lab host.
THEIRS = ("/etc", "/opt", "/usr", "/root", "/home", "/srv", "/var/lib", "/var/spool", "/var/cache")
#: Written by the host itself while it runs.
HOST_OWN = ("/var/lib/systemd", "/var/lib/dbus", "/etc/resolv.conf", "/var/cache/ldconfig", "/etc/.pwd.lock")


def where_run() -> dict[str, str]:
    """Machine, date and commit of a run whose numbers are kept."""
    words = ["git", "describe", "--always", "--dirty", "--exclude", "*"]
    commit = subprocess.run(words, cwd=CHECKOUT, capture_output=True, text=True, check=False)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2**30
    return {
        "machine": f"{os.cpu_count()} cores, {memory} GiB, Linux {os.uname().release}",
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "commit": commit.stdout.strip() or "unknown",
    }


@dataclass(frozen=True)
class Run:
    """One command line that ended. `seconds` is its wall time."""

    rc: int
    out: str
    err: str
    seconds: float

    @property
    def json(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.out)
        return found


class Rig:
    """`rig.cli("deploy", …)` is what an operator types; the host is named in the project's hosts.yaml."""

    def __init__(self, host: LabHost, project: Path, **keys: Any) -> None:
        self.host, self.project = host, project
        self.before: set[str] = set()
        self.env = {
            **os.environ,
            "DDTREE_OPS_SSH_CONFIG": str(host.lab.state.ssh_config),
            "XDG_STATE_HOME": str(CHECKOUT / ".lab-test" / "operator-state"),
            "NO_COLOR": "1",
        }
        self.configure(**keys)

    def configure(self, **keys: Any) -> None:
        """Write hosts.yaml with these host keys."""
        defaults = {"series": str(STANDIN_SERIES), "draft": "/models/cyc_draft", "budget": 6, "topk": 3}
        self.project.mkdir(parents=True, exist_ok=True)
        document = {"version": 1, "hosts": {self.host.name: {**defaults, **keys}}}
        (self.project / "hosts.yaml").write_text(json.dumps(document))  # JSON is YAML

    def argv(self, verb: str, *args: str) -> list[str]:
        return [sys.executable, "-m", "ddtree_ops", verb, "--host", self.host.name, *args]

    def cli(self, verb: str, *args: str, timeout: float = 240, host: bool = True) -> Run:
        """Run one command line to its end."""
        argv = self.argv(verb, *args) if host else [sys.executable, "-m", "ddtree_ops", verb, *args]
        began = time.monotonic()
        done = subprocess.run(
            argv, cwd=self.project, env=self.env, capture_output=True, text=True, timeout=timeout, check=False
        )
        return Run(done.returncode, done.stdout, done.stderr, time.monotonic() - began)

    def start(self, verb: str, *args: str) -> subprocess.Popen[str]:
        """Start a command line and leave it running, in its own process group."""
        self.before = self.transactions()
        return subprocess.Popen(
            self.argv(verb, *args),
            cwd=self.project,
            env=self.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def adopt(self) -> None:
        done = self.cli("adopt", "--yes")
        assert done.rc == 0, done.err

    def status(self) -> dict[str, Any]:
        """The host's own ground truth."""
        found: dict[str, Any] = self.cli("status", "--json").json["hosts"][self.host.name]
        return found

    def status_releases(self) -> list[str]:
        """Digests of the sealed releases on the host."""
        return [entry["release"] for entry in self.status()["releases"]]

    def scenario(self, *rules: dict[str, Any]) -> None:
        """What the stand-in does at its next starts."""
        self.host.write("/etc/standin.json", json.dumps(list(rules)))

    def theirs(self) -> str:
        """A hash of everything on the host that is not ours to touch."""
        skip = " ".join(f"-path {path} -prune -o" for path in (*OURS, *HOST_OWN, "/etc/standin.json"))
        script = (
            f"find {' '.join(THEIRS)} -xdev {skip} -name __pycache__ -prune -o -type f -print0 2>/dev/null"
            " | LC_ALL=C sort -z | xargs -0 sha256sum | sha256sum"
        )
        return self.host.check(["sh", "-c", script])

    def ours(self) -> list[str]:
        """Names of the drop-ins of ours that are in place."""
        script = (
            "ls /run/systemd/system/*.d /etc/systemd/system/*.service.d 2>/dev/null | grep ddtree || true"
        )
        return self.host.check(["sh", "-c", script]).split()

    def transactions(self) -> set[str]:
        """Ids of the transactions that the host knows."""
        return set(
            self.host.check(["sh", "-c", f"ls /var/lib/ddtree/{UNIT}/txn 2>/dev/null || true"]).split()
        )

    def wait_state(self, state: str, limit_s: float = 60) -> None:
        """Wait until the transaction that began after `start` has been in `state`."""
        until = time.monotonic() + limit_s
        while not (new := self.transactions() - self.before):
            assert time.monotonic() < until, "no transaction began"
            time.sleep(0.05)
        events = f"/var/lib/ddtree/{UNIT}/txn/{max(new)}/events.jsonl"
        self.wait(f'grep -q \'"state": "{state}"\' {events}', until - time.monotonic())

    def wait(self, script: str, limit_s: float = 60) -> None:
        """Wait until a shell command succeeds on the host."""
        until = time.monotonic() + limit_s
        while self.host.exec(["sh", "-c", script])[0] != 0:
            assert time.monotonic() < until, f"still not so after {limit_s} s: {script}"
            time.sleep(0.1)

    def wait_ssh(self, limit_s: float = 60) -> None:
        """Wait until logins work: a booting host may still restart its sshd after the first banner."""
        until = time.monotonic() + limit_s
        while self.host.ssh("true", timeout=10)[0] != 0:
            assert time.monotonic() < until, "no login"
            time.sleep(0.2)

    def serving(self) -> str:
        """The algorithm that the answering server says it runs (`None` for a plain baseline)."""
        until = time.monotonic() + 60
        while True:
            status, text = self.host.http("/get_server_info")
            if status == 200:
                return str(json.loads(text).get("speculative_algorithm"))
            assert time.monotonic() < until, f"nobody serves: {status} {text}"
            time.sleep(0.1)

    @staticmethod
    def kill(process: subprocess.Popen[str]) -> None:
        """SIGKILL an operator's command with all that it started."""
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
