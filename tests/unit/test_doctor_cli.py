"""`ddtree-ops doctor` as typed: exit codes, the table, one JSON document, --record."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from healthy import RECORDED
from test_doctor import HEALTHY

from ddtree_ops.apply import agent
from ddtree_ops.cli.app import run
from ddtree_ops.core.doctor import known
from ddtree_ops.core.errors import Unreachable
from ddtree_ops.units.facts import Facts, dump_facts, load_facts

pytestmark = pytest.mark.tier("main")
Answer = Callable[[dict[str, Any]], Any]


class Client:
    """Stands for AgentClient: answers the probe with a document."""

    def __init__(self, probe: dict[str, Any]) -> None:
        self.probe, self.asked = probe, []  # type: ignore[var-annotated]
        self.line = {"sent": 1.0, "answered": 1.0, "noise": [], "noise_lines": 0}

    def call(self, op: str, request: dict[str, Any], *_: Any, **__: Any) -> dict[str, Any]:
        assert op == "probe"
        self.asked.append(request)
        return {"ev": "result", "ok": True, "facts": self.probe}


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    """A directory with hosts.yaml, facts and a series, and a host that is healthy."""
    series = tmp_path / "own"
    series.mkdir()
    (series / "base.json").write_text(
        json.dumps({"engine": "sglang", "version": "0.5.11", "files": {"srt/server_args.py": "a" * 64}})
    )
    (series / "series").write_text("0001-x.patch\n")
    (series / "0001-x.patch").write_text(
        "--- a/srt/server_args.py\n+++ b/srt/server_args.py\n@@ -1 +1 @@\n-a\n+b\n"
    )
    (series / "modes.yaml").write_text('drop: ["--speculative-*"]\nmodes:\n  full: {refuse: "not yet"}\n')
    (tmp_path / "hosts.yaml").write_text(
        "version: 1\nhosts:\n  ct129: {series: ./own}\n  ct200: {series: ./own}\n"
    )
    facts = Facts.model_validate({**RECORDED, "host": "ct129", "service": "sglang.service"})
    (tmp_path / "facts").mkdir()
    (tmp_path / "facts" / "ct129.yaml").write_text(dump_facts(facts))
    monkeypatch.chdir(tmp_path)
    client = Client(copy.deepcopy(HEALTHY))

    @contextmanager
    def connect(_: Any, chosen: Any) -> Iterator[Client]:
        if chosen.name == "ct200":
            raise Unreachable("no answer on port 22", host="ct200", next="ping ct200")
        yield client

    monkeypatch.setattr(agent, "connect", connect)
    yield client


def test_a_healthy_host_is_exit_0(host: Client, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["doctor", "--host", "ct129", "-v"]) == 0
    out, err = capsys.readouterr()
    assert out == ""
    assert re.search(r"OK +record ", err) and "BLOCK" not in err and "WARN" not in err
    assert host.asked[0]["files"] == ["srt/server_args.py"]


def test_a_block_is_exit_3_with_the_command_that_helps(
    host: Client, capsys: pytest.CaptureFixture[str]
) -> None:
    host.probe["service"]["masked"] = True
    assert run(["doctor", "--host", "ct129"]) == 3
    err = capsys.readouterr().err
    assert re.search(r"BLOCK unit +sglang.service is masked\n +→ ssh ct129 systemctl unmask", err)
    assert "next: ssh ct129 systemctl unmask sglang.service" in err
    assert "Traceback" not in err


def test_json_is_one_document_with_findings_and_error(
    host: Client, capsys: pytest.CaptureFixture[str]
) -> None:
    host.probe["service"]["masked"] = True
    assert run(["doctor", "--host", "ct129", "--json"]) == 3
    document = json.loads(capsys.readouterr().out)
    assert (document["ok"], document["error"]["exit_code"]) == (False, 3)
    assert document["schema_version"] == 1
    findings = document["hosts"]["ct129"]["findings"]
    assert {tuple(finding) for finding in findings} == {("rule", "level", "evidence", "remedy", "waived")}
    assert {f["rule"]: f["level"] for f in findings}["unit"] == "BLOCK"


def test_an_unreachable_host_is_13_alone_and_named_beside_others(
    host: Client, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["doctor", "--host", "ct200"]) == 13
    assert run(["doctor", "--host", "ct129", "--host", "ct200"]) == 13
    assert re.search(r"ct129: \d+ OK\n", capsys.readouterr().err)


def test_record_renews_the_facts_and_keeps_the_unit(host: Client, tmp_path: Path) -> None:
    host.probe["capabilities"]["nft"] = True
    assert run(["doctor", "--host", "ct129"]) == 3
    before = load_facts(tmp_path / "facts" / "ct129.yaml")
    assert run(["doctor", "--host", "ct129", "--record"]) == 0
    after = load_facts(tmp_path / "facts" / "ct129.yaml")
    assert after.capabilities.nft is True
    assert after.unit == before.unit
    assert run(["doctor", "--host", "ct129"]) == 0


def test_record_does_not_hide_a_changed_unit(host: Client) -> None:
    host.probe["service"]["fragment"]["sha256"] = "f" * 64
    assert run(["doctor", "--host", "ct129", "--record"]) == 3


def test_record_without_facts_says_adopt(
    host: Client, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "facts" / "ct129.yaml").unlink()
    assert run(["doctor", "--host", "ct129", "--record"]) == 2
    assert "ddtree-ops adopt --host ct129" in capsys.readouterr().err


def test_an_unknown_host_never_connects(host: Client, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["doctor", "--host", "ct12"]) == 2
    assert host.asked == []
    assert "ct129" in capsys.readouterr().err


DOUBTFUL = {"dists": [{"name": "sglang-kernel", "version": "0.4.2+cu130", "local": "cu130", "path": "x"}]}


def test_a_waived_block_is_exit_0_and_keeps_its_reason(
    host: Client, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    host.probe["abi"].update(DOUBTFUL)
    assert run(["doctor", "--host", "ct129"]) == 3
    capsys.readouterr()
    (tmp_path / "hosts.yaml").write_text(
        'version: 1\nhosts:\n  ct129: {series: ./own, waive: {cuda-kernel: "rebuilt here, ticket 12"}}\n'
    )
    assert run(["doctor", "--host", "ct129", "--json"]) == 0
    out, err = capsys.readouterr()
    (found,) = [f for f in json.loads(out)["hosts"]["ct129"]["findings"] if f["rule"] == "cuda-kernel"]
    assert (found["level"], found["waived"]) == ("WARN", "rebuilt here, ticket 12")
    assert "(1 waived)" in err and "waived: rebuilt here, ticket 12" in err


def test_explain_asks_no_host_and_needs_no_hosts_yaml(
    host: Client, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "hosts.yaml").unlink()
    for rule, about in known().items():
        assert run(["doctor", "--explain", rule]) == 0
        text = " ".join(capsys.readouterr().out.split())
        assert " ".join(about.why.split()) in text
        assert ("cannot be waived" in text) is not about.waivable
    assert run(["doctor", "--explain", "root", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["waivable"] is False
    assert run(["doctor", "--explain", "cuda-kernl"]) == 2
    err = capsys.readouterr().err
    assert "did you mean cuda-kernel" in err and "one of: reachable, " in err
    assert host.asked == []
