"""`ddtree-ops doctor` as typed: exit codes, the table, one JSON document, --record."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from healthy import RECORDED
from test_doctor import HEALTHY

from ddtree_ops.apply import agent
from ddtree_ops.cli.app import run
from ddtree_ops.core.errors import Unreachable
from ddtree_ops.units.facts import Facts, dump_facts, load_facts

pytestmark = pytest.mark.tier("main")
Answer = Callable[[dict[str, Any]], Any]


class Client:
    """Stands for AgentClient: answers the probe with a document."""

    def __init__(self, probe: dict[str, Any]) -> None:
        self.probe, self.asked = probe, []  # type: ignore[var-annotated]

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
    assert run(["doctor", "--host", "ct129"]) == 0
    out, err = capsys.readouterr()
    assert out == ""
    assert "OK    record" in err and "BLOCK" not in err and "WARN" not in err
    assert host.asked[0]["files"] == ["srt/server_args.py"]


def test_a_block_is_exit_3_with_the_command_that_helps(
    host: Client, capsys: pytest.CaptureFixture[str]
) -> None:
    host.probe["service"]["masked"] = True
    assert run(["doctor", "--host", "ct129"]) == 3
    err = capsys.readouterr().err
    assert "BLOCK unit" in err
    assert "next: ssh ct129 systemctl unmask sglang.service" in err
    assert "Traceback" not in err


def test_json_is_one_document_with_findings_and_error(
    host: Client, capsys: pytest.CaptureFixture[str]
) -> None:
    host.probe["service"]["masked"] = True
    assert run(["doctor", "--host", "ct129", "--json"]) == 3
    document = json.loads(capsys.readouterr().out)
    assert (document["ok"], document["error"]["exit_code"]) == (False, 3)
    assert {f["rule"]: f["level"] for f in document["hosts"]["ct129"]["findings"]}["unit"] == "BLOCK"


def test_an_unreachable_host_is_13_alone_and_named_beside_others(
    host: Client, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["doctor", "--host", "ct200"]) == 13
    assert run(["doctor", "--host", "ct129", "--host", "ct200"]) == 13
    assert "OK    record" in capsys.readouterr().err


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
