"""A secret's value is in no repr, string, JSON, error or pickle; what prints is redacted."""

from __future__ import annotations

import copy
import json
import pickle
from pathlib import Path

import pytest

from ddtree_ops.config import ConfigProblem, Secret, SecretRef, load_inventory, redact
from ddtree_ops.config.secrets import looks_secret, redact_json
from ddtree_ops.core.errors import UsageProblem

pytestmark = pytest.mark.tier("main")
CANARY = "canary-7f3a9c"


def test_references_load_and_resolve_late(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "key").write_text(f"{CANARY}\n")
    (tmp_path / "hosts.yaml").write_text(
        "version: 1\nhosts: {a: {environment: {HF_TOKEN: {secret: 'env:CANARY_ENV'}, API_KEY: {secret: 'file:key'}}}}\n"
    )
    host = load_inventory(tmp_path / "hosts.yaml").hosts["a"]
    monkeypatch.setenv("CANARY_ENV", CANARY)
    token, key = host.environment["HF_TOKEN"], host.environment["API_KEY"]
    assert isinstance(token, SecretRef) and isinstance(key, SecretRef)
    for reference in (token, key):
        secret = reference.resolve(tmp_path)
        assert secret.reveal() == CANARY
        shown = [repr(secret), str(secret), f"{secret}", repr([secret]), repr(host), host.model_dump_json()]
        assert CANARY not in "".join(shown)
        with pytest.raises(TypeError):
            json.dumps({"key": secret})
        with pytest.raises(TypeError):
            pickle.dumps(secret)
        with pytest.raises(TypeError):
            copy.copy(secret)


def test_errors_do_not_repeat_what_may_be_the_value(tmp_path: Path) -> None:
    (tmp_path / "hosts.yaml").write_text(
        "version: 1\nhosts:\n  a:\n    environment:\n"
        f"      A: {{secret: {CANARY}}}\n      B_TOKEN: {CANARY}\n      C: {{secert: {CANARY}}}\n      D: [{CANARY}]\n"
        f"      E: hf_{CANARY.replace('-', '')}00000000\n"
    )
    with pytest.raises(ConfigProblem) as caught:
        load_inventory(tmp_path / "hosts.yaml")
    error = caught.value
    assert {p.line for p in error.problems} == {5, 6, 7, 8, 9}
    assert CANARY not in str(error) + repr(error) + json.dumps(error.to_json())
    assert CANARY.replace("-", "") not in str(error)


def test_a_secret_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOT_SET", raising=False)
    (tmp_path / "two").write_text(f"{CANARY}\n{CANARY}\n")
    for reference, said in (
        ("env:NOT_SET", "the secret env:NOT_SET is not set"),
        ("file:nowhere", "cannot be read: No such file"),
        ("file:two", "must hold one line"),
    ):
        with pytest.raises(UsageProblem, match=said) as caught:
            SecretRef(secret=reference).resolve(tmp_path)
        assert caught.value.next
        assert CANARY not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value", "secret"),
    [
        ("HF_TOKEN", "x", True),
        ("aws_secret_access_key", "x", True),
        ("OPENAI_API_KEY", "x", True),
        ("PASSWORD", "x", True),
        ("X", "hf_" + "a" * 20, True),
        ("TOKENIZERS_PARALLELISM", "false", False),
        ("MAX_TOKENS", "5", False),
        ("KEYBOARD", "x", False),
    ],
)
def test_what_looks_like_a_secret(name: str, value: str, secret: bool) -> None:
    assert looks_secret(name, value) is secret


def test_redact_json() -> None:
    Secret('quo"ted-words')
    value = {
        "argv": ["--api-key", "abc", "--tp", "2", "--api-key", "${K}"],
        "n": 1,
        "t": ['a quo"ted-words', None],
    }
    expected = {"argv": ["--api-key", "***", "--tp", "2", "--api-key", "${K}"], "n": 1, "t": ["a ***", None]}
    assert redact_json(value) == expected


def test_redact() -> None:
    Secret("plain-words-9")
    text = "a plain-words-9 --api-key abc --api-key=def Bearer abcdefghij HF_TOKEN=zzz sk-" + "q" * 20
    assert redact(text) == "a *** --api-key *** --api-key=*** Bearer *** HF_TOKEN=*** ***"
    assert (
        redact("--api-key ${KEY} HF_TOKEN=${T}") == "--api-key ${KEY} HF_TOKEN=${T}"
    )  # references stay readable
    assert redact("ServerArgs(api_key='abc', port=1)") == "ServerArgs(api_key=***, port=1)"
    assert redact("nothing of note: --tp 2 TOKENIZERS_PARALLELISM=false") == (
        "nothing of note: --tp 2 TOKENIZERS_PARALLELISM=false"
    )
