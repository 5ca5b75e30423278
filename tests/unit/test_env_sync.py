"""Carrying packages over: proved on the source, only what is missing travels, sealed whole or not at all."""

from __future__ import annotations

import base64
import io
import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from env_fakes import Host, install, stack

from ddtree_agent import envreceive, envsend, package, probe, rejoin, runtimes, status, store
from ddtree_agent.layout import Layout, append_history, locked, read_history
from ddtree_agent.wire import AgentError
from ddtree_ops.cli.history import describe
from ddtree_ops.core import envdiff, envset

pytestmark = pytest.mark.tier("preflight")
COMPILE = envreceive._compile
NAMES = ("torch", "sglang-kernel")


@pytest.fixture
def hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Host, Host]:
    """A with a +cu130 stack, B with torch +cu128 beside a kernel for cu130. No systemd: asked by their directories."""
    a, b = Host(tmp_path / "a", sys.executable), Host(tmp_path / "b", sys.executable)
    stack(a.site, "cu130", "cu130")
    stack(b.site, "cu128", "cu130")

    def ask(request: dict[str, Any]) -> dict[str, Any]:
        host = next(host for host in (a, b) if request["host"] == str(host.root))
        first = request.get("runtime") and runtimes.site(host.layout, request["runtime"])
        path = os.pathsep.join(str(part) for part in (first, host.site) if part)
        # -S: the test machine's own packages are not the host's
        return package.query(sys.executable, ["-S"], {"PYTHONPATH": path}, str(tmp_path))

    monkeypatch.setattr(envsend, "ask", ask)
    monkeypatch.setattr(envreceive, "_compile", lambda *_: None)  # seconds of every test
    return a, b


def sent(host: Host, manifest: dict[str, Any], want: list[str], capsys: pytest.CaptureFixture[str]) -> bytes:
    """What env-send put on the line."""
    capsys.readouterr()
    envsend.send({**host.request, "names": [dist["name"] for dist in manifest["dists"]], "want": want})
    lines = [
        json.loads(line[5:]) for line in capsys.readouterr().out.splitlines() if line.startswith("@ddt ")
    ]
    assert lines[-1]["ev"] == "result"
    return b"".join(base64.b64decode(line["data"]) for line in lines if line["ev"] == "chunk")


def carried(a: Host, b: Host, capsys: pytest.CaptureFixture[str], *names: str) -> dict[str, Any]:
    """The whole way of a sync; returns the manifest."""
    manifest = a.manifest(*(names or NAMES))
    plan = b.prepare(manifest)
    b.receive(manifest, io.BytesIO(sent(a, manifest, plan["missing"], capsys)))
    return manifest


def tree(root: Path) -> dict[str, tuple[int, bytes]]:
    return {
        str(path): (path.stat().st_mode, path.read_bytes() if path.is_file() else b"")
        for path in root.rglob("*")
    }


def test_only_what_the_target_lacks_travels_and_the_runtime_is_whole(
    hosts: tuple[Host, Host], capsys: pytest.CaptureFixture[str]
) -> None:
    a, b = hosts
    before = tree(a.site), tree(b.site)
    manifest = a.manifest(*NAMES)
    plan = b.prepare(manifest)
    assert [path for path in plan["missing"] if "dist-info" not in path] == [
        "torch/lib/libtorch.so",
        "torch/version.py",
    ]
    assert plan["local"] > 0
    b.receive(manifest, io.BytesIO(sent(a, manifest, plan["missing"], capsys)))
    runtimes.verify(b.layout, manifest["runtime"])
    site = Path(runtimes.site(b.layout, manifest["runtime"]))
    assert (site / "torch/version.py").read_bytes() == (a.site / "torch/version.py").read_bytes()
    assert manifest["modules"] == ["sgl_kernel", "torch"]
    assert os.listdir(b.layout.staging) == []
    assert (tree(a.site), tree(b.site)) == before


def test_a_sync_is_a_line_of_the_hosts_history_and_no_rollout(
    hosts: tuple[Host, Host], capsys: pytest.CaptureFixture[str]
) -> None:
    a, b = hosts
    append_history(
        b.layout, {"kind": "deploy", "txn": "1-a", "who": "me", "outcome": "confirmed", "mode": "shadow"}
    )
    manifest = carried(a, b, capsys)
    assert b.prepare(manifest)["there"]  # nothing is done again, so nothing is told again
    deploy, line = read_history(b.layout)
    told = {key: line[key] for key in ("kind", "outcome", "who", "from", "runtime")}
    assert told == {
        "kind": "env-sync", "outcome": "sealed", "who": "me", "from": "ct129", "runtime": manifest["runtime"],
    }  # fmt: skip
    assert line["packages"] == [f"{dist['name']} {dist['version']}" for dist in manifest["dists"]]
    assert any(package.startswith("torch ") for package in line["packages"])
    words = describe({**line, "at": 0.0, "origin": "10.0.0.9"})
    assert words.startswith(
        f"1970-01-01 00:00:00 UTC  env sync of runtime {manifest['runtime']} from ct129 by me"
    )
    assert rejoin.rejoin(b.layout)["last"] == deploy
    assert status.proven(b.layout) == []


def test_a_sync_that_fails_leaves_no_line(hosts: tuple[Host, Host]) -> None:
    a, b = hosts
    manifest = a.manifest(*NAMES)
    b.prepare(manifest)
    with pytest.raises(AgentError):
        b.receive(manifest, io.BytesIO(b"cut"))
    assert read_history(b.layout) == []


def test_the_runtime_is_sealed_and_compiled_and_keeps_who_may_run(
    hosts: tuple[Host, Host], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = hosts
    monkeypatch.setattr(envreceive, "_compile", COMPILE)
    (a.site / "torch/version.py").chmod(0o666)
    manifest = carried(a, b, capsys)
    root = Path(b.layout.runtime(manifest["runtime"]))
    for path in [root, *root.rglob("*")]:
        assert not path.stat().st_mode & 0o222 and path.stat().st_uid == os.geteuid(), path
    assert (root / "site/torch/bin/ptxas").stat().st_mode & 0o777 == 0o555
    assert (root / "site/torch/version.py").stat().st_mode & 0o777 == 0o444
    assert list(root.glob("site/torch/__pycache__/version.*.pyc"))


def test_a_second_sync_finds_it_there(hosts: tuple[Host, Host], capsys: pytest.CaptureFixture[str]) -> None:
    manifest = carried(*hosts, capsys)
    assert hosts[1].prepare(manifest)["there"] is True


def test_the_same_packages_are_the_same_runtime_wherever_they_go(
    hosts: tuple[Host, Host], tmp_path: Path
) -> None:
    a, b = hosts
    one = a.manifest(*NAMES)
    (a.site / "torch/__pycache__").mkdir()
    (a.site / "torch/__pycache__/version.cpython-311.pyc").write_bytes(b"whatever")
    os.utime(a.site / "torch/version.py", (1, 1))
    assert a.manifest(*NAMES)["runtime"] == one["runtime"]
    assert b.manifest(*NAMES)["runtime"] != one["runtime"]


def test_a_damaged_file_is_refused_by_name_before_anything_travels(hosts: tuple[Host, Host]) -> None:
    a, b = hosts
    (a.site / "torch/version.py").write_text("__version__ = 'edited'\n")
    with pytest.raises(AgentError, match=r"torch/version\.py is damaged"):
        a.manifest(*NAMES)
    assert not os.path.exists(b.layout.staging)


@pytest.mark.parametrize(
    ("row", "named"),
    [
        ("/etc/passwd,sha256=x,1", "absolute"),
        ("../../../../../../../etc/passwd,sha256=x,1", "leads out"),
        ("torch/../../x,sha256=x,1", "leads out"),
        ("torch/gone.py,sha256=x,1", "missing"),
        ("torch/link.py,sha256=x,1", "is a link"),
        ("torch/linked/version.py,sha256=x,1", "is a link"),
        ("torch/pipe,sha256=x,1", "no regular file"),
        ("torch/unhashed.py,,", "cannot be verified"),
    ],
)
def test_what_is_not_a_plain_file_of_the_package_is_refused(
    hosts: tuple[Host, Host], row: str, named: str
) -> None:
    a, _ = hosts
    (a.site / "torch/link.py").symlink_to("version.py")
    (a.site / "torch/linked").symlink_to(a.site / "torch")
    os.mkfifo(a.site / "torch/pipe")
    (a.site / "torch/unhashed.py").write_text("")
    record = next(a.site.glob("torch-*.dist-info")) / "RECORD"
    whole = record.read_text()
    a.manifest(*NAMES)  # what no RECORD names does not matter
    record.write_text(whole + row + "\n")
    with pytest.raises(AgentError, match=named) as caught:
        a.manifest(*NAMES)
    assert row.split(",")[0] in str(caught.value)


def test_scripts_of_the_environment_stay_behind(hosts: tuple[Host, Host]) -> None:
    a, _ = hosts
    record = next(a.site.glob("torch-*.dist-info")) / "RECORD"
    before = set(a.manifest(*NAMES)["files"])
    with open(record, "a") as file:
        file.write("../../bin/torchrun,sha256=x,1\ntorch/__pycache__/a.cpython-311.pyc,,\n")
    assert set(a.manifest(*NAMES)["files"]) == before


def test_a_cut_line_leaves_only_staging_and_the_next_run_goes_on(
    hosts: tuple[Host, Host], capsys: pytest.CaptureFixture[str]
) -> None:
    a, b = hosts
    manifest = a.manifest(*NAMES)
    plan = b.prepare(manifest)
    stream = sent(a, manifest, plan["missing"], capsys)
    with pytest.raises(AgentError) as caught:
        b.receive(manifest, io.BytesIO(stream[: len(stream) // 2]))
    assert "what arrived is kept" in caught.value.fields["next"]
    assert not os.path.exists(b.layout.runtime(manifest["runtime"]))
    store.sweep(b.layout)  # a push in between
    again = b.prepare(manifest)
    assert again["reused"] >= plan["local"]
    assert again["missing"] and set(again["missing"]) <= set(plan["missing"])
    b.receive(manifest, io.BytesIO(sent(a, manifest, again["missing"], capsys)))
    runtimes.verify(b.layout, manifest["runtime"])


def test_what_an_interrupted_run_left_half_written_is_not_taken_for_whole(
    hosts: tuple[Host, Host], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    a, b = hosts
    manifest = a.manifest(*NAMES)
    b.prepare(manifest)
    staged = Path(b.layout.staging) / f"runtime-{manifest['runtime']}.sglang.service" / "site"
    (staged / "torch/__init__.py").write_bytes(b"half")
    (staged / "torch/lib").mkdir(exist_ok=True)
    (staged / "torch/lib/libtorch.so.part").write_bytes(b"half")
    (staged / "torch/version.py").symlink_to("/etc/passwd")
    plan = b.prepare(manifest)
    assert not (staged / "torch/lib/libtorch.so.part").exists()
    assert not (staged / "torch/version.py").is_symlink()
    b.receive(manifest, io.BytesIO(sent(a, manifest, plan["missing"], capsys)))
    runtimes.verify(b.layout, manifest["runtime"])


def test_staging_of_another_runtime_is_swept(hosts: tuple[Host, Host]) -> None:
    a, b = hosts
    b.prepare(a.manifest("torch"))
    b.prepare(a.manifest(*NAMES))
    assert len(os.listdir(b.layout.staging)) == 1


def test_a_file_that_was_edited_on_the_target_is_not_taken_from_there(hosts: tuple[Host, Host]) -> None:
    a, b = hosts
    (b.site / "sgl_kernel/common_ops.abi3.so").write_bytes(b"edited")
    assert "sgl_kernel/common_ops.abi3.so" in b.prepare(a.manifest(*NAMES))["missing"]


def test_files_of_another_runtime_do_not_travel_again(
    hosts: tuple[Host, Host], capsys: pytest.CaptureFixture[str]
) -> None:
    a, b = hosts
    carried(a, b, capsys, "torch")
    assert b.prepare(a.manifest(*NAMES))["missing"] == []


def member(name: str, data: bytes = b"x", kind: bytes = tarfile.REGTYPE, link: str = "") -> bytes:
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w:gz") as archive:
        info = tarfile.TarInfo(name)
        info.type, info.linkname, info.size = kind, link, len(data) if kind == tarfile.REGTYPE else 0
        archive.addfile(info, io.BytesIO(data))
    return sink.getvalue()


@pytest.mark.parametrize(
    "payload",
    [
        member("../escape.py"),
        member("/etc/escape.py"),
        member("torch/unknown.py"),
        member("torch/version.py", kind=tarfile.SYMTYPE, link="/etc/passwd"),
        member("torch/version.py", kind=tarfile.LNKTYPE, link="torch/__init__.py"),
        member("torch/version.py", kind=tarfile.CHRTYPE),
        member("torch/version.py", b"another size"),
    ],
)
def test_a_hostile_archive_makes_no_runtime(hosts: tuple[Host, Host], tmp_path: Path, payload: bytes) -> None:
    a, b = hosts
    manifest = a.manifest(*NAMES)
    b.prepare(manifest)
    with pytest.raises(AgentError, match="arrived"):
        b.receive(manifest, io.BytesIO(payload))
    assert not os.path.exists(b.layout.runtimes)
    assert not list(tmp_path.rglob("escape*"))


def test_a_byte_that_changed_in_transit_is_named(hosts: tuple[Host, Host]) -> None:
    a, b = hosts
    manifest = a.manifest(*NAMES)
    b.prepare(manifest)
    data = (a.site / "torch/version.py").read_bytes()
    with pytest.raises(AgentError, match=r"version\.py arrived changed"):
        b.receive(manifest, io.BytesIO(member("torch/version.py", data.replace(b"2", b"3", 1))))


@pytest.mark.parametrize("path", ["../x.py", "/x.py", "a//x.py", "torch/version.py/x", "a/__pycache__/x.pyc"])
def test_a_manifest_that_names_a_path_outside_is_refused(hosts: tuple[Host, Host], path: str) -> None:
    a, b = hosts
    manifest = a.manifest(*NAMES)
    manifest["files"][path] = manifest["files"]["torch/version.py"]
    manifest["runtime"] = runtimes.digest_of(manifest)
    with pytest.raises(AgentError, match="manifest"):
        b.prepare(manifest)
    assert not os.path.exists(b.layout.staging)


def test_a_manifest_that_is_not_what_its_digest_says_is_refused(hosts: tuple[Host, Host]) -> None:
    a, b = hosts
    manifest = a.manifest(*NAMES)
    manifest["files"]["torch/version.py"]["sha256"] = "0" * 64
    with pytest.raises(AgentError, match="arrived changed"):
        b.prepare(manifest)


def test_a_rollout_at_work_is_not_disturbed(hosts: tuple[Host, Host]) -> None:
    a, b = hosts
    with locked(b.layout, "push by you"), pytest.raises(AgentError) as caught:
        b.prepare(a.manifest(*NAMES))
    assert caught.value.fields["kind"] == "locked"


@pytest.fixture
def sealed(
    hosts: tuple[Host, Host], capsys: pytest.CaptureFixture[str]
) -> Iterator[tuple[Layout, str, Path]]:
    """A sealed runtime: its layout, its digest, its site directory."""
    manifest = carried(*hosts, capsys)
    layout = hosts[1].layout
    yield layout, manifest["runtime"], Path(runtimes.site(layout, manifest["runtime"]))


@pytest.mark.parametrize("quick", [True, False])
@pytest.mark.parametrize(
    "change", ["edit", "edit keeping size and mtime", "add", "remove", "link", "not run"]
)
def test_an_edited_runtime_is_named_by_its_file(
    sealed: tuple[Layout, str, Path], change: str, quick: bool
) -> None:
    layout, digest, site = sealed
    victim = site / "torch/version.py"
    runtimes.verify(layout, digest, quick)
    before = victim.stat()
    if change.startswith("edit"):
        victim.chmod(0o644)
        victim.write_bytes(victim.read_bytes().replace(b"2", b"3", 1))
        victim.chmod(0o444)
        os.utime(victim, ns=(before.st_atime_ns, before.st_mtime_ns))
    elif change == "add":
        victim = site / "torch/evil.py"
        victim.write_text("")
    elif change == "not run":
        victim = site / "torch/bin/ptxas"
        victim.chmod(0o444)
    else:
        victim.unlink()
        if change == "link":
            victim.symlink_to("/etc/passwd")
    with pytest.raises(AgentError, match=victim.name.replace(".", r"\.")):
        runtimes.verify(layout, digest, quick)


def test_a_quick_look_reads_only_what_was_touched(
    sealed: tuple[Layout, str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    layout, digest, site = sealed
    read: list[str] = []

    def digest_of(path: str) -> str:
        read.append(os.path.relpath(path, site))
        return store.file_digest(path)

    monkeypatch.setattr(runtimes, "file_digest", digest_of)
    runtimes.verify(layout, digest, quick=True)
    assert read == []
    os.utime(site / "torch/version.py", (1, 1))
    runtimes.verify(layout, digest, quick=True)
    assert read == ["torch/version.py"]


def test_an_edited_manifest_is_named(sealed: tuple[Layout, str, Path]) -> None:
    layout, digest, site = sealed
    path = site.parent / "manifest.json"
    path.chmod(0o644)
    path.write_text(path.read_text().replace("2.11.0", "2.11.1"))
    with pytest.raises(AgentError, match=r"manifest\.json"):
        runtimes.verify(layout, digest)


def test_a_damaged_runtime_is_built_anew(
    hosts: tuple[Host, Host], sealed: tuple[Layout, str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    layout, digest, site = sealed
    (site / "torch/version.py").unlink()
    a, b = hosts
    manifest = a.manifest(*NAMES)
    plan = b.prepare(manifest)
    assert plan["missing"] == ["torch/version.py"]  # the rest is taken from the damaged one
    b.receive(manifest, io.BytesIO(sent(a, manifest, plan["missing"], capsys)))
    runtimes.verify(layout, digest)
    assert os.listdir(layout.staging) == []


def test_the_runtime_comes_before_the_hosts_own_packages_and_the_engine_is_still_found(
    hosts: tuple[Host, Host], capsys: pytest.CaptureFixture[str]
) -> None:
    a, b = hosts
    stale, manifest = b.describe(), carried(a, b, capsys)
    fresh = b.describe(manifest["runtime"])
    assert stale["builds"]["torch"]["cuda"] == "12.8" and fresh["builds"]["torch"]["cuda"] == "13.0"
    assert fresh["builds"]["duplicates"] == {}
    asked = envsend.ask({**b.request, "runtime": manifest["runtime"]})
    assert package.engine(asked)["package"] == str(b.site / "sglang")
    assert fresh["shadowed"].keys() == set(NAMES)
    means = envdiff.consequences(envdiff.read("ct129", a.describe()), envdiff.read("ct200", fresh))
    assert means == []


def test_the_whole_way_as_the_controller_decides_it(hosts: tuple[Host, Host]) -> None:
    a, b = (envdiff.read(name, host.describe()) for name, host in zip(("ct129", "ct200"), hosts, strict=True))
    assert envdiff.differing(a, b) == ["torch"]
    assert (
        "ct200 has torch 2.11.0+cu128 and sglang-kernel 0.4.2+cu130 built for cu130: the kernel will not load"
        in (envdiff.consequences(a, b))
    )
    envset.match(a, b)
    assert envset.choose(a, b).names == ("sglang-kernel", "torch")
    (hosts[1].site / "sympy-1.13.1.dist-info/METADATA").write_text("Name: sympy\nVersion: 1.12\n")
    b = envdiff.read("ct200", hosts[1].describe())
    assert envset.choose(a, b).names == ("sglang-kernel", "sympy", "torch")


def test_a_real_process_imports_the_synced_packages(
    hosts: tuple[Host, Host], capsys: pytest.CaptureFixture[str]
) -> None:
    a, b = hosts
    manifest = carried(a, b, capsys)
    site = runtimes.site(b.layout, manifest["runtime"])
    code = "import torch, filelock; print(torch.__version__, torch.__file__, filelock.__file__)"
    env = {"PYTHONPATH": f"{site}:{b.site}", "PYTHONDONTWRITEBYTECODE": "1"}
    out = subprocess.run(
        [sys.executable, "-S", "-c", code], env=env, capture_output=True, text=True, check=True
    )
    assert out.stdout.split() == [
        "2.11.0+cu130",
        f"{site}/torch/__init__.py",
        f"{b.site}/filelock/__init__.py",
    ]


def test_two_packages_that_bring_different_files_of_one_name_are_refused(hosts: tuple[Host, Host]) -> None:
    a, _ = hosts
    other = a.root / "other"
    install(other, "torchvision", "0.24", {"torch/version.py": b"other\n"})
    (a.site / "torchvision-0.24.dist-info").mkdir()
    for name in ("METADATA", "INSTALLER", "RECORD"):
        data = (other / "torchvision-0.24.dist-info" / name).read_bytes()
        (a.site / "torchvision-0.24.dist-info" / name).write_bytes(data)
    with pytest.raises(AgentError, match=r"torch/version\.py"):
        a.manifest(*NAMES, "torchvision")


def test_only_files_of_the_named_packages_are_ever_sent(hosts: tuple[Host, Host]) -> None:
    a, _ = hosts
    for path in ("../../etc/passwd", "/etc/passwd", "sympy/__init__.py"):
        with pytest.raises(AgentError, match="not of these packages"):
            envsend.send({**a.request, "names": ["torch"], "want": [path]})


def test_the_probe_asks_with_the_runtime_first_and_without_overlays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, Any] = {}
    monkeypatch.setattr(package, "query", lambda *words: seen.update(env=words[2]) or {})
    show = {"Environment": "PYTHONPATH=/opt/ddtree/releases/aa/overlay:/opt/ddtree/runtimes/bb/site:/mine"}
    launch = probe.launch_of({"interpreter": sys.executable}, show)
    probe.ask({"service": "x", "runtime": "cc"}, show, launch)
    assert seen["env"]["PYTHONPATH"] == "/opt/ddtree/runtimes/cc/site:/mine"
    probe.ask({"service": "x"}, show, launch)
    assert seen["env"]["PYTHONPATH"] == "/mine"


def test_a_staging_name_never_leaves_our_directory(tmp_path: Path) -> None:
    layout = Layout("sglang.service", str(tmp_path))
    with pytest.raises(AgentError, match="no runtime digest"):
        envreceive.receive(layout, {"runtime": "../x", "who": "me", "interpreter": "x"}, io.BytesIO())
