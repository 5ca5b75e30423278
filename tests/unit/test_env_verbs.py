"""`env diff` and `env sync` as typed, against the real agent's verbs on two directories that stand for hosts."""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from env_fakes import Host, stack

from ddtree_agent import envreceive, envsend, main, package, runtimes
from ddtree_agent.layout import Layout
from ddtree_agent.wire import AgentError
from ddtree_ops.apply.agent import AgentClient
from ddtree_ops.cli.app import run
from ddtree_ops.config.load import load_inventory
from ddtree_ops.config.model import HostConfig
from ddtree_ops.core.errors import OpsError, Unreachable, UsageProblem
from ddtree_ops.transport.fake import FakeTransport
from ddtree_ops.units.inventory_edit import set_key

pytestmark = pytest.mark.tier("preflight")
HOSTS = """\
version: 1
hosts:
  ct129: {}
  # the other one
  ct200: {}      # as it was
"""


class Here(AgentClient):
    """The agent's verbs in this process, on one host's directory. cut: bytes after which a payload's line breaks."""

    now: Host
    cut: int | None = None

    def __init__(self, name: str, host: Host) -> None:
        super().__init__(FakeTransport([]), HostConfig(name=name))
        self.there = host
        self.ops: list[str] = []

    def events(
        self, op: str, request: dict[str, Any], payload: Iterable[bytes] = (), timeout: float | None = None
    ) -> Iterator[dict[str, Any]]:
        self.ops.append(op)
        data = b"".join(payload)
        cut = Here.cut is not None and bool(data)
        body = json.dumps({"service": "sglang.service", **request}).encode()
        stdin = io.BytesIO(b"%d\n" % len(body) + body + (data[: Here.cut] if cut else data))
        Here.now = self.there
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            main.main([op], stdin)
        if cut:
            raise Unreachable("the line was cut", host=self.host.name)
        for line in out.getvalue().splitlines():
            event = json.loads(line.removeprefix("@ddt "))
            if event.get("ev") == "result" and not event["ok"]:
                raise self._error(event["error"])
            yield event


@pytest.fixture
def clients(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Here]:
    a, b = (Host(tmp_path / name, sys.executable) for name in ("ct129", "ct200"))
    stack(a.site, "cu130", "cu130")
    stack(b.site, "cu128", "cu130")
    made = {"ct129": Here("ct129", a), "ct200": Here("ct200", b)}

    def ask(request: dict[str, Any]) -> dict[str, Any]:
        host = Here.now
        first = request.get("runtime") and runtimes.site(host.layout, request["runtime"])
        path = os.pathsep.join(str(part) for part in (first, host.site) if part)
        return package.query(sys.executable, ["-S"], {"PYTHONPATH": path}, str(tmp_path))

    @contextlib.contextmanager
    def connect(_: object, host: HostConfig) -> Iterator[Here]:
        yield made[host.name]

    monkeypatch.setattr(Here, "cut", None)
    monkeypatch.setattr(envsend, "ask", ask)
    monkeypatch.setattr(envreceive, "_compile", lambda *_: None)
    monkeypatch.setattr(main, "_layout", lambda _: Layout("sglang.service", str(Here.now.root)))
    monkeypatch.setattr("ddtree_ops.apply.agent.connect", connect)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hosts.yaml").write_text(HOSTS)
    return made


def sync(*words: str) -> int:
    return run(["env", "sync", "--from", "ct129", "--to", "ct200", *words])


def test_diff_names_the_packages_and_what_they_mean(
    clients: dict[str, Here], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["env", "diff", "ct129", "ct200", "--json"]) == 0
    out, err = capsys.readouterr()
    found = json.loads(out)
    assert found["equal"] is False
    (torch,) = [row for row in found["packages"] if not row["same"]]
    assert (torch["name"], torch["a"], torch["b"]) == ("torch", "2.11.0+cu130", "2.11.0+cu128")
    assert (torch["cuda_bound"], torch["a_details"]["cuda"], torch["b_details"]["cuda"]) == (
        True,
        "13.0",
        "12.8",
    )
    kernel = next(row for row in found["packages"] if row["name"] == "sglang-kernel")
    assert (kernel["b_details"]["cudart"], kernel["b_details"]["local"]) == (["13"], "cu130")
    assert kernel["b_details"]["path"].startswith(str(clients["ct200"].there.site))
    said = (
        "ct200 has torch 2.11.0+cu128 and sglang-kernel 0.4.2+cu130 built for cu130: the kernel will not load"
    )
    assert said in found["consequences"] and said in err
    assert run(["env", "diff", "ct129", "ct200", "--exit-code"]) == 5
    assert clients["ct129"].ops == clients["ct200"].ops == ["env", "env"]


def test_equal_hosts_are_exit_0(clients: dict[str, Here], capsys: pytest.CaptureFixture[str]) -> None:
    clients["ct200"].there = clients["ct129"].there
    assert run(["env", "diff", "ct129", "ct200", "--exit-code"]) == 0
    assert "import the same packages" in capsys.readouterr().err
    assert sync() == 0
    assert "no runtime is needed" in capsys.readouterr().err
    assert not os.path.exists(clients["ct200"].there.layout.runtimes)


def test_sync_carries_the_set_over_prints_the_line_and_converges(
    clients: dict[str, Here], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert sync("--json") == 0
    out, err = capsys.readouterr()
    found = json.loads(out)
    assert found["packages"] == ["sglang-kernel 0.4.2+cu130", "torch 2.11.0"]
    assert found["travelled"]["files"] < found["files"] and found["hosts_yaml"] is False
    assert f'runtime: "{found["runtime"]}"' in err
    assert (tmp_path / "hosts.yaml").read_text() == HOSTS
    assert sync("--yes", "--json") == 0
    again = json.loads(capsys.readouterr().out)
    assert (again["runtime"], again["travelled"]["files"], again["hosts_yaml"]) == (found["runtime"], 0, True)
    line = f'  ct200:      # as it was\n    runtime: "{found["runtime"]}"\n'
    assert (tmp_path / "hosts.yaml").read_text() == HOSTS.replace("  ct200: {}      # as it was\n", line)
    assert run(["env", "diff", "ct129", "ct200", "--exit-code"]) == 0
    assert sync("--json") == 0  # with the runtime named: the same answer, nothing travels
    assert json.loads(capsys.readouterr().out)["runtime"] == found["runtime"]


def test_a_cut_line_is_told_and_the_next_run_goes_on(
    clients: dict[str, Here], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Here.cut = 700
    assert sync() == 13
    said = capsys.readouterr().err
    assert "arrived whole are kept" in said and "next: ddtree-ops env sync --from ct129 --to ct200" in said
    staged = os.listdir(clients["ct200"].there.layout.staging)
    assert len(staged) == 1 and not os.path.exists(clients["ct200"].there.layout.runtimes)
    Here.cut = None
    capsys.readouterr()
    assert sync("--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["reused"] > 0
    runtimes.verify(clients["ct200"].there.layout, found["runtime"])


def test_a_damaged_file_is_exit_3_by_name_and_nothing_is_written(
    clients: dict[str, Here], capsys: pytest.CaptureFixture[str]
) -> None:
    (clients["ct129"].there.site / "torch/version.py").write_text("cuda = '13.0'\n")
    assert sync() == 3
    assert "torch/version.py is damaged" in capsys.readouterr().err
    assert not os.path.exists(clients["ct200"].there.root / "opt")


def test_a_runtime_that_is_gone_names_the_command_that_brings_it(clients: dict[str, Here]) -> None:
    Here.now = clients["ct200"].there
    with pytest.raises(AgentError) as caught:
        runtimes.verify(Here.now.layout, "f" * 16)
    # a next command that begins with ddtree-ops gets --host behind its verb, which env sync does not take
    told = str(clients["ct200"]._error(caught.value.fields).next)
    assert "ddtree-ops env sync --from HOST --to this one" in told and "--host" not in told


def test_hosts_that_do_not_fit_are_exit_3_with_the_difference(
    clients: dict[str, Here], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = envsend.ask

    def old(request: dict[str, Any]) -> dict[str, Any]:
        found = whole(request)
        return {**found, "libc": ["glibc", "2.17"]} if Here.now is clients["ct200"].there else found

    monkeypatch.setattr(envsend, "ask", old)
    assert sync() == 3
    assert "ct200 has glibc 2.17, older than ct129's" in capsys.readouterr().err
    assert clients["ct129"].ops == clients["ct200"].ops == ["env"]


@pytest.mark.parametrize("words", [["env", "diff", "ct129", "ct129"], ["env", "sync", "--from", "ct129"]])
def test_bad_words_are_exit_2(clients: dict[str, Here], words: list[str]) -> None:
    assert run(words) == 2


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("  a: {}", '  a:\n    runtime: "1e10"'),
        ("  a:", '  a:\n    runtime: "1e10"'),
        ("  a: {} # x", '  a: # x\n    runtime: "1e10"'),
        ("  a:\n    tp: 2\n    # end", '  a:\n    runtime: "1e10"\n    tp: 2\n    # end'),
        ('  a:\n    tp: 2\n    runtime: "ff" # why', '  a:\n    tp: 2\n    runtime: "1e10" # why'),
        ("  a:\n    runtime: ff", '  a:\n    runtime: "1e10"'),
    ],
)
def test_the_key_is_set_and_all_else_stays(tmp_path: Path, before: str, after: str) -> None:
    path = tmp_path / "hosts.yaml"
    path.write_text(f"# top\nhosts:\n{before}\n  b: {{}}\n")
    set_key(path, "a", "runtime", "1e10")
    assert path.read_text() == f"# top\nhosts:\n{after}\n  b: {{}}\n"


def test_a_host_on_one_line_is_left_to_the_person(tmp_path: Path) -> None:
    path = tmp_path / "hosts.yaml"
    path.write_text("hosts:\n  a: {tp: 2}\n")
    with pytest.raises(UsageProblem, match="one line"):
        set_key(path, "a", "runtime", "ff")
    assert path.read_text() == "hosts:\n  a: {tp: 2}\n"


def test_hosts_yaml_takes_a_digest_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "hosts.yaml"
    path.write_text('version: 1\nhosts:\n  a: {runtime: "0123456789abcdef"}\n')
    assert load_inventory(path).hosts["a"].runtime == "0123456789abcdef"
    for bad in ("../x", "0123", "0123456789ABCDEF"):
        path.write_text(f'version: 1\nhosts:\n  a: {{runtime: "{bad}"}}\n')
        with pytest.raises(OpsError):
            load_inventory(path)
