"""What hosts.yaml means: typed, frozen, with every key of a host in one place."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema

from ddtree_ops.config.secrets import SecretRef
from ddtree_ops.core.features import FEATURES, Need

NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"
VARIABLE = r"^[A-Za-z_][A-Za-z0-9_]*$"
_UNIT = re.compile(r"[A-Za-z0-9:_.\\-]+(?:@[A-Za-z0-9:_.\\-]+)?\.service")
_TEXT = Field(min_length=1, pattern=r"^[^\x00-\x1f]+$")


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, hide_input_in_errors=True)


def _unit_name(value: str) -> str:
    if _UNIT.fullmatch(value):
        return value
    if re.fullmatch(r"[A-Za-z0-9:_.\\-]+@\.service", value):
        raise ValueError(f"{value} is a template: name an instance, such as {value.replace('@', '@main')}")
    if "." not in value and _UNIT.fullmatch(f"{value}.service"):
        raise ValueError(f"write the whole unit name: {value}.service")
    raise ValueError("not the name of a systemd service, such as sglang.service")


def _host_key(value: str) -> str:
    if value in ("strict", "accept-new") or re.fullmatch(r"SHA256:[A-Za-z0-9+/]{43}=?", value):
        return value
    raise ValueError("must be strict, accept-new or a fingerprint SHA256:… as `ssh-keygen -lf` prints it")


def _environment_value(value: Any) -> Any:
    if isinstance(value, dict):
        return SecretRef.model_validate(value)
    if isinstance(value, (str, SecretRef)):
        if isinstance(value, str) and re.search(r"[\x00\n]", value):
            raise ValueError("an environment value is one line")
        return value
    raise ValueError("must be text, or a reference {secret: env:NAME}")


def _feature(value: str) -> str:
    if value not in FEATURES:
        raise ValueError(f"no feature has this name: one of {', '.join(FEATURES)}")
    return value


def _waivable(rule: str) -> str:
    from ddtree_ops.config.select import did_you_mean
    from ddtree_ops.core.doctor import known

    rules = known()
    if rule not in rules:
        raise ValueError(f"no rule of the preflight has this name{did_you_mean(rule, list(rules))}")
    if not rules[rule].waivable:
        raise ValueError(f"cannot be waived: {rules[rule].why}")
    return rule


def _reason(value: str) -> str:
    if not value.strip():
        raise ValueError("a waiver needs a reason: it is shown in plans and recorded in the host's history")
    if re.search(r"[\x00-\x1f]", value.strip()):
        raise ValueError("the reason of a waiver is one line")
    return value.strip()


def _interpreter(value: str) -> str:
    if not value.startswith("/"):
        raise ValueError("must be an absolute path on the host, such as /root/ml-env/bin/python3")
    return value


def _address(value: str) -> str:
    return _ssh_word(value, r"""[\s'"`$\\;&<>|(){}]""")


def _user(value: str) -> str:
    return _ssh_word(value, r"""[\s'"`;&<>|(){}]|\\$""")  # DOMAIN\\user is one


def _ssh_word(value: str, refused: str) -> str:
    """As OpenSSH takes the names of hosts and users since 9.6: they end up in a ProxyCommand's line."""
    if value.startswith("-"):
        raise ValueError("begins with a dash, which ssh takes for an option")
    if re.search(refused, value):
        raise ValueError("has a character that a shell reads: no host and no user has one in its name")
    return value


Text = Annotated[str, _TEXT]
Feature = Annotated[str, AfterValidator(_feature), WithJsonSchema({"type": "string", "enum": list(FEATURES)})]
Seconds = Annotated[float, Field(gt=0, le=86400, strict=False)]
Port = Annotated[int, Field(ge=1, le=65535)]
EnvironmentValue = Annotated[
    Any,
    BeforeValidator(_environment_value),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": ["string", "number", "boolean"]},
                {
                    "type": "object",
                    "properties": {"secret": {"type": "string", "pattern": "^(env:[A-Za-z_]\\w*|file:.+)$"}},
                    "required": ["secret"],
                    "additionalProperties": False,
                },
            ]
        }
    ),
]
Environment = dict[Annotated[str, Field(pattern=VARIABLE)], EnvironmentValue]


Waivers = dict[
    Annotated[str, AfterValidator(_waivable)],
    Annotated[str, AfterValidator(_reason), WithJsonSchema({"type": "string", "pattern": r"\S"})],
]


class Timeouts(_Strict):
    """Seconds. The phases are stall limits (design 5), `cap` the absolute limit of one phase."""

    connect: Seconds = Field(default=10, description="TCP connect, banner and authentication")
    command: Seconds = Field(default=60, description="one command on the host that reports nothing meanwhile")
    import_: Seconds = Field(default=30, alias="import", description="stall limit while the engine imports")
    weights: Seconds = Field(default=120, description="stall limit while weights load")
    graphs: Seconds = Field(default=180, description="stall limit while CUDA graphs are captured")
    serve: Seconds = Field(default=30, description="stall limit of the first generations")
    confirm: Seconds = Field(default=60, description="how long a gated release waits for confirmation")
    stop: Seconds = Field(default=30, description="how long the service may take to stop")
    cap: Seconds = Field(default=1800, description="absolute limit of one phase")


class Drain(_Strict):
    """Commands that run on the host, as root, without a shell; DDTREE_SERVICE, _PORT, _TXN and _RELEASE are set."""

    command: list[Text] = Field(
        min_length=1, description="takes the server out of the router, before the stop"
    )
    undo: list[Text] = Field(
        min_length=1, description="puts it back, once a release is confirmed or rolled back"
    )
    limit: Seconds = Field(default=60, description="how long either may take")


class HostKeys(_Strict):
    """The keys of one host; `defaults`, a group and a host take the same ones."""

    address: Annotated[Text, AfterValidator(_address)] | None = Field(
        default=None, description="where to connect; default: the host's name, so ssh_config decides"
    )
    ssh_port: Port | None = Field(default=None, description="port of sshd; default: ssh_config, else 22")
    user: Annotated[Text, AfterValidator(_user)] = Field(
        default="root", description="login; another than root uses `sudo -n`"
    )
    ssh_config: Text | None = Field(
        default=None, description="default: $DDTREE_OPS_SSH_CONFIG, else ~/.ssh/config"
    )
    host_key: Annotated[str, AfterValidator(_host_key)] = Field(
        default="strict",
        description="strict: must be in known_hosts; accept-new: first one is recorded; SHA256:…: pinned",
    )
    identity: Text | None = Field(default=None, description="private key file")
    interpreter: Annotated[str, AfterValidator(_interpreter)] | None = Field(
        default=None, description="the engine's python on the host; default: the adopted unit's"
    )
    service: Annotated[str, AfterValidator(_unit_name)] = Field(
        default="sglang.service", description="systemd unit"
    )
    port: Port | None = Field(
        default=None, description="port of the engine; default: the adopted unit's, else 30000"
    )
    model: Text | None = Field(default=None, description="path or hub name of the target model")
    draft: Text | None = Field(default=None, description="path or hub name of the DFlash draft model")
    tp: int | None = Field(default=None, ge=1, le=1024, description="tensor parallel size")
    environment: Environment = Field(default_factory=dict, description="variables of the service")
    series: Text = Field(
        default="sglang-0.5.11", description="patch series: shipped with ddtree-ops, or a directory's path"
    )
    runtime: Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")] | None = Field(
        default=None,
        description="packages that a release imports before the host's own, as `env sync` carried them over: a digest",
    )
    budget: int = Field(default=16, ge=1, le=1024, description="nodes of the draft tree")
    topk: int = Field(default=4, ge=1, le=64, description="children looked at per node")
    shadow_every: int = Field(
        default=8, ge=1, le=100000, description="shadow mode: one verify step in so many builds a tree"
    )
    requires: list[Feature] = Field(
        default_factory=list,
        description="what clients of this service rely on: a mode that loses one is refused",
    )
    drain: Drain | None = Field(default=None, description="take the server out of its router around the stop")
    max_downtime: Seconds | None = Field(
        default=None,
        description="seconds: a deploy that would keep the service down longer, by the host's last starts, is refused",
    )
    timeouts: Timeouts = Field(default_factory=Timeouts, description="seconds")


class HostConfig(HostKeys):
    """A host as it counts: defaults, then its groups in order, then its own keys. needs: `requires` with its lines."""

    name: str
    groups: tuple[str, ...] = ()
    needs: tuple[Need, ...] = ()
    waive: Waivers = {}

    @property
    def target(self) -> str:
        """The name given to SSH."""
        return self.address or self.name


class GroupEntry(HostKeys):
    """A group, or `defaults`, as written."""


class HostEntry(HostKeys):
    """A host as written."""

    groups: list[str] = Field(default_factory=list, description="groups whose keys it takes, later ones win")
    waive: Waivers = Field(
        default_factory=dict,
        description="rules of the preflight that may not stop a deploy here, each with its reason: BLOCK becomes WARN",
    )


class InventoryFile(_Strict):
    """hosts.yaml as written."""

    version: Literal[1]
    defaults: GroupEntry = Field(default_factory=GroupEntry, description="any host key")
    groups: dict[Annotated[str, Field(pattern=NAME)], GroupEntry] = Field(default_factory=dict)
    hosts: dict[Annotated[str, Field(pattern=NAME)], HostEntry]


class Inventory(_Strict):
    """A loaded hosts.yaml. `groups` maps a group to its hosts' names."""

    path: Path
    hosts: dict[str, HostConfig]
    groups: dict[str, tuple[str, ...]]

    @property
    def base(self) -> Path:
        """The directory that relative paths in hosts.yaml start from."""
        return self.path.parent

    def facts_path(self, host: str) -> Path:
        """Where the committed facts of `host` lie."""
        return self.base / "facts" / f"{host}.yaml"

    def select(self, patterns: list[str]) -> list[HostConfig]:
        """Return the hosts that names, globs and groups mean, in file order. Raises UsageProblem."""
        from ddtree_ops.config.select import select_hosts

        return select_hosts(self, patterns)
