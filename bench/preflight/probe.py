"""What the preflight's one look at a host costs, beside the way it is done by hand: one ssh command a fact.

On a lab host, from a checkout:

    ddtree-ops lab up ct129 --engine real
    cd .lab/project && ddtree-ops adopt --host ct129 --yes
    python ../../bench/preflight/probe.py --host ct129 --smoke --json ../probe.json
    ddtree-ops lab fault ct129 wan 50 && python ../../bench/preflight/probe.py --host ct129   # a host far away
    ddtree-ops lab down

Each round does, one after the other: the probe after connect; TODAY's facts by twelve `ssh host cmd`, each over its
own connection; the same over one kept connection (ControlMaster); and the same as one script over one connection,
which is the best that a shell can do. All of them reach the host through the same ssh_config. `--smoke` also pushes a
shadow release once, which imports the engine on the host, and leaves that release there (`ddtree-ops gc`).
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import paramiko

from ddtree_ops.apply import who
from ddtree_ops.apply.agent import AgentClient, connect
from ddtree_ops.apply.deploy import push_request
from ddtree_ops.apply.prepare import adopted, prepare, probe
from ddtree_ops.config import HostConfig, Inventory, load_inventory
from ddtree_ops.engine.find import find_series

#: What an engineer looks at before a deploy; `{}` is filled in from hosts.yaml and the facts.
TODAY = (
    "systemctl show {service}",
    "systemctl cat {service}",
    "nvidia-smi -q || true",
    "cat /proc/driver/nvidia/version; ls -l /dev/nvidia*; true",
    "{python} -c 'from importlib import metadata as m; [print(d.name, d.version) for d in m.distributions()]'",
    "find {package} -name '*.py' -print0 | xargs -0 sha256sum",
    "ss -ltnp",
    "df -h; df -i",
    "free -m; ulimit -a",
    "journalctl -k -n 500 --no-pager",
    "journalctl -u {service} -n 200 --no-pager",
    "cat {model}/config.json; ls -l {model}",
)


class Channels:
    """Counts the channels that paramiko opens: each is a round trip of its own."""

    def __init__(self) -> None:
        self.opened = 0
        plain = paramiko.Transport.open_session

        def counted(transport: Any, *args: Any, **keys: Any) -> Any:
            self.opened += 1
            return plain(transport, *args, **keys)

        paramiko.Transport.open_session = counted


def measure(inventory: Inventory, host: HostConfig, rounds: int, smoke: bool) -> dict[str, Any]:
    """Every way of asking, `rounds` times in turn: {way: [seconds]}, and what the probe says of itself."""
    facts = adopted(inventory, host)
    series = find_series(host.series, inventory.base)
    channels, found = Channels(), dict[str, Any](seconds={}, sections={}, load=os.getloadavg()[0])
    peers = by_hand(inventory, host)

    def note(way: str, seconds: float) -> None:
        found["seconds"].setdefault(way, []).append(round(seconds, 3))

    for _ in range(rounds):
        with connect(inventory, host) as client:
            note("connect", clock(lambda client=client: client.transport.run(["true"])))
            note("one empty command", clock(lambda client=client: client.transport.run(["true"])))
            before, began = channels.opened, time.monotonic()
            seen = probe(client, host, facts, series)
            note("probe", time.monotonic() - began)
            found["channels"] = channels.opened - before
        for name, section in seen.items():
            if isinstance(section, dict) and "ms" in section:
                found["sections"].setdefault(name, []).append(section["ms"])
        for way, ask in peers.items():
            note(way, clock(ask))
    found["facts"] = {"sections": len(found["sections"]), "bytes": len(json.dumps(seen))}
    doctor = [sys.executable, "-m", "ddtree_ops", "doctor", "--host", host.name]
    note("ddtree-ops doctor", clock(lambda: subprocess.run(doctor, capture_output=True, check=False)))
    if smoke:
        with connect(inventory, host) as client:
            note("import smoke", import_smoke(inventory, host, client))
    return found


def by_hand(inventory: Inventory, host: HostConfig) -> dict[str, Callable[[], None]]:
    """The peers: each asks for TODAY's facts over ssh."""
    facts = adopted(inventory, host)
    said = facts.unit.exec.argv if facts.unit.exec else []
    model = next((value for flag, value in zip(said, said[1:], strict=False) if flag == "--model-path"), "/")
    words = {
        "service": host.service,
        "python": facts.engine.interpreter,
        "package": facts.engine.package,
        "model": model,
    }
    commands = [command.format(**{k: shlex.quote(str(v)) for k, v in words.items()}) for command in TODAY]
    ssh = ["ssh"]
    if config := os.environ.get("DDTREE_OPS_SSH_CONFIG") or _lab_config(inventory):
        ssh += ["-F", str(config)]

    def asked(*options: str, script: bool = False) -> None:
        for command in ["\n".join(commands)] if script else commands:
            subprocess.run(
                [*ssh, *options, host.name, command],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                check=False,
            )

    def kept() -> None:
        with tempfile.TemporaryDirectory(dir=inventory.base) as folder:
            path = f"ControlPath={folder}/c"
            asked("-o", "ControlMaster=auto", "-o", "ControlPersist=60", "-o", path)
            subprocess.run([*ssh, "-o", path, "-O", "exit", host.name], capture_output=True, check=False)

    return {
        "12 x ssh, a connection each": asked,
        "12 x ssh, ControlMaster": kept,
        "one script, one connection": lambda: asked(script=True),
    }


def _lab_config(inventory: Inventory) -> Path | None:
    """The ssh_config of the lab that this project belongs to."""
    near = [folder / "ssh_config" for folder in (inventory.base / ".lab", inventory.base.resolve().parent)]
    return next((path for path in near if path.exists()), None)


def import_smoke(inventory: Inventory, host: HostConfig, client: AgentClient) -> float:
    """Seconds that the staged release's imports take on the host, in the unit's sandbox."""
    prepared = prepare(inventory, host, "shadow", client, lambda _event: None)
    request = push_request(prepared, who.new_txn(), who.operator())
    return float(client.call("push", request, [prepared.release.payload()], 300)["smoke"]["seconds"])


def clock(work: Callable[[], Any]) -> float:
    """Wall seconds of `work`."""
    began = time.monotonic()
    work()
    return time.monotonic() - began


def table(found: dict[str, Any]) -> str:
    """Medians with their range, and the ratio to connect + probe."""
    seconds = found["seconds"]
    ours = statistics.median(seconds["connect"]) + statistics.median(seconds["probe"])
    lines = [f"channels after connect: {found['channels']}; {found['facts']['sections']} sections", ""]
    lines += ["| | median s | least to most | against connect + probe |", "|---|---|---|---|"]
    for way, values in [*seconds.items(), ("connect + probe", [ours])]:
        middle = statistics.median(values)
        lines.append(
            f"| {way} | {middle:.2f} | {min(values):.2f} to {max(values):.2f} | {middle / ours:.1f}x |"
        )
    slow = sorted(((statistics.median(ms), name) for name, ms in found["sections"].items()), reverse=True)[:6]
    lines += ["", "slowest sections: " + ", ".join(f"{name} {ms:.0f} ms" for ms, name in slow)]
    return "\n".join([*lines, f"load of this machine before: {found['load']:.2f}"])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--host", required=True)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--smoke", action="store_true", help="push a shadow release too: its import smoke")
    parser.add_argument("--json", type=Path, help="write every figure there")
    args = parser.parse_args()
    inventory = load_inventory(Path("hosts.yaml"))
    found = measure(inventory, inventory.hosts[args.host], args.rounds, args.smoke)
    print(table(found))
    if args.json:
        args.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
