"""What the agent calls durable is on the disk: the power is cut at every effect, on a real ext4 that commits late.

The loop device's backing file holds only what was submitted. It is copied at the cut, without sync or umount; the
copy is mounted, which replays its journal, and the host boots from it.
"""

from __future__ import annotations

import copy
import functools
import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from mutation import Mutation, mutate
from world import FAIL, PASS, SERVICE, World
from world_process import Process
from world_truth import Broken, Truth, named, release_in, require

from ddtree_agent import decided, journal, layout, outcome, rollout, service, store
from ddtree_agent.core.txn import FORWARD
from ddtree_agent.layout import Layout
from ddtree_ops.engine.digests import tree_hashes
from ddtree_ops.engine.release import make_release

pytestmark = [
    pytest.mark.tier("transaction"),
    pytest.mark.skipif(os.geteuid() != 0, reason="mounting an image needs root"),
]
MOUNTS = Path(__file__).resolve().parents[2] / ".lab-test"
#: Nothing reaches the image by itself: no commit for ten minutes, no data before metadata, no flush at a rename.
_LATE = "loop,commit=600,data=writeback,noauto_da_alloc"
_ORDER = [*FORWARD[:-1], "ROLLING_BACK", "ROLLBACK_FAILED", "ROLLED_BACK", "CONFIRMED"]


@dataclass
class Claims:
    """What some process of the agent has been told to be durable."""

    states: dict[str, str] = field(default_factory=dict)
    history: set[str] = field(default_factory=set)
    kept: str = ""
    confirmed: str = ""
    sealed: set[str] = field(default_factory=set)


@dataclass
class Cut:
    """A copy of the image, and what had been claimed by then."""

    image: Path
    claims: Claims
    at: str


@contextmanager
def mounted(image: Path, options: str) -> Iterator[str]:
    MOUNTS.mkdir(exist_ok=True)
    where = tempfile.mkdtemp(prefix="power-", dir=MOUNTS)
    subprocess.run(["mount", "-o", options, image, where], check=True)
    try:
        yield where
    finally:
        if subprocess.run(["umount", where], check=False).returncode:  # a test that failed left a file open
            subprocess.run(["umount", "--lazy", where], check=True)
        os.rmdir(where)


class Power:
    """A host on an image of its own, whose power can be cut."""

    def __init__(self, folder: Path, root: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.image, self._folder = folder / "disk", folder
        self.cuts: list[Cut] = []
        self.claims, self._last = Claims(), b""
        self.world = World(root)
        self._listen(monkeypatch)

    def _listen(self, monkeypatch: pytest.MonkeyPatch) -> None:
        claims = self.claims

        def told(target: Any, name: str, note: Callable[..., None]) -> None:
            real = getattr(target, name)

            @functools.wraps(real)
            def call(*args: Any, **kwargs: Any) -> Any:
                done = real(*args, **kwargs)
                if done is not False:
                    note(*args)
                return done

            monkeypatch.setattr(target, name, call)

        told(journal.Txn, "to", lambda txn, new: claims.states.update({txn.id: new}))
        told(journal.Txn, "create", lambda _, intent: claims.states.update({intent["txn"]: "PREPARED"}))
        told(outcome, "append_history", lambda _, entry: claims.history.add(entry["txn"]))
        told(service, "put_kept", lambda _, text, *__: setattr(claims, "kept", release_in(text)))
        for module in (outcome, rollout):
            told(module, "set_confirmed", lambda _, release, *__: setattr(claims, "confirmed", release))

    def cut(self, at: str) -> None:
        """Keep what the disk holds now, unless it is what it held at the last cut."""
        data = self.image.read_bytes()
        now = copy.deepcopy(self.claims)
        if data == self._last:
            self.cuts[-1].claims, self.cuts[-1].at = now, at
            return
        self._last = data
        image = self._folder / f"cut-{len(self.cuts)}"
        subprocess.run(["cp", "--sparse=always", self.image, image], check=True)
        self.cuts.append(Cut(image, now, at))

    def play(self, proc: Process | None = None) -> None:
        """Let everybody go on effect by effect, with a cut before each, until all wait or are gone."""
        world = self.world
        while True:
            ready = [p for p in world.procs if p.runnable]
            if not ready:
                return
            for one in ready:
                one.resume()
                if not one.at.startswith(("look", "flock", "sleep")):
                    self.cut(repr(one))

    def rest(self) -> None:
        """Everything so far is on the disk, and was long ago."""
        self.world.sync()
        self.claims.__init__()  # type: ignore[misc]


def confirm(power: Power) -> None:
    power.world.deploy("bb")
    power.play()
    txn = power.world.until("GATED")
    assert txn is not None
    power.world.confirm(txn.id)
    power.play()
    assert power.claims.confirmed == "bb" and power.claims.states[txn.id] == "CONFIRMED"


def go_back(power: Power) -> None:
    power.world.rollback("baseline")
    power.play()
    for _ in range(4):
        power.world.tick(5)
        power.play()
    assert power.claims.confirmed == "baseline"


def fail(power: Power) -> None:
    power.world.behaviour["bb"] = FAIL
    power.world.deploy("bb")
    power.play()
    for _ in range(6):
        power.world.tick(5)
        power.play()
    assert "ROLLED_BACK" in power.claims.states.values()


def push(power: Power) -> None:
    """A release is staged and sealed, from a base package on the same disk."""
    package = Path(power.world.root, "sglang")
    for name in ("__init__.py", "srt/args.py"):
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text("A = 1\n" * 200)
    power.world.sync()
    release = make_release(
        engine={"name": "sglang", "version": "1", "package": str(package), "interpreter": sys.executable},
        base=tree_hashes(package),
        base_bytes=100,
        files={"srt/args.py": b"A = 2\n" * 200},
        pre={},
        patches=[("0001", "aa")],
        mode="shadow",
        argv=["x"],
        exec_argv=["serve", "x"],
        dropin="[Service]\nEnvironment=DDTREE_RELEASE=@RELEASE@\n",
    )
    here = power.world.layout

    def call() -> None:
        store.stage(here, "abc-1", release.manifest, io.BytesIO(release.payload()))
        power.claims.sealed.add(release.digest)

    power.world.op("push", call)
    power.play()
    power.cut("push done")
    assert power.claims.sealed


def judge(cut: Cut) -> None:
    """Mount the copy, compare it with the claims, boot the host from it and let it end what was begun."""
    with mounted(cut.image, "loop") as root:
        here = Layout(SERVICE, root)
        for release in cut.claims.sealed | set(_listed(here.releases)):
            store.verify(here, release)
        for txn, claimed in cut.claims.states.items():
            found = _json(os.path.join(here.txn(txn), "state"))["state"]
            require(
                _ORDER.index(found) >= _ORDER.index(claimed),
                "I4",
                f"{txn} was {claimed}, the disk says {found}",
            )
            require(_json(os.path.join(here.txn(txn), "intent.json"))["txn"] == txn, "I4", txn)
        lines = [entry["txn"] for entry in layout.read_history(here)]
        require(cut.claims.history <= set(lines), "I4", f"history {lines} lacks {cut.claims.history}")
        record = _json(here.confirmed)["release"]
        require(record in ("aa", "bb", "baseline"), "I1", record)
        require(
            cut.claims.confirmed in ("", record), "I1", f"{cut.claims.confirmed} was confirmed, not {record}"
        )
        boots = named(here.kept)
        require(cut.claims.kept in ("", boots), "I1", f"{cut.claims.kept} was put in /etc, {boots} boots")
        if boots != "baseline":
            kept = Path(here.kept).read_text()
            require(kept == store.dropin_text(store.manifest_of(here, boots)), "I2", "half a drop-in")
        world = World(root)
        try:
            world.boots, world._serial = 99, 99
            require(world.systemd.running == boots, "I1", world.systemd.running)
            world.behaviour = {"aa": PASS, "bb": PASS}
            Truth(world).converged()
            require(world.systemd.running == boots, "I1", f"{world.systemd.running} after {boots} booted")
        finally:
            world.close()


def _json(path: str) -> Any:
    try:
        return json.loads(Path(path).read_text())
    except (OSError, ValueError) as error:
        raise Broken(f"I4: {path} was durable: {error}") from None


def _listed(path: str) -> list[str]:
    return os.listdir(path) if os.path.isdir(path) else []


@pytest.fixture
def power(monkeypatch: pytest.MonkeyPatch) -> Iterator[Power]:
    base = "/dev/shm" if os.path.isdir("/dev/shm") else None
    folder = Path(tempfile.mkdtemp(prefix="ddtree-power-", dir=base))
    monkeypatch.setattr(store, "_SLACK", 0)
    try:
        image = folder / "disk"
        with open(image, "wb") as file:
            file.truncate(16 << 20)
        subprocess.run(["mkfs.ext4", "-q", "-F", image], check=True)
        with mounted(image, _LATE) as root:
            made = Power(folder, root, monkeypatch)
            try:
                _confirm_first(made)
                yield made
            finally:
                made.world.close()
    finally:
        shutil.rmtree(folder)


def _confirm_first(power: Power) -> None:
    world = power.world
    world.deploy("aa")
    txn = world.until("GATED")
    assert txn is not None
    world.confirm(txn.id)
    world.pass_time(30)
    world.add_release("bb")
    assert decided.confirmed(world.layout)["release"] == "aa"
    power.rest()


def played(power: Power, scene: Callable[[Power], None]) -> list[Cut]:
    scene(power)
    power.world.close()
    return power.cuts


SCENES = [confirm, go_back, fail, push]


@pytest.mark.parametrize("scene", SCENES)
def test_the_power_may_go_at_any_effect(power: Power, scene: Callable[[Power], None]) -> None:
    cuts = played(power, scene)
    for cut in cuts:
        try:
            judge(cut)
        except Exception as error:
            raise Broken(f"power cut before {cut.at}: {error}") from error
    assert len(cuts) >= 4
    print(f"{scene.__name__}: {len(cuts)} different disks")


def test_what_was_not_synced_is_not_on_the_disk(power: Power) -> None:
    """Control: without this the copies would hold everything, and no test here could fail."""
    Path(power.world.root, "unsynced").write_text("x")
    power.cut("unsynced")
    power.world.sync()
    power.cut("synced")
    there = []
    for cut in power.cuts:
        with mounted(cut.image, "loop") as root:
            there.append(Path(root, "unsynced").exists())
    assert there == [False, True]


def fill(root: str) -> None:
    """Take the last block, root's own share too."""
    with open(os.path.join(root, "neighbour"), "ab", buffering=0) as file:
        for size in (1 << 20, 1 << 12, 1 << 10, 1):
            try:
                while True:
                    file.write(b"x" * size)
            except OSError:
                continue
    with (
        open(os.path.join(root, "another"), "wb", buffering=0) as file,
        pytest.raises(OSError, match="space"),
    ):
        file.write(b"x")


@pytest.mark.parametrize("wanted", ["confirm", "rollback"])
def test_a_disk_without_a_block_left_stops_no_rollout_from_ending(power: Power, wanted: str) -> None:
    world, truth = power.world, Truth(power.world)
    world.deploy("bb")
    txn = world.until("GATED")
    assert txn is not None
    fill(world.root)
    world.disk_failed = True
    if wanted == "confirm":
        truth.asked_confirm(txn.id, world.confirm(txn.id))
    world.pass_time(400)  # without a confirm the deadline passes
    release = "bb" if wanted == "confirm" else "aa"
    assert world.systemd.running == named(world.layout.kept) == release
    assert txn.state == ("CONFIRMED" if wanted == "confirm" else "ROLLED_BACK")
    assert txn.id in [entry["txn"] for entry in layout.read_history(world.layout)]
    power.cut("the end")
    truth.converged()
    world.close()
    judge(power.cuts[-1])


MUTATIONS: dict[str, tuple[Mutation, Callable[[Power], None]]] = {
    "the file, before its rename": ((layout._written, "os.fsync(file.fileno())", "pass"), confirm),
    "the directory, after a rename": ((layout.write_atomic, "sync_dir(folder)", "pass"), confirm),
    "the transactions, after a new one": (
        (journal.Txn.create.__func__, "sync_dir(layout.txns)", "pass"),
        confirm,
    ),  # type: ignore[attr-defined]
    "the history": ((layout.append_history, ", os.fsync)", ")"), confirm),
    "a drop-in that is gone": ((layout.remove_file, "sync_dir(os.path.dirname(path))", "pass"), go_back),
    "a release, before it is there": ((store._seal, "os.sync()", "pass"), push),
    "the releases, after a new one": ((store.stage, "sync_dir(layout.releases)", "pass"), push),
}


@pytest.mark.parametrize("name", sorted(MUTATIONS))
def test_without_one_fsync_a_cut_is_seen(name: str, power: Power, monkeypatch: pytest.MonkeyPatch) -> None:
    mutation, scene = MUTATIONS[name]
    mutate(monkeypatch, mutation)
    cuts = played(power, scene)
    for cut in cuts:
        try:
            judge(cut)
        except Exception as error:
            print(f"power cut before {cut.at}: {error}")
            return
    pytest.fail(f"{len(cuts)} cuts, and nobody missed it")
