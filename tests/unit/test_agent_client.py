"""Calling the agent: noise around frames, errors of every kind, lines that break, and the real agent over a pipe."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ddtree_ops.apply import agentzip
from ddtree_ops.apply.agent import AgentClient, AgentSilent
from ddtree_ops.config.model import HostConfig
from ddtree_ops.core.errors import HostLocked, OpsError, PreconditionFailed, Unreachable
from ddtree_ops.transport.fake import FakeTransport, Fault, Reply
from ddtree_ops.transport.local import LocalTransport

pytestmark = pytest.mark.tier("main")
HOST = HostConfig(name="ct129")


def frame(**event: Any) -> bytes:
    return b"@ddt " + json.dumps(event).encode() + b"\n"


def client(*replies: Reply, host: HostConfig = HOST) -> AgentClient:
    return AgentClient(FakeTransport(replies), host)


def test_a_banner_and_a_noisy_shell_do_not_disturb_the_answer() -> None:
    out = (
        b"Welcome to ct129!\n\n" + frame(ev="note", text="x") + b"stray\n" + frame(ev="result", ok=True, n=1)
    )
    assert client(Reply(out)).call("status", {})["n"] == 1


def test_the_request_follows_the_agent_on_stdin() -> None:
    fake = FakeTransport([Reply(frame(ev="result", ok=True))])
    AgentClient(fake, HOST).call("push", {"a": 1}, [b"pay", b"load"])
    sent = fake.calls[0].stdin
    length, _, rest = sent.partition(b"\n")
    assert rest[: int(length)] == agentzip.build()
    size, _, body = rest[int(length) :].partition(b"\n")
    assert json.loads(body[: int(size)]) == {"service": "sglang.service", "a": 1}
    assert body[int(size) :] == b"payload"
    assert fake.calls[0].argv[0] == "python3"


def test_another_user_than_root_uses_sudo_without_a_prompt() -> None:
    fake = FakeTransport([Reply(frame(ev="result", ok=True))])
    AgentClient(fake, HOST.model_copy(update={"user": "ops"})).call("status", {})
    assert fake.calls[0].argv[:3] == ("sudo", "-n", "python3")


def test_an_error_frame_is_raised_as_its_kind_with_the_host_in_the_next_command() -> None:
    error = {
        "kind": "locked",
        "what": "held",
        "evidence": None,
        "meaning": "m",
        "next": "ddtree-ops status, then again",
    }
    with pytest.raises(HostLocked) as caught:
        client(Reply(frame(ev="result", ok=False, error=error))).call("push", {})
    assert (caught.value.host, caught.value.exit_code) == ("ct129", 4)
    assert caught.value.next == "ddtree-ops status --host ct129, then again"


def test_an_unknown_kind_is_a_bug_and_not_a_success() -> None:
    error = {"kind": "new-kind", "what": "x"}
    with pytest.raises(OpsError) as caught:
        client(Reply(frame(ev="result", ok=False, error=error))).call("status", {})
    assert caught.value.exit_code == 1


@pytest.mark.parametrize(
    ("reply", "word"),
    [
        (Reply(err=b"sudo: a password is required\n", rc=1), "sudo"),
        (Reply(err=b"bash: python3: command not found\n", rc=127), "python3"),
        (Reply(err=b"Traceback\nMemoryError\n", rc=1), "MemoryError"),
    ],
)
def test_no_frame_at_all_is_explained(reply: Reply, word: str) -> None:
    with pytest.raises(AgentSilent) as caught:
        client(reply).call("status", {})
    assert isinstance(caught.value, PreconditionFailed)
    assert word in str(caught.value)
    assert caught.value.next


def test_an_answer_without_its_result_is_a_cut_line() -> None:
    with pytest.raises(Unreachable):
        client(Reply(frame(ev="note", text="x"))).call("status", {})


@pytest.mark.parametrize("fault", [Fault.REFUSE, Fault.RESET, Fault.BLACK_HOLE])
def test_a_broken_line_is_unreachable(fault: Fault) -> None:
    with pytest.raises(Unreachable):
        client(Reply(frame(ev="result", ok=True), fault=fault)).call("status", {})


def test_the_real_agent_answers_over_a_pipe() -> None:
    found = AgentClient(LocalTransport(), HOST.model_copy(update={"service": "no-such-unit.service"})).call(
        "status", {}
    )
    assert found["status"]["confirmed"]["release"] == "baseline"
    assert found["status"]["main_pid"] == 0
