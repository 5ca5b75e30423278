"""Finds credentials in command lines and environments, and the names that stand for them."""

from __future__ import annotations

import re

from ddtree_ops.config.secrets import looks_secret

OPEN, CLOSE = "\ue000", "\ue001"
_FLAG = re.compile(
    r"--?(?:[a-z0-9]+[-_])*(?:api[-_]?key|token|password|passwd|secret|secret[-_]key|access[-_]key)"
)
_NAME = re.compile(
    r"PASSWORD|PASSWD|PASSPHRASE|CREDENTIAL|(?:^|_)(?:SECRET|API_?KEY|TOKEN)(?:_|$)", re.IGNORECASE
)
_NOT_NAME = re.compile(r"_(?:FILE|PATH|DIR)$|^(?:MAX|NUM)_|PARALLELISM", re.IGNORECASE)
SHAPES = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{16,}|sk-[A-Za-z0-9_-]{12,}|gh[pousr]_[A-Za-z0-9]{20,}|AKIA[0-9A-Z]{16}|xox[abp]-[A-Za-z0-9-]{10,})"
)
# Credentials inside other commands and settings: the group is the value.
CONTEXTS = re.compile(
    r"(?:--(?:[a-z]+-)*(?:api-key|token|password)(?:=|\s+)|\bBearer\s+|\b[A-Z0-9_]*(?:TOKEN|SECRET|PASSWORD|API_?KEY)="
    r"|://[^/\s:@]*:)(?P<value>[^\s'\"@$]+)"
)


def secret_name(name: str, value: str = "") -> bool:
    """Return whether a variable holds a credential, by its name or the shape of its value."""
    if _NOT_NAME.search(name) and not SHAPES.search(value):
        return False
    return bool(_NAME.search(name) or looks_secret(name, value) or SHAPES.search(value))


def secret_flag(flag: str) -> bool:
    """Return whether a command-line flag takes a credential."""
    return bool(_FLAG.fullmatch(flag))


def variable_for(flag: str) -> str:
    """Return the name of the variable that stands for a flag's credential: `--api-key` → DDTREE_API_KEY."""
    return "DDTREE_" + re.sub(r"[^A-Z0-9]+", "_", flag.lstrip("-").upper())


def mark(name: str) -> str:
    """Return the text that stands for the variable while a command line is worked out."""
    return f"{OPEN}{name}{CLOSE}"


def marked(text: str) -> list[str]:
    """Return the names that `text` refers to."""
    return re.findall(f"{OPEN}([^{CLOSE}]*){CLOSE}", text)


def unmark(text: str) -> str:
    """Return `text` with references written `${NAME}`."""
    return re.sub(f"{OPEN}([^{CLOSE}]*){CLOSE}", r"${\1}", text)
