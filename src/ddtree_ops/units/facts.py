"""facts/<host>.yaml: what adoption and the probe found on a host, committed, without any secret value."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from ruamel.yaml import YAML
from ruamel.yaml.scalarstring import DoubleQuotedScalarString

from ddtree_ops.config.document import read_document
from ddtree_ops.config.problems import ConfigProblem, Problem, dotted
from ddtree_ops.core.modes import scan

SERVER = "@SERVER@"
Sha = str | None


class _Fact(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


class FileFact(_Fact):
    """A file of the host by path and hash. path None: there is none."""

    path: str | None = None
    sha256: Sha = None


class DropinFact(FileFact):
    """An operator's drop-in. sets: what it sets (or clears) that ours sets too."""

    sets: list[str] = Field(default_factory=list)


class EnvironmentFileFact(_Fact):
    """An environment file. names: the variables it sets; their values stay on the host."""

    path: str
    sha256: Sha = None
    optional: bool = False
    names: list[str] = Field(default_factory=list)


class SecretName(_Fact):
    """A reference to a secret by its variable's name."""

    secret: str


class ExecFact(_Fact):
    """The start command.

    argv: the server's, from the interpreter on; `${NAME}` stands for a secret where NAME is in `secrets`, all else is
    literal. outer: what is around it, None for nothing: an element that is `@SERVER@` is the server's argv, one
    that contains it is a bash text; there `${NAME}` and `$$` have systemd's meaning. argv0: the name it is
    given where it is another than the program's (the `@` prefix). secrets: name → `unit` (the unit sets it) or
    `captured` (was written out in the command; comes from the release's file in /etc/ddtree).
    """

    argv: list[str]
    wrapper: Literal["none", "launcher", "bash -c", "script"] = "none"
    prefixes: str = ""
    outer: list[str] | None = None
    argv0: str | None = None
    secrets: dict[str, Literal["unit", "captured"]] = Field(default_factory=dict)


class UnitFact(_Fact):
    """The adopted unit as it counts."""

    fragment: FileFact
    dropins: list[DropinFact] = Field(default_factory=list)
    environment_files: list[EnvironmentFileFact] = Field(default_factory=list)
    enabled: str = ""
    exec: ExecFact | None = None
    environment: dict[str, str | SecretName] = Field(default_factory=dict)
    settings: dict[str, str | list[str]] = Field(default_factory=dict)
    unit_section: dict[str, str | list[str]] = Field(default_factory=dict)
    install_section: dict[str, str | list[str]] = Field(default_factory=dict)
    notes: list[str] = Field(default_factory=list)


class EngineFact(_Fact):
    """The engine that the interpreter finds."""

    name: str = "sglang"
    version: str | None = None
    interpreter: str | None = None
    package: str | None = None
    tree: Sha = None


class CapabilityFact(_Fact):
    """What the host can do. log: journal, none, or file:/path."""

    systemd: int = 252
    load_credential: bool = False
    nft: bool = False
    log: str = "journal"


class ModelFact(_Fact):
    """What the model's own files say. context_length None: not stated."""

    target_hybrid: bool = False
    context_length: int | None = None
    block_size: int | None = None


class Facts(_Fact):
    """All of facts/<host>.yaml."""

    schema_version: Literal[1] = 1
    host: str
    recorded: str
    service: str
    unit: UnitFact
    engine: EngineFact = Field(default_factory=EngineFact)
    capabilities: CapabilityFact = Field(default_factory=CapabilityFact)
    model: ModelFact = Field(default_factory=ModelFact)

    @property
    def port(self) -> int | None:
        """The port that the adopted command line names, None where it names none."""
        spans = {s.name: s.value for s in scan(self.unit.exec.argv if self.unit.exec else [])}
        text = spans.get("--port") or ""
        return int(text) if text.isdecimal() else None


def load_facts(path: Path) -> Facts:
    """Load facts. Raises ConfigProblem with file:line:col for each fault."""
    document = read_document(
        path, frozenset({"environment", "settings", "unit_section", "install_section", "recorded"})
    )
    if document.problems:
        raise ConfigProblem(path, document.problems, next="ddtree-ops adopt --host HOST")
    try:
        return Facts.model_validate(document.data)
    except ValidationError as error:
        faults = [
            Problem(
                *document.place(tuple(d["loc"])),
                dotted(tuple(d["loc"])),
                d["msg"].removeprefix("Value error, "),
            )
            for d in error.errors(include_url=False, include_input=False)
        ]
        raise ConfigProblem(path, faults, next="ddtree-ops adopt --host HOST") from None


def dump_facts(facts: Facts) -> str:
    """Return the YAML text, the same for the same facts."""
    yaml = YAML()
    yaml.width = 4096
    yaml.indent(mapping=2, sequence=4, offset=2)
    out = io.StringIO()
    out.write("# Recorded by `ddtree-ops adopt`: what runs on this host. No secret values; commit it.\n")
    yaml.representer.add_representer(
        type(None), lambda r, _: r.represent_scalar("tag:yaml.org,2002:null", "null")
    )
    data = facts.model_dump(mode="json")
    for optional in ("outer", "argv0"):
        if data["unit"]["exec"] and data["unit"]["exec"][optional] is None:
            del data["unit"]["exec"][optional]
    yaml.dump(_plain(data), out)
    return out.getvalue()


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_plain(v) for v in value]
    # Numbers, booleans and the like as text are quoted, so that every YAML reader takes them for text.
    if isinstance(value, str) and not re.fullmatch(r"-{0,2}[A-Za-z/@][A-Za-z0-9/._@+-]*", value):
        return DoubleQuotedScalarString(value)
    if isinstance(value, str) and value.lower() in (
        "y",
        "n",
        "yes",
        "no",
        "on",
        "off",
        "true",
        "false",
        "null",
    ):
        return DoubleQuotedScalarString(value)
    return value
