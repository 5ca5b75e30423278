"""What systemd does for a rollout: the service with its drop-ins, transient units and timers, the boot."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field

from world_process import Process

from ddtree_agent.layout import BASELINE, Layout

_ARGV = "serve baseline"


@dataclass
class Timer:
    """A transient timer and the command that its service runs."""

    command: list[str]
    due: float | None
    again_s: float
    after: list[str]


@dataclass
class Unit:
    """A transient service."""

    proc: Process
    after: list[str] = field(default_factory=list)  # its ExecStopPost= lines
    timer: str = ""


class Systemd:
    """systemctl and systemd-run over one service; `spawn` starts the agent as a process."""

    def __init__(
        self,
        layout: Layout,
        spawn: Callable[..., Process],
        quick: Callable[[Process], None],
        now: Callable[[], float],
    ) -> None:
        self.layout, self._spawn, self._quick, self._now = layout, spawn, quick, now
        self.units: dict[str, Unit] = {}
        self.timers: dict[str, Timer] = {}
        self.pid, self._pids = 0, 100
        self.running = ""  # the release that the main process was started from
        self.loaded: dict[str, str] = {}
        self.stopping = False
        self.tables: set[str] = set()  # nft's
        self.nft_works = True
        self.by_hand = False  # somebody started a release that was to be started by its rollout
        self.boot()

    def boot(self, keep_run: bool = False) -> None:
        """Everything that ran is gone, and /run with it; the service starts from what the drop-ins say."""
        if not keep_run:
            shutil.rmtree(os.path.join(self.layout.root, "run"), ignore_errors=True)
        os.makedirs(os.path.join(self.layout.root, "run/systemd/system"), exist_ok=True)
        os.makedirs(os.path.join(self.layout.root, "etc/systemd/system"), exist_ok=True)
        self.units, self.timers, self.stopping, self.pid = {}, {}, False, 0
        self.tables, self.by_hand = self.tables if keep_run else set(), False
        self._reload()
        self._start()

    def go_down(self) -> None:
        """A shutdown has begun: nothing starts any more, and the service stops."""
        self.stopping = True
        self._stop(self.layout.service)

    def restart(self) -> None:
        """Somebody types `systemctl restart`."""
        self._stop(self.layout.service)
        self._start()
        self.by_hand = True

    def _reload(self) -> None:
        self.loaded = {"argv": _ARGV, "release": BASELINE, "paths": ""}
        for path in (self.layout.kept, self.layout.trial):  # sorted by name: 60 in /run wins over 50 in /etc
            if os.path.exists(path):
                with open(path) as file:
                    text = file.read()
                self.loaded = {
                    "argv": re.findall(r"^ExecStart=(.+)$", text, re.M)[-1],
                    "release": re.findall(r"DDTREE_RELEASE=([0-9a-f]+)", text)[-1],
                    "paths": f"{self.loaded['paths']} {path}".strip(),
                }

    def _start(self) -> None:
        if not self.pid:
            self._pids += 1
            self.pid, self.running = self._pids, self.loaded["release"]

    def run(self, argv: list[str]) -> tuple[int, str, str]:
        """One command line; (exit status, stdout, stderr)."""
        words = [word for word in argv if word not in ("--no-pager", "--no-block", "--quiet")]
        if words[0] == "systemd-run":
            return self._transient(words[1:])
        if words[0] == "systemctl":
            return self._ctl(words[1], words[2:])
        return 127, "", f"{words[0]}: no such program in the model"

    def nft(self, args: list[str], rules: str) -> tuple[int, str, str]:
        """nft(8): `-f -`, `list table F T`, `delete table F T`."""
        if not self.nft_works:
            return 1, "", "Error: Could not process rule: Operation not permitted"
        if args[0] == "-f":
            self.tables |= set(re.findall(r"^table inet (\S+) \{$", rules, re.M))
            return 0, "", ""
        if args[3] not in self.tables:
            return 1, "", "Error: No such file or directory"
        if args[0] == "delete":
            self.tables.discard(args[3])
        return 0, "", ""

    def _ctl(self, verb: str, rest: list[str]) -> tuple[int, str, str]:
        if verb == "is-system-running":
            return 0, "stopping\n" if self.stopping else "running\n", ""
        if verb == "show":
            props = [word.split("=", 1)[1] for word in rest if word.startswith("--property=")]
            shown = self._show(rest[0])
            return 0, "".join(f"{key}={shown.get(key, '')}\n" for key in props), ""
        if verb == "daemon-reload":
            self._reload()
            return 0, "", ""
        unit = rest[-1]
        if verb == "start" and self.stopping:
            return 1, "", "Transaction is destructive: the host is going down"
        if verb == "kill":
            if unit in self.units:
                self.units[unit].proc.kill()
        elif verb == "stop":
            self._stop(unit)
        elif verb == "start" and unit == self.layout.service:
            self._start()
        return 0, "", ""

    def _stop(self, unit: str) -> None:
        if unit == self.layout.service:
            self.pid, self.running = 0, ""
        elif unit.endswith(".timer"):
            self.timers.pop(unit, None)
        elif unit in self.units:
            self.units[unit].proc.kill()

    def _show(self, unit: str) -> dict[str, str]:
        if unit == self.layout.service:
            argv = self.loaded["argv"]
            return {
                "LoadState": "loaded",
                "ActiveState": "active" if self.pid else "inactive",
                "SubState": "running" if self.pid else "dead",
                "MainPID": str(self.pid),
                "ExecStart": f"{{ path=/x ; argv[]={argv} ; ignore_errors=no ; start_time=[n/a] }}",
                "Environment": f"DDTREE_RELEASE={self.loaded['release']}",
                "DropInPaths": self.loaded["paths"],
                "NeedDaemonReload": "no",
                "Result": "success",
            }
        active = unit in self.units or unit in self.timers
        return {"LoadState": "loaded", "ActiveState": "active" if active else "inactive"}

    def _transient(self, words: list[str]) -> tuple[int, str, str]:
        if self.stopping:
            return 1, "", "Transaction is destructive: the host is going down"
        cut = words.index("--")
        options, command = words[:cut], words[cut + 1 :]
        named = _values(options, "--unit")[0]
        name = named if "." in named else named + ".service"
        first = _values(options, "--on-active")
        after = _values(options, "--property=ExecStopPost")
        if first:
            timer = name.replace(".service", ".timer")
            if timer in self.timers or name in self.units:
                return 1, "", f"Failed to start transient timer unit: Unit {timer} was already loaded"
            again = _values(options, "--timer-property=OnUnitInactiveSec")
            due, again_s = self._now() + _seconds(first[0]), _seconds(again[0])
            self.timers[timer] = Timer(command, due, again_s, after)
            return 0, "", ""
        if name in self.units:
            return 1, "", f"Failed to start transient service unit: Unit {name} was already loaded"
        self._begin(name, command, _values(options, "--setenv"), after)
        return 0, "", ""

    def _begin(
        self, name: str, command: list[str], env: list[str], after: list[str], timer: str = ""
    ) -> None:
        proc = self._spawn(name, command, dict(pair.split("=", 1) for pair in env))
        self.units[name] = Unit(proc, after, timer)

    def ended(self, proc: Process) -> None:
        """A transient unit's process is gone: its ExecStopPost=, and its timer waits for the next look."""
        for name, unit in list(self.units.items()):
            if unit.proc is not proc:
                continue
            for line in unit.after:
                self._after(line)
            del self.units[name]
            if unit.timer in self.timers:
                self.timers[unit.timer].due = self._now() + self.timers[unit.timer].again_s

    def _after(self, line: str) -> None:
        words = line.split()
        if words[0] == "systemd-run":
            if not self.stopping:
                self.run(words)
        elif self.stopping:  # anything else is quick, and looks whether the host goes down
            self._quick(self._spawn("ExecStopPost", words, {}))

    def fire(self) -> None:
        """Start the service of every timer that is due."""
        for name, timer in list(self.timers.items()):
            if timer.due is not None and timer.due <= self._now() and not self.stopping:
                timer.due = None
                self._begin(name.replace(".timer", ".service"), timer.command, [], timer.after, timer=name)


def _values(options: list[str], name: str) -> list[str]:
    return [word[len(name) + 1 :] for word in options if word.startswith(name + "=")]


def _seconds(text: str) -> float:
    return float(text.rstrip("s"))
