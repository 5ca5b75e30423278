"""The traffic gate's pure parts: what its table is called, what is loaded, what `plan` says of it."""

from __future__ import annotations

import shutil
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddtree_agent import gate
from ddtree_agent.wire import AgentError
from ddtree_ops.core.plan import describe_gate

pytestmark = pytest.mark.tier("transaction")
#: What systemd.unit(5) allows in a unit's name.
UNITS = st.text("abzAZ019:-_.\\@", min_size=1, max_size=240).map(lambda stem: stem + ".service")


@pytest.mark.parametrize(
    ("unit", "table"),
    [
        ("sglang.service", "ddtree_gate_sglang"),
        ("sglang@1.service", "ddtree_gate_sglang_401"),
        ("my-llm_2.x.service", "ddtree_gate_my_2dllm_5f2_2ex"),
    ],
)
def test_a_table_is_named_after_its_service(unit: str, table: str) -> None:
    assert gate.table_of(unit) == table


@given(UNITS, UNITS)
def test_every_service_has_a_table_of_its_own_that_nft_can_name(one: str, other: str) -> None:
    name = gate.table_of(one)
    assert name.isascii()
    assert name.replace("_", "").isalnum()
    assert len(name) < 256
    assert (name == gate.table_of(other)) == (one == other)


def test_the_rules_name_the_port_and_the_users_on_both_ways_in() -> None:
    rules = gate.ruleset("t", 30000, "0, 997")
    assert 'iif != "lo" tcp dport 30000 reject with tcp reset' in rules
    assert 'oif "lo" tcp dport 30000 meta skuid != { 0, 997 } reject with tcp reset' in rules
    assert rules.index("delete table inet t") < rules.index("chain outside")


@pytest.mark.skipif(shutil.which("nft") is None, reason="no nft on this machine")
@pytest.mark.parametrize("users", ["0", "0, 997", "0, 61184-65519"])
def test_nft_takes_the_rules(users: str) -> None:
    done = subprocess.run(
        ["unshare", "--user", "--map-root-user", "--net", "nft", "--check", "-f", "-"],
        input=gate.ruleset(gate.table_of("a@b-c.service"), 30000, users),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("shown", "users"),
    [
        ({}, "0"),
        ({"User": "root"}, "0"),
        ({"User": "0"}, "0"),
        ({"User": "1234"}, "0, 1234"),
        ({"User": "nobody"}, "0, 65534"),
        ({"User": "made-up-at-the-start", "DynamicUser": "yes"}, "0, 61184-65519"),
        ({"DynamicUser": "yes"}, "0, 61184-65519"),
        ({"User": "nobody", "DynamicUser": "yes"}, "0, 65534"),
        ({"User": "no-such-user"}, "0"),
    ],
)
def test_the_units_own_user_passes(
    monkeypatch: pytest.MonkeyPatch, shown: dict[str, str], users: str
) -> None:
    loaded: list[str] = []
    monkeypatch.setattr(gate, "show", lambda unit, props: shown)
    monkeypatch.setattr(
        gate, "run", lambda argv, limit, rules: (loaded.append(rules.decode()), (0, "", ""))[1]
    )
    monkeypatch.setattr(gate.shutil, "which", lambda name, path: "/usr/sbin/nft")
    gate.shut("sglang.service", 30000)
    assert f"skuid != {{ {users} }} " in loaded[0]


@pytest.mark.parametrize(
    ("answer", "open_", "tries"),
    [
        ((0, "", ""), True, 1),
        ((1, "", "Error: Could not process rule: No such file or directory"), True, 1),
        ((1, "", "Error: Operation not permitted"), False, 3),
        ((124, "", "no answer in 5 s"), False, 3),
    ],
)
def test_a_gate_that_may_still_be_there_is_never_called_open(
    monkeypatch: pytest.MonkeyPatch, answer: tuple[int, str, str], open_: bool, tries: int
) -> None:
    asked: list[list[str]] = []
    monkeypatch.setattr(gate, "run", lambda argv, limit, rules: (asked.append(argv), answer)[1])
    monkeypatch.setattr(gate.shutil, "which", lambda name, path: "/usr/sbin/nft")
    assert (gate.open_("sglang.service") is None) == open_
    assert len(asked) == tries


def test_without_nft_nothing_is_shut_and_nothing_is_left_to_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate.shutil, "which", lambda name, path: None)
    monkeypatch.setattr(gate, "show", lambda unit, props: {})
    assert gate.open_("sglang.service") is None
    assert not gate.there("sglang.service")
    with pytest.raises(AgentError, match="could not be shut"):
        gate.shut("sglang.service", 30000)


def test_the_plan_says_whom_the_port_answers() -> None:
    measured = {"phases": {"import": 9.0, "serve": 3.2, "mode": 0.4, "capacity": 1.0}}
    assert describe_gate(True, [measured]) == "from the switch until its gates pass the port answers only us"
    older = {"phases": {"serve": 60.0}}
    for past in ([measured], [older, measured, {"phases": None}, {"phases": {}}, {}]):
        assert "reachable for about 5 s" in describe_gate(False, past)
    assert "no start was measured" in describe_gate(False, [])
    assert "about 1 s" in describe_gate(False, [{"phases": {"serve": 0.1, "mode": None}}])
