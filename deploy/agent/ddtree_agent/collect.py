"""`gc`: looks at what of ours is on the host, lets gcplan choose, and deletes that; safe to kill at any moment.

A thing that goes is first renamed to a name that no verb reads and that the next run (or push) sweeps.
"""

import glob
import os
import re
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, Dict, List

from . import decided, install, rollout, store
from .gcplan import Choice, Item, plan_gc
from .journal import open_txn, transactions
from .layout import Layout, locked, read_history, remove_tree, sync_dir
from .systemd import run
from .wire import AgentError, emit

_NAMED = re.compile(rb"DDTREE_RELEASE=([0-9a-f]+)|/opt/ddtree/releases/([0-9a-f]+)")
_AGENT = re.compile(rb"/opt/ddtree/agent/([0-9a-f]+)/")
_DIGEST = re.compile(r"[0-9a-f]+")
_EVIDENCE = re.compile(r"[0-9a-f]+-[0-9a-f]+-[0-9a-f]+")
#: Renamed to be deleted (.gone-), or never whole (.new-, Txn.create).
_SCRAPS = (".gone-", ".new-")


def collect(
    layout: Layout, who: str, agent: str, keep: int, failed_bytes: int, dry_run: bool
) -> Dict[str, Any]:
    """Free what no service of this host needs. `agent`: digest of the caller's agent.

    Returns {freed: bytes, dry_run, removed: [Choice], kept: [Choice]} (with `dry_run`: what would go). Raises
    AgentError(locked) while a rollout of any service is open, AgentError(precondition) where it cannot be known what
    is needed.
    """
    if keep < 1 or failed_bytes < 0:
        raise AgentError("usage", "gc keeps at least one release, and no negative number of bytes")
    services = layout.services()
    for each in services:
        rollout.note_reboot(each)
    with ExitStack() as stack:
        # Releases, evidence and agents are shared: nobody may begin anything meanwhile.
        for each in services:
            stack.enter_context(locked(each, f"gc by {who}"))
        for each in services:
            _idle(each)
        choices = _choose(layout, services, agent, keep, failed_bytes)
        gone = [choice for choice in choices if choice.goes]
        if not dry_run:
            for choice in gone:
                emit({"ev": "note", "text": f"removing {choice.item.kind} {choice.item.name}: {choice.why}"})
                _remove(layout, choice.item)
    return {
        "freed": sum(choice.item.bytes for choice in gone),
        "dry_run": dry_run,
        "removed": [choice.to_json() for choice in gone],
        "kept": [choice.to_json() for choice in choices if not choice.goes],
    }


def size_of(path: str) -> int:
    """Bytes that a file or tree occupies (st_blocks, stat(2)); what others link to as well is not counted."""
    total = 0
    for folder, _, names in os.walk(path):
        for name in [".", *names]:
            stat = os.lstat(os.path.join(folder, name))
            total += stat.st_blocks * 512 if name == "." or stat.st_nlink == 1 else 0
    return total


def _idle(layout: Layout) -> None:
    txn = open_txn(layout)
    if txn is None:
        return
    raise AgentError(
        "locked",
        f"rollout {txn.id} of {layout.service} by {txn.intent['who']} is open ({txn.state})",
        meaning="releases are shared by the services of a host: nothing was removed",
        next="ddtree-ops attach, then type the same command again when it has ended",
    )


def _choose(layout: Layout, services: List[Layout], agent: str, keep: int, failed_bytes: int) -> List[Choice]:
    used: Dict[str, float] = {}
    for each in services:
        for entry in read_history(each):
            used[str(entry.get("release"))] = max(entry["at"], used.get(str(entry.get("release")), 0.0))
    releases = [_release(layout, name, used) for name in _names(layout.releases, _DIGEST)]
    failed = [_evidence(layout, name) for name in _names(layout.failed, _EVIDENCE)]
    agents = [_agent(layout, name) for name in _names(layout.agents, _DIGEST)]
    txns = [_item("txn", each.txns, name, each.service) for each in services for name in transactions(each)]
    needed = {**_needed(layout, services), **_agents_in_use(), agent: "this command's own agent"}
    chosen = plan_gc(releases, failed, agents, txns, needed, keep, failed_bytes)
    return [*_leftovers(layout, services), *chosen]


def _needed(layout: Layout, services: List[Layout]) -> Dict[str, str]:
    """Releases that something stands on, by digest. Raises AgentError where that cannot be read."""
    found: Dict[str, str] = {}
    for environ in glob.glob("/proc/[0-9]*/environ"):
        for name in _named(environ, _NAMED, gone_is_fine=True):
            found[name] = f"process {environ.split('/')[2]} was started from it"
    for folder in ("run/systemd/system", "etc/systemd/system"):
        for path in sorted(glob.glob(os.path.join(layout.root, folder, "*.d", "*.conf"))):
            found.update(dict.fromkeys(_named(path, _NAMED), f"named by {path}"))
    for each in services:
        record = decided.confirmed(each)
        if record.get("damaged"):
            raise AgentError(
                "precondition",
                f"{each.confirmed} is damaged: which releases it needs is not known",
                meaning="nothing was removed",
                next="ddtree-ops deploy --adopt, which writes that record anew; then type the same command again",
            )
        if record.get("undo"):
            found[str(record["undo"])] = f"{each.service}: rollback goes there"
        found[str(record["release"])] = f"{each.service}: confirmed"
    return found


def _named(path: str, pattern: "re.Pattern[bytes]", gone_is_fine: bool = False) -> List[str]:
    try:
        with open(path, "rb") as file:
            text = file.read()
    except OSError as error:
        if gone_is_fine or isinstance(error, FileNotFoundError):
            return []  # a process that ended, a drop-in that was removed
        raise AgentError(
            "precondition",
            f"{path} cannot be read ({error.strerror}): which release it names is not known",
            meaning="nothing was removed",
            next=f"ls -l {path}, there",
        ) from None
    return [match.group(match.lastindex or 0).decode() for match in pattern.finditer(text)]


def _agents_in_use() -> Dict[str, str]:
    """Agents that a loaded unit or a living process of ours runs: a guard that waits is only a unit."""
    found = {}
    for path in glob.glob("/proc/[0-9]*/cmdline"):
        for name in _named(path, _AGENT, gone_is_fine=True):
            found[name] = f"process {path.split('/')[2]} runs it"
    status, out, _ = run(
        ["systemctl", "show", "--no-pager", "--property=Id,ExecStart", "ddtree-*.service"], 20
    )
    for match in _AGENT.finditer(out.encode() if status == 0 else b""):
        found[match.group(1).decode()] = "a runner or guard unit runs it"
    return found


def _release(layout: Layout, name: str, used: Dict[str, float]) -> Item:
    item = _item("release", layout.releases, name)
    try:
        store.manifest_of(layout, name)
    except AgentError:
        return replace(item, whole=False)
    return replace(item, at=max(item.at, used.get(name, 0.0)))


def _agent(layout: Layout, name: str) -> Item:
    path = os.path.join(layout.agents, name, install.NAME)
    return replace(_item("agent", layout.agents, name), whole=install.is_whole(path, name))


def _evidence(layout: Layout, name: str) -> Item:
    item = _item("failed", layout.failed, name)
    # a half-deleted release in it is a leftover, counted by itself
    return replace(item, bytes=item.bytes - size_of(os.path.join(layout.failed, name, "release")))


def _item(kind: str, folder: str, name: str, service: str = "") -> Item:
    path = os.path.join(folder, name)
    return Item(kind, name, size_of(path), os.lstat(path).st_mtime, service)


def _names(folder: str, pattern: "re.Pattern[str]") -> List[str]:
    """Directories of ours by their names; a link was not made by us, and what it names is not ours."""
    found = os.listdir(folder) if os.path.isdir(folder) else []
    return sorted(name for name in found if pattern.fullmatch(name) and _plain(os.path.join(folder, name)))


def _plain(path: str) -> bool:
    return os.path.isdir(path) and not os.path.islink(path)


def _leftovers(layout: Layout, services: List[Layout]) -> List[Choice]:
    """What a crash left: staging of pushes and of earlier collections, half-made records, half-deleted releases."""
    found = []
    suffixes = tuple("." + each.service for each in services)
    for name in os.listdir(layout.staging) if os.path.isdir(layout.staging) else []:
        if name.endswith(suffixes) and _plain(os.path.join(layout.staging, name)):
            found.append(_item("leftover", layout.staging, name))
    for each in services:
        for name in os.listdir(each.txns) if os.path.isdir(each.txns) else []:
            if name.startswith(_SCRAPS) and _plain(os.path.join(each.txns, name)):
                found.append(_item("leftover", each.txns, name, each.service))
    for name in _names(layout.failed, _EVIDENCE):
        if _plain(os.path.join(layout.failed, name, "release")):
            found.append(_item("leftover", os.path.join(layout.failed, name), "release", name))
    return [Choice(item, True, "an interrupted operation left it") for item in found]


def _remove(layout: Layout, item: Item) -> None:
    folder = _folder(layout, item)
    path = os.path.join(folder, item.name)
    if item.kind == "leftover":
        remove_tree(path, folder)
        return
    # Records lie on /var, which may be another filesystem than the staging of /opt.
    room = folder if item.kind == "txn" else layout.staging
    os.makedirs(room, exist_ok=True)
    name = f".gone-{item.name}" if item.kind == "txn" else f"gc-{item.kind}-{item.name}.{layout.service}"
    gone = os.path.join(room, name)
    remove_tree(gone, room)
    os.rename(path, gone)
    sync_dir(folder)
    remove_tree(gone, room)


def _folder(layout: Layout, item: Item) -> str:
    if item.kind == "txn":
        return Layout(item.service, layout.root).txns
    shared = {"release": layout.releases, "failed": layout.failed}
    if item.kind != "leftover":
        return shared.get(item.kind, layout.agents)
    if item.name == "release":
        return os.path.join(layout.failed, item.service)
    return Layout(item.service, layout.root).txns if item.service else layout.staging
