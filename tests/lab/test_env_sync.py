"""Two lab hosts with different CUDA stacks: the preflight blocks, env diff explains, env sync carries a set over."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import reader
from ddtree_lab.client import LabHost
from invariants import Asked
from rig import CHECKOUT, STANDIN_SERIES, UNIT, Rig, Run
from series_maker import series_with

sys.path.insert(0, str(CHECKOUT / "tests" / "unit"))
from env_fakes import binary

pytestmark = [pytest.mark.lab, pytest.mark.tier("preflight")]
SITE = "/opt/standin/lib/python3.11/site-packages"
#: Replaces a distribution by a small one, with RECORD, as an installer would.
INSTALL = """
import base64, glob, hashlib, json, os, shutil, sys
site, name, version, files = sys.argv[1], sys.argv[2], sys.argv[3], json.loads(sys.argv[4])
stem = name.replace("-", "_")
for old in glob.glob(f"{site}/{stem}-*.dist-info"):
    shutil.rmtree(old)
info = f"{stem}-{version}.dist-info"
files = {path: base64.b64decode(text) for path, text in files.items()}
for top in {path.split("/")[0] for path in files}:
    shutil.rmtree(f"{site}/{top}", ignore_errors=True)
files[f"{info}/METADATA"] = f"Metadata-Version: 2.1\\nName: {name}\\nVersion: {version}\\n".encode()
rows = [f"{info}/RECORD,,"]
for path, data in files.items():
    os.makedirs(os.path.dirname(f"{site}/{path}"), exist_ok=True)
    open(f"{site}/{path}", "wb").write(data)
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
    rows.append(f"{path},sha256={digest},{len(data)}")
open(f"{site}/{info}/RECORD", "w").write("\\n".join(rows) + "\\n")
"""
BIG = """
import base64, hashlib, os, sys
data = os.urandom(150_000_000)
open(sys.argv[1], "wb").write(data)
digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
open(sys.argv[2], "a").write(f"torchaudio/big.bin,sha256={digest},{len(data)}\\n")
"""
#: The rules that are tried.
JUDGED = {"cuda-build", "cuda-kernel", "cuda-companions", "duplicates", "runtime"}
#: What a deploy of shadow asks for besides: it compiles its kernels where no cache is warm.
BUILDS = {"cxx", "ninja", "nvcc"}
BEGIN = '        logger.info("Init torch distributed begin.")\n'
PRINTS = """\
        import importlib.metadata, sgl_kernel, torch, torchvision
        for module, dist in ((torch, "torch"), (torchvision, "torchvision"), (sgl_kernel, "sglang-kernel")):
            version = getattr(module, "__version__", importlib.metadata.version(dist))
            logger.info("package %s %s %s" % (dist, version, module.__file__))
"""


def put(host: LabHost, name: str, version: str, files: dict[str, bytes]) -> None:
    texts = json.dumps({path: base64.b64encode(data).decode() for path, data in files.items()})
    host.check(["python3", "-c", INSTALL, SITE, name, version, texts])


def stack(host: LabHost, torch: str, tag: str, vision: str) -> None:
    """torch and torchvision of one CUDA, `cu130`; the stand-in's kernel wheel stays the one for CUDA 13."""
    version = f"__version__ = '{torch}+{tag}'\ncuda = '{tag[2:4]}.{tag[4:]}'\n".encode()
    library = binary(f"libcudart.so.{tag[2:4]}")
    files = {"torch/__init__.py": b"from torch.version import __version__\n", "torch/version.py": version}
    put(host, "torch", torch, {**files, "torch/lib/libtorch_cuda.so": library})
    put(
        host, "torchvision", f"{vision}+{tag}", {"torchvision/__init__.py": b"", "torchvision/_C.so": library}
    )


class Pair:
    """ct129 with a +cu130 stack, ct200 with +cu128 and a kernel for cu130; one project that names both."""

    def __init__(self, source: LabHost, rig: Rig) -> None:
        self.source, self.rig, self.target = source, rig, rig.host
        self.before = self.packages()

    def cli(self, *words: str) -> Run:
        return self.rig.cli(*words, host=False)

    def packages(self) -> list[str]:
        """Hashes of both hosts' own packages."""
        return [host.tree_hash(["/opt/standin"]) for host in (self.source, self.target)]

    def environ(self) -> str:
        return self.target.check(["sh", "-c", f"tr '\\0' '\\n' < /proc/{self.target.main_pid()}/environ"])


@pytest.fixture(scope="module")
def pair(module_standin_host: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    source, target = module_standin_host("ct129"), module_standin_host("ct200")
    stack(source, "2.11.0", "cu130", "0.26.0")
    stack(target, "2.10.0", "cu128", "0.25.0")
    # With --device cpu no rule for GPU builds applies.
    unit = f"/etc/systemd/system/{UNIT}"
    target.check(f"sed -i 's/--device cpu //' {unit}; systemctl daemon-reload; systemctl restart {UNIT}")
    target.wait_http(limit_s=30)
    project = tmp_path_factory.mktemp("project")
    rig = Rig(target, project)
    series = series_with(project / "series", "srt/managers/scheduler.py", BEGIN, BEGIN + PRINTS)
    assert STANDIN_SERIES.is_dir()
    keys = f"    series: {series}\n    draft: /models/cyc_draft\n    budget: 6\n    topk: 3\n"
    (project / "hosts.yaml").write_text(
        f"version: 1\nhosts:\n  ct129:\n{keys}  ct200:  # the new one\n{keys}"
    )
    rig.adopt()
    findings = rig.cli("doctor", "--json").json["hosts"]["ct200"]["findings"]
    blocks = {finding["rule"] for finding in findings if finding["level"] == "BLOCK"}
    assert {"cuda-kernel", "cuda-smoke", "driver-module"} <= blocks
    # What the lab lacks is not what is tried here: a GPU, its driver, the libraries and tools of CUDA.
    lacks = "".join(f"      {rule}: no GPU in the lab\n" for rule in sorted((blocks - JUDGED) | BUILDS))
    text = (project / "hosts.yaml").read_text()
    (project / "hosts.yaml").write_text(
        text.replace("  # the new one\n", f"  # the new one\n    waive:\n{lacks}")
    )
    yield Pair(source, rig)


def test_the_pair_is_named_and_nothing_is_touched(pair: Pair) -> None:
    doctor = pair.rig.cli("doctor", "--json")
    assert doctor.rc == 3, doctor.err
    blocks = [f for f in doctor.json["hosts"]["ct200"]["findings"] if f["level"] == "BLOCK"]
    named = next(finding for finding in blocks if finding["rule"] == "cuda-kernel")
    assert (
        "built for CUDA 13" in named["evidence"] and "torch 2.10.0+cu128 for CUDA 12.8" in named["evidence"]
    )
    diff = pair.cli("env", "diff", "ct129", "ct200", "--exit-code", "--json")
    assert diff.rc == 5, diff.err
    said = (
        "ct200 has torch 2.10.0+cu128 and sglang-kernel 0.4.2+cu130 built for cu130: the kernel will not load"
    )
    assert said in diff.json["consequences"]
    assert [row["name"] for row in diff.json["packages"] if not row["same"]] == ["torch", "torchvision"]
    pid = pair.target.main_pid()
    refused = pair.rig.cli("deploy")
    assert refused.rc == 3, refused.err
    assert "built for CUDA 13" in refused.err
    assert pair.target.main_pid() == pid
    assert pair.packages() == pair.before


def test_a_damaged_source_is_refused_by_name(pair: Pair) -> None:
    path = f"{SITE}/torch/version.py"
    pair.source.check(f"cp -p {path} /root/kept; echo '# mine' >> {path}")
    run = pair.cli("env", "sync", "--from", "ct129", "--to", "ct200", "--yes")
    pair.source.check(f"cp -p /root/kept {path}; rm /root/kept")
    assert run.rc == 3, run.err
    assert f"{path} is damaged" in run.err
    assert pair.target.exec(["ls", "/opt/ddtree/runtimes"])[0] != 0


def test_a_synced_set_is_deployed_seen_and_rolled_back(pair: Pair) -> None:
    before = (pair.rig.project / "hosts.yaml").read_text()
    run = pair.cli("env", "sync", "--from", "ct129", "--to", "ct200", "--yes", "--json")
    assert run.rc == 0, run.err
    runtime = run.json["runtime"]
    assert run.json["packages"] == ["sglang-kernel 0.4.2+cu130", "torch 2.11.0", "torchvision 0.26.0+cu130"]
    assert 0 < run.json["travelled"]["files"] < run.json["files"]
    after = (pair.rig.project / "hosts.yaml").read_text()
    assert after.replace(f'    runtime: "{runtime}"\n', "") == before
    assert pair.cli("env", "diff", "ct129", "ct200", "--exit-code").rc == 0
    sealed = pair.target.check("find /opt/ddtree/runtimes -perm /222 -o ! -user root").split()
    assert sealed == ["/opt/ddtree/runtimes"]
    doctor = pair.rig.cli("doctor", "--json")
    rules = {f["rule"]: f["level"] for f in doctor.json["hosts"]["ct200"]["findings"]}
    assert (rules["cuda-kernel"], rules["runtime"]) == ("OK", "OK"), doctor.err

    old = reader.read(pair.target)
    deploy = pair.rig.cli("deploy", "--json")
    assert deploy.rc == 0, deploy.err
    reader.settle(pair.target)
    asked = Asked(wanted=deploy.json["result"]["release"], swept=True)
    assert reader.check(reader.read(pair.target), old, deploy.rc, deploy.json, asked) == []
    site = f"/opt/ddtree/runtimes/{runtime}/site"
    log = pair.target.check(f"journalctl -u {UNIT} -n 400 --no-pager")
    assert f"package torch 2.11.0+cu130 {site}/torch/__init__.py" in log
    assert f"package torchvision 0.26.0+cu130 {site}/torchvision/__init__.py" in log
    assert f"package sglang-kernel 0.4.2+cu130 {site}/sgl_kernel/__init__.py" in log
    status = pair.rig.status()
    assert status["runtime"]["runtime"] == runtime
    assert status["drift"] == []
    assert pair.packages() == pair.before
    assert pair.rig.cli("deploy").rc == 0  # nothing to do

    edited = f"{site}/torch/version.py"
    pair.target.check(f"cp -p {edited} /root/kept; echo '# mine' >> {edited}")
    assert [said for said in pair.rig.status()["drift"] if "torch/version.py" in said and runtime in said]
    spoiled = reader.check(reader.read(pair.target), old, None, None)
    assert [said for said in spoiled if said.startswith("I2") and "torch/version.py" in said]
    pair.target.check(f"cat /root/kept > {edited}; rm /root/kept")
    assert pair.rig.status()["drift"] == []

    kept = pair.rig.cli("gc", "--keep", "1", "--failed-bytes", "0", "--json")
    assert kept.rc == 0, kept.err
    assert runtime in [one["name"] for one in kept.json["kept"] if one["kind"] == "runtime"]
    assert pair.rig.cli("rollback").rc == 0
    assert pair.rig.serving() == "None"
    assert "/opt/ddtree" not in pair.environ()
    assert pair.rig.status()["runtime"] is None
    assert pair.packages() == pair.before


def test_a_runtime_that_is_not_there_blocks_before_the_stop(pair: Pair) -> None:
    path = pair.rig.project / "hosts.yaml"
    text = path.read_text()
    named = text.split('runtime: "')[1][:16]
    path.write_text(text.replace(named, "0123456789abcdef"))
    pid = pair.target.main_pid()
    run = pair.rig.cli("deploy")
    path.write_text(text)
    assert run.rc == 3, run.err
    assert "runtime 0123456789abcdef is not on this host" in run.err
    assert "env sync" in run.err
    assert pair.target.main_pid() == pid


def test_an_interrupted_sync_leaves_staging_that_the_next_one_uses(pair: Pair) -> None:
    """A big file is on its way when the operator is killed."""
    put(pair.source, "torchaudio", "2.11.0+cu130", {"torchaudio/__init__.py": b""})
    info = f"{SITE}/torchaudio-2.11.0+cu130.dist-info"
    pair.source.check(["python3", "-c", BIG, f"{SITE}/torchaudio/big.bin", f"{info}/RECORD"])
    words = [sys.executable, "-m", "ddtree_ops", "env", "sync", "--from", "ct129", "--to", "ct200"]
    running = subprocess.Popen(words, cwd=pair.rig.project, env=pair.rig.env, start_new_session=True)
    pair.rig.wait("test -s /opt/ddtree/staging/runtime-*/site/torchaudio/big.bin.part", 60)
    Rig.kill(running)
    pair.rig.wait("! grep -sq 'env-[r]eceive' /proc/[0-9]*/cmdline", 60)
    assert len(pair.target.check(["ls", "/opt/ddtree/staging"]).split()) == 1
    assert len(pair.target.check(["ls", "/opt/ddtree/runtimes"]).split()) == 1
    again = pair.cli("env", "sync", "--from", "ct129", "--to", "ct200", "--json")
    assert again.rc == 0, again.err
    assert again.json["reused"] > 0
    assert pair.target.check(["ls", "/opt/ddtree/staging"]).split() == []
    assert len(pair.target.check(["ls", "/opt/ddtree/runtimes"]).split()) == 2
    assert Path(pair.rig.project / "hosts.yaml").read_text().count("runtime:") == 1
