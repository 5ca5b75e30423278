"""References to secrets, values that never print, and the redaction of anything that might hold one."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, field_validator

from ddtree_ops.core.errors import UsageProblem

# A name that ends so holds a credential; TOKENIZERS_PARALLELISM and MAX_TOKENS do not.
_SECRET_NAME = re.compile(
    r"(?:^|_)(?:TOKEN|SECRET|PASSWORD|PASSWD|API_?KEY|ACCESS_KEY|PRIVATE_KEY)$", re.IGNORECASE
)
_SECRET_VALUE = re.compile(r"\b(?:hf_[A-Za-z0-9]{16,}|sk-[A-Za-z0-9_-]{16,}|gh[pousr]_[A-Za-z0-9]{20,})")
_CONTEXTS = (
    re.compile(r"(--[a-z-]*(?:api-key|token|password)[= ]+)((?!\$\{)\S+)", re.IGNORECASE),
    re.compile(r"(\b[a-z_]*(?:api_key|token|password)=)('[^']+'|\"[^\"]+\")"),
    re.compile(r"(\bBearer )([A-Za-z0-9._~+/=-]{8,})"),
    re.compile(r"(\b[A-Z0-9_]*(?:TOKEN|SECRET|PASSWORD|API_?KEY|ACCESS_KEY)=)((?!\$\{)[^\s'\"]+)"),
)
_revealed: set[str] = set()


def looks_secret(name: str, value: str = "") -> bool:
    """Return whether a variable of this name, or a value of this shape, is a credential."""
    return bool(_SECRET_NAME.search(name) or _SECRET_VALUE.search(value))


def redact(text: str) -> str:
    """Return `text` with *** for each value revealed in this process and all that is shaped like one."""
    for value in sorted(_revealed, key=len, reverse=True):
        text = text.replace(value, "***")
    for pattern in _CONTEXTS:
        text = pattern.sub(r"\1***", text)
    return _SECRET_VALUE.sub("***", text)


def redact_json(value: Any) -> Any:
    """Return a JSON value with every string redacted, and the word after `--api-key` in a list of words."""
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, dict):
        return {key: redact_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        before = ["", *value]
        return ["***" if _is_value_of(flag, item) else redact_json(item) for flag, item in zip(before, value)]
    return value


def _is_value_of(flag: object, word: object) -> bool:
    return (
        isinstance(flag, str) and isinstance(word, str) and redact(f"{flag} {word}").startswith(f"{flag} ***")
    )


class Secret:
    """A credential in memory: prints as ***, cannot be pickled, and is known to `redact`."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value
        if len(value) >= 4:  # shorter ones would blot out ordinary text
            _revealed.add(value)

    def reveal(self) -> str:
        """Return the value itself, for the one place that hands it to the host."""
        return self._value

    def __repr__(self) -> str:
        return "Secret(***)"

    __str__ = __repr__

    def __reduce__(self) -> str:
        raise TypeError("a secret is not serialised")


class SecretRef(BaseModel):
    """Where a credential is found on the operator's machine: `env:NAME` or `file:/path`. Holds no value."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, hide_input_in_errors=True)
    secret: str

    @field_validator("secret")
    @classmethod
    def _form(cls, value: str) -> str:
        if not re.fullmatch(r"env:[A-Za-z_][A-Za-z0-9_]*|file:.+", value):
            # The text is not repeated: it may be the credential itself.
            raise ValueError("a secret is a reference, `env:NAME` or `file:/path`, never the value itself")
        return value

    def resolve(self, base: Path) -> Secret:
        """Return the value; a relative `file:` starts at `base`. Raises UsageProblem, without the value."""
        kind, _, where = self.secret.partition(":")
        if kind == "env":
            if not os.environ.get(where):
                raise UsageProblem(
                    f"the secret {self.secret} is not set", next=f"read -rs {where}; export {where}"
                )
            return Secret(os.environ[where])
        path = base / Path(where).expanduser()
        try:
            value = path.read_text(encoding="utf-8").strip("\r\n")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
            raise UsageProblem(
                f"the secret file {path} cannot be read: {reason}", next=f"ls -l {path}"
            ) from None
        if not value or "\n" in value or "\0" in value:
            raise UsageProblem(f"the secret file {path} must hold one line", next=f"ls -l {path}")
        return Secret(value)
