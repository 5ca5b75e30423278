"""Where a host is not what was confirmed on it: a sentence for each, so that nothing is overwritten unseen."""

import os
import re
from typing import Any, Dict, List, Mapping, Optional

from . import drain, gate, probe_unit, service, store
from .decided import confirmed, kept_text
from .journal import Txn, open_txn, transactions
from .layout import BASELINE, Layout
from .systemd import show
from .wire import AgentError

#: A confirm is a few renames.
_STUCK_S = 30.0
_SINCE = "since the last confirm or adopt"
_UNREAD = "systemd has not read it"
_OF_UNIT = re.compile(r"/\S+\.(service|conf)\b")


def drift(layout: Layout, known: Optional[List[str]] = None) -> List[str]:
    """Every difference, also those that a deploy mends anyway; while a rollout is on its way, only that it is stuck.

    `known`: what `unknown` has said already (it hashes a whole release).
    """
    txn = open_txn(layout)
    if txn is not None:
        stuck = txn.state == "CONFIRMING" and txn.age_s() > _STUCK_S
        return [f"rollout {txn.id} cannot end its confirm: is the disk full, or read-only?"] if stuck else []
    unit = show(layout.service, ["ActiveState"])
    down = unit.get("ActiveState") != "active"
    idle = [f"{layout.service} is {unit.get('ActiveState', 'unknown')}: nothing serves"] if down else []
    differs = unknown(layout) if known is None else known
    return [*once(differs, unread(layout)), *_left(layout), *idle]


def unknown(layout: Layout, damaged: Optional[List[str]] = None) -> List[str]:
    """What nobody confirmed and a deploy would overwrite or build on: it is refused until the operator adopts it.

    The caller sees to it that no rollout is open. `damaged`: what `overlay` has said already of the confirmed release.
    """
    record = confirmed(layout)
    found = []
    if record.get("damaged"):
        found.append(f"{layout.confirmed} is damaged; the drop-in in /etc was read instead")
    if os.path.exists(layout.trial):
        found.append(
            f"{layout.trial} is in place though no rollout is open: ddtree-ops rollback takes it away"
        )
    found += overlay(layout, record["release"]) if damaged is None else damaged
    found += _kept(layout, record["release"])
    running = service.running_release(layout.service) or BASELINE
    if service.main_pid(layout.service) and running != record["release"]:
        found.append(f"the main process runs {running}, {record['release']} is confirmed")
    now = files(layout)
    return found if now is None else found + edited(record.get("files"), now)


def overlay(layout: Layout, release: str) -> List[str]:
    """The first file of a release that is not what its manifest says; [] for the baseline, which has none of ours."""
    if release == BASELINE:
        return []
    try:
        store.verify(layout, release)
    except AgentError as error:
        return [str(error.fields["what"])]
    except OSError as error:
        return [f"release {release} on this host is damaged: {error.filename}: {error.strerror}"]
    except (KeyError, TypeError):
        return [f"release {release} on this host is damaged: its manifest.json lacks what it had"]
    return []


def once(differs: List[str], fresh: List[str]) -> List[str]:
    """Sentences on what differs, and those on what systemd has not read of it: a file that both name is told once."""
    told = list(differs)
    for said in fresh:
        paths = _paths(said)
        if paths:
            same = [i for i, one in enumerate(told) if paths & _paths(one)]
        else:  # systemd's own flag names no file: it is the one that is told, where that is clear
            same = [i for i, one in enumerate(told) if _OF_UNIT.search(one)]
            if any(_UNREAD in told[i] for i in same):
                continue
            same = same if len(same) == 1 else []
        for i in same:
            told[i] += f"; {_UNREAD}: systemctl daemon-reload"
        if not same:
            told.append(said)
    return told


def _paths(said: str) -> "set[str]":
    return {word.strip(":;,") for word in said.split() if word.startswith("/")}


def unread(layout: Layout) -> List[str]:
    """What lies on disk and systemd has not read: the next daemon-reload, ours, would bring it in."""
    unit = show(layout.service, ["DropInPaths", "NeedDaemonReload"])
    paths = probe_unit.unread(layout.service, unit.get("DropInPaths", "").split())
    found = [f"drop-in {path} changed on disk and {_UNREAD}" for path in paths]
    if unit.get("NeedDaemonReload") == "yes":
        found.append(f"unit files of {layout.service} changed on disk: systemctl daemon-reload")
    return found


def files(layout: Layout) -> Optional[Dict[str, str]]:
    """sha256 of the operator's own files by path (unit, drop-ins, environment files), as systemd has them loaded.

    None where systemd does not answer: unknown is no drift.
    """
    seen = probe_unit.service(layout.service)
    return None if "error" in seen else hashes(seen)


def hashes(unit: Mapping[str, Any]) -> Dict[str, str]:
    """{path: sha256} of a unit's files, from the probe's section or from recorded facts; absent files are left out."""
    named = [unit.get("fragment"), *(unit.get("dropins") or ()), *(unit.get("environment_files") or ())]
    return {str(f["path"]): str(f["sha256"]) for f in named if f and f.get("path") and f.get("sha256")}


def edited(before: Optional[Mapping[str, str]], now: Mapping[str, str]) -> List[str]:
    """The files that differ; a host that was confirmed before this was recorded has nothing to compare with."""
    if before is None:
        return []
    told = {path: "is gone" for path in before if path not in now}
    told.update({path: "is new" for path in now if path not in before})
    told.update({path: "was edited" for path in now if before.get(path, now[path]) != now[path]})
    return [f"{_kind(path)} {path} {told[path]} {_SINCE}" for path in sorted(told)]


def must_be_known(layout: Layout, accepted: List[str]) -> None:
    """Raise AgentError where the host differs in more than what the operator accepted. The caller holds the lock."""
    found = [said for said in unknown(layout) if said not in accepted]
    found = once(found, [said for said in unread(layout) if said not in accepted])
    if found:
        raise AgentError(
            "precondition",
            "the host is not what was confirmed on it: " + "; ".join(found),
            meaning="somebody changed it after the plan; nothing was stopped",
            next="ddtree-ops deploy --adopt, to take it over as it is, or put it back",
        )


def take_over(layout: Layout) -> None:
    """Before a stop: the release to come back to must be whole and its drop-in its own, whatever was adopted.

    Raises AgentError where the confirmed release is damaged: it could not be gone back to.
    """
    release = confirmed(layout)["release"]
    damaged = overlay(layout, release)
    if damaged:
        raise AgentError(
            "precondition",
            f"the release to go back to does not verify: {damaged[0]}",
            meaning="a rollback would start it; nothing was stopped",
            next="ddtree-ops rollback --to baseline, or deploy the same release again, which builds it anew",
        )
    if _kept(layout, release):
        service.put_kept(layout, kept_text(layout, release))
        service.reload()


def _left(layout: Layout) -> List[str]:
    """What a rollout of ours did not take away: a deploy does, nothing of the operator's is overwritten."""
    found = []
    if any(drain.drained(Txn(layout, name)) for name in transactions(layout)[-1:]):
        found.append("the last rollout's drain was not undone: run drain.undo of hosts.yaml by hand")
    if gate.there(layout.service):
        found.append(
            f"a traffic gate keeps users out though no rollout is open: nft delete table inet "
            f"{gate.table_of(layout.service)}"
        )
    return found


def _kept(layout: Layout, release: str) -> List[str]:
    try:
        with open(layout.kept, encoding="utf-8", errors="replace") as file:
            found: Optional[str] = file.read()
    except FileNotFoundError:
        found = None
    if release == BASELINE:
        return [] if found is None else [f"{layout.kept} is there though the baseline is confirmed"]
    if found is None:
        return [f"{layout.kept} is missing though {release} is confirmed"]
    try:
        manifest = store.manifest_of(layout, release)
        text = store.dropin_text(manifest)
        if found != text:
            return [f"{layout.kept} is not what release {release} put there"]
        if not os.path.exists(layout.trial):
            service.read_back(layout, layout.kept, manifest["exec_argv"], text)
    except AgentError as error:
        return [" ".join(str(error.fields[key]) for key in ("what", "meaning") if error.fields[key])]
    return []


def _kind(path: str) -> str:
    if os.path.dirname(path).endswith(".d") and path.endswith(".conf"):
        return "drop-in"
    return "unit file" if path.endswith(".service") else "environment file"
