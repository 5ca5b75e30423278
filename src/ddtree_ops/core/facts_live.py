"""What the probe saw, typed: each section is either known or Unknown with the reason, never a default."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from ddtree_ops.core.checks.rule import Section
from ddtree_ops.core.fits import misfit

T = TypeVar("T")


@dataclass(frozen=True)
class Unknown:
    """A section that the probe could not read. No rule may take it for fine."""

    why: str


@dataclass(frozen=True)
class Session:
    uid: int
    python: str
    systemd: int | None
    systemd_is_init: bool
    pid1: str | None
    hostname: str
    machine_id: str | None
    boot_id: str | None
    time: float


@dataclass(frozen=True)
class FileHash:
    path: str
    sha256: str | None
    optional: bool = False


@dataclass(frozen=True)
class LateDropin:
    """An operator's drop-in that sorts after ours; `sets`: the names it sets, None where it cannot be read."""

    path: str
    sets: tuple[str, ...] | None


@dataclass(frozen=True)
class Service:
    """The unit as loaded. unread: drop-ins on disk that systemd has not read, or that it read and are gone."""

    load_state: str
    active_state: str
    sub_state: str
    result: str
    unit_file_state: str
    main_pid: int
    masked: bool
    need_daemon_reload: bool
    unread: tuple[str, ...]
    fragment: FileHash | None
    dropins: tuple[FileHash, ...]
    ours: tuple[FileHash, ...]
    late_dropins: tuple[LateDropin, ...]
    environment_files: tuple[FileHash, ...]


@dataclass(frozen=True)
class Launch:
    """How the unit starts its server. tp: tensor parallel size."""

    interpreter: str
    exists: bool
    flags: tuple[str, ...]
    path0: str
    device: str | None
    tp: int


@dataclass(frozen=True)
class Edited:
    file: str
    expected: str
    found: str


@dataclass(frozen=True)
class Record:
    """An installed distribution against its RECORD (PEP 376); at most 20 names of each kind."""

    present: bool
    edited: tuple[Edited, ...] = ()
    missing: tuple[str, ...] = ()
    extra: tuple[str, ...] = ()
    other: tuple[str, ...] = ()


@dataclass(frozen=True)
class Engine:
    """The installed engine package. `size`: bytes, `files`: hashes of the files asked for, None where absent."""

    interpreter: str
    python: str
    package: str | None
    version: str | None
    missing: bool
    ignores_pythonpath: bool
    record: Record
    tree: str
    size: int
    count: int
    elsewhere: tuple[str, ...]
    files: Mapping[str, str | None]


@dataclass(frozen=True)
class Torch:
    """cuda: the CUDA version of the build ("12.8"), None for a CPU build."""

    version: str
    cuda: str | None


@dataclass(frozen=True)
class Dist:
    name: str
    version: str
    local: str | None
    path: str


@dataclass(frozen=True)
class Kernel:
    """A binary of the kernel wheel. `needed`: its DT_NEEDED names, None where it could not be read."""

    file: str
    needed: tuple[str, ...] | None
    error: str | None = None


@dataclass(frozen=True)
class Abi:
    torch: Torch | None
    dists: tuple[Dist, ...]
    kernels: tuple[Kernel, ...]
    duplicates: Mapping[str, tuple[str, ...]]


@dataclass(frozen=True)
class Checkpoint:
    """A model directory. `exists` is None for a hub id, about which nothing is known here."""

    path: str
    exists: bool | None
    error: str | None = None
    architectures: tuple[str, ...] = ()
    hybrid: bool | None = None
    block_size: int | None = None
    missing_shards: tuple[str, ...] = ()


@dataclass(frozen=True)
class Model:
    target: Checkpoint | None
    draft: Checkpoint | None
    target_hybrid: bool | None
    context_length: int | None
    block_size: int | None


@dataclass(frozen=True)
class Room:
    """Free room of a filesystem; `inodes` is None where it does not count them."""

    path: str
    bytes: int
    inodes: int | None
    read_only: bool
    noexec: bool


@dataclass(frozen=True)
class Storage:
    opt: Room
    var: Room
    run: Room
    one_filesystem: bool


@dataclass(frozen=True)
class Owner:
    pid: int
    command: str
    ours: bool


@dataclass(frozen=True)
class Port:
    port: int
    owners: tuple[Owner, ...]
    unknown: int


@dataclass(frozen=True)
class User:
    """missing_group: Group= of the unit, where no database has it."""

    name: str
    exists: bool
    missing_group: str | None = None


@dataclass(frozen=True)
class OpenTxn:
    id: str
    state: str
    who: str | None
    running: bool = True


@dataclass(frozen=True)
class State:
    """What we left on the host. `confirmed`: the document of the confirmed release; `unknown`: what differs from what
    was confirmed, a sentence each; `hold`: who keeps deploys off."""

    confirmed: Mapping[str, Any] | None
    open: OpenTxn | None
    releases: tuple[str, ...]
    lock: str | None
    drift: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    hold: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Capabilities:
    """None: not measured."""

    systemd: int | None
    load_credential: bool | None
    nft: bool | None
    log: str


@dataclass(frozen=True)
class Gpu:
    present: bool
    count: int
    driver: str | None


@dataclass(frozen=True)
class Live:
    session: Session | Unknown
    service: Service | Unknown
    launch: Launch | Unknown
    engine: Engine | Unknown
    abi: Abi | Unknown
    model: Model | Unknown
    storage: Storage | Unknown
    port: Port | Unknown
    user: User | Unknown
    state: State | Unknown
    capabilities: Capabilities | Unknown
    gpu: Gpu | Unknown
    areas: Mapping[str, object] = field(default_factory=dict)
    nvidia: bool = False  # an NVIDIA GPU or its driver was seen

    def of(self, section: Section[T]) -> T | Unknown:
        """The facts of an area's section (core/checks)."""
        found = self.areas.get(section.name)
        return found if isinstance(found, section.kind) else _why(found)

    @property
    def cuda(self) -> bool | None:
        """Whether the server is to run on NVIDIA's GPUs: False for --device cpu and other makers' devices.

        Without --device the engine takes them where it finds some: True where the host shows one, else None.
        """
        device = self.launch.device if isinstance(self.launch, Launch) else None
        if device is None:
            return True if self.nvidia else None
        return device.startswith("cuda") if isinstance(device, str) else None


Raw = Mapping[str, Any]


def _why(found: object) -> Unknown:
    return found if isinstance(found, Unknown) else Unknown("the probe did not answer")


def parse(probe: Raw, sections: Iterable[Section[Any]] = ()) -> Live:
    """The probe's document as Live, with the areas' own sections. Never raises: what does not fit becomes Unknown."""
    return Live(
        areas={section.name: _known(probe, section.name, section.read) for section in sections},
        session=_known(probe, "session", lambda raw: _plain(Session, raw)),
        service=_known(probe, "service", _service),
        launch=_known(probe, "launch", lambda raw: _plain(Launch, raw)),
        engine=_known(probe, "engine", _engine),
        abi=_known(probe, "abi", _abi),
        model=_known(probe, "model", _model),
        storage=_known(probe, "storage", _storage),
        port=_known(
            probe,
            "port",
            lambda raw: Port(raw["port"], tuple(_plain(Owner, o) for o in raw["owners"]), raw["unknown"]),
        ),
        user=_known(probe, "user", lambda raw: _plain(User, raw)),
        state=_known(probe, "state", _state),
        capabilities=_known(probe, "capabilities", lambda raw: _plain(Capabilities, raw)),
        gpu=_known(probe, "gpu", lambda raw: _plain(Gpu, raw)),
        nvidia=_nvidia(probe),
    )


def _nvidia(probe: Raw) -> bool:
    """Whether any section saw an NVIDIA GPU or its driver, also one that failed half way.

    A GPU on the bus that another driver has (vfio-pci: a virtual machine's) is none of this host.
    """
    gpu, gpus = _raw(probe, "gpu"), _raw(probe, "gpus")
    nodes = _raw(_raw(probe, "devices"), "nodes")
    pci = gpus.get("pci")
    return bool(
        gpu.get("driver")
        or gpu.get("count")
        or any(_raw(gpus, "cards").values())
        or _raw(probe, "driver").get("module")
        or any(nodes[name] and re.fullmatch(r"/dev/nvidia\d+", name) for name in nodes)
        or any(
            _raw({"": one}, "").get("driver") == "nvidia" for one in (pci if isinstance(pci, list) else ())
        )
    )


def _raw(found: Raw, name: str) -> Raw:
    value = found.get(name)
    return value if isinstance(value, Mapping) else {}


def _known(probe: Raw, name: str, build: Callable[[Raw], T]) -> T | Unknown:
    raw = probe.get(name)
    if not isinstance(raw, Mapping):
        return Unknown("the probe did not answer")
    if raw.get("error"):
        return Unknown(str(raw["error"]))
    try:
        built = build(raw)
        wrong = misfit(built)
        return Unknown(f"the probe's answer does not fit: {wrong}") if wrong else built
    except Exception as error:  # whatever a reader trips over: the host said something else than agreed
        return Unknown(f"the probe's answer does not fit: {type(error).__name__} {error}")


def _plain(kind: type[T], raw: Raw, **given: Any) -> T:
    """A dataclass from the keys it has fields for; lists become tuples, an absent key without default is an error."""
    fields = kind.__dataclass_fields__  # type: ignore[attr-defined]
    values = {k: tuple(v) if isinstance(v, list) else v for k, v in raw.items() if k in fields}
    return kind(**{**values, **given})


def _hashes(raw: Any) -> tuple[FileHash, ...]:
    return tuple(_plain(FileHash, item) for item in raw)


def _service(raw: Raw) -> Service:
    late = tuple(_plain(LateDropin, item) for item in raw["late_dropins"])
    fragment = _plain(FileHash, raw["fragment"]) if raw["fragment"] else None
    names = ("dropins", "ours", "environment_files")
    return _plain(
        Service, raw, fragment=fragment, late_dropins=late, **{name: _hashes(raw[name]) for name in names}
    )


def _engine(raw: Raw) -> Engine:
    if raw.get("missing"):
        gone: dict[str, Any] = {"record": Record(False), "tree": "", "size": 0, "count": 0, "elsewhere": ()}
        return _plain(Engine, raw, files={}, **gone)
    edited = tuple(_plain(Edited, item) for item in raw["record"].get("edited", ()))
    record = _plain(Record, raw["record"], edited=edited)
    return _plain(Engine, raw, record=record, size=raw["bytes"], missing=False, files=dict(raw["files"]))


def _abi(raw: Raw) -> Abi:
    return Abi(
        torch=_plain(Torch, raw["torch"]) if raw["torch"] else None,
        dists=tuple(_plain(Dist, item) for item in raw["dists"]),
        kernels=tuple(_plain(Kernel, {"needed": None, **item}) for item in raw["kernels"]),
        duplicates={name: tuple(paths) for name, paths in raw["duplicates"].items()},
    )


def _model(raw: Raw) -> Model:
    sides = {k: _plain(Checkpoint, _bare(raw[k])) if raw[k] else None for k in ("target", "draft")}
    return _plain(Model, raw, **sides)


def _bare(raw: Raw) -> Raw:
    return {key: value for key, value in raw.items() if value is not None or key == "exists"}


def _storage(raw: Raw) -> Storage:
    rooms = {name: _plain(Room, raw[name]) for name in ("opt", "var", "run")}
    return Storage(**rooms, one_filesystem=raw["one_filesystem"])


def _state(raw: Raw) -> State:
    return _plain(State, raw, open=_plain(OpenTxn, raw["open"]) if raw["open"] else None)
