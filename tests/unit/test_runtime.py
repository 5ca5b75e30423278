"""A release that names its runtime: digest, search path, proof before and after the stop, drift, garbage collection."""

from __future__ import annotations

import copy
import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from env_fakes import Host, stack
from test_gc import dropin
from test_gc import plan as gc_plan
from test_gc import run as gc_run
from test_render import OVERLAY, PY, facts_of, host_of
from test_smoke import TREE, write

from ddtree_agent import drift, envreceive, envsend, package, rollout, runtimes, smoke, status, store, unitenv
from ddtree_agent.gcplan import Item
from ddtree_agent.layout import Layout, write_json
from ddtree_agent.wire import AgentError
from ddtree_ops.cli.status import describe
from ddtree_ops.core.checks import runtime as rule
from ddtree_ops.core.errors import PreconditionFailed
from ddtree_ops.core.facts_live import parse
from ddtree_ops.core.finding import Finding, Level
from ddtree_ops.core.wanted import Wanted
from ddtree_ops.data import data_dir
from ddtree_ops.engine.digests import canonical, tree_digest, tree_hashes
from ddtree_ops.engine.release import Release, make_release
from ddtree_ops.engine.series import load_series
from ddtree_ops.units.render import Rendered, render

pytestmark = pytest.mark.tier("preflight")
DIGEST = "0123456789abcdef"
SITE = f"/opt/ddtree/runtimes/{DIGEST}/site"


def rendered(mode: str, *lines: str, runtime: str | None = DIGEST, **more: Any) -> Rendered:
    modes = load_series(data_dir("engine_patches") / "sglang-0.5.11").modes
    return render(host_of(runtime=runtime), facts_of(*(lines or (f"ExecStart={PY}",)), **more), mode, modes)


def test_the_overlay_comes_first_then_the_runtime_then_the_hosts_own() -> None:
    assert rendered("shadow").env["PYTHONPATH"] == f"{OVERLAY}:{SITE}"
    mine = rendered("shadow", "Environment=PYTHONPATH=/mine", f"ExecStart={PY}")
    assert mine.env["PYTHONPATH"] == f"{OVERLAY}:{SITE}:/mine"
    assert rendered("shadow", runtime=None).env["PYTHONPATH"] == OVERLAY
    wrapped = rendered("shadow", f"ExecStart=/usr/bin/env PYTHONPATH=/mine {PY}")
    assert f"PYTHONPATH={OVERLAY}:{SITE}:/mine" in wrapped.exec_argv


def test_a_mode_that_patches_nothing_runs_on_the_runtime_too_and_the_baseline_never() -> None:
    assert rendered("dflash").env["PYTHONPATH"] == SITE
    assert "PYTHONPATH" not in rendered("dflash", runtime=None).env
    assert "PYTHONPATH" not in rendered("baseline").env
    wrapped = rendered("baseline", f"ExecStart=/usr/bin/env PYTHONPATH=/mine {PY}")
    assert "PYTHONPATH=/mine" in wrapped.exec_argv
    with pytest.raises(PreconditionFailed, match="ignores PYTHONPATH"):
        rendered("dflash", "ExecStart=/opt/v/bin/python -E -m sglang.launch_server")
    rendered("dflash", "ExecStart=/opt/v/bin/python -E -m sglang.launch_server", runtime=None)


@pytest.fixture
def base(tmp_path: Path) -> Path:
    package_dir = tmp_path / "site-packages" / "sglang"
    write(package_dir, {"__init__.py": "", "srt/args.py": "A = 1\n"})
    return package_dir


def release_of(base: Path, runtime: str | None) -> Release:
    return make_release(
        engine={"name": "sglang", "version": "1", "package": str(base), "interpreter": sys.executable},
        base=tree_hashes(base),
        base_bytes=100,
        files={"srt/args.py": b"A = 2\n"},
        pre={},
        patches=[("0001", "aa")],
        mode="shadow",
        argv=["x"],
        exec_argv=["x"],
        dropin=f"[Service]\nEnvironment=DDTREE_RELEASE=@RELEASE@\nEnvironment=PYTHONPATH={runtime}\n",
        runtime=runtime,
    )


def test_the_sources_of_a_release_include_its_runtime_and_without_one_nothing_changes(base: Path) -> None:
    plain, one, two = (release_of(base, runtime) for runtime in (None, DIGEST, "f" * 16))
    assert len({release.source_digest for release in (plain, one, two)}) == 3
    assert one.manifest["runtime"] == DIGEST and "runtime" not in plain.manifest
    sha = {path: entry["sha256"] for path, entry in plain.manifest["overlay"].items()}
    # as it was computed before releases had runtimes: hosts have theirs under it
    before = {"overlay": sha, "base": tree_digest(tree_hashes(base)), "patches": [("0001", "aa")]}
    assert plain.source_digest == canonical(before)[:16]


@pytest.fixture
def carried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Layout, str]:
    """A host with a runtime that was made from its own packages; its layout and the runtime's digest."""
    host = Host(tmp_path / "host", sys.executable)
    stack(host.site, "cu130", "cu130")

    def ask(request: dict[str, Any]) -> dict[str, Any]:
        return package.query(sys.executable, ["-S"], {"PYTHONPATH": str(host.site)}, str(tmp_path))

    monkeypatch.setattr(envsend, "ask", ask)
    monkeypatch.setattr(envreceive, "_compile", lambda *_: None)
    manifest = host.manifest("torch", "sglang-kernel")
    host.prepare(manifest)
    host.receive(manifest, io.BytesIO(empty()))
    return host.layout, manifest["runtime"]


def empty() -> bytes:
    from ddtree_ops.apply.env import _nothing

    return _nothing()


def staged(layout: Layout, base: Path, runtime: str | None) -> str:
    release = release_of(base, runtime)
    store.stage(layout, "abc-1", copy.deepcopy(release.manifest), io.BytesIO(release.payload()))
    return release.digest


def edit(layout: Layout, runtime: str) -> None:
    path = Path(runtimes.site(layout, runtime)) / "torch/version.py"
    path.chmod(0o644)
    path.write_text(path.read_text().replace("13.0", "12.8"))
    path.chmod(0o444)


def test_an_edited_or_missing_runtime_is_drift_of_the_release_that_runs_on_it(
    carried: tuple[Layout, str], base: Path
) -> None:
    layout, runtime = carried
    on_it, without = staged(layout, base, runtime), staged(layout, base, None)
    assert drift.overlay(layout, on_it) == []
    edit(layout, runtime)
    said = f"runtime {runtime} on this host is damaged: torch/version.py is not what its manifest says"
    assert drift.overlay(layout, on_it) == [said]
    assert drift.overlay(layout, without) == []
    os.rename(layout.runtime(runtime), layout.runtime("f" * 16))
    assert drift.overlay(layout, on_it) == [f"runtime {runtime} is not on this host"]


def test_status_names_the_runtime_that_runs(carried: tuple[Layout, str], base: Path) -> None:
    layout, runtime = carried
    on_it, without = staged(layout, base, runtime), staged(layout, base, None)
    told = {"runtime": runtime, "dists": ["sglang-kernel 0.4.2+cu130", "torch 2.11.0"]}
    assert status.runtime_of(layout, on_it) == told
    assert [status.runtime_of(layout, release) for release in (without, "baseline", None)] == [None] * 3
    seen = {
        "service": "s", "active": "active", "sub": "running", "main_pid": 1, "running": on_it, "transaction": None,
        "held_by": None, "drift": [], "confirmed": {"release": on_it, "undo": None}, "releases": [], "runtime": told,
    }  # fmt: skip
    assert f"on runtime {runtime}: sglang-kernel 0.4.2+cu130, torch 2.11.0" in describe("ct200", seen)
    assert "runtime" not in describe("ct200", {**seen, "runtime": None})


def items(*names: str) -> list[Item]:
    return [Item("runtime", name, 1, at) for at, name in enumerate(names)]


def test_runtimes_that_a_kept_release_names_stay_and_the_newest() -> None:
    releases = [
        Item("release", name, 1, at, runtime=run) for at, (name, run) in enumerate([("a", "w"), ("b", "x")])
    ]
    runs = items("w", "x", "y", "z")
    assert set(gc_plan(releases=releases, keep=1)) == {"a"}
    from ddtree_agent.gcplan import plan_gc

    def gone(**needed: str) -> set[str]:
        chosen = plan_gc(releases, [], [], [], needed, 1, 0, runs)
        return {one.item.name for one in chosen if one.goes and one.item.kind == "runtime"}

    assert gone() == {"w", "y"}  # z has just come, x is what b runs on; a goes, and with it w
    assert gone(a="confirmed") == {"y"}
    assert gone(y="process 7 was started from it") == {"w"}


def test_gc_removes_a_runtime_that_nothing_names_any_more(carried: tuple[Layout, str], base: Path) -> None:
    layout, runtime = carried
    newer = Path(layout.runtime("e" * 16))
    newer.mkdir()  # half-made
    on_it = staged(layout, base, runtime)
    later = staged(layout, base, None)
    os.utime(layout.release(on_it), (1, 1))
    write_json(layout.confirmed, {"release": later, "undo": on_it})
    gc_run(layout, keep=1)
    assert os.listdir(layout.runtimes) == [runtime]  # what a rollback would run on
    write_json(layout.confirmed, {"release": later, "undo": None})
    dropin(layout, "etc/systemd/system/other.service.d/x.conf", f"x\nEnvironment=PYTHONPATH=/y:{SITE}")
    os.rename(layout.runtime(runtime), layout.runtime(DIGEST))  # what that drop-in names
    gc_run(layout, keep=1)
    assert os.listdir(layout.runtimes) == [DIGEST]
    assert os.listdir(layout.releases) == [later]


def test_gc_takes_what_an_interrupted_sync_left(carried: tuple[Layout, str]) -> None:
    layout, _ = carried
    left = Path(layout.staging) / f"runtime-{DIGEST}.sglang.service"
    left.mkdir(parents=True)
    found = gc_run(layout)
    assert [one["kind"] for one in found["removed"]] == ["leftover"]
    assert not left.exists()


def smoked(
    tmp_path: Path, runtime: dict[str, Any] | None, path: list[str], cwd: str = "work"
) -> dict[str, Any]:
    overlay = tmp_path / "release/overlay"
    write(overlay / "sglang", TREE)
    (tmp_path / "work").mkdir(exist_ok=True)
    launch = unitenv.split_launch([sys.executable, "-m", "sglang.launch_server", "--model-path", "/m"])
    assert launch is not None
    head, source = smoke.stdin({"modules": []}, launch, str(overlay)).split(b"\n", 1)
    job = {**json.loads(head), "runtime": runtime}
    done = subprocess.run(
        smoke.command(launch),
        input=json.dumps(job).encode() + b"\n" + source,
        capture_output=True,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join([str(overlay), *path])},
        cwd=tmp_path / cwd,
        timeout=120,
        check=False,
    )
    return smoke.judge(done.returncode, done.stdout.decode(), done.stderr.decode(), False)


def test_the_smoke_proves_that_the_runtimes_packages_come_from_it(tmp_path: Path) -> None:
    mine, theirs = tmp_path / "runtime", tmp_path / "own"
    for place in (mine, theirs, tmp_path / "shadow"):
        write(place / "torch", {"__init__.py": ""})
    runtime = {"site": str(mine), "modules": ["torch"]}
    good = smoked(tmp_path, runtime, [str(mine), str(theirs)])
    assert good["ok"], good
    later = smoked(tmp_path, runtime, [str(theirs), str(mine)])
    assert later["stage"] == "main origin"
    assert f"torch is {theirs}/torch/__init__.py, not the runtime's {mine}/torch" in later["first_fatal"]
    assert not smoked(tmp_path, {**runtime, "modules": ["nowhere"]}, [str(mine)])["ok"]
    shadowed = smoked(tmp_path, runtime, [str(mine)], "shadow")
    assert "holds a torch/ folder" in shadowed["first_fatal"]


def test_the_smoke_puts_the_overlay_first_whatever_the_mode_sets() -> None:
    env = smoke.environment({"PYTHONPATH": f"{SITE}:/mine"}, {}, "/r/overlay")
    assert env["PYTHONPATH"] == f"/r/overlay:{SITE}:/mine"
    env = smoke.environment({"PYTHONPATH": f"/r/overlay:{SITE}"}, {}, "/r/overlay")
    assert env["PYTHONPATH"] == f"/r/overlay:{SITE}"


@pytest.mark.parametrize(
    ("patched", "path", "fails"),
    [
        (True, ["{overlay}", "{site}", "/mine"], False),
        (True, ["{overlay}", "/mine", "{site}"], True),
        (True, ["{overlay}"], True),
        (False, ["{site}", "/mine"], False),
        (False, ["/mine", "{site}"], True),
    ],
)
def test_the_running_server_must_have_the_runtime_in_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, patched: bool, path: list[str], fails: bool
) -> None:
    layout = Layout("sglang.service", str(tmp_path))
    names = {"overlay": os.path.join(layout.release("ab"), "overlay"), "site": runtimes.site(layout, DIGEST)}
    seen = [entry.format(**names) for entry in path]
    monkeypatch.setattr(rollout.service, "search_paths", lambda _: [seen])
    manifest = {"release": "ab", "runtime": DIGEST, "overlay": {"x": {}} if patched else {}}
    if fails:
        with pytest.raises(AgentError, match="runtime"):
            rollout._prove_origin(layout, manifest)
    else:
        rollout._prove_origin(layout, manifest)


def test_the_probes_programs_see_the_runtime_between_overlay_and_own() -> None:
    show = {
        "Environment": 'A=1 "PYTHONPATH=/opt/ddtree/releases/a/overlay:/opt/ddtree/runtimes/b/site:/my own"'
    }
    overlay = "/opt/ddtree/releases/a/overlay"
    for runtime, want in ((SITE, [overlay, SITE, "/my own"]), (None, [overlay, "/my own"])):
        env = unitenv.shown_environment(unitenv.with_runtime(show, runtime)["Environment"])
        assert (env["A"], env["PYTHONPATH"].split(":")) == ("1", want)
    assert unitenv.with_runtime({"Environment": "A=1"}, None) == {"Environment": "A=1"}


def judged(**changed: Any) -> list[Finding]:
    section: dict[str, Any] = {
        "named": DIGEST, "present": True, "problem": None, "soabi": "cpython-311", "dists": ["torch 2.11.0"],
        "interpreter_soabi": "cpython-311",
    }  # fmt: skip
    live = parse({"runtime": {**section, **changed}}, [rule.SECTION])
    found = live.of(rule.SECTION)
    assert isinstance(found, rule.Runtime)
    return [*rule.usable(found, live, Wanted("ct200", "sglang.service"))]


def test_the_preflight_blocks_a_runtime_that_is_missing_damaged_or_for_another_interpreter() -> None:
    assert [(f.level, "torch 2.11.0" in f.evidence) for f in judged()] == [(Level.OK, True)]
    assert judged(named=None, present=False) == []
    gone = judged(present=False, problem="runtime x is not on this host")
    assert gone[0].level is Level.BLOCK and "env sync" in str(gone[0].remedy)
    other = judged(interpreter_soabi="cpython-312")
    assert other[0].level is Level.BLOCK and "cpython-312" in other[0].evidence
    assert judged(interpreter_soabi=None)[0].level is Level.WARN
