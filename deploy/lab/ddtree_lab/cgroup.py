"""One cgroup for each host in every hierarchy, on cgroup v1, hybrid and v2 machines."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from .problem import LabProblem

MOUNT = Path("/sys/fs/cgroup")
CPU_PERIOD_US = 100_000
FREEZE_LIMIT_S = 5


def is_v2() -> bool:
    """True where the machine has the unified hierarchy alone (cgroups(7))."""
    return (MOUNT / "cgroup.controllers").exists()


def parents() -> list[Path]:
    """The directories that lab cgroups go below: this process's own cgroup in every hierarchy.

    On v2 that is the mount's root, as a cgroup that holds processes cannot hand controllers to its children.
    """
    if is_v2():
        return [MOUNT]
    found = []
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        number, controllers, path = line.split(":", 2)
        name = "unified" if number == "0" else controllers.removeprefix("name=")
        if (MOUNT / name).is_dir():
            found.append(MOUNT / name / path.strip("/"))
    return found


def sweep(top: Path) -> None:
    """Remove a cgroup tree whose processes are dying; each directory gets a second.

    A frozen process of the v1 freezer cannot die, so it is thawed first.
    """
    for state in top.glob("*/freezer.state"):
        state.write_text("THAWED")
    for directory, _, _ in os.walk(top, topdown=False):
        for _ in range(50):
            try:
                os.rmdir(directory)
            except FileNotFoundError:
                break
            except OSError:
                time.sleep(0.02)
            else:
                break


@dataclass(frozen=True)
class HostCgroups:
    """The cgroups of one host: `directories`, one a hierarchy."""

    directories: tuple[Path, ...]

    @classmethod
    def create(cls, tops: list[Path], host: str) -> HostCgroups:
        made = cls(tuple(top / host for top in tops))
        for directory in made.directories:
            directory.mkdir(parents=True, exist_ok=True)
            if is_v2():
                _delegate_v2(directory.parent)
            _fill_cpuset_v1(directory)
        return made

    def inside(self, command: list[str]) -> list[str]:
        """`command`, run in these cgroups from its first moment; the process keeps its pid."""
        enter = 'while [ "$1" != -- ]; do echo 0 > "$1/cgroup.procs" || exit 1; shift; done; shift; exec "$@"'
        return ["/bin/sh", "-c", enter, "sh", *map(str, self.directories), "--", *command]

    def remove(self) -> None:
        for directory in self.directories:
            sweep(directory)

    def freeze(self, frozen: bool) -> None:
        """Stop every process of the host without telling it, or let it go on.

        By the v2 hierarchy wherever there is one: what the v1 freezer holds cannot even be killed.
        """
        unified = self._unified()
        if unified:
            (unified / "cgroup.freeze").write_text("1" if frozen else "0")
        else:
            self._file("freezer", "freezer.state").write_text("FROZEN" if frozen else "THAWED")

    @contextmanager
    def still(self) -> Iterator[None]:
        """Freeze the host for as long as the block lasts; a host that is frozen already stays so."""
        if self._frozen():
            yield
            return
        self.freeze(True)
        try:
            until = time.monotonic() + FREEZE_LIMIT_S
            while not self._frozen() and time.monotonic() < until:
                time.sleep(0.005)
            yield
        finally:
            self.freeze(False)

    def _frozen(self) -> bool:
        unified = self._unified()
        if unified:
            return "frozen 1" in (unified / "cgroup.events").read_text()
        return self._file("freezer", "freezer.state").read_text().strip() == "FROZEN"

    def _unified(self) -> Path | None:
        """The host's directory of the v2 hierarchy, where that can freeze."""
        return next((found for found in self.directories if (found / "cgroup.freeze").exists()), None)

    def limit_cpu(self, percent: float) -> None:
        """percent of one core, 0 for no limit."""
        quota = int(CPU_PERIOD_US * percent / 100)
        if is_v2():
            (self.directories[0] / "cpu.max").write_text(f"{quota or 'max'} {CPU_PERIOD_US}")
        else:
            self._file("cpu", "cpu.cfs_quota_us").write_text(str(quota or -1))

    def _file(self, hierarchy: str, name: str) -> Path:
        for directory in self.directories:
            if hierarchy in directory.relative_to(MOUNT).parts[0].split(","):
                return directory / name
        raise LabProblem(f"this machine has no {hierarchy} cgroup hierarchy, which the fault needs")


def _delegate_v2(parent: Path) -> None:
    for directory in (MOUNT, parent):
        for controller in ("cpu", "memory", "pids", "io"):
            try:
                (directory / "cgroup.subtree_control").write_text(f"+{controller}")
            except OSError:
                continue


def _fill_cpuset_v1(directory: Path) -> None:
    """A fresh v1 cpuset has no CPU and no memory node, and takes no process before it has."""
    if directory.relative_to(MOUNT).parts[0] != "cpuset":
        return
    for each in (directory.parent, directory):
        for name in ("cpuset.cpus", "cpuset.mems"):
            (each / name).write_text((each.parent / name).read_text())
